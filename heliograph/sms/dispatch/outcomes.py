"""The effect of a supplier's answer on an attempt, its message and its queue row: one transaction for a whole batch.

    accepted      the message is `sent`; the ids are kept for receipts; the work is done
    refused       another supplier once, if the answer allows it; otherwise `rejected`. A recipient who sent the
                  supplier STOP is opted out here too
    busy          later, on the retry schedule; throttling and session trouble cost no try
    unreachable   nothing left this machine, or the supplier refuses the whole account (its password, its credit):
                  retry, with another supplier if necessary
    unknown       wait for a receipt first, unless one names the attempt already; dispatch decides when the wait is over

A supplier may have some segments of a long message: their ids are kept, and the rest follows in another attempt.

The rule nobody may break: an answer is a fact. It is recorded even by a worker that has lost its lease in the
meantime; only the queue row then belongs to the new holder, and so does the end of a message that was not accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import phones
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.base.retry import SUBMIT_HORIZON, asked_pause, hold_pause, submit_pause
from heliograph.consent import optouts
from heliograph.consent.optouts import OptOut
from heliograph.queue import leases
from heliograph.queue.leases import Postponed
from heliograph.sending.attempts import EndedAttempt
from heliograph.sending.results import AnsweredAttempt
from heliograph.sending.settling import Settlement, settle
from heliograph.sms.dispatch import test_mode
from heliograph.sms.dispatch.claimed import ClaimedMessage
from heliograph.sms.reports import keys, parts, waiting
from heliograph.sms.reports.keys import PartId
from heliograph.sms.status import OUTCOME_UNKNOWN, Move, SupplierAcceptance
from heliograph.suppliers.contract import Outcome, Scope, Verdict
from heliograph.traffic import incomplete, reconciliation


async def record(
    conn: Connection,
    answered: Sequence[AnsweredAttempt],
    *,
    grace: float,
    policies: Mapping[UUID, str],
) -> list[Move]:
    """Record outcomes of attempts; returns the moves that follow, which the caller must make in the same transaction.

    `grace`: seconds that an unknown outcome waits for its receipt.
    """
    at = now()
    given = [_ids(one) for one in answered]
    # The ids that are stored in their attempts.
    own = [some[0] if some and some[0].is_in_attempt(at) else None for some in given]
    proven = await _proven(conn, answered)
    decided = [
        _decide(one, id, at, 0.0 if place in proven else grace)
        for place, (one, id) in enumerate(zip(answered, own, strict=True))
    ]
    moves: list[Move] = await settle(conn, decided, only_answers=True)
    # Also those of parts that were accepted before another part was refused.
    ids = [id for some in given for id in some]
    await _complete(conn, answered)
    await parts.keep(conn, [id for some, one in zip(given, own, strict=True) if one is None for id in some], at)
    await _expect_test_receipts(conn, answered)
    early, _ = await waiting.early(conn, [(id.supplier_id, id.id_key) for id in ids], policies=policies)
    # Receipts for the parts that the supplier had before did not decide.
    complete = {one.attempt.lease.id for one, some in zip(answered, given, strict=True) if _completes(one, some)}
    return moves + early + await parts.completed(conn, sorted(complete), policies, at)


def _completes(one: AnsweredAttempt, given: Sequence[PartId]) -> bool:
    """Whether its supplier has all parts of a long message by now, some of them from before."""
    is_further = one.is_late or one.attempt.number != one.attempt.series
    return is_further and one.outcome.verdict is Verdict.ACCEPTED and any(id.parts > 1 for id in given)


async def _proven(conn: Connection, answered: Sequence[AnsweredAttempt]) -> set[int]:
    """The positions of attempts without an answer whose receipt is there already and names them: dispatch adopts it at
    once (`uncertain.py`). Of a long message with several segments in doubt, it could be for any of them."""
    lost = [
        (place, one.attempt)
        for place, one in enumerate(answered)
        if one.outcome.verdict is Verdict.UNKNOWN
        and len(one.outcome.doubtful) == 1
        and one.attempt.number == one.attempt.series
        and one.attempt.reference is not None
    ]
    if not lost:
        return set()
    named = await waiting.named_by_reference(
        conn,
        [waiting.Uncertain(one.target_id, one.begun_at, one.submission.to, one.reference or 0) for _, one in lost],
    )
    return {lost[place][0] for place in named}


async def _expect_test_receipts(conn: Connection, answered: Sequence[AnsweredAttempt]) -> None:
    """Queue the test supplier's receipts as work, so that they arrive even if this worker dies."""
    items = []
    for one in answered:
        lease = one.attempt.lease
        if one.attempt.target_id == test_mode.SUPPLIER and one.outcome.verdict is Verdict.ACCEPTED:
            pause = test_mode.receipt_after(one.attempt.submission.to)
            if pause is not None:
                items.append((test_mode.SUPPLIER, lease.organization_id, lease.id, pause))
    if items:
        await leases.put(conn, "test", items)


# For messages that these attempts did not move: which supplier has them, and whether another attempt was accepted. Each
# is looked up by its whole key: with a join, a plan made while a month had few messages scanned all of them for each
# attempt.
BESIDES = """
SELECT item.message_id, item.attempt, m.status, m.supplier_id, m.mode, m.segments, m.country, m.network,
       EXISTS (SELECT FROM attempts
                WHERE organization_id = item.organization_id AND message_id = item.message_id
                  AND attempt <> item.attempt AND state = 'accepted') AS others
  FROM unnest($1::uuid[], $2::uuid[], $3::smallint[]) AS item (organization_id, message_id, attempt)
       CROSS JOIN LATERAL (
       SELECT status, supplier_id, mode, segments, country, network FROM messages
        WHERE organization_id = item.organization_id AND id = item.message_id LIMIT 1) m
"""


async def reconcile(conn: Connection, answered: Sequence[AnsweredAttempt], moved: Collection[UUID]) -> None:
    """Count answers other than acceptance, and messages accepted a second time; all others are counted by their move.
    Runs in the same transaction, after the moves of `record`. `moved`: the messages that moved."""
    at = now()
    events: list[tuple[UUID, str, str, int]] = []
    late: list[AnsweredAttempt] = []
    answered = _last(answered)
    refuted = await _refuted(conn, answered)
    for one in answered:
        verdict, supplier_id = one.outcome.verdict, one.attempt.target_id
        if supplier_id == test_mode.SUPPLIER or (one.attempt.lease.id, one.attempt.number) in refuted:
            continue
        if verdict is Verdict.ACCEPTED:
            if one.attempt.lease.id not in moved:
                late.append(one)
            elif one.is_late:
                events.append((supplier_id, _country(one), Verdict.UNKNOWN.value, -1))
            continue
        # What this process returns was never sent, so the supplier has deferred nothing.
        what = Verdict.UNREACHABLE if one.outcome.scope is Scope.PROCESS else verdict
        events.append((supplier_id, _country(one), what.value, 1))
        if one.is_late:
            events.append((supplier_id, _country(one), Verdict.UNKNOWN.value, -1))
    if late:
        events += await _besides(conn, late, at)
    if events:
        await reconciliation.count(conn, events, at)


def _last(answered: Sequence[AnsweredAttempt]) -> Sequence[AnsweredAttempt]:
    """The last answer for each attempt; late if one was recorded before this batch."""
    if not any(one.is_late for one in answered):
        return answered  # only a late answer follows another one
    firsts: dict[tuple[UUID, int], bool] = {}
    for one in answered:
        firsts.setdefault((one.attempt.lease.id, one.attempt.number), one.is_late)
    if len(firsts) == len(answered):
        return answered
    lasts = {(one.attempt.lease.id, one.attempt.number): one for one in answered}
    return [msgspec.structs.replace(one, is_late=firsts[key]) for key, one in lasts.items()]


ACCEPTED = """
SELECT item.message_id, item.attempt
  FROM unnest($1::uuid[], $2::uuid[], $3::smallint[]) AS item (organization_id, message_id, attempt)
       CROSS JOIN LATERAL (
       SELECT state FROM attempts
        WHERE organization_id = item.organization_id AND message_id = item.message_id AND attempt = item.attempt
        LIMIT 1) a
 WHERE a.state = 'accepted'
"""


async def _refuted(conn: Connection, answered: Sequence[AnsweredAttempt]) -> set[tuple[UUID, int]]:
    """The attempts, as (message, attempt), whose late or missing answer is not that the supplier has the message,
    although it is known from elsewhere that it does. They are counted as accepted already."""
    some = [
        one.attempt
        for one in answered
        if one.outcome.verdict is Verdict.UNKNOWN or (one.is_late and one.outcome.verdict is not Verdict.ACCEPTED)
    ]
    if not some:
        return set()
    rows = await conn.fetch(
        ACCEPTED,
        [attempt.lease.organization_id for attempt in some],
        [attempt.lease.id for attempt in some],
        [attempt.number for attempt in some],
    )
    return {(row["message_id"], row["attempt"]) for row in rows}


async def suppress(conn: Connection, answered: Sequence[AnsweredAttempt]) -> int:
    """Opt out recipients who told a supplier that they want no more messages, for the organization whose message it
    refused because of that. Runs in the same transaction; returns how many webhook deliveries were queued."""
    at = now()
    told = {
        (one.attempt.lease.organization_id, "+" + one.attempt.submission.to)
        for one in answered
        if one.outcome.opted_out
    }
    return await optouts.suppress(conn, [OptOut(*pair, at, optouts.SUPPLIER) for pair in sorted(told)])


def _country(one: AnsweredAttempt) -> str:
    return phones.country("+" + one.attempt.submission.to)


async def _besides(conn: Connection, late: Sequence[AnsweredAttempt], at: datetime) -> list[tuple[UUID, str, str, int]]:
    """Count attempts that were accepted although their message was delivered by another attempt, or had ended: their
    supplier charges for them. Returns the resulting changes of other counts; none where a receipt had already shown
    this."""
    sums: reconciliation.Sums = {}
    events = []
    for one, row in await _in_addition(conn, late):
        attempt = one.attempt
        cost = attempt.context.cost
        key = reconciliation.Counted(
            attempt.target_id,
            reconciliation.hour_of(at),
            row["country"],
            "doubled",
            row["network"] or "",
            "" if cost is None else cost.currency,
        )
        due = cost.amount if cost is not None and cost.due == "submit" else 0
        reconciliation.add(sums, key, 1, row["segments"], due)
        if one.is_late:
            events.append((attempt.target_id, row["country"], Verdict.UNKNOWN.value, -1))
    await reconciliation.append(conn, sums)
    return events


class _Left(msgspec.Struct, frozen=True):
    """A message that left a supplier which had some of its segments."""

    organization_id: UUID
    id: UUID
    country: str
    network: str | None


async def _complete(conn: Connection, answered: Sequence[AnsweredAttempt]) -> None:
    """Subtract the segments counted for attempts that were not known to be complete when their message moved on to
    another attempt, and that these late answers complete: `_besides` counts them whole. A message that is still
    `accepted` has not moved on, so that none of its segments were counted."""
    late = [one for one in answered if one.is_late and one.outcome.verdict is Verdict.ACCEPTED]
    found = [
        (_Left(one.attempt.lease.organization_id, one.attempt.lease.id, row["country"], row["network"]), one)
        for one, row in (await _in_addition(conn, late) if late else ())
        if row["segments"] > 1 and row["status"] != "accepted"
    ]
    await incomplete.take_back(conn, [(left, one.attempt.series) for left, one in found])


async def _in_addition(
    conn: Connection, late: Sequence[AnsweredAttempt]
) -> list[tuple[AnsweredAttempt, asyncpg.Record]]:
    """Of these accepted attempts, those whose live message another attempt carries, or none; with rows of BESIDES."""
    rows = await conn.fetch(
        BESIDES,
        [one.attempt.lease.organization_id for one in late],
        [one.attempt.lease.id for one in late],
        [one.attempt.number for one in late],
    )
    found = {(row["message_id"], row["attempt"]): row for row in rows}
    pairs = [(one, found.get((one.attempt.lease.id, one.attempt.number))) for one in late]
    return [
        (one, row)
        for one, row in pairs
        if row is not None and row["mode"] == "live" and (row["others"] or row["supplier_id"] != one.attempt.target_id)
    ]


def _ids(one: AnsweredAttempt) -> list[PartId]:
    """The ids assigned by a supplier."""
    attempt, to = one.attempt, one.attempt.submission.to
    total, end = one.outcome.total or len(attempt.submission.segments), keys.suffix(to)
    return [
        PartId(
            attempt.target_id,
            keys.id_of(part.supplier_message_id, to),
            attempt.lease.id,
            attempt.series,
            part.number,
            total,
            attempt.lease.organization_id,
            end,
        )
        for part in one.outcome.parts
    ]


def _decide(one: AnsweredAttempt, own: PartId | None, at: datetime, grace: float) -> Settlement:
    """What happens to the message and its queue row. `own`: the id that is stored in the attempt."""
    outcome: Outcome = one.outcome
    lease, due, number = one.attempt.lease, one.attempt.message, one.attempt.number
    route, spoken = one.attempt.context, one.attempt.submission.sender
    ended = EndedAttempt(
        one.attempt,
        outcome.verdict,
        outcome.code,
        outcome.detail,
        outcome.doubtful,
        None if own is None else own.id_key,
        None if own is None else own.recipient_suffix,
        route.cost,
        None if spoken == due.sender else spoken,
    )
    message = (lease.organization_id, lease.id)
    match outcome.verdict:
        case Verdict.ACCEPTED:
            # A late answer may come after further attempts, and a series may go on after those of other suppliers.
            after_others = number > 1 or one.is_late
            taken = SupplierAcceptance(after_others, route.network, route.cost, route.route)
            return Settlement(ended, Move(*message, "sent", at, supplier_id=one.attempt.target_id, taken=taken))
        case Verdict.UNKNOWN:
            return Settlement(ended, postponed=Postponed(lease, grace, leases.UNROUTED))
        case Verdict.REFUSED if outcome.opted_out:
            return Settlement(ended, _unsent(due, at, "rejected", "opted_out", refused=True))
        case Verdict.REFUSED if not outcome.failover or due.refused:
            return Settlement(ended, _unsent(due, at, "rejected", refused=True))
        case Verdict.REFUSED:
            return Settlement(ended, postponed=Postponed(lease, 0.0, leases.UNROUTED))
        case Verdict.UNREACHABLE:
            pause, counts = hold_pause(number), False
        case Verdict.BUSY:
            counts = outcome.counts
            pause = submit_pause(lease.tries + 1) if counts else hold_pause(number)
            if outcome.retry_after is not None:
                left = (deadline(due.accepted_at, due.expires_at) - at).total_seconds()
                pause = asked_pause(outcome.retry_after, number, pause, left)
    if at + timedelta(seconds=pause) >= deadline(due.accepted_at, due.expires_at):
        return Settlement(ended, _unsent(due, at, "expired"))
    return Settlement(ended, postponed=Postponed(lease, pause, leases.UNROUTED, counts))


def _unsent(due: ClaimedMessage, at: datetime, status: str, code: str | None = None, *, refused: bool = False) -> Move:
    """The final move of a message that is not tried again. If an earlier try had no answer, a supplier may have it
    after all."""
    if due.was_unknown:
        status, code = "unknown", OUTCOME_UNKNOWN
    else:
        code = code or status
    return Move(due.lease.organization_id, due.lease.id, status, at, code, unsent=True, refused=refused)


def deadline(accepted_at: datetime, expires_at: datetime | None) -> datetime:
    """When a message is no longer worth sending."""
    return expires_at or accepted_at + timedelta(seconds=SUBMIT_HORIZON)


#: An SQL condition on a row of `queue`: the deadline of its message has passed.
EXPIRED = f"""
(SELECT coalesce(m.expires_at, m.accepted_at + interval '{SUBMIT_HORIZON:.0f} seconds') <= now() FROM messages m
  WHERE m.organization_id = queue.organization_id AND m.id = queue.id LIMIT 1)
"""
