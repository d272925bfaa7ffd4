"""A worker that stops: its slots while its sessions close, and a supplier that it was just opening."""

from __future__ import annotations

import asyncio

from heliograph.base.database.pool import Pool
from tests.rules import whatsapp_factories
from tests.rules.dispatching_whatsapp import Bench
from tests.rules.factories import Scripted, until
from tests.rules.test_supplier_pool import Ship, add

#: Longer than anything here takes.
LONG = 60.0


async def test_slots_are_kept_while_their_sessions_close(pool: Pool) -> None:
    id = await add(pool, sessions=1)
    ship = await Ship(pool).sail()
    connector = ship.connector(id)
    connector.may_stop.clear()
    stopping = asyncio.create_task(ship.fleet.stop(grace=LONG))
    async with asyncio.timeout(LONG):
        is_renewed = False
        while not is_renewed:
            await pool.execute("UPDATE supplier_sessions SET lease_until = now() + interval '3 seconds'")
            await asyncio.sleep(1.5)
            is_renewed = await pool.fetchval("SELECT lease_until > now() + interval '3 seconds' FROM supplier_sessions")
        other = await Ship(pool).sail()
        assert other.connector(id).sessions == 0
        connector.may_stop.set()
        await stopping
        await ship.fleet.give_back()
        await other.refresh()
    assert other.connector(id).sessions == 1


class Slow(Scripted):
    """A connector that takes its time to start."""

    def __init__(self) -> None:
        super().__init__()
        self.starts, self.goes_on = asyncio.Event(), asyncio.Event()

    async def start(self) -> None:
        self.starts.set()
        await self.goes_on.wait()


async def test_a_supplier_that_is_opened_during_a_stop_is_closed(pool: Pool) -> None:
    """A worker that stays idle would keep its session for ever."""
    ship = await Ship(pool).sail()
    made = Slow()
    ship.make = lambda *given: made  # type: ignore[method-assign]
    ship.fleet._factories = {"smpp": ship.make}
    await add(pool)
    refresh = asyncio.create_task(ship.refresh())
    async with asyncio.timeout(LONG):
        await made.starts.wait()
        await ship.fleet.stop(grace=0.1)
        made.goes_on.set()
        await refresh
        await until(lambda: made.stopped)


async def test_a_number_is_not_opened_again_after_a_stop(pool: Pool) -> None:
    await whatsapp_factories.made(pool)
    bench = await Bench(pool).start()
    (connector,) = bench.connectors.values()
    await bench.lines.stop(grace=0.1)
    await bench.refresh()
    assert connector.stopped
    assert list(bench.connectors.values()) == [connector]
    assert bench.lines.slots() == {}
