"""A database or session that is reused by another test keeps nothing of the previous one."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse

import asyncpg
import pytest

from heliograph.base.database.pool import Pool, open_pool
from heliograph.base.network.connecting import Connector
from tests import sessions
from tests.clearing import MOST_REMOVED
from tests.database import Cluster
from tests.embedded import ask, execute
from tests.hooks import organization

#: Each leaves something behind that deleting rows does not undo.
CHANGES = [
    "CREATE TABLE own (id integer)",
    "ALTER TABLE organizations ADD COLUMN own integer",
    "ALTER TABLE organizations ALTER COLUMN name SET DEFAULT 'own'",
    "ALTER TABLE organizations DROP CONSTRAINT organizations_pkey CASCADE",
    "CREATE INDEX own ON organizations (name)",
    "DROP TABLE schema_migrations",
    "GRANT DELETE ON schema_migrations TO public",
    "CREATE FUNCTION own() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "CREATE TYPE own AS ENUM ('a')",
    "CREATE SCHEMA own",
    "COMMENT ON TABLE organizations IS 'own'",
    "ALTER TABLE organizations SET (autovacuum_enabled = off)",
    "UPDATE schema_migrations SET digest = 'own'",
    "ANALYZE schema_migrations",
    "VACUUM timers",
    "ALTER DATABASE {name} SET work_mem = '5MB'",
    "ALTER DATABASE {name} CONNECTION LIMIT 3",
]


async def test_rows_are_removed_whatever_protects_them(database_server: Cluster) -> None:
    async with database_server.database() as url:
        pool = await open_pool(url, size=2)
        await organization(pool)
        await pool.execute("DELETE FROM timers")
        pool.terminate()
    assert await database_server.is_clear(url)
    assert await ask(url, "SELECT count(*) FROM organizations") == 0
    assert await ask(url, "SELECT count(*) FROM timers") == 1
    assert await ask(url, "SELECT count(*) FROM schema_migrations") > 0


@pytest.mark.parametrize("change", CHANGES)
async def test_what_is_more_than_rows_makes_a_database_another(database_server: Cluster, change: str) -> None:
    async with database_server.database() as url:
        await execute(database_server.as_administrator(url), change.format(name=urllib.parse.urlsplit(url).path[1:]))
    assert not await database_server.is_clear(url)


async def test_who_asks_for_the_partitions_of_later_times_gets_them_and_nobody_else_does(
    database_server: Cluster,
) -> None:
    parts = "SELECT count(*) FROM pg_class WHERE relispartition"
    async with database_server.database() as plain, database_server.database(later=True) as first:
        made = await ask(first, parts)
        assert made > await ask(plain, parts)
        await execute(database_server.as_administrator(first), "CREATE TABLE own (id integer)")
    async with database_server.database(later=True) as other:
        assert await ask(other, parts) == made
        assert await ask(other, "SELECT to_regclass('own')") is None


async def test_many_rows_make_a_database_another(database_server: Cluster) -> None:
    """Deleted rows slow down sequential scans."""
    async with database_server.database() as url:
        await execute(
            database_server.as_administrator(url),
            f"INSERT INTO timers (name, next_at, done_until) SELECT n::text, now(), now()"
            f" FROM generate_series(1, {MOST_REMOVED}) n",
        )
    assert not await database_server.is_clear(url)


async def test_a_lock_that_a_kept_session_has_makes_a_database_another(database_server: Cluster) -> None:
    async with database_server.database() as url:
        pool = await open_pool(url, size=1)
        await pool.execute("SELECT pg_advisory_lock(1)")
        pool.terminate()
    assert not await database_server.is_clear(url)


async def test_a_session_that_was_left_open_is_ended(database_server: Cluster) -> None:
    async with database_server.database() as url:
        left = await asyncpg.connect(url)
        await left.execute("BEGIN; LOCK TABLE organizations")
    assert await database_server.is_clear(url)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError)):
        await left.execute("SELECT 1")


async def test_a_session_is_kept_without_what_was_set_in_it(database_server: Cluster) -> None:
    async def process(pool: Pool) -> int:
        found: int = await pool.fetchval("SELECT pg_backend_pid()")
        return found

    async with database_server.database() as url:
        one = await open_pool(url, size=1)
        before = await process(one), await one.fetchval("SHOW statement_timeout")
        await one.execute("SET statement_timeout = '1h'; SELECT pg_advisory_lock(1)")
        one.terminate()
        other = await open_pool(url, size=1)
        assert (await process(other), await other.fetchval("SHOW statement_timeout")) == before
        assert await other.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
        other.terminate()
        # With other settings, it is a different session.
        third = await open_pool(url, size=1, statement=5.0)
        assert await process(third) != before[0]
        third.terminate()


async def test_a_session_in_use_is_not_kept(database_server: Cluster) -> None:
    async with database_server.database() as url:
        one = await open_pool(url, size=1)
        conn = await one.acquire()
        process = await conn.fetchval("SELECT pg_backend_pid()")
        one.terminate()
        other = await open_pool(url, size=1)
        assert await other.fetchval("SELECT pg_backend_pid()") != process
        other.terminate()


async def test_a_pulses_session_is_kept_between_two_beats(database_server: Cluster) -> None:
    named = {"application_name": sessions.PULSE}
    async with database_server.database() as url:
        one = await Connector(url).connect(server_settings=named)
        process = one.get_server_pid()
        await one.execute("SET work_mem = '5MB'")
        one.terminate()
        connector = Connector(url)
        other = await connector.connect(server_settings=named)
        assert other.get_server_pid() == process
        assert await other.fetchval("SHOW work_mem") != "5MB"
        other.terminate()
        # One that connects again gets a new session.
        third = await connector.connect(server_settings=named)
        assert third.get_server_pid() != process
        await third.close()
        # Amid a beat, it is not kept.
        fourth = await Connector(url).connect(server_settings=named)
        assert fourth.get_server_pid() == process
        beat = asyncio.create_task(fourth.fetchval("SELECT pg_sleep(600)"))
        await asyncio.sleep(0)
        fourth.terminate()
        with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError):
            await beat
        fifth = await Connector(url).connect(server_settings=named)
        assert fifth.get_server_pid() != process
        fifth.terminate()
    assert await database_server.is_clear(url)
