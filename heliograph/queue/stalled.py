"""Messages that no worker will take for now, because an operator holds them or their campaign is paused: which of them
are past their validity.

The queue is read in the order of ids, a bounded number of rows per step, and after its end from the beginning again;
the position is kept with the timer. Only held or postponed rows are looked up. Messages of an organization whose rows
are locked are found again the next time. The rule nobody may break: work held since a restore is left alone, since it
may have been sent after the backup was taken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of, uuid7_floor
from heliograph.queue import timers
from heliograph.queue.backlog import FITS, RESTORED
from heliograph.queue.leases import GUARDED, NOT_PUT_OFF

Result = TypeVar("Result")

#: Seconds between two steps, and the rows that one reads: at most 20 ms.
EVERY, STEP = 1.0, 2_000
#: An SQL condition: messages may be held or postponed.
ANY = """
EXISTS (SELECT FROM queue_holds WHERE NOT restored AND kind IN ('sms', 'whatsapp'))
OR EXISTS (SELECT FROM campaign_chunks WHERE put_off_at IS NOT NULL AND NOT withdrawn)
"""
PLACE = "SELECT done_until FROM timers WHERE name = $1 FOR UPDATE"
# Messages held by the guard have an expiry of their own. `queue` names the rows read, for the conditions.
NEXT = f"""
WITH looked AS MATERIALIZED (
    SELECT id, kind, line, organization_id, due_at, lease_until, begun_at FROM queue
     WHERE id >= $2 ORDER BY id, line LIMIT $3
)
SELECT (SELECT count(*) FROM looked)::int AS rows, (SELECT id FROM looked ORDER BY id LIMIT 1) AS first,
       (SELECT id FROM looked ORDER BY id DESC LIMIT 1) AS last,
       ARRAY(SELECT (organization_id, id) FROM looked queue
              WHERE kind = $1 AND line <> '{GUARDED}' AND begun_at IS NULL
                AND (lease_until IS NULL OR lease_until < now())
                -- In this order, because looking up a message costs most.
                AND CASE WHEN {RESTORED} THEN false
                         WHEN NOT ({NOT_PUT_OFF}) OR EXISTS (SELECT FROM queue_holds h WHERE {FITS}) THEN {{expired}}
                         ELSE false END
              ORDER BY id) AS expired
"""


async def end_expired(
    conn: Connection,
    kind: str,
    timer: str,
    *,
    condition: str,
    end: Callable[[Sequence[tuple[UUID, UUID]]], Awaitable[Result]],
) -> list[Result]:
    """Run `end` in transactions on the next messages of a kind past their validity that are held or postponed,
    (organization, id) each; returns its results. `condition`: the channel's, on a row of `queue`. `timer`: the timer
    whose step this is."""
    async with conn.transaction():
        past = await _expired(conn, kind, timer, condition)
    results, _ = await timers.end_by_organization(conn, past, end)
    return results


async def _expired(conn: Connection, kind: str, timer: str, condition: str) -> list[tuple[UUID, UUID]]:
    since: datetime | None = await conn.fetchval(PLACE, timer)
    begin = UUID(int=0) if since is None else uuid7_floor(since)
    step = STEP
    while True:
        row = await conn.fetchrow(NEXT.format(expired=condition), kind, begin, step)
        assert row is not None
        if row["rows"] < step:
            until = None
            break
        until = time_of(row["last"])
        # The next step begins with the millisecond of the last row, so this step has to get past its own first.
        if until > time_of(row["first"]):
            break
        step *= 2
    await timers.reach(conn, timer, until)
    return [tuple(one) for one in row["expired"]]


IS_EXPIRED = "SELECT {expired} FROM (VALUES ($1::uuid, $2::uuid)) AS queue (organization_id, id)"


async def is_expired(conn: Connection, organization_id: UUID, id: UUID, *, condition: str) -> bool:
    """Whether a message is past its validity. `condition`: as for `expired`."""
    return bool(await conn.fetchval(IS_EXPIRED.format(expired=condition), organization_id, id))
