"""Roll-up deltas for a batch of moves: one row per combination in it, not per message.

Accepting writes its own deltas in SQL (`accept.sql`, `bulk.sql`). The rule nobody may break: a message is subtracted
where it was counted, under the same hour, supplier and status, and added where it is now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.histogram import LENGTH, as_text, bucket_of
from heliograph.base.ids import uuid7
from heliograph.base.process import measures
from heliograph.traffic.reconciliation import Counted, Sums, add, append, hour_of

#: Statuses of messages that no supplier has, which traffic treats as one status.
WAITING = {"sending": "accepted", "queued": "accepted"}
#: Statuses of failed messages, which are also counted by reason.
LOST = ("undelivered", "failed", "expired", "rejected")
#: The supplier of a message that none has accepted, and of all WhatsApp messages.
NONE = UUID(int=0)


class Change(msgspec.Struct, frozen=True, gc=False):
    """A message whose status changed. All changes of a batch belong to one channel; times are in UTC.

    `sent`, `delivered`: seconds from acceptance (or from when it was due) until it was sent or delivered, if that has
    just happened. `receipt`: seconds from when the supplier accepted it (`taken_at`) to the receipt that ended it, if
    one did; `is_late`: the receipt arrived too late.
    """

    organization_id: UUID
    channel: str
    mode: str
    country: str
    sender: str
    segments: int
    accepted_at: datetime
    old_status: str
    new_status: str
    supplier_id: UUID | None = None
    sent: float | None = None
    delivered: float | None = None
    #: Failure codes of the old and the new status, if that is among LOST.
    old_reason: str = ""
    new_reason: str = ""
    taken_at: datetime | None = None
    receipt: float | None = None
    is_late: bool = False
    #: The recipient's network, MCC-MNC; empty if unknown. `recipients`: the recipient is the reason for its failure.
    network: str = ""
    recipients: bool = False
    #: Its supplier's charge, in millionths, and when that is due ("submit", "delivered"); no currency: unknown.
    cost: int = 0
    cost_currency: str = ""
    cost_due: str = ""
    #: It had ended without a supplier, and is only now known to have had this one; the time is not known.
    was_found: bool = False


class _Sum(msgspec.Struct, gc=False):
    count: int = 0
    segments: int = 0
    to_sent: list[int] | None = None
    to_delivered: list[int] | None = None


class _Group(msgspec.Struct, gc=False):
    like: Change
    hour: datetime
    count: int = 0
    segments: int = 0
    cost: int = 0
    sent: list[float] = []
    delivered: list[float] = []
    receipts: list[float] = []


_Key = tuple[UUID, datetime, str, str, str, str, UUID, str, str]

APPEND = """
INSERT INTO traffic_deltas (organization_id, batch, n, hour, channel, mode, country, sender, supplier_id, status,
                            reason, count, segments, to_sent, to_delivered)
SELECT organization_id, $1, n, hour, channel, mode, country, sender, supplier_id, status, reason, count, segments,
       to_sent::bigint[], to_delivered::bigint[]
  FROM unnest($2::uuid[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::text[],
              $10::text[], $11::bigint[], $12::bigint[], $13::text[], $14::text[]) WITH ORDINALITY
       AS item (organization_id, hour, channel, mode, country, sender, supplier_id, status, reason, count, segments,
                to_sent, to_delivered, n)
"""


async def record(conn: Connection, changes: Iterable[Change]) -> None:
    """Append the effects of these changes on the roll-ups, in the caller's transaction, which makes the changes."""
    sums: dict[_Key, _Sum] = {}
    carried: Sums = {}
    for group in _groups(changes):
        change, count, segments = group.like, group.count, group.segments
        place = (change.organization_id, group.hour, change.channel, change.mode, change.country, change.sender)
        supplier_id = change.supplier_id or NONE
        old = WAITING.get(change.old_status, change.old_status)
        new = WAITING.get(change.new_status, change.new_status)
        if old != new:
            for status, reason, sign in ((old, change.old_reason, -1), (new, change.new_reason, 1)):
                # A message that was not handed over, or not known to be, was counted under no supplier.
                counted = NONE if status == "accepted" or (change.was_found and sign < 0) else supplier_id
                one = sums.setdefault((*place, counted, status, reason if status in LOST else ""), _Sum())
                one.count += sign * count
                one.segments += sign * segments
        if supplier_id != NONE and change.channel == "sms" and change.mode == "live":
            _reconcile(carried, group, supplier_id)
        if group.sent:
            one = sums.setdefault((*place, supplier_id, "sent", ""), _Sum())
            one.to_sent = _counted(one.to_sent, group.sent)
        if group.delivered:
            one = sums.setdefault((*place, supplier_id, "delivered", ""), _Sum())
            one.to_delivered = _counted(one.to_delivered, group.delivered)
    rows = [
        (*key, one.count, one.segments, as_text(one.to_sent), as_text(one.to_delivered))
        for key, one in sums.items()
        if one.count or one.segments or one.to_sent or one.to_delivered
    ]
    for (_, _, channel, mode, *_, reason), one in sums.items():
        # Negative: messages now known to have arrived after all.
        if reason and mode == "live" and one.count > 0:
            measures.LOST.add(channel, reason, by=one.count)
    if rows:
        await conn.execute(APPEND, uuid7(), *(list(column) for column in zip(*rows, strict=True)))
    if carried:
        await append(conn, carried)


def _reconcile(sums: Sums, group: _Group, supplier_id: UUID) -> None:
    """Count messages that a supplier accepted, and their outcome according to receipts, in the hour of acceptance."""
    change, number, segments = group.like, group.count, group.segments
    if change.taken_at is None:
        return
    old, new = change.old_status, change.new_status
    hour = hour_of(change.taken_at)
    taking, arriving = [group.cost if change.cost_due == due else 0 for due in ("submit", "delivered")]

    def of(what: str) -> Counted:
        return Counted(supplier_id, hour, change.country, what, change.network, change.cost_currency)

    if change.sent is not None:
        add(sums, of("accepted"), number, segments, taking)
    elif old in ("unknown", "expired") and change.receipt is not None:
        # Until now it was counted as never reported, or as expired.
        add(sums, of("never" if old == "unknown" else "expired"), -number, -segments, -taking)
    if change.receipt is not None:
        one = add(sums, of(new), number, segments, arriving if new == "delivered" else taking)
        one.to_receipt = _counted(one.to_receipt, group.receipts)
        if change.is_late and old != "expired":
            add(sums, of("late"), number, segments)
        if change.recipients:
            add(sums, of("recipient"), number, segments)
    elif new == "unknown":
        add(sums, of("never"), number, segments, taking)


def _groups(changes: Iterable[Change]) -> Iterable[_Group]:
    """Group identical changes. A batch contains hundreds of messages but few kinds, so a message costs one look-up."""
    groups: dict[tuple[Any, ...], _Group] = {}
    for change in changes:
        at, taken, sent = change.accepted_at, change.taken_at, change.sent
        key = (
            change.organization_id,
            at.toordinal(),
            at.hour,
            change.sender,
            change.country,
            change.supplier_id,
            change.old_status,
            change.new_status,
            change.mode,
            change.old_reason,
            change.new_reason,
            sent is None,
            change.is_late,
            change.network,
            change.recipients,
            change.cost_currency,
            change.cost_due,
            change.was_found,
            # The day of the month is enough: no reported message is a month old.
            None if taken is None else taken.day * 24 + taken.hour,
        )
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group(change, at.replace(minute=0, second=0, microsecond=0))
        group.count += 1
        group.segments += change.segments
        group.cost += change.cost
        if sent is not None:
            group.sent.append(sent)
        if change.delivered is not None:
            group.delivered.append(change.delivered)
        if change.receipt is not None and not change.was_found:
            group.receipts.append(change.receipt)
    return groups.values()


def _counted(histogram: list[int] | None, durations: Iterable[float]) -> list[int]:
    histogram = histogram or [0] * LENGTH
    # A bucket stands for a number of binary digits, and the durations of a batch have few different ones.
    for digits, count in Counter([int(duration * 1000).bit_length() for duration in durations]).items():
        histogram[bucket_of(1 << max(digits - 1, 0))] += count
    return histogram
