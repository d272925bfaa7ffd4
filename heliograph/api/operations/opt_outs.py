"""Opt-outs: shapes and handlers. The rules are `consent.optouts`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import HasMore, Items, NextCursor, Success, Time
from heliograph.api.shapes.paging import PageQuery
from heliograph.base import phones
from heliograph.base.database.clock import iso
from heliograph.base.errors import Invalid, NotFound
from heliograph.consent import optouts
from heliograph.consent.optouts import NotYoursToLift
from heliograph.suppliers.whatsapp_cloud.bodies import is_user_id

COLLECTION = "opt_outs"

#: From the length of "1 4155550100" to that of the longest WhatsApp user id.
Recipient = Annotated[str, Meta(min_length=7, max_length=160)]
Reason = Annotated[str, Meta(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]


class AddOptOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A person who asked not to be messaged again."""

    recipient: Annotated[
        Recipient,
        Meta(description="Phone number with country code, or a WhatsApp user id.", examples=["+258849990001"]),
    ]
    reason: Annotated[Reason | None, Meta(description="Why, for your own records: kept in the audit log.")] = None


class OptOut(msgspec.Struct, kw_only=True):
    """A person who receives no messages from your organization."""

    recipient: Annotated[
        str, Meta(description="Phone number in E.164 format, or a WhatsApp user id.", examples=["+258849990001"])
    ]
    since: Annotated[Time, Meta(description="When they opted out.")]
    source: Annotated[
        str,
        Meta(
            description=(
                "How: `keyword` (they wrote STOP), `organization` (added through this API), `operator`, or `supplier` "
                "(they told the network, which refused a message because of it)."
            ),
            examples=["keyword"],
        ),
    ]
    keyword: Annotated[str | None, Meta(description="The keyword that they wrote, if any.")]
    message_id: Annotated[UUID | None, Meta(description="The received message with the keyword, if there was one.")]


class OptOutAnswer(msgspec.Struct, rename="camel"):
    """The opt-out."""

    success: Success
    opt_out: Annotated[OptOut, Meta(description="The opt-out.")]


class OptOutList(msgspec.Struct, rename="camel"):
    """A page of opt-outs, newest first."""

    success: Success
    items: Items[OptOut]
    next_cursor: NextCursor
    has_more: HasMore


class OptOutQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Filters for opt-outs."""

    recipient: Annotated[
        Recipient | None,
        Meta(description="Only this person: a phone number with country code, or a WhatsApp user id."),
    ] = None


class WhichOptOut(msgspec.Struct, frozen=True):
    """The opt-out to lift."""

    recipient: Annotated[Recipient, Meta(description="Phone number with country code, or a WhatsApp user id.")]
    reason: Annotated[Reason | None, Meta(description="Why, for your own records: kept in the audit log.")] = None

    def __post_init__(self) -> None:
        """Two spellings of a number are the same payload for an idempotency key."""
        msgspec.structs.force_setattr(self, "recipient", _who(self.recipient))


async def canonical(body: AddOptOut) -> AddOptOut:
    """The person as they are stored; no reason is an empty one. Raises Invalid."""
    return msgspec.structs.replace(body, recipient=_who(body.recipient), reason=body.reason or None)


async def list_opt_outs(call: Call, query: OptOutQuery) -> OptOutList:
    """List opt-outs.

    Newest first. They apply to live and test keys alike.
    """
    position = paging.after(call, COLLECTION)
    if query.recipient is not None:
        one = await optouts.find(call.conn, call.actor, phone=_who(query.recipient))
        return OptOutList(True, [] if one is None else [_shown(one)], None, False)
    found = await optouts.list_page(
        call.conn,
        call.actor,
        after=None if position is None else (datetime.fromisoformat(position[0]), position[1]),
        limit=query.limit + 1,
    )
    return OptOutList(
        True,
        *paging.page(
            call,
            COLLECTION,
            found,
            position=lambda row: [row[0].since.isoformat(), row[1]],
            shown=lambda row: _shown(row[0]),
        ),
    )


@operation(status=201, canonical=canonical, live_only=True, while_stopped=True)
async def add_opt_out(call: Call, body: AddOptOut) -> OptOutAnswer:
    """Add an opt-out.

    For people who asked not to be messaged again in another way than by writing STOP. Adding an existing opt-out
    changes nothing. It raises `contact.opted_out`."""
    one = await optouts.add(call.conn, call.actor, phone=body.recipient, reason=body.reason or "")
    return OptOutAnswer(True, _shown(one))


@operation(live_only=True, refusals=(NotFound, NotYoursToLift))
async def lift_opt_out(call: Call, query: WhichOptOut) -> OptOutAnswer:
    """Lift an opt-out that your organization has added.

    People who wrote STOP lift it themselves, by writing START; nobody can do it for them.
    """
    one = await optouts.remove(call.conn, call.actor, phone=query.recipient, reason=query.reason or "")
    return OptOutAnswer(True, _shown(one))


def _who(text: str) -> str:
    """Normalize to a number with +, even if a query string turned it into a space, or a user id. Raises Invalid."""
    text = text.strip()
    if is_user_id(text):
        return text
    number = phones.normalize(text)
    if number is None:
        raise Invalid(("recipient", "pattern", "`recipient` must be a phone number with country code"))
    return number


def _shown(one: optouts.OptOut) -> OptOut:
    return OptOut(
        recipient=one.recipient,
        since=iso(one.since),
        source=one.source,
        keyword=one.keyword,
        message_id=one.message_id,
    )
