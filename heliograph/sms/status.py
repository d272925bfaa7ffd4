"""The states of a message: one table, and the guards derived from it that are part of every UPDATE.

    accepted (→ sending) → sent → delivered | undelivered | failed | expired | rejected | unknown
    accepted → canceled

The rule nobody may break: rank never goes down and the first final status wins, with two exceptions: `unknown` and
`expired` become `delivered` when a late receipt says so. A message raises at most one contract event.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec

from heliograph import traces, traffic
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.money import Charge, charge_of, columns
from heliograph.base.process import spans
from heliograph.base.sentences import said
from heliograph.prices import margins
from heliograph.sending.attempts import MAY_HAVE_ARRIVED, WORKER_DIED
from heliograph.sms import refunds
from heliograph.sms.arrivals import Arrival, also_sent, change, due, event, is_found, taken_back
from heliograph.suppliers.contract import ReceiptState, Verdict
from heliograph.traffic import incomplete, reconciliation
from heliograph.webhooks.recording import events


class Status(msgspec.Struct, frozen=True):
    """One state: its predecessors, and the effects of reaching it."""

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

#: The status for a receipt's state; states not listed move nothing.
BY_RECEIPT = {
    ReceiptState.DELIVERED: "delivered",
    ReceiptState.UNDELIVERED: "undelivered",
    ReceiptState.EXPIRED: "expired",
    ReceiptState.REJECTED: "rejected",
    ReceiptState.FAILED: "failed",
}

#: Why a message ended as `unknown`: no receipt came in time, or no answer to the one attempt that its policy allows.
NO_RECEIPT, OUTCOME_UNKNOWN = "no_receipt", "outcome_unknown"


class SupplierAcceptance(msgspec.Struct, frozen=True, gc=False):
    """What is known about a supplier's acceptance of a message."""

    #: There may have been attempts outside of the series that it accepted, so that a supplier may have some segments.
    after_others: bool
    #: The recipient's network (MCC-MNC); empty if unknown.
    network: str = ""
    #: The supplier's charge; None if unknown.
    cost: Charge | None = None
    #: The name of the route that chose it; None if no route did.
    route: str | None = None


class Move(msgspec.Struct, frozen=True, gc=False):
    """A message that may reach a state. Up to `receipt_error`, its fields are the first columns of MOVE."""

    organization_id: UUID
    message_id: UUID
    status: str
    at: datetime
    failure_code: str | None = None
    #: Only if no supplier has it: a decision about an attempt, or before one, does not apply if an earlier attempt's
    #: answer has arrived in the meantime.
    unsent: bool = False
    #: It was also sent, in the same step.
    was_sent: bool = False
    #: The supplier that accepted it, if this move results from that.
    supplier_id: UUID | None = None
    #: The receipt that caused the move, if it is to be recorded in the message: its fingerprint, the attempt that it
    #: refers to, the supplier's error code.
    receipt: UUID | None = None
    receipt_attempt: int | None = None
    receipt_error: str | None = None
    #: With `supplier_id`, if the move results from an answer.
    taken: SupplierAcceptance | None = None
    #: According to its receipt, the recipient is the reason for the failure.
    recipients: bool = False
    #: A supplier's refusal ends it.
    refused: bool = False


class Moved(NamedTuple):
    """The result of moves."""

    #: Messages that moved.
    ids: set[UUID]
    #: Webhook deliveries that are due.
    deliveries: int
    #: Fingerprints of receipts that were recorded in their messages.
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


# A receipt that came before the answer, and was only found after that was recorded, follows it. See `_at`.
_AT = "CASE WHEN m.sent_at > v.at THEN m.sent_at + interval '1 microsecond' ELSE v.at END"
# A late `delivered` clears the failure that it disproves. event_id is set once, by the first contract event. Cost and
# route are those of the supplier that has the message: another one may accept it too, and answer late. What the move
# itself contains (ids, times) is not returned: reading it took as long as everything that follows.
MOVE = f"""
UPDATE messages m
   SET status = v.status,
       sent_at = CASE WHEN v.was_sent OR v.status IN ('sent', 'delivered') THEN coalesce(m.sent_at, v.at)
                      ELSE m.sent_at END,
       delivered_at = CASE v.status WHEN 'delivered' THEN {_AT} END,
       failed_at = CASE WHEN v.failure_code IS NOT NULL AND v.status <> 'unknown' THEN {_AT} END,
       ended_at = CASE WHEN v.status IN ('canceled', 'unknown') THEN v.at END,
       failure_code = v.failure_code,
       supplier_id = CASE WHEN m.status IN ('accepted', 'sending') THEN v.supplier_id ELSE m.supplier_id END,
       network = coalesce(v.network, m.network),
       cost = CASE WHEN m.supplier_id IS NULL THEN coalesce(v.cost, m.cost) ELSE m.cost END,
       cost_currency = CASE WHEN m.supplier_id IS NULL THEN coalesce(v.cost_currency, m.cost_currency)
                            ELSE m.cost_currency END,
       cost_due = CASE WHEN m.supplier_id IS NULL THEN coalesce(v.cost_due, m.cost_due) ELSE m.cost_due END,
       route = CASE WHEN m.supplier_id IS NULL THEN coalesce(v.route, m.route) ELSE m.route END,
       previous_status = m.status,
       event_id = coalesce(m.event_id, v.event_id),
       receipt = coalesce(m.receipt, v.receipt),
       receipt_attempt = CASE WHEN m.receipt IS NULL THEN v.receipt_attempt ELSE m.receipt_attempt END,
       receipt_state = CASE WHEN m.receipt IS NOT NULL THEN m.receipt_state
                            WHEN v.receipt IS NOT NULL THEN v.status END,
       receipt_error = CASE WHEN m.receipt IS NULL THEN v.receipt_error ELSE m.receipt_error END,
       receipt_at = CASE WHEN m.receipt IS NOT NULL THEN m.receipt_at WHEN v.receipt IS NOT NULL THEN v.at END
  FROM (SELECT unnest($1::uuid[]) AS organization_id, unnest($2::uuid[]) AS id, unnest($3::text[]) AS status,
               unnest($4::timestamptz[]) AS at, unnest($5::text[]) AS failure_code, unnest($6::boolean[]) AS unsent,
               unnest($7::boolean[]) AS was_sent, unnest($8::uuid[]) AS supplier_id, unnest($9::uuid[]) AS receipt,
               unnest($10::smallint[]) AS receipt_attempt, unnest($11::text[]) AS receipt_error,
               unnest($12::uuid[]) AS event_id, unnest($13::text[]) AS network, unnest($14::bigint[]) AS cost,
               unnest($15::text[]) AS cost_currency, unnest($16::text[]) AS cost_due, unnest($17::text[]) AS route,
               generate_series(1, cardinality($1::uuid[])) AS n OFFSET 0) v
 WHERE m.organization_id = v.organization_id AND m.id = v.id AND {guard("m.status", "v.status")}
   AND (NOT v.unsent OR m.status = 'accepted')
RETURNING v.n, m.event_id = v.event_id AS raises, m.receipt = v.receipt AS notes, m.mode, m.segments, m.country,
          m.sender, m.accepted_at, CASE v.status WHEN 'sent' THEN nullif(m.sent_at, v.at) ELSE m.sent_at END,
          m.previous_status, m.supplier_id, m.recipient, m.client_reference, m.request_id, m.send_at, m.expires_at,
          m.network, m.price, m.price_currency, m.price_due, m.cost, m.cost_currency, m.cost_due,
          m.route
"""


#: An SQL condition on a row of `attempts` without an answer: it was counted as unanswered. One that another worker
#: found so was not: the supplier is not to blame. The row is locked first: that may be being recorded, and counted.
WAS_COUNTED = f"detail <> '{WORKER_DIED}'"

# Messages that had ended without a known supplier, and the attempt that turns out to have delivered them: that of the
# supplier whose receipt said so, or one that may have been accepted.
TURNED_OUT = f"""
WITH found AS MATERIALIZED (
    SELECT v.organization_id, v.id, a.*
      FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS v (organization_id, id, supplier_id)
           CROSS JOIN LATERAL (
           SELECT attempt, continues, target_id, state, ended_at, cost, cost_currency, cost_due,
                  {WAS_COUNTED} AS was_counted FROM attempts
            WHERE organization_id = v.organization_id AND message_id = v.id
              AND (target_id = v.supplier_id OR v.supplier_id IS NULL AND state IN {MAY_HAVE_ARRIVED})
            ORDER BY state = 'accepted' DESC, state = 'unknown' DESC, attempt DESC LIMIT 1
              FOR NO KEY UPDATE) a
), marked AS (
    UPDATE attempts SET state = 'accepted', detail = '{said("its message was delivered")}' FROM found
     WHERE attempts.organization_id = found.organization_id AND attempts.message_id = found.id
       AND attempts.attempt = found.attempt AND found.state = 'unknown'
)
UPDATE messages m
   SET supplier_id = found.target_id, cost = found.cost, cost_currency = found.cost_currency, cost_due = found.cost_due
  FROM found WHERE m.organization_id = found.organization_id AND m.id = found.id
RETURNING m.id, found.target_id, found.cost, found.cost_currency, found.cost_due, found.state, found.ended_at,
          coalesce(found.continues, found.attempt) AS series, found.was_counted
"""


# An attempt without an answer, of a message that still waits for one.
AFTER_ALL = f"""
WITH doubtful AS MATERIALIZED (
    SELECT {WAS_COUNTED} AS was_counted FROM attempts
     WHERE organization_id = $1 AND message_id = $2 AND attempt = $3 AND state = 'unknown'
       FOR NO KEY UPDATE
)
UPDATE attempts a SET state = 'accepted', detail = $4 FROM doubtful, messages m
 WHERE a.organization_id = $1 AND a.message_id = $2 AND a.attempt = $3
   AND m.organization_id = $1 AND m.id = $2 AND m.status = 'accepted'
RETURNING a.target_id, a.cost, a.cost_currency, a.cost_due, m.country, doubtful.was_counted
"""


async def after_all(
    conn: Connection, organization_id: UUID, message_id: UUID, attempt: int, *, at: datetime, detail: str
) -> Move | None:
    """Record that a supplier has a message although its attempt had no answer: it does not count as unanswered any
    more, and the move to `sent` that is returned here counts it as accepted. `detail`: how that is known. None if its
    outcome is not in doubt. The caller makes the move, in the same transaction."""
    row = await conn.fetchrow(AFTER_ALL, organization_id, message_id, attempt, detail)
    if row is None:
        return None
    supplier_id = row["target_id"]
    if row["was_counted"]:
        await reconciliation.count(conn, [(supplier_id, row["country"], Verdict.UNKNOWN.value, -1)], now())
    taken = SupplierAcceptance(after_others=True, cost=charge_of(row["cost"], row["cost_currency"], row["cost_due"]))
    return Move(organization_id, message_id, "sent", at, supplier_id=supplier_id, taken=taken)


async def move_many(
    conn: Connection,
    moves: Sequence[Move],
    *,
    announce_sent: events.Wanting = frozenset(),
    handover: events.Leasing | None = None,
) -> Moved:
    """Move messages to their new states where the table above allows it, and record the resulting events.

    Several moves of one message are given in the order in which they happened; a message that was sent and has already
    ended takes one step. Failures are refunded by class (`refunds.py`), and their price is taken back. `announce_sent`:
    organizations that want `message.sent`. `handover`: given by a worker that delivers the events it records. Runs in
    the caller's transaction.
    """
    if not moves:
        return Moved(set(), 0, set())
    one_each, sent_first = _merged(moves, announce_sent)
    moved, deliveries, _ = await move_many(conn, sent_first, announce_sent=announce_sent, handover=handover)
    # In a fixed order, or two batches that share messages could deadlock.
    moves = sorted(one_each.values(), key=lambda move: move.message_id.int)
    tracing = spans.on()
    began = spans.moment() if tracing else 0
    event_ids = [_event_id(move.message_id, tracing) if STATUSES[move.status].event else None for move in moves]
    *fields, taken, _, _ = zip(*map(msgspec.structs.astuple, moves), strict=True)
    rows = await conn.fetch(
        MOVE,
        *fields,
        event_ids,
        [one and (one.network or None) for one in taken],
        *columns([one and one.cost for one in taken]),
        [one and one.route for one in taken],
    )
    arrived: list[Arrival] = []
    raised: list[events.Event] = []
    noted: set[UUID] = set()
    for n, raises, notes, *row in rows:
        move, event_id = moves[n - 1], event_ids[n - 1]
        kind = STATUSES[move.status].event
        place = (move.organization_id, move.message_id)
        at = _at(move, row[5])
        one = Arrival(*place, move.status, at, move.failure_code, kind, move.recipients, move.refused, *row)
        arrived.append(one)
        moved.add(move.message_id)
        if notes and move.receipt is not None:
            noted.add(move.receipt)
        if raises and event_id is not None and kind is not None:
            raised.append(event(one, event_id, kind))
        elif announce_sent and one.status == "sent" and (one.organization_id, one.mode) in announce_sent:
            raised.append(event(one, _event_id(move.message_id, tracing), "message.sent"))
    raised += await also_sent(conn, arrived)
    arrived = await _with_suppliers(conn, arrived, moves)
    await traffic.record(conn, map(change, arrived))
    given_back = await refunds.due(conn, arrived)
    at = now()
    amounts = [due(one, at) for one in arrived]
    amounts += [taken_back(one, at) for one in arrived if one.id in given_back]
    await margins.record(conn, [amount for amount in amounts if amount is not None])
    deliveries += await events.record(conn, raised, handover=handover)
    await incomplete.count(conn, [one for one in arrived if _left_segments(one, one_each[one.id])])
    await refunds.give_back(conn, given_back)
    if tracing:
        await _trace(conn, began, [moves[row[0] - 1] for row in rows])
    return Moved(moved, deliveries, noted)


def _at(move: Move, sent_at: datetime | None) -> datetime:
    """When a move took effect, as MOVE stores it."""
    return move.at if sent_at is None or sent_at <= move.at else sent_at + timedelta(microseconds=1)


def _merged(moves: Sequence[Move], announce_sent: events.Wanting) -> tuple[dict[UUID, Move], list[Move]]:
    """One move for each message, since an UPDATE applies only one row: the first, unless a later one knows that a
    supplier has it. Also the moves to `sent` before those that end a message, where an organization wants the event."""
    one_each: dict[UUID, Move] = {}
    sent_first: list[Move] = []
    for move in moves:
        known = one_each.setdefault(move.message_id, move)
        if known is move:
            continue
        if known.status == "sent" and not move.unsent and may_move("sent", move.status):
            if any((move.organization_id, mode) in announce_sent for mode in ("live", "test")):
                # Its receipt may have come before the answer: it was sent by then.
                sent_first.append(msgspec.structs.replace(known, at=min(known.at, move.at)))
            supplier_id = known.supplier_id or move.supplier_id
            one_each[move.message_id] = msgspec.structs.replace(
                move, was_sent=True, supplier_id=supplier_id, taken=known.taken
            )
        elif known.unsent and not move.unsent:
            one_each[move.message_id] = move
    return one_each, sent_first


def _left_segments(one: Arrival, move: Move) -> bool:
    """Whether a supplier may have some of its segments, and will not get the others. A message of which a supplier has
    any segment is never canceled."""
    if one.segments == 1 or one.mode != "live" or one.previous_status != "accepted" or one.status == "canceled":
        return False
    return move.taken is None or move.taken.after_others


async def _with_suppliers(conn: Connection, arrived: list[Arrival], moves: Sequence[Move]) -> list[Arrival]:
    """These arrivals; those that had ended without a supplier, and were delivered, with the supplier that had them and
    its charge. That attempt was counted as unanswered, or as accepted in addition: its message now counts it. If its
    answer is recorded together with this, it was not counted yet."""
    lost = [one for one in arrived if is_found(one)]
    if not lost:
        return arrived
    by = {move.message_id: move for move in moves}
    suppliers = [by[one.id].supplier_id for one in lost]
    rows = await conn.fetch(TURNED_OUT, [one.organization_id for one in lost], [one.id for one in lost], suppliers)
    found = {row["id"]: row for row in rows}
    sums: reconciliation.Sums = {}
    for n, one in enumerate(arrived):
        if (row := found.get(one.id)) is None:
            continue
        charge = charge_of(row["cost"], row["cost_currency"], row["cost_due"])
        arrived[n] = msgspec.structs.replace(
            one,
            supplier_id=row["target_id"],
            cost=row["cost"],
            cost_currency=row["cost_currency"],
            cost_due=row["cost_due"],
            was_found=True,
        )
        if one.mode != "live":
            continue
        place = (row["target_id"], one.country)
        if row["state"] == "unknown" and row["was_counted"]:
            key = reconciliation.Counted(place[0], reconciliation.hour_of(one.at), place[1], Verdict.UNKNOWN.value)
            reconciliation.add(sums, key, -1)
        elif row["state"] == "accepted" and by[one.id].taken is None:
            hour = reconciliation.hour_of(row["ended_at"])
            currency = "" if charge is None else charge.currency
            key = reconciliation.Counted(place[0], hour, place[1], "doubled", one.network or "", currency)
            due_at_once = charge.amount if charge is not None and charge.due == "submit" else 0
            reconciliation.add(sums, key, -1, -one.segments, -due_at_once)
    await reconciliation.append(conn, sums)
    # Its answered segments had been counted separately: they are part of the message now.
    whole = [one for one in arrived if one.segments > 1 and one.was_found and found[one.id]["state"] == "unknown"]
    await incomplete.take_back(conn, [(one, found[one.id]["series"]) for one in whole if one.mode == "live"])
    return arrived


def _event_id(message_id: UUID, tracing: bool) -> UUID:
    return spans.like(message_id, uuid7()) if tracing else uuid7()


async def _trace(conn: Connection, began: int, moves: Sequence[Move]) -> None:
    """Add a step to the traces of traced messages that moved. That they were sent is covered by their attempt."""
    news = [
        (one.organization_id, one.message_id, "sms decision" if one.unsent else "sms receipt", one.status)
        for one in moves
        if spans.is_marked(one.message_id) and one.status != "sent"
    ]
    if news:
        await traces.moved(conn, began, news)
