"""The webhooks' share of the whole way, by itself: `python -m bench.webhooks [COUNT [ROUNDS]]`.

One process records and delivers events, like a worker; the receiver is a separate process. Three parts: events that
nobody subscribed to, events recorded and delivered at once, and a backlog queued beforehand. The cost of a delivery is
the second minus the first. The lowest of the rounds is shown: other load on the machine can only add processor time.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import uvloop

from bench import machine
from bench.control import Control
from bench.stage import Stage, stage
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, open_pool
from heliograph.base.ids import uuid7
from heliograph.http.client import HttpClient, webhook_rules
from heliograph.queue.runner import loop
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery.delivery import Deliverer
from heliograph.webhooks.recording import events

#: Events per transaction, and the maximum in flight: similar to the recorder's batches under load.
BATCH, ON_THE_WAY = 128, 1_000
DATA = (
    '{"message":{"id":"0190aaaa-0000-7000-8000-000000000000","clientReference":"order-1001","channel":"sms",'
    '"to":"+258841234567","status":"delivered","segments":1,"acceptedAt":"2026-03-01T12:00:00.080Z",'
    '"sentAt":"2026-03-01T12:00:00.110Z","deliveredAt":"2026-03-01T12:00:03.100Z","failedAt":null,"failure":null}}'
)
COUNTS = """
SELECT (SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8 AS wal, xact_commit::float8 AS commits,
       tup_inserted::float8 AS inserted, tup_updated::float8 AS updated, tup_deleted::float8 AS deleted
  FROM pg_stat_database WHERE datname = current_database()
"""
COUNTED = ("wal", "commits", "inserted", "updated", "deleted")


class Bench:
    """State that the parts share."""

    def __init__(self, stage: Stage, pool: Pool, deliverer: Deliverer, receiver: Control, count: int) -> None:
        self.stage, self.pool, self.deliverer, self.receiver, self.count = stage, pool, deliverer, receiver, count
        self.organization = stage.organization

    async def came(self) -> int:
        """Distinct callbacks that the receiver accepted."""
        return int((await self.receiver.ask("counters"))["received"])

    async def record(self, batch: int, *, organization: UUID | None = None, handed: bool = False) -> None:
        """Record that many events in one transaction."""
        made = [
            events.Event(organization or self.organization, uuid7(), "message.delivered", "req-1", DATA, clock.now())
            for _ in range(batch)
        ]
        handover = self.deliverer.handover()
        async with self.pool.acquire() as conn, conn.transaction():
            await events.record(conn, made, handover=handover if handed else None)
        handover.deliver()
        self.deliverer.wake.set()

    async def unheard(self) -> None:
        for _ in range(self.count // BATCH):
            await self.record(BATCH, organization=UUID(int=1))

    async def live(self) -> None:
        goal, recorded = await self.came() + self.count // BATCH * BATCH, 0
        start = await self.came()
        while recorded < self.count // BATCH * BATCH:
            await self.record(BATCH, handed=True)
            recorded += BATCH
            while recorded - (await self.came() - start) > ON_THE_WAY:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.02)
        await self._until(goal)

    async def backlog(self, goal: int) -> None:
        self.deliverer.wake.set()
        await self._until(goal)

    async def _until(self, goal: int) -> None:
        queued = "SELECT EXISTS (SELECT FROM queue)"
        while await self.came() < goal or await self.pool.fetchval(queued):  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.02)

    async def measured(self, part: Callable[[], Awaitable[None]]) -> dict[str, float]:
        """Run a part; returns its cost per event."""
        gc.collect()
        await self.stage.checkpoint()
        conn = await asyncpg.connect(self.stage.server.url)
        try:
            before = await conn.fetchrow(COUNTS)
            own, server = time.process_time(), machine.processor_seconds(self.stage.server.pid or 0)
            began = time.monotonic()
            await part()
            took = time.monotonic() - began
            own, server = time.process_time() - own, machine.processor_seconds(self.stage.server.pid or 0) - server
            await asyncio.sleep(1.2)  # until the server has updated its statistics
            after = await conn.fetchrow(COUNTS)
        finally:
            await conn.close()
        assert before is not None
        assert after is not None
        each = {key: (after[key] - before[key]) / self.count for key in COUNTED}
        return {"seconds": took, "worker": own / self.count * 1e6, "server": server / self.count * 1e6, **each}


def shown(name: str, count: int, rounds: list[dict[str, float]]) -> str:
    """A line with the lowest value of each."""
    least = {key: min(one[key] for one in rounds) for key in rounds[0]}
    return (
        f"{name:10} {count / least['seconds']:8,.0f}/s  worker {least['worker']:6.1f} µs"
        f"  PostgreSQL {least['server']:6.1f} µs  WAL {least['wal']:6.0f} B  commits {least['commits']:.4f}"
        f"  inserted {least['inserted']:.2f}  updated {least['updated']:.2f}  deleted {least['deleted']:.2f}"
    )


async def main(count: int, rounds: int) -> None:
    async with stage(lambda line: None) as made:
        settings = made._settings()
        receiver = await made.start_receiver()
        pool = await open_pool(settings.database_url, size=8)
        outbound = HttpClient(webhook_rules(settings))
        deliverer = Deliverer(pool, outbound, settings, seal_key=endpoints.seal_key(settings))
        bench = Bench(made, pool, deliverer, receiver, count)
        stopping = asyncio.Event()

        def start() -> asyncio.Task[Any]:
            stopping.clear()
            return asyncio.create_task(
                loop("webhooks", deliverer.round, wake=deliverer.wake, poll=1.0, stopping=stopping)
            )

        async def stop(task: asyncio.Task[Any]) -> None:
            stopping.set()
            deliverer.wake.set()
            await task

        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        task = start()
        await bench.record(BATCH)
        await bench._until(BATCH)
        found: dict[str, list[dict[str, float]]] = {"unheard": [], "live": [], "backlog": []}
        for _ in range(rounds):
            found["unheard"].append(await bench.measured(bench.unheard))
            found["live"].append(await bench.measured(bench.live))
            await stop(task)
            goal = await bench.came() + count // BATCH * BATCH
            for _ in range(count // BATCH):
                await bench.record(BATCH)
            task = start()
            found["backlog"].append(await bench.measured(lambda goal=goal: bench.backlog(goal)))  # type: ignore[misc]
        for name, measured in found.items():
            print(shown(name, count, measured), flush=True)
        await stop(task)
        await deliverer.drain(1.0)
        await outbound.close()
        receiver.close()
        pool.terminate()


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:]]
    uvloop.run(main(*(given + [20_000, 3][len(given) :])))
