"""What a supplier's answer makes of an attempt, its message and its queue row: one transaction for a whole batch.

    accepted      the message is `sent`; the ids are kept for receipts; the work is done
    refused       another supplier once, if the answer allows it; else `rejected`
    busy          later, on the retry schedule; throttling and session trouble cost no try
    unreachable   nothing left this machine: again, elsewhere if need be
    unknown       wait for a receipt first; dispatch decides when the wait is over

Of a long message a supplier may have some segments: their ids are kept, and the rest follows in another attempt.

The rule nobody may break: an answer is a fact. It is recorded even by a worker that lost its lease meanwhile; only
the queue row then belongs to the new holder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.base.retry import SUBMIT_HORIZON, hold_pause, submit_pause
from heliograph.queue import leases
from heliograph.queue.leases import Postponed
from heliograph.sending.attempts import Ended
from heliograph.sending.results import Answered, Settled, settle
from heliograph.sms.dispatch import test_mode
from heliograph.sms.reports import receipts
from heliograph.sms.status import Move
from heliograph.suppliers.contract import Outcome, Verdict

PARTS = """
INSERT INTO sms_parts (supplier_id, id_key, message_id, attempt, part, parts, organization_id, recipient_suffix,
                       created_at)
SELECT *, $1::timestamptz FROM unnest(
    $2::uuid[], $3::text[], $4::uuid[], $5::smallint[], $6::smallint[], $7::smallint[], $8::uuid[], $9::text[])
ON CONFLICT DO NOTHING
"""


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
    moves: list[Move] = await settle(conn, [_decide(one, at, grace) for one in answered])
    keys = await _keep_ids(conn, answered, at)
    await _expect_test_receipts(conn, answered)
    early, _ = await receipts.early(conn, keys, policies=policies)
    return moves + early


async def _expect_test_receipts(conn: Connection, answered: Sequence[Answered]) -> None:
    """The test supplier's receipts are work in the queue, so that they come even if this worker does not live on."""
    items = []
    for one in answered:
        lease = one.attempt.lease
        if one.attempt.target_id == test_mode.SUPPLIER and one.outcome.verdict is Verdict.ACCEPTED:
            pause = test_mode.receipt_after(one.attempt.submission.to)
            if pause is not None:
                items.append((test_mode.SUPPLIER, lease.organization_id, lease.id, pause))
    if items:
        await leases.put(conn, "test", items)


async def _keep_ids(conn: Connection, answered: Sequence[Answered], at: datetime) -> list[tuple[UUID, str]]:
    """Store the ids that suppliers gave, also those of parts that were accepted before another part was refused."""
    rows = [
        (
            one.attempt.target_id,
            receipts.clean(part.supplier_message_id or "") or receipts.weak_key(one.attempt.submission.to),
            one.attempt.lease.id,
            one.attempt.series,
            part.number,
            one.outcome.total or len(one.attempt.submission.segments),
            one.attempt.lease.organization_id,
            receipts.suffix(one.attempt.submission.to),
        )
        for one in answered
        for part in one.outcome.parts
    ]
    if rows:
        await conn.execute(PARTS, at, *(list(column) for column in zip(*rows, strict=True)))
    return [(row[0], row[1]) for row in rows]


def _decide(one: Answered, at: datetime, grace: float) -> Settled:
    """Where the message goes, and where its queue row goes."""
    outcome: Outcome = one.outcome
    lease, due, number = one.attempt.lease, one.attempt.message, one.attempt.number
    ended = Ended(one.attempt, outcome.verdict.value, outcome.code, outcome.detail, outcome.doubtful)
    message = (lease.organization_id, lease.id)
    match outcome.verdict:
        case Verdict.ACCEPTED:
            return Settled(ended, Move(*message, "sent", at, supplier_id=one.attempt.target_id))
        case Verdict.UNKNOWN:
            return Settled(ended, postponed=Postponed(lease, grace, leases.UNROUTED))
        case Verdict.REFUSED if not outcome.failover or due.refused:
            return Settled(ended, Move(*message, "rejected", at, "rejected", unsent=True))
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
        return Settled(ended, Move(*message, "expired", at, "expired", unsent=True))
    return Settled(ended, postponed=Postponed(lease, pause, leases.UNROUTED, counts))


def deadline(accepted_at: datetime, expires_at: datetime | None) -> datetime:
    """When a message is no longer worth sending."""
    return expires_at or accepted_at + timedelta(seconds=SUBMIT_HORIZON)
