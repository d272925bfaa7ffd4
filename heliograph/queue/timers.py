"""Periodic work: the worker that advances a timer runs its work; the others do not.

A timer's next time was written by the database's clock. If that clock has been set back, the time is further away than
the timer's period, and the timer would pause for as long as the clock was ahead: so such a timer is due at once.
"""

from __future__ import annotations

from datetime import datetime

from heliograph.base.database.pool import Connection

#: Seconds after which failed work is retried, however long its period is.
AFTER_FAILURE = 60.0
#: Seconds by which a timer may be further away than its period: statements of several workers wait for each other.
SLACK = 60.0
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
