"""What a supplier's answer makes of an attempt, its message and its queue row: one transaction for a whole batch.

    accepted      the message is `sent`; the ids are kept for receipts; the work is done
    refused       another supplier once, if the answer allows it; else `rejected`
    busy          later, on the retry schedule; throttling and session trouble cost no try
    unreachable   nothing left this machine: again, elsewhere if need be
    unknown       wait for a receipt first; `dispatch` decides when the wait is over

Of a long message a supplier may have some segments: their ids are kept, and the rest follows in another attempt.

The rule nobody may break: an answer is a fact. It is recorded even by a worker that lost its lease meanwhile; only
the queue row then belongs to the new holder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base.clock import now
from heliograph.base.db import Connection
from heliograph.queue import leases
from heliograph.queue.leases import Lease, Postponed
from heliograph.queue.retry import SUBMIT_HORIZON, hold_pause, submit_pause
from heliograph.sms import receipts, test_mode
from heliograph.sms.status import Move
from heliograph.suppliers.contract import Outcome, Submission, Verdict


class Answered(msgspec.Struct, frozen=True, gc=False):
    """One attempt's end."""

    lease: Lease
    submission: Submission
    supplier_id: UUID
    outcome: Outcome
    accepted_at: datetime
    expires_at: datetime | None
    #: The first attempt of its series.
    series: int
    #: Suppliers that refused this message before.
    refusals: int = 0


ATTEMPTS = """
UPDATE sms_attempts a
   SET state = v.state, answered_at = $1, code = v.code, detail = v.detail, doubtful = v.doubtful::smallint[]
  FROM unnest($2::uuid[], $3::uuid[], $4::smallint[], $5::text[], $6::text[], $7::text[], $8::text[])
       AS v (organization_id, message_id, attempt, state, code, detail, doubtful)
 WHERE a.organization_id = v.organization_id AND a.message_id = v.message_id AND a.attempt = v.attempt
"""
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
    moves: list[Move] = []
    done: list[Lease] = []
    back: list[Postponed] = []
    for one in answered:
        move, postponed = _decide(one, at, grace)
        if move is not None:
            moves.append(move)
        if postponed is not None:
            back.append(postponed)
        else:
            done.append(one.lease)
    # Queue rows before attempts, as dispatch locks them; then parts, receipts, messages.
    if done:
        await leases.finish(conn, done)
    if back:
        await leases.postpone(conn, back)
    await _record_attempts(conn, answered, at)
    keys = await _keep_ids(conn, answered, at)
    await _expect_test_receipts(conn, answered)
    early, _ = await receipts.early(conn, keys, policies=policies)
    return moves + early


async def _record_attempts(conn: Connection, answered: Sequence[Answered], at: datetime) -> None:
    # An answer that comes late may be in one batch with the news that there was none: the last word counts.
    last = {(one.submission.message_id.int, one.submission.attempt): one for one in answered}
    ordered = [last[key] for key in sorted(last)]
    await conn.execute(
        ATTEMPTS,
        at,
        [one.lease.organization_id for one in ordered],
        [one.submission.message_id for one in ordered],
        [one.submission.attempt for one in ordered],
        [one.outcome.verdict.value for one in ordered],
        [receipts.clean(one.outcome.code) for one in ordered],
        [receipts.clean(one.outcome.detail) for one in ordered],
        [_doubtful(one.outcome) for one in ordered],
    )


async def _expect_test_receipts(conn: Connection, answered: Sequence[Answered]) -> None:
    """The test supplier's receipts are work in the queue, so that they come even if this worker does not live on."""
    items = []
    for one in answered:
        if one.supplier_id == test_mode.SUPPLIER and one.outcome.verdict is Verdict.ACCEPTED:
            pause = test_mode.receipt_after(one.submission.to)
            if pause is not None:
                items.append((test_mode.SUPPLIER, one.lease.organization_id, one.submission.message_id, pause))
    if items:
        await leases.put(conn, "test", items)


async def _keep_ids(conn: Connection, answered: Sequence[Answered], at: datetime) -> list[tuple[UUID, str]]:
    """Store the ids that suppliers gave, also those of parts that were accepted before another part was refused."""
    rows = [
        (
            one.supplier_id,
            receipts.clean(part.supplier_message_id or "") or receipts.weak_key(one.submission.to),
            one.submission.message_id,
            one.series,
            part.number,
            one.outcome.total or len(one.submission.segments),
            one.lease.organization_id,
            receipts.suffix(one.submission.to),
        )
        for one in answered
        for part in one.outcome.parts
    ]
    if rows:
        await conn.execute(PARTS, at, *(list(column) for column in zip(*rows, strict=True)))
    return [(row[0], row[1]) for row in rows]


def _decide(one: Answered, at: datetime, grace: float) -> tuple[Move | None, Postponed | None]:
    """Where the message goes, and where its queue row goes (None: the work is done)."""
    outcome, lease = one.outcome, one.lease
    message = (lease.organization_id, one.submission.message_id)
    match outcome.verdict:
        case Verdict.ACCEPTED:
            return Move(*message, "sent", at), None
        case Verdict.UNKNOWN:
            return None, Postponed(lease, grace, leases.UNROUTED)
        case Verdict.REFUSED if not outcome.failover or one.refusals >= 1:
            return Move(*message, "rejected", at, "rejected", unsent=True), None
        case Verdict.REFUSED:
            return None, Postponed(lease, 0.0, leases.UNROUTED)
        case Verdict.UNREACHABLE:
            pause, counts = hold_pause(one.submission.attempt), False
        case Verdict.BUSY:
            counts = outcome.counts
            pause = submit_pause(lease.tries + 1) if counts else hold_pause(one.submission.attempt)
            if outcome.retry_after is not None:
                pause = max(outcome.retry_after, hold_pause(one.submission.attempt))
    if at + timedelta(seconds=pause) >= deadline(one.accepted_at, one.expires_at):
        return Move(*message, "expired", at, "expired", unsent=True), None
    return None, Postponed(lease, pause, leases.UNROUTED, counts)


def _doubtful(outcome: Outcome) -> str | None:
    """As an array's text: arrays of arrays must not differ in length."""
    return f"{{{','.join(map(str, outcome.doubtful))}}}" if outcome.doubtful else None


def deadline(accepted_at: datetime, expires_at: datetime | None) -> datetime:
    """When a message is no longer worth sending."""
    return expires_at or accepted_at + timedelta(seconds=SUBMIT_HORIZON)
