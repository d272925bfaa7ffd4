"""Messages that never get a final receipt: they become `unknown` after a deadline."""

from __future__ import annotations

from datetime import timedelta

from heliograph.base.database.clock import now
from heliograph.base.database.pool import RANGE_PLANS, Connection
from heliograph.sms.status import NO_RECEIPT, Move, move_many

# The position in time is stored with the timer; it advances in the transaction that closes what lies before it.
ADVANCE = """
UPDATE timers SET done_until = least(place.start + $2::interval, now() - $1::interval)
  FROM (SELECT name, coalesce(done_until, now() - $1::interval - interval '1 day') AS start
          FROM timers WHERE name = 'silent' FOR UPDATE) place
 WHERE timers.name = place.name
RETURNING place.start, done_until, done_until = now() - $1::interval AS is_done
"""
#: Maximum steps per run: enough for three weeks. After a longer standstill, the next run continues.
MOST = 500
# By the end of the accepted attempt. WhatsApp attempts have no message in this table.
SILENT = """
SELECT DISTINCT attempt.organization_id, attempt.message_id
  FROM attempts attempt CROSS JOIN LATERAL (
       SELECT FROM messages
        WHERE organization_id = attempt.organization_id AND id = attempt.message_id AND status = 'sent') m
 WHERE attempt.ended_at > $1 AND attempt.ended_at <= $2 AND attempt.state = 'accepted'
"""


async def close_silent(conn: Connection, *, deadline: timedelta, span: timedelta, most: int = MOST) -> int:
    """End messages that were sent `deadline` ago and have no final receipt: they become `unknown`.

    Advances through time in at most `most` steps of `span`, each of which is a commit, and keeps its position in the
    timers table, so no message is skipped while no worker runs. Returns how many were closed.
    """
    closed = 0
    for _ in range(most):
        async with conn.transaction():
            place = await conn.fetchrow(ADVANCE, deadline, span)
            if place is None:
                break
            await conn.execute(RANGE_PLANS)
            at = now()
            rows = await conn.fetch(SILENT, place["start"], place["done_until"])
            moves = [Move(org, message, "unknown", at, NO_RECEIPT) for org, message in rows]
            closed += len((await move_many(conn, moves)).ids)
        if place["is_done"]:
            break
    return closed
