"""Worker processes share what one of them learns about a supplier, over real SMPP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from heliograph.base.database.pool import Pool
from heliograph.prices import rows, tariffs
from heliograph.simulators.smsc.simulator import Smsc, SmscOptions
from tests.judge import judge, until_settled
from tests.load import Client
from tests.processes import SMSC, Installation, Program, add_supplier, installation, until_true

pytestmark = pytest.mark.lasts(15)

#: Refused because of the account: the message may go elsewhere at once, and the refusal counts for the circuit.
NO_SUCH_CLASS = 0x43
#: Failures after which a worker opens a circuit by itself.
IN_A_ROW = 20
READY = """
SELECT count(DISTINCT worker_id) FROM supplier_sessions WHERE supplier_id = $1 AND ready AND lease_until > now()
"""
#: Whether the last attempts have the rate card's price.
PRICED = """
SELECT bool_and(coalesce(cost, 0) = 30000) FROM (SELECT cost FROM attempts ORDER BY message_id DESC LIMIT $1) last
"""
OPEN = "SELECT coalesce(bool_or(opened_at IS NOT NULL), false) FROM supplier_health"


async def test_a_circuit_is_open_in_workers_that_saw_no_failure_and_closes_for_all(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    async with (
        installation(database_url, tmp_path) as made,
        made.serving(),
        Client(made.base_url, made.key) as client,
    ):
        dear = Smsc(SmscOptions(**SMSC))
        await dear.start()
        made.smscs.append(dear)
        try:
            cheap_id = await pool.fetchval("SELECT id FROM suppliers")
            await pool.execute("UPDATE suppliers SET sessions = 2, priority = 10")
            async with pool.acquire() as conn:
                dear_id = await add_supplier(conn, made.settings, "dear", dear, sessions=2, priority=20)
            made.smsc.configure(error_mix={NO_SUCH_CLASS: 1.0})

            finder = await start_worker(made)
            await until_used(pool, dear_id, workers=1)

            async def opens() -> bool:
                await send(client, 5)
                return bool(await pool.fetchval(OPEN))

            await until_true(opens)
            await until_settled(made.url)

            # A worker that starts now finds it open, and sends nothing but probes.
            new = [await start_worker(made), await start_worker(made)]
            await until_used(pool, dear_id, workers=2)
            await finder.stop()
            before = made.smsc.counters.submits
            await send(client, 3 * IN_A_ROW)
            await until_settled(made.url)
            assert made.smsc.counters.submits - before < IN_A_ROW
            assert await pool.fetchval(READY, cheap_id) == 0

            # One accepted probe closes it for both.
            made.smsc.configure(error_mix={})

            async def closes() -> bool:
                await pool.execute("UPDATE supplier_health SET probe_at = least(probe_at, now())")
                await send(client, 1)
                return not await pool.fetchval(OPEN)

            await until_true(closes)
            await until_used(pool, cheap_id, workers=2)
            before = dear.counters.submits
            await send(client, IN_A_ROW)
            await until_settled(made.url)
            assert dear.counters.submits == before

            # A rate card imported now reaches both workers within seconds: none submits without its price.
            rates = rows.read(["country,price,currency\n", "MZ,0.03,EUR\n"])
            async with pool.acquire() as conn:
                await tariffs.import_rates(conn, rates, kind="cost", name="card", supplier_id=cheap_id)

            async def is_priced() -> bool:
                await send(client, 2 * IN_A_ROW)
                await until_settled(made.url)
                return bool(await pool.fetchval(PRICED, 2 * IN_A_ROW))

            await until_true(is_priced)
            await judge(made, client.ledger, in_flight=0)
            for program in new:
                await program.stop()
        finally:
            await dear.stop()


async def start_worker(made: Installation) -> Program:
    worker = await made.worker()
    await worker.ready()
    return worker


async def until_used(pool: Pool, supplier_id: UUID, *, workers: int) -> None:
    """Wait until this many workers use it."""

    async def are() -> bool:
        return bool(await pool.fetchval(READY, supplier_id) == workers)

    await until_true(are)


async def send(client: Client, count: int) -> None:
    first = len(client.ledger)
    await asyncio.gather(*(client.send(f"+25884{n:07d}") for n in range(first, first + count)))
