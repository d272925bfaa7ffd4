"""A connection that one user keeps for a while is not used by anybody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.base.database.pool import HeldConnection, Pool, open_pool


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
