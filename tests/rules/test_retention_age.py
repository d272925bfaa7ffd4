"""How long ago retention last succeeded, as the metrics show it: by its results, not by its schedule."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool, follow_clock
from heliograph.base.process.settings import Settings
from heliograph.health.snapshots import Standbys
from heliograph.metrics import database
from heliograph.queue import timers
from heliograph.retention import forgetting
from heliograph.retention.forgetting import Step

pytestmark = pytest.mark.usefixtures("partitions_ahead")
SETTINGS = Settings(secret_key="a secret key for tests, long enough")
NAME = "heliograph_retention_age_seconds"
DAY = timedelta(days=1).total_seconds()


async def turn(pool: Pool, *steps: Step) -> None:
    """It is due, and a worker runs it."""
    async with pool.acquire() as conn:
        await timers.ensure(conn, timers.FORGET)
        await timers.hasten(conn, timers.FORGET)
        assert await timers.take(conn, timers.FORGET, every=3600.0)
        await forgetting.forget(conn, SETTINGS, also=steps)


async def age(pool: Pool) -> float:
    (told,) = [one.value for one in await database.read(pool, Standbys()) if one.name == NAME]
    return told


async def succeeded(pool: Pool, *, ago: timedelta | None) -> None:
    at = None if ago is None else datetime.now(UTC) - ago
    await pool.execute("UPDATE timers SET done_until = $1 WHERE name = 'forget'", at)


async def broken(conn: Connection) -> bool:
    return bool(await conn.fetchval("SELECT 1 / 0"))


async def unfinished(conn: Connection) -> bool:
    return False


async def done(conn: Connection) -> bool:
    return True


async def test_a_round_that_leaves_nothing_is_the_last_success(pool: Pool) -> None:
    for ago, told in ((None, -1), (timedelta(days=2), 2 * DAY)):
        await succeeded(pool, ago=ago)
        before = await age(pool)
        assert told <= before < 3 * DAY
        await turn(pool, Step("done", done))
        assert 0 <= await age(pool) < DAY


@pytest.mark.parametrize("step", [broken, unfinished])
async def test_a_step_that_fails_or_goes_on_is_no_success(
    pool: Pool, step: Callable[[Connection], Awaitable[bool]]
) -> None:
    await succeeded(pool, ago=timedelta(days=2))
    await turn(pool, Step("the step", step), Step("done", done))
    assert await age(pool) >= 2 * DAY
    await succeeded(pool, ago=None)
    await turn(pool, Step("the step", step))
    assert await age(pool) == -1


async def test_retention_that_is_suspended_is_no_success(pool: Pool) -> None:
    await succeeded(pool, ago=timedelta(days=2))
    clock.arm(str(timedelta(days=430).total_seconds()))
    try:
        async with pool.acquire() as conn:
            await follow_clock(conn)
        assert clock.differs()
        await turn(pool, Step("done", done))
    finally:
        clock.arm("")
    assert await age(pool) >= 2 * DAY
