"""Periodic work: the worker that advances a timer runs its work; the others do not.

A timer's next time was written by the database's clock. If that clock has been set back, the time is further away than
the timer's period, and the timer would pause for as long as the clock was ahead: so such a timer is due at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import TypeVar
from uuid import UUID

import asyncpg

from heliograph.base.database.pool import BRIEFLY, Connection

Unit = TypeVar("Unit")
Result = TypeVar("Result")

#: Seconds after which failed work is retried, however long its period is.
AFTER_FAILURE = 60.0
#: Seconds by which a timer may be further away than its period: statements of several workers wait for each other.
SLACK = 60.0
#: How many locks a step waits for: with more, it is a table that is locked. Forty tell one unit from a thousand others.
MOST_LOCKS = 40
#: The timer of retention; metrics report how long ago it last succeeded.
FORGET = "forget"

ENSURE = "INSERT INTO timers (name, next_at) VALUES ($1, now()) ON CONFLICT DO NOTHING"

# A condition on a row of `timers`. `every`: its period in seconds, an SQL expression.
IS_DUE = f"(next_at <= now() OR next_at > now() + make_interval(secs => {{every}} + {SLACK}))"

TAKE = f"""
UPDATE timers SET next_at = now() + make_interval(secs => $2)
 WHERE name = $1 AND {IS_DUE.format(every="$2::float8")} RETURNING name
"""

HASTEN = "UPDATE timers SET next_at = now() WHERE name = $1"

RETRY = "UPDATE timers SET next_at = least(next_at, now() + make_interval(secs => $2)) WHERE name = $1"

REACH = "UPDATE timers SET done_until = $2 WHERE name = $1"

# If a worker hangs while holding the row, the server terminates its session (`base.network.connecting`), so that
# another worker can continue.
HOLD = "SELECT name FROM timers WHERE name = $1 FOR UPDATE SKIP LOCKED"


async def ensure(conn: Connection, name: str) -> None:
    """Register the timer."""
    await conn.execute(ENSURE, name)


async def take(conn: Connection, name: str, *, every: float) -> bool:
    """True if the timer is due and this worker should run it; `every`: seconds until the next run."""
    return await conn.fetchval(TAKE, name, every) is not None


async def hasten(conn: Connection, name: str) -> None:
    """Make the timer due at once: its work is not finished."""
    await conn.execute(HASTEN, name)


async def retry(conn: Connection, name: str) -> None:
    """Make the timer due in AFTER_FAILURE seconds at most: its work failed."""
    await conn.execute(RETRY, name, AFTER_FAILURE)


async def reach(conn: Connection, name: str, until: datetime | None) -> None:
    """Record how far the timer's work has got; None: it begins again. That a timer was taken does not imply this."""
    await conn.execute(REACH, name, until)


async def hold(conn: Connection, name: str) -> bool:
    """True if no other worker holds this timer; it is then held until the end of the caller's transaction."""
    return await conn.fetchval(HOLD, name) is not None


async def around_locks(
    conn: Connection, units: Sequence[Unit], work: Callable[[Sequence[Unit]], Awaitable[Result]]
) -> tuple[list[Result], list[Unit]]:
    """Run `work` on these units, in a transaction that waits for locks only briefly; if a row stays locked, as by an
    open session, in halves, so that others neither wait for it nor find their rows locked meanwhile. Returns the
    results of what was committed, and the units that were left.
    """
    results: list[Result] = []
    left: list[Unit] = []
    locks = 0
    parts = deque([units] if units else [])
    while parts:
        part = parts.popleft()
        try:
            async with conn.transaction():
                await conn.execute(BRIEFLY)
                result = await work(part)
        except asyncpg.LockNotAvailableError:
            locks += 1
            if len(part) == 1 or locks >= MOST_LOCKS:
                left += part
            else:
                middle = len(part) // 2
                parts.extendleft([part[middle:], part[:middle]])
            continue
        results.append(result)
    return results, left


async def end_by_organization(
    conn: Connection,
    some: Sequence[tuple[UUID, UUID]],
    end: Callable[[Sequence[tuple[UUID, UUID]]], Awaitable[Result]],
) -> tuple[list[Result], list[UUID]]:
    """As `around_locks`, for messages, (organization, id) each, which `end` gets in the order of their ids; those of an
    organization are left together. Returns the results and the organizations that were left."""
    units = [list(group) for _, group in groupby(sorted(some), key=itemgetter(0))]

    async def work(part: Sequence[Sequence[tuple[UUID, UUID]]]) -> Result:
        return await end(sorted((one for unit in part for one in unit), key=itemgetter(1)))

    results, left = await around_locks(conn, units, work)
    return results, [unit[0][0] for unit in left]


async def end_due(
    conn: Connection,
    due: Callable[[Sequence[UUID]], Awaitable[Sequence[tuple[UUID, UUID]]]],
    end: Callable[[Sequence[tuple[UUID, UUID]]], Awaitable[Result]],
    *,
    limit: int,
) -> list[Result]:
    """End the messages that are due, at most `limit`, as `end_by_organization` does; returns the results. `due`: reads
    them, except those of the organizations given. If some were left, more are read: they may have been most of them."""
    ended: list[Result] = []
    without: list[UUID] = []
    while True:
        found = await due(without)
        results, left = await end_by_organization(conn, found, end)
        ended += results
        without += left
        if not left or len(found) < limit or len(without) >= MOST_LOCKS:
            return ended
