"""Periodic work: of all workers, the one that advances a timer runs it."""

from __future__ import annotations

from datetime import datetime

from heliograph.base.database.pool import Connection

#: Seconds after which work that failed is tried again, however rare it is.
AFTER_FAILURE = 60.0
#: Retention's: metrics tell how long ago it last succeeded.
FORGET = "forget"

ENSURE = "INSERT INTO timers (name, next_at) VALUES ($1, now()) ON CONFLICT DO NOTHING"

TAKE = """
UPDATE timers SET next_at = now() + make_interval(secs => $2) WHERE name = $1 AND next_at <= now() RETURNING name
"""

HASTEN = "UPDATE timers SET next_at = now() WHERE name = $1"

RETRY = "UPDATE timers SET next_at = least(next_at, now() + make_interval(secs => $2)) WHERE name = $1"

REACH = "UPDATE timers SET done_until = $2 WHERE name = $1"

# A worker that hangs while it holds the row is terminated by the server, so that another one goes on.
HOLD = """
WITH impatient AS MATERIALIZED (SELECT set_config('idle_in_transaction_session_timeout', '30s', true))
SELECT name FROM timers, impatient WHERE name = $1 FOR UPDATE OF timers SKIP LOCKED
"""


async def ensure(conn: Connection, name: str) -> None:
    """Register the timer."""
    await conn.execute(ENSURE, name)


async def take(conn: Connection, name: str, *, every: float) -> bool:
    """True if it is due and this worker is the one to do it; `every`: seconds until the next time."""
    return await conn.fetchval(TAKE, name, every) is not None


async def hasten(conn: Connection, name: str) -> None:
    """Make the timer due now: its work is not finished."""
    await conn.execute(HASTEN, name)


async def retry(conn: Connection, name: str) -> None:
    """Make the timer due in AFTER_FAILURE seconds at the latest: its work failed."""
    await conn.execute(RETRY, name, AFTER_FAILURE)


async def reach(conn: Connection, name: str, until: datetime) -> None:
    """Its work is done, for all that was due at `until`. A timer that is taken says nothing of the kind."""
    await conn.execute(REACH, name, until)


async def hold(conn: Connection, name: str) -> bool:
    """True if no other worker holds this timer; it is held until the end of the caller's transaction."""
    return await conn.fetchval(HOLD, name) is not None
