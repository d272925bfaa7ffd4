"""Named crash points: a process that ends before or after a commit or a call to another system loses nothing and
duplicates nothing, not even if it ends again while it recovers.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
from pathlib import Path

import pytest

import heliograph
from heliograph.worker import CHANNELS
from tests.database import Cluster
from tests.judge import judge, until_settled
from tests.load import Load
from tests.processes import LONG, WINDOW, Installation, Program, installation, until

#: The process that passes each point. A test finds points that are missing here.
POINTS = {
    "accept.before_commit": "api",
    "accept.after_commit": "api",
    "sms.dispatch.before_commit": "worker",
    "sms.dispatch.after_commit": "worker",
    "sms.dispatch.after_submit": "worker",
    "sms.record.before_commit": "worker",
    "sms.record.after_commit": "worker",
    "webhook.before_post": "worker",
    "webhook.after_post": "worker",
    "webhook.before_commit": "worker",
    "webhook.after_commit": "worker",
}
CRASHES = 20 if LONG else 1
#: Concurrent drills: a drill mostly waits for leases.
TOGETHER = 6
SESSIONS = 4
FAST = {"HELIOGRAPH_LEASE_SECONDS": "2", "HELIOGRAPH_UNCERTAIN_GRACE_SECONDS": "3"}


def test_every_point_in_the_code_is_drilled() -> None:
    """Here, or in a test of its own: work that a plain send does not cause needs a different load."""
    sources = Path(heliograph.__path__[0])
    points = matches(sources, r'crash_point\(\s*"([^"]+)"')
    # The engine's points are prefixed with the channel whose work passes them.
    of_channels = matches(sources, r'crash_point\(f"\{[a-z_.]+kind\}\.([^"]+)"')
    assert of_channels
    points |= {f"{channel}.{point}" for channel in CHANNELS for point in of_channels}
    elsewhere = matches(Path(__file__).parents[1], r'CRASH_AT(?:=|": )f?"([a-z_.]+)')
    assert POINTS.keys() <= points
    assert points <= POINTS.keys() | elsewhere


def matches(place: Path, pattern: str) -> set[str]:
    """The pattern's matches in all source files below a directory."""
    return {name for path in place.rglob("*.py") for name in re.findall(pattern, path.read_text())}


@pytest.mark.lasts(52)
@pytest.mark.timeout(CRASHES * 120 + 120)
async def test_a_crash_at_any_point_is_recovered_from(database_server: Cluster, tmp_path: Path) -> None:
    room = asyncio.Semaphore(TOGETHER)

    async def drill(point: str) -> None:
        async with room, database_server.database() as url:
            place = tmp_path / point
            place.mkdir()
            async with installation(url, place, sessions=SESSIONS, **FAST) as made:
                await (crash_api if POINTS[point] == "api" else crash_worker)(made, point)

    results = await asyncio.gather(*(drill(point) for point in POINTS), return_exceptions=True)
    failed = {point: result for point, result in zip(POINTS, results, strict=True) if result is not None}
    if failed:
        raise ExceptionGroup(f"failed at {', '.join(failed)}", list(failed.values()))


async def crash_worker(made: Installation, point: str) -> None:
    """A worker that crashes at the point, one that is killed while it recovers, and one that finishes."""
    async with made.serving():
        async with Load(made.base_url, made.key, senders=3) as load:
            for _ in range(CRASHES):
                await load.until_sent(len(load.ledger) + 10)
                await assert_crashed(await made.worker(HELIOGRAPH_CRASH_AT=f"{point}:{random.randint(1, 4)}"))
                again = await made.worker()
                await again.ready()
                await asyncio.sleep(random.uniform(0, 1))
                await again.kill()
        last = await made.worker()
        await settle_and_judge(made, load, kills=2 * CRASHES)
        await assert_nothing_left(made, last)


async def crash_api(made: Installation, point: str) -> None:
    """The same for a web process; the client repeats every unanswered request."""
    worker = await made.worker()
    async with Load(made.base_url, made.key, senders=3) as load:
        for _ in range(CRASHES):
            await assert_crashed(await made.api(HELIOGRAPH_CRASH_AT=f"{point}:{random.randint(1, 8)}"))
            again = await made.api()
            await load.until_sent(len(load.ledger) + 5)
            await again.kill()
        await made.api()
        await load.until_sent(len(load.ledger) + 10)
    assert load.unanswered > 0
    await settle_and_judge(made, load, kills=0)
    assert worker.status is None


async def assert_crashed(program: Program) -> None:
    """Assert that it ended as if by kill -9."""
    assert await program.ended() == -signal.SIGKILL, program.err


async def settle_and_judge(made: Installation, load: Load, *, kills: int) -> None:
    await until_settled(made.url)
    await judge(made, load.ledger, in_flight=kills * WINDOW * SESSIONS)
    assert not made.complaints


async def assert_nothing_left(made: Installation, last: Program) -> None:
    """Recovery is idempotent: another start finds nothing to do."""
    submits, callbacks = made.smsc.counters.submits, made.receiver.counters.requests
    assert await last.stop() == 0
    async with made.working():
        await until(lambda: made.smsc.bound > 0)
    assert (made.smsc.counters.submits, made.receiver.counters.requests) == (submits, callbacks)
