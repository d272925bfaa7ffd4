"""Failover under load: the cheap supplier fails in different ways while messages arrive, and recovers.

Each second's shares of the two suppliers are printed (`pytest -s`); docs/suppliers.md shows such a table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

from heliograph.base.database.clock import now
from heliograph.simulators.smsc.simulator import Smsc, SmscOptions
from heliograph.sms.reports import reconciliation
from heliograph.traffic.reconciliation import Query
from tests.database import Cluster
from tests.judge import judge, until_settled
from tests.load import Client
from tests.processes import LONG, SMSC, WINDOW, Installation, add_supplier, installation, until

#: Messages per second.
RATE = 20
#: Seconds within which traffic has moved: an open circuit is probed every 15 s, a measured rate rises slowly, and the
#: machine may be busy. A bound, not a measurement.
WITHIN = 240
#: Consecutive seconds for which a state must hold.
CALM = 5 if LONG else 2
SETTINGS = {
    "HELIOGRAPH_LEASE_SECONDS": "2",
    "HELIOGRAPH_UNCERTAIN_GRACE_SECONDS": "3",
    "HELIOGRAPH_SUPPLIER_PATIENCE_SECONDS": "2",
}


class Fault(NamedTuple):
    """How the cheap supplier fails, and how it is repaired."""

    begins: Callable[[Smsc], Awaitable[None]]
    ends: Callable[[Smsc], Awaitable[None]]
    #: Whether messages go elsewhere while it lasts.
    moves: bool = True


def _configured(**changes: Any) -> Callable[[Smsc], Awaitable[None]]:
    async def change(smsc: Smsc) -> None:
        smsc.configure(**changes)

    return change


async def _die(smsc: Smsc) -> None:
    """Every connection is lost with everything in flight, and binds are refused."""
    smsc.configure(bind_status=0x08)
    smsc.drop()


FAULTS = {
    "dies": Fault(_die, _configured(bind_status=0)),
    "throttles": Fault(_configured(error_mix={0x58: 1.0}), _configured(error_mix={})),
    "answers in 10 s": Fault(_configured(latency=10.0), _configured(latency=0.02)),
    # The cheapest supplier is tried first, whatever its receipts say: the report shows it to the operator.
    "lies": Fault(_configured(receipt_mix={"UNDELIV": 1.0}), _configured(receipt_mix={}), moves=False),
}


@pytest.mark.lasts(60)
@pytest.mark.timeout(900)
async def test_shares_move_away_and_back(database_server: Cluster, tmp_path: Path) -> None:
    async def drill(name: str) -> list[tuple[str, int, int]]:
        (place := tmp_path / name.replace(" ", "-")).mkdir()
        async with database_server.database() as url, installation(url, place, **SETTINGS) as made:
            return await under_fire(made, FAULTS[name])

    results = await asyncio.gather(*(drill(name) for name in FAULTS), return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    if failed:
        raise BaseExceptionGroup("drills failed", failed)
    for name, seconds in zip(FAULTS, results, strict=True):
        assert not isinstance(seconds, BaseException)
        print(f"\n{name}: taken by cheap/dear, second by second")
        for phase in ("before", "fault", "fixed"):
            shares = " ".join(f"{cheap}/{dear}" for at, cheap, dear in seconds if at == phase)
            print(f"  {phase:<7} {shares}")


async def under_fire(made: Installation, fault: Fault) -> list[tuple[str, int, int]]:
    """(phase, accepted by the cheap supplier, by the expensive one) for each second."""
    cheap, dear = made.smsc, Smsc(SmscOptions(**SMSC))
    await dear.start()
    made.smscs.append(dear)
    seconds: list[tuple[str, int, int]] = []
    conn = await asyncpg.connect(made.url)
    try:
        await conn.execute("UPDATE suppliers SET weight = 1, priority = 10")
        await add_supplier(conn, made.settings, "dear", dear, priority=20)
        async with made.serving(), Client(made.base_url, made.key) as client, made.working():
            await until(lambda: cheap.bound > 0 and dear.bound > 0)

            async def second(phase: str) -> float | None:
                """Send for one second; returns the cheap supplier's share of what was accepted in it. None: nothing
                was."""
                before = _taken(cheap), _taken(dear)
                first = len(client.ledger)
                await asyncio.gather(
                    asyncio.sleep(1), *(client.send(f"+25884{n:07d}") for n in range(first, first + RATE))
                )
                took = _taken(cheap) - before[0], _taken(dear) - before[1]
                seconds.append((phase, *took))
                return took[0] / sum(took) if sum(took) else None

            async def lasts(phase: str, holds: Callable[[float], bool]) -> None:
                """Wait until it has held for CALM seconds in a row, ignoring those in which nothing was accepted."""
                held = 0
                for _ in range(WITHIN):
                    share = await second(phase)
                    if share is not None:
                        held = held + 1 if holds(share) else 0
                    if held >= CALM:
                        return
                raise AssertionError(f"{phase}: {seconds}")

            await lasts("before", lambda share: share > 0.95)
            began = now()
            await asyncio.gather(second("fault"), fault.begins(cheap))
            # A probe, and responses to earlier submits.
            await lasts("fault", lambda share: share <= 0.1 if fault.moves else share > 0.95)
            await fault.ends(cheap)
            await lasts("fixed", lambda share: share > 0.95)
            await until_settled(made.url, within=240)
            if fault.moves:
                await judge(made, client.ledger, in_flight=WINDOW)
            else:
                query = Query(date_from=began.replace(minute=0, second=0, microsecond=0), date_to=now(), by=())
                lines = await reconciliation.report(conn, query)
                (line,) = [one.line for one in lines if one.supplier == "main"]
                assert line["undelivered"] > 0
                assert line.delivered_share is not None
                assert line.delivered_share < 1.0
    finally:
        await conn.close()
        await dear.stop()
    return seconds


def _taken(smsc: Smsc) -> int:
    return sum(one.status == 0 for one in smsc.received)
