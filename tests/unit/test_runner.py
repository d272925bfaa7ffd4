"""Work that is run until it has succeeded: only an unavailable database delays it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from heliograph.base.network.connecting import DatabaseUnavailable
from heliograph.base.process import measures
from heliograph.base.process.logs import Sparse
from heliograph.queue import runner
from heliograph.queue.runner import every, loop, once


async def test_it_waits_for_the_database_and_works_once() -> None:
    calls = 0

    async def step() -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ConnectionRefusedError

    await once("test", step, stopping=asyncio.Event(), pause=0.0)
    assert calls == 3


async def test_any_other_failure_is_raised() -> None:
    async def step() -> None:
        raise ValueError("a fault of ours")

    with pytest.raises(ValueError, match="a fault of ours"):
        await once("test", step, stopping=asyncio.Event(), pause=0.0)


async def test_it_ends_when_it_is_told_to_stop() -> None:
    stopping = asyncio.Event()

    async def step() -> None:
        stopping.set()
        raise ConnectionRefusedError

    await once("test", step, stopping=stopping, pause=60.0)


async def test_an_outage_that_is_known_is_not_logged_by_each_step_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str]] = []
    for level in ("debug", "warning"):
        monkeypatch.setattr(runner.log, level, lambda event, level=level, **where: said.append((level, where["error"])))
    monkeypatch.setattr(runner, "_unavailable", Sparse("database unavailable", every=float("inf")))
    errors: list[Exception] = [ConnectionResetError(), DatabaseUnavailable(), DatabaseUnavailable()]
    # It answers, so it is not known to be down.
    errors += [asyncpg.DiskFullError(), asyncpg.DiskFullError()]

    async def step() -> None:
        if errors:
            raise errors.pop(0)

    await once("test", step, stopping=asyncio.Event(), pause=0.0)
    assert said == [
        ("warning", "ConnectionResetError"),
        *[("debug", "DatabaseUnavailable")] * 2,
        ("warning", "DiskFullError"),
        ("debug", "DiskFullError"),
    ]


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (ConnectionRefusedError(), False),
        (asyncpg.QueryCanceledError("canceling statement due to statement timeout"), True),
        (ValueError("a fault of ours"), True),
    ],
)
@pytest.mark.parametrize("name", ["loop", "every"])
async def test_failures_are_counted_and_an_absence_of_the_database_is_none(
    name: str, error: Exception, counts: bool
) -> None:
    """Someone who is notified of the outage is not notified of dozens of steps that wait for it. A step that takes too
    long stands still although the database is up, and nothing else reports it."""
    stopping, before = asyncio.Event(), dict(measures.FAILURES.values)

    async def step() -> int:
        stopping.set()
        raise error

    if name == "loop":
        await loop("failing", step, wake=asyncio.Event(), poll=60.0, stopping=stopping)
    else:
        await every("failing", step, seconds=60.0, stopping=stopping)
    counted = measures.FAILURES.values.get(("failing",), 0) - before.get(("failing",), 0)
    assert counted == counts


Run = Callable[[Callable[[], Awaitable[int]], asyncio.Event], Coroutine[Any, Any, None]]
RUNS: dict[str, Run] = {
    "loop": lambda step, event: loop("test", step, wake=event, poll=60.0, stopping=asyncio.Event()),
    "every": lambda step, event: every("test", step, seconds=60.0, stopping=event),
    "once": lambda step, event: once("test", step, stopping=event, pause=60.0),
}


@pytest.mark.parametrize("name", RUNS)
async def test_a_cancellation_is_not_lost_when_what_it_breaks_off_fails(name: str) -> None:
    begun = asyncio.Event()

    async def step() -> int:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            raise ConnectionResetError("the rollback failed")  # as if the connection were gone

    task = asyncio.create_task(RUNS[name](step, asyncio.Event()))
    await begun.wait()
    task.cancel()
    ended, _ = await asyncio.wait([task], timeout=120.0)
    assert ended
    assert task.cancelled()


@pytest.mark.parametrize("ticks", range(4))
async def test_a_cancellation_that_comes_with_a_wake_is_not_lost(ticks: int) -> None:
    wake = asyncio.Event()

    async def step() -> int:
        return 0

    task = asyncio.create_task(RUNS["loop"](step, wake))
    for _ in range(5):  # until it waits
        await asyncio.sleep(0)
    wake.set()
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    ended, _ = await asyncio.wait([task], timeout=120.0)
    assert ended
    assert task.cancelled()


async def test_a_cancellation_that_a_step_survives_ends_the_loop() -> None:
    begun = asyncio.Event()

    async def step() -> int:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return 1

    task = asyncio.create_task(RUNS["loop"](step, asyncio.Event()))
    await begun.wait()
    task.cancel()
    ended, _ = await asyncio.wait([task], timeout=120.0)
    assert ended
    assert task.cancelled()
