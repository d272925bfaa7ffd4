"""When a supplier asks one worker process to pause, the others pause as well, over real HTTP."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from aiohttp import web

from heliograph.base.database.pool import Pool
from heliograph.sms.dispatch import suppliers
from tests.load import Client
from tests.ports import held_port
from tests.processes import Installation, Program, installation, until_true

pytestmark = pytest.mark.lasts(30)

#: The pause requested by the supplier, in seconds: longer than it takes a worker to learn of it.
PAUSE = 20
#: Prefixes of the throttling supplier, and of the other one.
HERE, THERE = "25884", "25886"
LEASES = "SELECT worker_id, lease_until FROM supplier_sessions WHERE supplier_id = $1"
PAUSED = "SELECT throttled_by, extract(epoch FROM paused_until)::float8 AS until FROM supplier_health"


class Throttling:
    """An HTTP supplier that returns 429 while told to; records when each request arrived."""

    def __init__(self) -> None:
        self.throttles = True
        self.came: list[float] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.came.append(time.time())
        if self.throttles:
            return web.Response(status=429, headers={"Retry-After": str(PAUSE)})
        return web.Response(text=f"0: {len(self.came)}")


@contextlib.asynccontextmanager
async def throttling() -> AsyncIterator[tuple[Throttling, str]]:
    supplier, app = Throttling(), web.Application()
    app.router.add_get("/send", supplier.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        with held_port() as port:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            yield supplier, f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def test_a_pause_that_one_worker_was_asked_for_is_kept_by_the_other(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    async with (
        installation(database_url, tmp_path, sessions=2) as made,
        throttling() as (supplier, address),
        made.serving(),
        Client(made.base_url, made.key) as client,
    ):
        async with pool.acquire() as conn:
            await conn.execute("UPDATE suppliers SET prefixes = $1", [THERE])
            settings = {
                "base_url": address,
                "method": "GET",
                "path": "/send?to={{to}}&text={{text}}",
                "code_at": "regex:^([0-9]+):",
                "codes": {"0": "accepted"},
                "id_at": "regex:: (.+)$",
            }
            id = await suppliers.add(
                conn,
                suppliers.seal_key(made.settings),
                name="throttling",
                kind="http",
                settings=settings,
                secret='{"secret": "s"}',
                sessions=2,
                prefixes=[HERE],
            )
        programs = dict([await start_worker(made, pool, id, set())])
        programs |= dict([await start_worker(made, pool, id, set(programs))])

        # One of them is throttled, and reports it.
        await client.send(f"+{HERE}0000001")
        await until_true(lambda: pool.fetchval("SELECT EXISTS (SELECT FROM supplier_health)"))
        row = await pool.fetchrow(PAUSED)
        assert row is not None
        (other,) = programs.keys() - {row["throttled_by"]}
        assert len(supplier.came) == 1
        await until_state_read(pool, id, other)
        await programs.pop(row["throttled_by"]).stop()
        supplier.throttles = False

        # The other one works, and sends this supplier nothing for as long as it asked.
        for n in range(2, 6):
            await client.send(f"+{HERE}000000{n}")
        await client.send(f"+{THERE}0000001")
        await until_true(lambda: sent(pool, THERE, 1))
        await until_true(lambda: sent(pool, HERE, 5))
        assert len(supplier.came) == 6
        assert min(supplier.came[1:]) >= row["until"]
        for program in programs.values():
            assert await program.stop() == 0


async def start_worker(made: Installation, pool: Pool, supplier_id: UUID, before: set[UUID]) -> tuple[UUID, Program]:
    """Start one more worker; returns its id and process once it has a session with this supplier."""
    program = await made.worker()
    await program.ready()
    found: set[UUID] = set()

    async def holds() -> bool:
        found.update({row["worker_id"] for row in await pool.fetch(LEASES, supplier_id)} - before)
        return len(found) == 1

    await until_true(holds)
    return found.pop(), program


async def until_state_read(pool: Pool, supplier_id: UUID, worker_id: UUID) -> None:
    """Wait until a worker has read the state that others share: it does so before it renews its leases, so the second
    renewal from now follows a read that began later than this call."""
    seen = set()

    async def renews() -> bool:
        seen.update(
            row["lease_until"] for row in await pool.fetch(LEASES, supplier_id) if row["worker_id"] == worker_id
        )
        return len(seen) == 3

    await until_true(renews)


async def sent(pool: Pool, prefix: str, count: int) -> bool:
    found = await pool.fetchval(
        "SELECT count(*) FROM messages WHERE recipient LIKE '+' || $1 || '%' AND status IN ('sent', 'delivered')",
        prefix,
    )
    return bool(found == count)
