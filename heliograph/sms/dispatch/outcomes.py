"""The effect of a supplier's answer on an attempt, its message and its queue row: one transaction for a whole batch.

    accepted      the message is `sent`; the ids are kept for receipts; the work is done
    refused       another supplier once, if the answer allows it; else `rejected`
    busy          later, on the retry schedule; throttling and session trouble cost no try
    unreachable   nothing left this machine: again, elsewhere if need be
    unknown       wait for a receipt first; dispatch decides when the wait is over

A supplier may have some segments of a long message: their ids are kept, and the rest follows in another attempt.

The rule nobody may break: an answer is a fact. It is recorded even by a worker that lost its lease meanwhile; only
the queue row then belongs to the new holder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from heliograph.base import phones
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.base.retry import SUBMIT_HORIZON, hold_pause, submit_pause
from heliograph.queue import leases
from heliograph.queue.leases import Postponed
from heliograph.sending.attempts import Ended
from heliograph.sending.results import Answered, Settled, settle
from heliograph.sms.dispatch import test_mode
from heliograph.sms.dispatch.claimed import ClaimedMessage
from heliograph.sms.reports import keys, parts, waiting
from heliograph.sms.reports.keys import PartId
from heliograph.sms.status import OUTCOME_UNKNOWN, Move, Taken
from heliograph.suppliers.contract import Outcome, Verdict
from heliograph.traffic import reconciliation


async def record(
    conn: Connection,
    answered: Sequence[Answered],
    *,
    grace: float,
    policies: Mapping[UUID, str],
) -> list[Move]:
    """Record ends of attempts; returns the moves that follow, which are the caller's to make in the same transaction.

    `grace`: seconds that an unknown outcome waits for its receipt.
    """
    at = now()
    given = [_ids(one) for one in answered]
    moves: list[Move] = await settle(
        conn, [_decide(one, ids, at, grace) for one, ids in zip(answered, given, strict=True)]
    )
    # Also those of parts that were accepted before another part was refused.
    ids = [id for some in given for id in some]
    await parts.keep(conn, ids, at)
    await _expect_test_receipts(conn, answered)
    await _reconcile(conn, answered, at)
    early, _ = await waiting.early(conn, [(id.supplier_id, id.id_key) for id in ids], policies=policies)
    return moves + early


async def _expect_test_receipts(conn: Connection, answered: Sequence[Answered]) -> None:
    """The test supplier's receipts are queued work, so that they come even if this worker dies."""
    items = []
    for one in answered:
        lease = one.attempt.lease
        if one.attempt.target_id == test_mode.SUPPLIER and one.outcome.verdict is Verdict.ACCEPTED:
            pause = test_mode.receipt_after(one.attempt.submission.to)
            if pause is not None:
                items.append((test_mode.SUPPLIER, lease.organization_id, lease.id, pause))
    if items:
        await leases.put(conn, "test", items)


async def _reconcile(conn: Connection, answered: Sequence[Answered], at: datetime) -> None:
    """Count answers that are no yes; messages that were taken are counted by their moves."""
    events: list[tuple[UUID, str, str, int]] = []
    for one in answered:
        verdict, supplier_id = one.outcome.verdict, one.attempt.target_id
        if (verdict is Verdict.ACCEPTED and not one.is_late) or supplier_id == test_mode.SUPPLIER:
            continue
        country = phones.country("+" + one.attempt.submission.to)
        if verdict is not Verdict.ACCEPTED:
            events.append((supplier_id, country, verdict.value, 1))
        if one.is_late:
            events.append((supplier_id, country, Verdict.UNKNOWN.value, -1))
    if events:
        await reconciliation.count(conn, events, at)


def _ids(one: Answered) -> list[PartId]:
    """The ids that a supplier gave."""
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


def _decide(one: Answered, ids: Sequence[PartId], at: datetime, grace: float) -> Settled:
    """What happens to the message and its queue row."""
    outcome: Outcome = one.outcome
    lease, due, number = one.attempt.lease, one.attempt.message, one.attempt.number
    id, end = (ids[0].id_key, ids[0].recipient_suffix) if ids and ids[0].is_in_attempt(at) else (None, None)
    route, spoken = one.attempt.context, one.attempt.submission.sender
    ended = Ended(
        one.attempt,
        outcome.verdict.value,
        outcome.code,
        outcome.detail,
        outcome.doubtful,
        id,
        end,
        route.cost,
        None if spoken == due.sender else spoken,
    )
    message = (lease.organization_id, lease.id)
    match outcome.verdict:
        case Verdict.ACCEPTED:
            taken = Taken(route.network, route.cost)
            return Settled(ended, Move(*message, "sent", at, supplier_id=one.attempt.target_id, taken=taken))
        case Verdict.UNKNOWN:
            return Settled(ended, postponed=Postponed(lease, grace, leases.UNROUTED))
        case Verdict.REFUSED if not outcome.failover or due.refused:
            return Settled(ended, _unsent(due, at, "rejected"))
        case Verdict.REFUSED:
            return Settled(ended, postponed=Postponed(lease, 0.0, leases.UNROUTED))
        case Verdict.UNREACHABLE:
            pause, counts = hold_pause(number), False
        case Verdict.BUSY:
            counts = outcome.counts
            pause = submit_pause(lease.tries + 1) if counts else hold_pause(number)
            if outcome.retry_after is not None:
                pause = max(outcome.retry_after, hold_pause(number))
    if at + timedelta(seconds=pause) >= deadline(due.accepted_at, due.expires_at):
        return Settled(ended, _unsent(due, at, "expired"))
    return Settled(ended, postponed=Postponed(lease, pause, leases.UNROUTED, counts))


def _unsent(due: ClaimedMessage, at: datetime, status: str) -> Move:
    """The end of a message that is not tried again. If an earlier try had no answer, somebody may have it after all."""
    if due.was_unknown:
        status, code = "unknown", OUTCOME_UNKNOWN
    else:
        code = status
    return Move(due.lease.organization_id, due.lease.id, status, at, code, unsent=True)


def deadline(accepted_at: datetime, expires_at: datetime | None) -> datetime:
    """When a message is no longer worth sending."""
    return expires_at or accepted_at + timedelta(seconds=SUBMIT_HORIZON)
