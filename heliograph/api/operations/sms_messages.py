"""SMS messages: the shapes and handlers of list, read and cancel. The rules are `sms.messages`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import NUMBER, HasMore, Items, NextCursor, Success, Time
from heliograph.api.shapes.paging import DateFrom, DateTo, PageQuery
from heliograph.base import phones
from heliograph.base.clock import iso
from heliograph.base.errors import Invalid
from heliograph.sms import messages
from heliograph.sms.messages import Filters, MessageNotCancelable, Step
from heliograph.sms.status import FAILURES, STATUSES

StatusName = Annotated[str, Meta(extra_json_schema={"enum": list(STATUSES)})]


class MessageQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Which messages to list."""

    status: Annotated[
        Literal[
            "accepted",
            "sending",
            "sent",
            "delivered",
            "undelivered",
            "failed",
            "expired",
            "rejected",
            "canceled",
            "unknown",
        ]
        | None,
        Meta(description="Those that are in this state now."),
    ] = None
    recipient: Annotated[
        Annotated[str, Meta(max_length=64, extra_json_schema={"pattern": NUMBER})] | None,
        Meta(description="Those to this number, with country code."),
    ] = None
    client_reference: Annotated[
        Annotated[str, Meta(max_length=255)] | None, Meta(description="Those with exactly this reference.")
    ] = None
    campaign_id: Annotated[UUID | None, Meta(description="Those of this campaign.")] = None
    date_from: DateFrom = None
    date_to: DateTo = None


class SmsFailure(msgspec.Struct):
    """Why a message failed, in words of this service."""

    code: Annotated[str, Meta(description="Decide by this.", extra_json_schema={"enum": list(FAILURES)})]
    message: Annotated[str, Meta(description="For people.")]


class SmsMessage(msgspec.Struct, rename="camel", kw_only=True):
    """A message as it is now."""

    id: Annotated[UUID, Meta(description="As it was answered to the send.")]
    client_reference: Annotated[str | None, Meta(description="As it was sent.")]
    channel: Annotated[Literal["sms"], Meta(description="How it is carried.")]
    status: Annotated[StatusName, Meta(description="Where it stands now.")]
    mode: Annotated[Literal["live", "test"], Meta(description="The kind of key that sent it.")]
    to: Annotated[str, Meta(description="Recipient, with `+` and country code.", examples=["+258841234567"])]
    sender: Annotated[str, Meta(description="What the recipient sees it come from.", examples=["HELIOGRAPH"])]
    sender_id: Annotated[UUID, Meta(description="The sender ID that this is.")]
    encoding: Annotated[Literal["gsm7", "ucs2"], Meta(description="How its text is encoded.")]
    segments: Annotated[int, Meta(description="How many it is sent in.")]
    campaign_id: Annotated[UUID | None, Meta(description="The campaign that it belongs to.")]
    delivery_guarantee: Annotated[
        Literal["at_least_once", "at_most_once"], Meta(description="What is done when a supplier's answer was lost.")
    ]
    accepted_at: Annotated[Time, Meta(description="When it was stored.")]
    send_at: Annotated[Time | None, Meta(description="Not before this, if that was asked for.")]
    expires_at: Annotated[Time, Meta(description="Not sent any more after this.")]
    sent_at: Annotated[Time | None, Meta(description="When it was handed over to the network.")]
    delivered_at: Annotated[Time | None, Meta(description="When it reached the recipient.")]
    failed_at: Annotated[Time | None, Meta(description="When it became undelivered, failed, expired or rejected.")]
    canceled_at: Annotated[Time | None, Meta(description="When it was canceled.")]
    failure: Annotated[SmsFailure | None, Meta(description="Why it failed, if it did.")]


class SmsMessageWithText(SmsMessage, rename="camel", kw_only=True):
    """A message as it is now, with what it says."""

    message: Annotated[str | None, Meta(description="The text; null once it was erased, after 30 days by default.")]


class SmsDelivery(msgspec.Struct, rename="camel"):
    """An event of the message, posted once to a webhook endpoint."""

    event_id: Annotated[UUID, Meta(description="The event's id, the same in each attempt.")]
    type: Annotated[str, Meta(description="The event's kind.", examples=["message.delivered"])]
    webhook_endpoint_id: Annotated[UUID, Meta(description="Where it was posted to.")]
    attempt: Annotated[int, Meta(description="Which attempt to deliver it there, from 1.")]
    result: Annotated[str, Meta(description="`delivered`, or what went wrong.", examples=["delivered"])]
    http_status: Annotated[int | None, Meta(description="Of the receiver's answer, if there was one.")]
    duration_ms: Annotated[int, Meta(description="How long it took.")]


class SmsStep(msgspec.Struct, rename="camel"):
    """Something that happened to the message: it reached a status, or an event of it was posted."""

    at: Annotated[Time, Meta(description="When.")]
    type: Annotated[Literal["status", "webhook"], Meta(description="Which of the two.")]
    status: Annotated[StatusName | None, Meta(description="The status that it reached.")]
    failure: Annotated[SmsFailure | None, Meta(description="Why it failed, if that was the step.")]
    delivery: Annotated[SmsDelivery | None, Meta(description="The attempt to deliver an event.")]


class SmsMessageList(msgspec.Struct, rename="camel"):
    """A page of messages, newest first. One with filters may hold fewer than asked for, though there are more."""

    success: Success
    items: Items[SmsMessage]
    next_cursor: NextCursor
    has_more: HasMore


class SmsMessageRead(msgspec.Struct):
    """A message, what it says, and what happened to it, in order of time."""

    success: Success
    message: Annotated[SmsMessageWithText, Meta(description="The message.")]
    timeline: Annotated[list[SmsStep], Meta(description="What happened to it, in order of time.")]


class SmsCanceled(msgspec.Struct):
    """The message as it is now: canceled."""

    success: Success
    message: Annotated[SmsMessage, Meta(description="The message, canceled.")]


async def list_sms_messages(call: Call, query: MessageQuery) -> SmsMessageList:
    """List messages.

    Newest first. One page is looked for among 20,000 messages at most: with filters it may hold fewer than asked
    for, or none, while `hasMore` is true; `nextCursor` then goes on from there. Give `dateFrom` and `dateTo` to
    look in the right place at once.
    """
    if query.recipient is not None:
        # A `+` that was not encoded arrives as a space. Two spellings of a number are one filter, also in cursors.
        recipient = phones.parse(query.recipient.lstrip(" "))
        if recipient is None:
            raise Invalid(("recipient", "pattern", "`recipient` must be a phone number with country code"))
        call.query = query = msgspec.structs.replace(query, recipient=recipient)
    filters = Filters(**{name: getattr(query, name) for name in Filters.__struct_fields__ if name != "mode"})
    after = paging.after_id(call, "sms_messages")
    found = await messages.list_page(call.conn, call.actor, filters=filters, after=after, limit=query.limit)
    items, following, more = paging.page(
        call,
        "sms_messages",
        found.messages,
        position=lambda message: [message.id],
        shown=lambda message: SmsMessage(**_shown(message)),
        seen=None if found.seen is None else [found.seen],
    )
    return SmsMessageList(True, items, following, more)


async def get_sms_message(call: Call, message_id: UUID) -> SmsMessageRead:
    """Read a message and what happened to it."""
    story = await messages.get(call.conn, call.actor, id=message_id)
    message = SmsMessageWithText(message=story.text, **_shown(story.message))
    return SmsMessageRead(True, message, [_step(step) for step in story.steps])


@operation(refusals=(MessageNotCancelable,))
async def cancel_sms_message(call: Call, message_id: UUID) -> SmsCanceled:
    """Cancel a message.

    Works as long as no supplier has it: while it waits for its time or for its turn. Its unit of quota comes back.
    Canceling again answers the same.
    """
    message = await messages.cancel(call.conn, call.actor, id=message_id)
    return SmsCanceled(True, SmsMessage(**_shown(message)))


def _shown(message: messages.Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "client_reference": message.client_reference,
        "channel": "sms",
        "status": message.status,
        "mode": message.mode,
        "to": message.recipient,
        "sender": message.sender,
        "sender_id": message.sender_id,
        "encoding": message.encoding,
        "segments": message.segments,
        "campaign_id": message.campaign_id,
        "delivery_guarantee": message.guarantee,
        "accepted_at": iso(message.accepted_at),
        "send_at": _time(message.send_at),
        "expires_at": iso(message.expires_at),
        "sent_at": _time(message.sent_at),
        "delivered_at": _time(message.delivered_at),
        "failed_at": _time(message.failed_at),
        "canceled_at": _time(message.ended_at) if message.status == "canceled" else None,
        "failure": _failure(message.failure_code),
    }


def _step(step: Step) -> SmsStep:
    delivery = None
    if step.delivery is not None:
        delivery = SmsDelivery(
            event_id=step.delivery.event_id,
            type=step.delivery.kind,
            webhook_endpoint_id=step.delivery.endpoint_id,
            attempt=step.delivery.attempt,
            result=step.delivery.result,
            http_status=step.delivery.status,
            duration_ms=step.delivery.duration_ms,
        )
    kind: Literal["status", "webhook"] = "status" if delivery is None else "webhook"
    return SmsStep(iso(step.at), kind, step.status, _failure(step.failure_code), delivery)


def _failure(code: str | None) -> SmsFailure | None:
    return SmsFailure(code, FAILURES[code]) if code else None


def _time(at: datetime | None) -> str | None:
    return None if at is None else iso(at)
