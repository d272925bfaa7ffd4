"""What is run until it has worked: a database that is away delays it, and nothing else does."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.queue.runner import once


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
