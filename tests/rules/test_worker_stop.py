"""A worker that is told to stop exits in time, whatever it is waiting for."""

from __future__ import annotations

import asyncio

from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.worker import Worker

#: Shorter than the time limit of a statement.
LONG = 20.0


async def test_a_stop_waits_no_longer_for_the_database_than_for_work_in_progress(pool: Pool, database_url: str) -> None:
    worker = Worker(Settings(database_url=database_url, drain_seconds=0.1), pool, channels={})
    is_ready = asyncio.Event()
    running = asyncio.create_task(worker.run(on_ready=is_ready.set))
    async with asyncio.timeout(LONG):
        await is_ready.wait()
    async with pool.acquire() as conn, conn.transaction():
        assert await conn.fetch("SELECT FROM workers WHERE id = $1 FOR UPDATE", worker.id)
        worker.stop()
        async with asyncio.timeout(LONG):
            await running
