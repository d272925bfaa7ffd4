"""Messages that never get a final receipt: they become `unknown` after a deadline."""

from __future__ import annotations

from datetime import timedelta

from heliograph.base.database.clock import now
from heliograph.base.database.pool import RANGE_PLANS, Connection
from heliograph.queue import timers
from heliograph.sms.status import NO_RECEIPT, Move, move_many

#: The timer that ends them, which keeps its position.
TIMER = "silent"
# The position in time is stored with the timer; it advances in the transaction that closes the last of what lies before
# it.
PLACE = """
SELECT coalesce(done_until, now() - $1::interval - interval '1 day') AS start, now() - $1::interval AS goal
  FROM timers WHERE name = $2 FOR UPDATE
"""
#: Maximum steps per run: enough for three weeks. After a longer standstill, the next run continues.
MOST = 500
#: Messages closed in one step: a supplier that delivers no receipts may have hundreds of thousands in an hour.
STEP = 2_000
#: The shortest time range of a step.
SHORTEST = timedelta(seconds=1)
# By the end of the accepted attempt. WhatsApp attempts have no message in this table.
SILENT = """
SELECT attempt.organization_id, attempt.message_id
  FROM attempts attempt CROSS JOIN LATERAL (
       SELECT FROM messages
        WHERE organization_id = attempt.organization_id AND id = attempt.message_id AND status = 'sent') m
 WHERE attempt.ended_at > $1 AND attempt.ended_at <= $2 AND attempt.state = 'accepted' LIMIT $3
"""


async def close_silent(
    conn: Connection, *, deadline: timedelta, span: timedelta, most: int = MOST, limit: int = STEP
) -> int:
    """End messages that were sent `deadline` ago and have no final receipt: they become `unknown`.

    Advances through time in at most `most` steps, each of which is a commit, and keeps its position in the timers
    table, so no message is skipped while no worker runs. A step covers at most `span` and closes at most `limit`
    messages; if it finds more, the next one covers half of it. Returns how many were closed.
    """
    closed, stretch = 0, span
    for _ in range(most):
        async with conn.transaction():
            place = await conn.fetchrow(PLACE, deadline, TIMER)
            if place is None:
                break
            until = min(place["start"] + stretch, place["goal"])
            await conn.execute(RANGE_PLANS)
            at = now()
            rows = await conn.fetch(SILENT, place["start"], until, limit)
            # A message may have been accepted twice.
            moves = [Move(org, message, "unknown", at, NO_RECEIPT) for org, message in dict.fromkeys(map(tuple, rows))]
            closed += len((await move_many(conn, moves)).ids)
            is_whole = len(rows) < limit
            if is_whole:
                await timers.reach(conn, TIMER, until)
        if is_whole and until == place["goal"]:
            break
        stretch = min(stretch * 2, span) if is_whole else max(stretch / 2, SHORTEST)
    return closed
