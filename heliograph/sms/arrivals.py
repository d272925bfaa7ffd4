"""Consequences of a message's change of status: roll-up deltas, amounts that become due, its event.

The rule nobody may break: what customers read about a message contains nothing from the supplier.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph import traffic
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.process import spans
from heliograph.prices import margins
from heliograph.webhooks.recording import events
from heliograph.why import words

#: Customers' descriptions of failures, by code. Never a supplier's text.
FAILURES = words.customer_texts("sms_failure")
#: Statuses of messages that no supplier has.
WAITING = ("accepted", "sending")


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A message that has just moved: first the fields of its move, then the rest of its row, as `status.MOVE` returns
    it."""

    organization_id: UUID
    id: UUID
    #: Its new status, when it took effect, and why it failed.
    status: str
    at: datetime
    failure_code: str | None
    #: The contract event of its status.
    kind: str | None
    #: Its receipt attributes the failure to the recipient.
    recipients: bool
    #: A supplier's refusal ended it.
    refused: bool
    mode: str
    segments: int
    country: str
    sender: str
    accepted_at: datetime
    #: When a supplier accepted it; None for one that became `sent` by this move.
    sent_before: datetime | None
    previous_status: str
    supplier_id: UUID | None
    recipient: str
    client_reference: str | None
    request_id: str
    send_at: datetime | None
    expires_at: datetime | None
    network: str | None
    price: int | None
    price_currency: str | None
    price_due: str | None
    cost: int | None
    cost_currency: str | None
    cost_due: str | None
    route: str | None
    #: It had ended without a known supplier, and this move establishes which one had it.
    was_found: bool = False

    @property
    def sent_at(self) -> datetime | None:
        """When a supplier accepted it; None if none is known to have it."""
        return self.sent_before or (self.at if self.status == "sent" else None)


def change(one: Arrival) -> traffic.Change:
    """The traffic deltas of a message that moved."""
    old, status, at, accepted_at, sent = one.previous_status, one.status, one.at, one.accepted_at, one.sent_at
    begun = accepted_at if one.send_at is None else max(accepted_at, one.send_at)
    new = _newly(one)
    took: float | None = None
    is_late = False
    # Only a receipt ends a message that a supplier has, unless none arrives.
    if sent is not None and one.kind is not None:
        took = (at - sent).total_seconds()
        is_late = (old == "unknown" and not one.was_found) or at > (one.expires_at or sent + traffic.LATE)
    return traffic.Change(
        one.organization_id,
        "sms",
        one.mode,
        one.country,
        one.sender,
        one.segments,
        accepted_at,
        old,
        status,
        one.supplier_id,
        (sent - begun).total_seconds() if new and sent is not None else None,
        (at - begun).total_seconds() if status == "delivered" else None,
        # Only expired failures may move again; their code is then no longer in the row, so the status stands for it.
        old if old == "expired" else "",
        status if status == "expired" else one.failure_code or "",
        sent,
        took,
        is_late,
        one.network or "",
        one.recipients,
        one.cost or 0,
        one.cost_currency or "",
        one.cost_due or "",
        one.was_found,
    )


def is_found(one: Arrival) -> bool:
    """True if it had ended without a known supplier, and was delivered nevertheless."""
    return one.status == "delivered" and one.supplier_id is None and one.previous_status not in WAITING and _newly(one)


def _newly(one: Arrival) -> bool:
    """True if no supplier was known to have it. One that had ended without news may turn out to have arrived."""
    return one.previous_status in WAITING or (one.previous_status in ("unknown", "expired") and one.sent_at == one.at)


def due(one: Arrival, at: datetime) -> margins.Due | None:
    """The amounts that a live message made due by moving: when a supplier accepts it, and when it is delivered. `at`:
    now. A move may be based on a receipt that came earlier, on a day whose invoices are written."""
    price, cost = one.price, one.cost
    if (price is None and cost is None) or one.mode != "live":
        return None
    arrives = one.status == "delivered"
    taken = _newly(one) and one.sent_at is not None
    if not taken and not arrives:
        return None
    now = {"submit": taken, "delivered": arrives}
    return _due(
        one,
        at,
        messages=int(taken),
        price=price if price is not None and now[one.price_due or ""] else 0,
        cost=cost if cost is not None and now[one.cost_due or ""] else 0,
    )


def taken_back(one: Arrival, at: datetime) -> margins.Due | None:
    """The amount that the organization no longer owes for a message refunded now; None: nothing had become due."""
    if not one.price or one.price_due != "submit" or one.sent_at is None:
        return None
    return _due(one, at, price=-one.price)


def _due(one: Arrival, at: datetime, *, messages: int = 0, price: int = 0, cost: int = 0) -> margins.Due:
    return margins.Due(
        organization_id=one.organization_id,
        at=at,
        supplier_id=one.supplier_id,
        country=one.country,
        network=one.network or "",
        route=one.route or "",
        messages=messages,
        segments=one.segments if messages else 0,
        price=price,
        price_currency=one.price_currency or "",
        cost=cost,
        cost_currency=one.cost_currency or "",
    )


def event(one: Arrival, id: UUID, kind: str) -> events.Event:
    """An event about a message that moved."""
    return events.Event(one.organization_id, id, kind, one.request_id, message_data(one), one.at, one.id, one.mode)


async def also_sent(conn: Connection, arrived: Iterable[Arrival]) -> list[events.Event]:
    """`message.sent` for messages that had ended without news, if it is their delivery that shows that a supplier had
    them, for organizations that want it."""
    found = [one for one in arrived if one.status == "delivered" and one.previous_status == "unknown" and _newly(one)]
    if not found:
        return []
    wanting = await events.wanted(conn, [one.organization_id for one in found], "message.sent")
    return [
        event(
            msgspec.structs.replace(one, status="sent", sent_before=None), spans.like(one.id, uuid7()), "message.sent"
        )
        for one in found
        if (one.organization_id, one.mode) in wanting
    ]


class _Failure(msgspec.Struct, frozen=True, gc=False):
    code: str
    message: str


class _Message(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A message as shown in events."""

    id: UUID
    client_reference: str | None
    channel: str
    to: str
    status: str
    segments: int
    accepted_at: str
    sent_at: str | None
    delivered_at: str | None
    failed_at: str | None
    failure: _Failure | None


class _Data(msgspec.Struct, frozen=True, gc=False):
    message: _Message


_encode = msgspec.json.Encoder().encode


def message_data(one: Arrival) -> str:
    """The `data` of a message's event, as JSON."""
    at, code, status, sent = iso(one.at), one.failure_code, one.status, one.sent_at
    message = _Message(
        one.id,
        one.client_reference,
        "sms",
        one.recipient,
        status,
        one.segments,
        iso(one.accepted_at),
        iso(sent) if sent is not None else None,
        at if status == "delivered" else None,
        at if code is not None and status != "unknown" else None,
        _Failure(code, FAILURES[code]) if code else None,
    )
    return _encode(_Data(message)).decode()
