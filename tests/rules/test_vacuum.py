"""Autovacuum that is off, or never ends, is told before statements take seconds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from heliograph import doctor
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check
from heliograph.health import vacuum
from tests.database import Cluster
from tests.processes import until_true

#: Dead rows of other tests would be found too.
pytestmark = pytest.mark.fresh_database
OWNED = Callable[[str], Awaitable[None]]


async def found(pool: Pool) -> Check:
    async with pool.acquire() as conn:
        (check,) = await vacuum.run(conn, Settings())
    return check


async def test_autovacuum_that_is_off_is_told(pool: Pool, database_server: Cluster, database_url: str) -> None:
    settings = Settings(database_url=database_url, secret_key="k" * 40)
    async with pool.acquire() as conn:
        (check,) = [one for one in await doctor.examine(conn, settings, far=False) if one.check == "vacuum"]
    assert (check.state, check.detail) == ("ok", "autovacuum keeps up")
    administrator = await asyncpg.connect(database_server.as_administrator(database_url))
    try:
        # Of the two that it needs, the one that a session may set.
        await administrator.execute("SET track_counts = off")
        (check,) = await vacuum.run(administrator, settings)
        assert (check.state, check.detail) == ("warning", "track_counts off")
    finally:
        await administrator.close()


async def test_tables_that_autovacuum_leaves_out_are_named(pool: Pool, as_owner: OWNED) -> None:
    await as_owner("ALTER TABLE queue SET (autovacuum_enabled = off)")
    check = await found(pool)
    assert (check.state, check.detail) == ("warning", "autovacuum is off for queue")
    await as_owner("ALTER TABLE queue RESET (autovacuum_enabled)")
    assert (await found(pool)).state == "ok"


async def test_a_table_that_no_vacuum_gets_through_is_named(
    pool: Pool, as_owner: OWNED, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server's own vacuum stays away; its threshold is no part of the comparison here.
    await as_owner("ALTER TABLE timers SET (autovacuum_vacuum_threshold = 2000000000)")
    monkeypatch.setattr(vacuum, "DEAD", 499)
    monkeypatch.setattr(vacuum, "TIMES", 0)

    async def is_told() -> bool:
        return (await found(pool)).state == "warning"

    await pool.execute("INSERT INTO timers (name, next_at) SELECT 'one ' || n, now() FROM generate_series(1, 500) n")
    async with pool.acquire() as reader, reader.transaction(isolation="repeatable_read", readonly=True):
        assert await reader.fetchval("SELECT count(*) FROM timers WHERE name LIKE 'one %'") == 500
        await pool.execute("DELETE FROM timers WHERE name LIKE 'one %'")
        await until_true(is_told)
        check = await found(pool)
        assert check.detail == "autovacuum has not finished with timers for an hour, which has 500 dead rows"
        assert "VACUUM (ANALYZE, VERBOSE) timers" in check.remedy
        # Far from its threshold it has nothing to do yet.
        monkeypatch.setattr(vacuum, "TIMES", 10)
        assert (await found(pool)).state == "ok"
        monkeypatch.setattr(vacuum, "TIMES", 0)
        # A vacuum ended, though the reader still sees the rows: the check of snapshots is about that.
        await as_owner("VACUUM timers")
        assert (await found(pool)).state == "ok"
        monkeypatch.setattr(vacuum, "SINCE", -3600)
        assert await is_told()
