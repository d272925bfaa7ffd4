"""The states of a message: one table, and the guards made from it that stand inside every UPDATE.

    accepted (→ sending) → sent → delivered | undelivered | failed | expired | rejected | unknown
    accepted → canceled

The rule nobody may break: rank never goes down and the first final status wins. Two doors are open after an end:
`unknown` and `expired` become `delivered` when a late receipt says so. A message raises at most one contract event.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from heliograph import traffic
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.money import Charge, columns
from heliograph.prices import margins
from heliograph.sms import refunds
from heliograph.suppliers.contract import ReceiptState
from heliograph.webhooks.recording import events
from heliograph.why import words


class Status(msgspec.Struct, frozen=True):
    """One state: its predecessors, and what reaching it means."""

    comes_from: tuple[str, ...]
    final: bool = False
    #: Contract event raised on arrival, if the message has raised none.
    event: str | None = None


OPEN = ("accepted", "sent")

STATUSES = {
    "accepted": Status(()),
    "sent": Status(("accepted",)),
    "delivered": Status((*OPEN, "unknown", "expired"), final=True, event="message.delivered"),
    "undelivered": Status(OPEN, final=True, event="message.failed"),
    "failed": Status(OPEN, final=True, event="message.failed"),
    "expired": Status(OPEN, final=True, event="message.failed"),
    "rejected": Status(OPEN, final=True, event="message.failed"),
    "canceled": Status(("accepted",), final=True),
    "unknown": Status(OPEN, final=True),
}

#: The status for a receipt's state; an absent state moves nothing.
BY_RECEIPT = {
    ReceiptState.DELIVERED: "delivered",
    ReceiptState.UNDELIVERED: "undelivered",
    ReceiptState.EXPIRED: "expired",
    ReceiptState.REJECTED: "rejected",
    ReceiptState.FAILED: "failed",
}

#: Why a message ended as `unknown`: no receipt came in time, or no answer to the one attempt that its policy allows.
NO_RECEIPT, OUTCOME_UNKNOWN = "no_receipt", "outcome_unknown"
#: What customers read about a failure, by its code. Never a supplier's text.
FAILURES = words.told("sms_failure")


class Taken(msgspec.Struct, frozen=True, gc=False):
    """What is known of a message that a supplier took."""

    #: The recipient's network (MCC-MNC); empty: not known.
    network: str = ""
    #: What the supplier charges; None: not known.
    cost: Charge | None = None


class Move(msgspec.Struct, frozen=True, gc=False):
    """A message that may reach a state."""

    organization_id: UUID
    message_id: UUID
    status: str
    at: datetime
    failure_code: str | None = None
    #: Only if no supplier has it: a decision about an attempt, or before one, does not hold for an earlier attempt
    #: whose answer came meanwhile.
    unsent: bool = False
    #: It was also sent, in the same step.
    was_sent: bool = False
    #: Who took it, if this is what says so.
    supplier_id: UUID | None = None
    #: With `supplier_id`, of an answer.
    taken: Taken | None = None
    #: The receipt that says so, if it is to be noted in the message: its fingerprint, the attempt that it speaks of,
    #: the supplier's error code.
    receipt: UUID | None = None
    receipt_attempt: int | None = None
    receipt_error: str | None = None


class Moved(NamedTuple):
    """The result of moves."""

    #: Messages that moved.
    ids: set[UUID]
    #: Webhook deliveries that are due.
    deliveries: int
    #: Fingerprints of receipts that were noted.
    receipts: set[UUID]


def may_move(old: str, new: str) -> bool:
    """True if a message in `old` may become `new`."""
    return old in STATUSES[new].comes_from


def guard(old: str, new: str) -> str:
    """`may_move` as an SQL condition on two expressions: `guard("m.status", "$1")`."""
    cases = " ".join(
        f"WHEN '{name}' THEN {old} IN ({', '.join(repr(source) for source in status.comes_from)})"
        for name, status in STATUSES.items()
        if status.comes_from
    )
    return f"CASE {new} {cases} ELSE false END"


# A late `delivered` takes back the failure that it proves wrong. event_id is set once, by the first contract event.
MOVE = f"""
UPDATE messages m
   SET status = v.status,
       sent_at = CASE WHEN v.was_sent OR v.status IN ('sent', 'delivered') THEN coalesce(m.sent_at, v.at)
                      ELSE m.sent_at END,
       delivered_at = CASE v.status WHEN 'delivered' THEN v.at END,
       failed_at = CASE WHEN v.failure_code IS NOT NULL AND v.status <> 'unknown' THEN v.at END,
       ended_at = CASE WHEN v.status IN ('canceled', 'unknown') THEN v.at END,
       failure_code = v.failure_code,
       supplier_id = CASE WHEN m.status IN ('accepted', 'sending') THEN v.supplier_id ELSE m.supplier_id END,
       network = coalesce(v.network, m.network),
       cost = coalesce(v.cost, m.cost),
       cost_currency = coalesce(v.cost_currency, m.cost_currency),
       cost_due = coalesce(v.cost_due, m.cost_due),
       previous_status = m.status,
       event_id = coalesce(m.event_id, v.event_id),
       receipt = coalesce(m.receipt, v.receipt),
       receipt_attempt = CASE WHEN m.receipt IS NULL THEN v.receipt_attempt ELSE m.receipt_attempt END,
       receipt_state = CASE WHEN m.receipt IS NOT NULL THEN m.receipt_state
                            WHEN v.receipt IS NOT NULL THEN v.status END,
       receipt_error = CASE WHEN m.receipt IS NULL THEN v.receipt_error ELSE m.receipt_error END,
       receipt_at = CASE WHEN m.receipt IS NOT NULL THEN m.receipt_at WHEN v.receipt IS NOT NULL THEN v.at END
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::timestamptz[], $5::text[], $6::uuid[], $7::boolean[],
              $8::boolean[], $9::uuid[], $10::uuid[], $11::smallint[], $12::text[], $13::text[], $14::bigint[],
              $15::text[], $16::text[])
       AS v (organization_id, id, status, at, failure_code, event_id, unsent, was_sent, supplier_id, receipt,
             receipt_attempt, receipt_error, network, cost, cost_currency, cost_due)
 WHERE m.organization_id = v.organization_id AND m.id = v.id AND {guard("m.status", "v.status")}
   AND (NOT v.unsent OR m.status = 'accepted')
RETURNING m.organization_id, m.id, m.mode, m.status, m.recipient, m.client_reference, m.segments, m.request_id,
          m.accepted_at, m.sent_at, m.delivered_at, m.failed_at, m.failure_code, v.at, v.event_id,
          m.event_id = v.event_id AS raises, m.country, m.sender, m.supplier_id, m.send_at, m.previous_status,
          m.receipt, m.expires_at, m.network, m.price, m.price_currency, m.price_due, m.cost, m.cost_currency,
          m.cost_due
"""


async def move_many(
    conn: Connection,
    moves: Sequence[Move],
    *,
    announce_sent: events.Wanting = frozenset(),
    handover: events.Leasing | None = None,
) -> Moved:
    """Move messages to their new states where the table above allows it, and record the events this raises.

    Several moves of one message are in the order in which they happened; a message that was sent and has already ended
    takes one step. What failed is refunded by its class (`refunds.py`). `announce_sent`: who wants `message.sent`.
    `handover`: of a worker that delivers what it records. Runs in the caller's transaction.
    """
    if not moves:
        return Moved(set(), 0, set())
    # An UPDATE takes one row for each message: the first, unless a later one knows that a supplier has it.
    one_each: dict[UUID, Move] = {}
    sent_first: list[Move] = []
    for move in moves:
        known = one_each.setdefault(move.message_id, move)
        if known is move:
            continue
        if known.status == "sent" and not move.unsent and may_move("sent", move.status):
            if any((move.organization_id, mode) in announce_sent for mode in ("live", "test")):
                sent_first.append(known)
            supplier_id = known.supplier_id or move.supplier_id
            one_each[move.message_id] = msgspec.structs.replace(
                move, was_sent=True, supplier_id=supplier_id, taken=known.taken
            )
        elif known.unsent and not move.unsent:
            one_each[move.message_id] = move
    moved, deliveries, _ = await move_many(conn, sent_first, announce_sent=announce_sent, handover=handover)
    # In one order, or two batches that share messages could deadlock.
    moves = sorted(one_each.values(), key=lambda move: move.message_id.int)
    rows = await conn.fetch(
        MOVE,
        [move.organization_id for move in moves],
        [move.message_id for move in moves],
        [move.status for move in moves],
        [move.at for move in moves],
        [move.failure_code for move in moves],
        [uuid7() if STATUSES[move.status].event else None for move in moves],
        [move.unsent for move in moves],
        [move.was_sent for move in moves],
        [move.supplier_id for move in moves],
        [move.receipt for move in moves],
        [move.receipt_attempt for move in moves],
        [move.receipt_error for move in moves],
        [move.taken and move.taken.network for move in moves],
        *columns([None if move.taken is None else move.taken.cost for move in moves]),
    )
    await traffic.record(conn, map(_change, rows))
    await margins.record(conn, [due for row in rows if (due := _due(row)) is not None])
    raised = [_event(row) for row in rows if row["raises"]]
    if announce_sent:
        raised += [
            _event(row, "message.sent")
            for row in rows
            if row["status"] == "sent" and (row["organization_id"], row["mode"]) in announce_sent
        ]
    moved.update(row["id"] for row in rows)
    noted = {row["receipt"] for row in rows}
    deliveries += await events.record(conn, raised, handover=handover)
    await refunds.give_back(conn, rows)
    return Moved(moved, deliveries, noted)


def _change(row: asyncpg.Record) -> traffic.Change:
    """The traffic deltas of a row that moved."""
    old, sent, delivered = row["previous_status"], row["sent_at"], row["delivered_at"]
    begun = max(row["accepted_at"], row["send_at"] or row["accepted_at"])
    # A message that had ended without news from a supplier may turn out to have arrived.
    new = old in ("accepted", "sending") or (old in ("unknown", "expired") and sent == row["at"])
    # Nothing but a receipt ends a message that a supplier has, save that there is none.
    is_reported = sent is not None and STATUSES[row["status"]].event is not None
    late_from = None if sent is None else row["expires_at"] or sent + traffic.LATE
    return traffic.Change(
        organization_id=row["organization_id"],
        channel="sms",
        mode=row["mode"],
        country=row["country"],
        sender=row["sender"],
        segments=row["segments"],
        accepted_at=row["accepted_at"],
        old_status=old,
        new_status=row["status"],
        supplier_id=row["supplier_id"],
        sent=(sent - begun).total_seconds() if new and sent is not None else None,
        delivered=(delivered - begun).total_seconds() if row["status"] == "delivered" else None,
        # Of what failed, only what expired may move on: its code is no longer in the row, so it is counted by one.
        old_reason=old if old == "expired" else "",
        new_reason=row["status"] if row["status"] == "expired" else row["failure_code"] or "",
        taken_at=sent,
        receipt=(row["at"] - sent).total_seconds() if is_reported else None,
        is_late=is_reported and (old == "unknown" or row["at"] > late_from),
    )


def _due(row: asyncpg.Record) -> margins.Due | None:
    """What a live message that moved made due: when a supplier takes it, and when it arrives."""
    price, cost = row["price"], row["cost"]
    if (price is None and cost is None) or row["mode"] != "live":
        return None
    arrives = row["status"] == "delivered"
    # A message that had ended without news from a supplier may turn out to have arrived.
    taken = row["previous_status"] == "accepted" and row["sent_at"] is not None
    if not taken and not arrives:
        return None
    now = {"submit": taken, "delivered": arrives}
    return margins.Due(
        organization_id=row["organization_id"],
        at=row["at"],
        supplier_id=row["supplier_id"],
        country=row["country"],
        network=row["network"] or "",
        messages=int(taken),
        segments=row["segments"] if taken else 0,
        price=price if price is not None and now[row["price_due"]] else 0,
        price_currency=row["price_currency"] or "",
        cost=cost if cost is not None and now[row["cost_due"]] else 0,
        cost_currency=row["cost_currency"] or "",
    )


def _event(row: asyncpg.Record, kind: str | None = None) -> events.Event:
    contract = STATUSES[row["status"]].event
    return events.Event(
        organization_id=row["organization_id"],
        id=row["event_id"] or uuid7(),
        kind=kind or contract or "",
        request_id=row["request_id"],
        data=message_data(row),
        created_at=row["at"],
        message_id=row["id"],
        mode=row["mode"],
    )


def message_data(row: asyncpg.Record) -> str:
    """The `data` of a message's event, as JSON. Contains nothing from the supplier."""
    code = row["failure_code"]
    return msgspec.json.encode(
        {
            "message": {
                "id": row["id"],
                "clientReference": row["client_reference"],
                "channel": "sms",
                "to": row["recipient"],
                "status": row["status"],
                "segments": row["segments"],
                "acceptedAt": iso(row["accepted_at"]),
                "sentAt": iso(row["sent_at"]) if row["sent_at"] else None,
                "deliveredAt": iso(row["delivered_at"]) if row["delivered_at"] else None,
                "failedAt": iso(row["failed_at"]) if row["failed_at"] else None,
                "failure": {"code": code, "message": FAILURES[code]} if code else None,
            }
        }
    ).decode()
