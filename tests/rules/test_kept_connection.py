"""A connection that one user keeps for a while is not used by anybody else; statements that run for every message."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from heliograph.base.database.batching import HeldConnection
from heliograph.base.database.pool import Pool, fetch_hot, open_pool


class Hasty(HeldConnection):
    """Returns its connection as soon as it can."""

    IDLE = 0.0


@pytest.mark.parametrize("pauses", range(8))
async def test_it_is_not_given_back_while_somebody_begins_to_use_it(database_url: str, pauses: int) -> None:
    """Otherwise a statement runs in whatever transaction the next user has begun, and may be rolled back with it."""
    pool: Pool = await open_pool(database_url, size=1)
    try:
        kept = Hasty(pool)
        ended = asyncio.Event()

        async def other() -> None:
            while not ended.is_set():
                async with pool.acquire() as conn, conn.transaction():
                    await conn.fetchval("SELECT 1")

        async def user() -> None:
            for _ in range(20):
                async with kept.use() as conn:
                    begun = await conn.fetchval("SELECT now()")
                    assert not conn.is_in_transaction()
                    assert await conn.fetchval("SELECT now()") > begun  # each in a transaction of its own
                for _ in range(pauses):
                    await asyncio.sleep(0)

        others = asyncio.create_task(other())
        await user()
        ended.set()
        await others
    finally:
        pool.terminate()


@pytest.mark.parametrize("how", ["the pool is gone", "it is closed"])
async def test_it_leaves_nothing_behind_that_a_closing_loop_would_not_run(database_url: str, how: str) -> None:
    """A task created in the last turn of a loop never began, and Python warned about it at the end of any process."""
    pool: Pool = await open_pool(database_url, size=1)
    made: list[Any] = []
    loop = asyncio.get_running_loop()

    def note(running: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(work)
        return asyncio.Task(work, loop=running, **options)

    try:
        kept = Hasty(pool)
        async with kept.use() as conn:
            assert await conn.fetchval("SELECT 1") == 1
        if how == "it is closed":
            await kept.close()
            assert pool.get_idle_size() == 1
        else:
            pool.terminate()
        loop.set_task_factory(note)
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert made == []
    finally:
        loop.set_task_factory(None)
        pool.terminate()


async def test_a_hot_statement_survives_a_change_of_its_table(database_url: str) -> None:
    """PostgreSQL refuses a prepared statement whose columns have changed: it is prepared again, as by `fetchrow`."""
    pool: Pool = await open_pool(database_url, size=1)
    try:
        async with pool.acquire() as conn:
            await conn.execute("CREATE TEMPORARY TABLE hot (number int)")
            await conn.execute("INSERT INTO hot VALUES (1)")
            for _ in range(2):
                row = await fetch_hot(conn, "SELECT * FROM hot WHERE number = $1", 1)
                assert row is not None
                assert dict(row) == {"number": 1}
            assert await fetch_hot(conn, "SELECT * FROM hot WHERE number = $1", 2) is None
            await conn.execute("ALTER TABLE hot ADD word text DEFAULT 'new'")
            async with conn.transaction():
                with pytest.raises(asyncpg.InvalidCachedStatementError):
                    await fetch_hot(conn, "SELECT * FROM hot WHERE number = $1", 1)
                with pytest.raises(asyncpg.InFailedSQLTransactionError):
                    await conn.fetchval("SELECT 1")
            async with conn.transaction():
                row = await fetch_hot(conn, "SELECT * FROM hot WHERE number = $1", 1)
            assert row is not None
            assert dict(row) == {"number": 1, "word": "new"}
            await conn.execute("ALTER TABLE hot DROP word")
            row = await fetch_hot(conn, "SELECT * FROM hot WHERE number = $1", 1)
            assert row is not None
            assert dict(row) == {"number": 1}
            with pytest.raises(asyncpg.DivisionByZeroError):
                await fetch_hot(conn, "SELECT 1 / $1::int", 0)
            raw = conn
        with pytest.raises(asyncpg.InterfaceError, match="released back to the pool"):
            await fetch_hot(raw, "SELECT 1 / $1::int", 1)
        async with pool.acquire() as conn:
            conn.terminate()
            with pytest.raises(asyncpg.InterfaceError, match="released back to the pool"):
                await fetch_hot(conn, "SELECT 1 / $1::int", 1)
    finally:
        pool.terminate()


async def test_a_hot_statement_that_does_not_end_is_given_up(database_url: str) -> None:
    pool: Pool = await open_pool(database_url, size=1, statement=0.0)
    try:
        async with pool.acquire() as conn:
            assert await fetch_hot(conn, "SELECT pg_sleep($1)::text", 0.0) is not None
            with pytest.raises(TimeoutError):
                await fetch_hot(conn, "SELECT pg_sleep($1)::text", 60.0)
    finally:
        pool.terminate()
