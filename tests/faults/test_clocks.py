"""A machine whose clock is wrong by an hour or a year: nothing happens early, late or never, nothing is dropped, and
the processes report the difference."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from tests.faults.bystanders import MOST, NOISE, SECONDS, send_steadily
from tests.judge import judge, until_settled
from tests.load import Client, Load
from tests.ports import held_port
from tests.processes import LONG, Installation, Program, installation, until, until_true

HOUR, YEAR = timedelta(hours=1), timedelta(days=400)
#: How far the clocks of (web process, worker) jump ahead while they run.
SHIFTS = (
    [(shift, timedelta()) for shift in (HOUR, -HOUR, YEAR, -YEAR)]
    + [(timedelta(), shift) for shift in (HOUR, -HOUR, YEAR, -YEAR)]
    if LONG
    else [(-HOUR, YEAR)]
)
MESSAGES = 300 if LONG else 40


@pytest.mark.lasts(8)
@pytest.mark.usefixtures("partitions_ahead")
@pytest.mark.parametrize(("web", "work"), SHIFTS, ids=str)
async def test_clocks_that_go_wrong_while_the_processes_run(
    database_url: str, tmp_path: Path, port: int, web: timedelta, work: timedelta
) -> None:
    # Recipients of the client whose web process has the right clock.
    numbers = itertools.count(5_000_000)
    async with (
        installation(database_url, tmp_path) as made,
        Client(made.base_url.replace(str(made.port), str(port)), made.key) as other,
    ):
        before = await partitions(database_url)
        quiet = await baseline_p99(made, port, other, numbers) if LONG else 0.0
        programs = {
            shift: program
            for shift, program in (
                (web, await made.api(HELIOGRAPH_CLOCK_SHIFT=f"{web.total_seconds()}:running")),
                (work, await made.worker(HELIOGRAPH_CLOCK_SHIFT=f"{work.total_seconds()}:running")),
            )
            if shift
        }
        async with Client(made.base_url, made.key) as client:
            await until_true(partial(client.ask, "GET", "/health"))
            await until_true(partial(clock_is_degraded, client))
        for program in programs.values():
            await until(lambda program=program: "clock differs" in program.err)
        async with Load(made.base_url, made.key) as load:
            await load.until_sent(MESSAGES // 2)
            await make_timers_due(database_url)
            await load.until_sent(MESSAGES)
        if LONG:
            during = await send_steadily(other, numbers, SECONDS)
            print(f"clocks: p99 of the others {quiet * 1e3:.1f} ms before, {during * 1e3:.1f} ms with {web}, {work}")
            assert during < MOST * max(quiet, NOISE)
        await until_settled(database_url)
        await judge(made, load.ledger | other.ledger, in_flight=0)
        assert not made.complaints
        # Partitions are unchanged, and everything created lies in the present month.
        assert await partitions(database_url) == before
        conn = await asyncpg.connect(database_url)
        try:
            spread = await conn.fetchval(
                "SELECT max(abs(extract(epoch FROM accepted_at - now()))) FROM messages WHERE organization_id = $1",
                made.actor.organization_id,
            )
            strays = await conn.fetchval("SELECT count(*) FROM messages_rest")
        finally:
            await conn.close()
        assert spread < HOUR.total_seconds() / 2
        assert strays == 0


@pytest.mark.lasts(3)
async def test_a_process_whose_clock_is_wrong_says_so_and_does_not_start(database_url: str, tmp_path: Path) -> None:
    async with installation(database_url, tmp_path) as made:
        started: list[Program] = [
            await made.api(HELIOGRAPH_CLOCK_SHIFT="3600"),
            await made.worker(HELIOGRAPH_CLOCK_SHIFT="-3600"),
        ]
        for program, where in zip(started, ("ahead of", "behind"), strict=True):
            assert await program.ended() == 1
            assert f"this machine's clock is 3600 s {where} the database's" in program.err
            assert "Traceback" not in program.err


@pytest.fixture
def port() -> Iterator[int]:
    """The port of an additional web process."""
    with held_port() as found:
        yield found


async def baseline_p99(made: Installation, port: int, client: Client, numbers: Iterator[int]) -> float:
    """The p99 for `client`, in seconds, while all clocks are right: through a web process on this port, which keeps
    running, and a worker, which is stopped afterwards."""
    await made.api(port=port)
    worker = await made.worker()
    await until_true(partial(client.ask, "GET", "/health"))
    await send_steadily(client, numbers, 1.0)
    found = await send_steadily(client, numbers, SECONDS)
    assert await worker.stop() == 0
    return found


async def clock_is_degraded(client: Client) -> bool:
    _, body = await client.ask("GET", "/health")
    return bool(body["checks"]["clock"] == "degraded")


async def partitions(url: str) -> set[str]:
    """The names of all partitions."""
    conn = await asyncpg.connect(url)
    try:
        return {row[0] for row in await conn.fetch("SELECT inhrelid::regclass::text FROM pg_inherits")}
    finally:
        await conn.close()


async def make_timers_due(url: str) -> None:
    """Make all periodic work due now."""
    conn = await asyncpg.connect(url)
    try:
        await conn.execute("UPDATE timers SET next_at = now()")
    finally:
        await conn.close()
