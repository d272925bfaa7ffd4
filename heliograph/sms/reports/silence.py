"""Messages that never get a final receipt: they become `unknown` after a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from heliograph.base.database.clock import now
from heliograph.base.database.pool import RANGE_PLANS, Connection
from heliograph.queue import timers
from heliograph.sms.status import NO_RECEIPT, Move, move_many

#: The timer that ends them, which keeps its position.
TIMER = "silent"
# The position in time is stored with the timer; it advances once all that lies before it is closed.
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
 WHERE attempt.ended_at > $1 AND attempt.ended_at <= $2 AND attempt.state = 'accepted'
   AND attempt.organization_id <> ALL ($4) LIMIT $3
"""


async def close_silent(
    conn: Connection, *, deadline: timedelta, span: timedelta, most: int = MOST, limit: int = STEP
) -> int:
    """End messages that were sent `deadline` ago and have no final receipt: they become `unknown`.

    Advances through time in at most `most` steps, and keeps its position in the timers table, so no message is skipped
    while no worker runs. A step covers at most `span` and closes at most `limit` messages; if it finds more, the next
    one covers half of it. Where messages are left because rows of their organization are locked, the position stays for
    the next run, and this one goes on without that organization. Returns how many were closed.
    """
    closed, stretch = 0, span
    without: list[UUID] = []
    #: How far this run has got without those.
    beyond: datetime | None = None
    for _ in range(most):
        async with conn.transaction():
            place = await conn.fetchrow(PLACE, deadline, TIMER)
            if place is None:
                break
            start = place["start"] if beyond is None else max(beyond, place["start"])
            until = min(start + stretch, place["goal"])
            await conn.execute(RANGE_PLANS)
            rows = await conn.fetch(SILENT, start, until, limit, without)
        # A message may have been accepted twice.
        silent = list(dict.fromkeys((row["organization_id"], row["message_id"]) for row in rows))
        done, left = await timers.end_by_organization(conn, silent, partial(_end, conn))
        closed += sum(done)
        without += left
        is_whole = len(rows) < limit
        if is_whole and without:
            beyond = until
        elif is_whole:
            await timers.reach(conn, TIMER, until)
        if (is_whole and until == place["goal"]) or len(without) >= timers.MOST_LOCKS:
            break
        stretch = min(stretch * 2, span) if is_whole else max(stretch / 2, SHORTEST)
    return closed


async def _end(conn: Connection, silent: Sequence[tuple[UUID, UUID]]) -> int:
    at = now()
    return len((await move_many(conn, [Move(*one, "unknown", at, NO_RECEIPT) for one in silent])).ids)
