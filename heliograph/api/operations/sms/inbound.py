"""Received messages: shapes and the handler. The rule is `sms.received.inbound`."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import NUMBER, HasMore, Items, NextCursor, Success, Time
from heliograph.api.shapes.paging import DateFrom, DateTo, PageQuery
from heliograph.base import phones
from heliograph.base.database.clock import iso
from heliograph.base.errors import Invalid
from heliograph.sms.received import inbound
from heliograph.sms.received.inbound import Received

COLLECTION = "sms_inbound"
Keyword = Literal["stop", "start", "help"]


class InboundQuery(
    PageQuery,
    frozen=True,
    rename={"date_from": "dateFrom", "date_to": "dateTo", "sender_id": "senderId", "sender": "from"},
    kw_only=True,
):
    """Filters for received messages."""

    date_from: DateFrom = None
    date_to: DateTo = None
    sender: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(
            description="Only messages from this number, with country code, in any spelling.",
            extra_json_schema={"pattern": NUMBER},
        ),
    ] = None
    sender_id: Annotated[UUID | None, Meta(description="Only messages to this sender ID.")] = None
    keyword: Annotated[
        Keyword | None, Meta(description="Only messages that are this keyword: `stop`, `start` or `help`.")
    ] = None


class SmsReceived(
    msgspec.Struct,
    rename={
        "from_": "from",
        "sender_id": "senderId",
        "missing_segments": "missingSegments",
        "received_at": "receivedAt",
    },
    kw_only=True,
):
    """A message from a handset."""

    id: Annotated[UUID, Meta(description="Id of the message, as in `message.received`.")]
    channel: Annotated[Literal["sms"], Meta(description="The channel.")]
    from_: Annotated[
        str, Meta(description="Who wrote it, in E.164 format where it is a phone number.", examples=["+258841234567"])
    ]
    to: Annotated[str, Meta(description="The sender ID that it was sent to.", examples=["90210"])]
    sender_id: Annotated[UUID, Meta(description="Id of that sender ID.")]
    text: Annotated[
        str | None,
        Meta(description="The text; null if it has none, or after it has been erased (30 days by default)."),
    ]
    segments: Annotated[int, Meta(description="Number of segments.")]
    missing_segments: Annotated[int, Meta(description="Segments that never arrived; the text lacks them.")]
    keyword: Annotated[str | None, Meta(description="`stop`, `start` or `help` for such a keyword; otherwise null.")]
    received_at: Annotated[Time, Meta(description="When it arrived.")]


class SmsReceivedList(msgspec.Struct, rename="camel"):
    """A page of received messages, newest first. With filters it can hold fewer than `limit` items although there are
    more."""

    success: Success
    items: Items[SmsReceived]
    next_cursor: NextCursor
    has_more: HasMore


async def list_sms_inbound(call: Call, query: InboundQuery) -> SmsReceivedList:
    """List received messages.

    Newest first. As with sent messages, a page scans at most 20,000: `nextCursor` continues from there. Test keys
    receive nothing.
    """
    sender = None
    if query.sender is not None:
        # An unencoded `+` arrives as a space. Numbers are normalized, so that two spellings are one filter, also in
        # cursors.
        sender = phones.parse(query.sender.lstrip(" "))
        if sender is None:
            raise Invalid(("from", "pattern", "`from` must be a phone number with country code"))
        call.query = query = msgspec.structs.replace(query, sender=sender)
    found = await inbound.list_page(
        call.conn,
        call.actor,
        # As its supplier wrote it, which may be in another way than it is dialed.
        senders=None if sender is None else phones.spellings(sender),
        sender_id=query.sender_id,
        keyword=query.keyword,
        date_from=query.date_from,
        date_to=query.date_to,
        after=paging.after_id(call, COLLECTION),
        limit=query.limit,
    )
    items, following, more = paging.page(
        call,
        COLLECTION,
        found.messages,
        position=lambda message: [message.id],
        shown=_shown,
        seen=None if found.seen is None else [found.seen],
    )
    return SmsReceivedList(True, items, following, more)


def _shown(message: Received) -> SmsReceived:
    return SmsReceived(
        id=message.id,
        channel="sms",
        from_=message.sender,
        to=message.recipient,
        sender_id=message.sender_id,
        text=message.body,
        segments=message.segments,
        missing_segments=message.missing,
        keyword=message.keyword,
        received_at=iso(message.received_at),
    )
