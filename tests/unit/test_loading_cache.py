"""The cache of rows: never older than promised, filled in batches, and correct about changes during a load."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from heliograph.base.loading_cache import LoadingCache


class Table:
    def __init__(self, **rows: int) -> None:
        self.rows = rows
        self.loads: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, keys: Sequence[str]) -> dict[str, int]:
        self.loads.append(list(keys))
        found = {key: self.rows[key] for key in keys if key in self.rows}
        await self.gate.wait()
        return found


async def test_a_fresh_value_costs_no_load_and_a_missing_one_is_known_too() -> None:
    table = Table(a=1)
    fresh = LoadingCache(table.load)
    assert fresh.peek("a") == (False, None)
    for _ in range(3):
        assert (await fresh.get("a"), await fresh.get("b")) == (1, None)
    assert table.loads == [["a"], ["b"]]
    assert (fresh.peek("a"), fresh.peek("b")) == ((True, 1), (True, None))


async def test_those_who_ask_at_once_share_a_load() -> None:
    table = Table(a=1, b=2)
    table.gate.clear()
    fresh = LoadingCache(table.load)
    first = asyncio.create_task(fresh.get("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.create_task(fresh.get(key)) for key in "abcbac"]
    await asyncio.sleep(0)
    table.gate.set()
    assert await asyncio.gather(first, *others) == [1, 1, 2, None, 2, 1, None]
    assert table.loads == [["a"], ["b", "c"]]


async def test_a_value_is_loaded_again_when_it_is_too_old() -> None:
    table = Table(a=1)
    fresh = LoadingCache(table.load, max_age=0.02)
    assert await fresh.get("a") == 1
    table.rows["a"] = 2
    async with asyncio.timeout(120):
        while fresh.peek("a")[0]:  # noqa: ASYNC110 (it is the clock that is waited for)
            await asyncio.sleep(0.005)
    assert await fresh.get("a") == 2


async def test_the_age_counts_from_before_the_load() -> None:
    """A change during a slow load must not be hidden for longer than the maximum age."""
    table = Table(a=1)
    table.gate.clear()
    fresh = LoadingCache(table.load, max_age=0.02)
    slow = asyncio.create_task(fresh.get("a"))
    await asyncio.sleep(0.04)
    table.rows["a"] = 2
    table.gate.set()
    assert await slow == 1
    assert fresh.peek("a") == (False, None)
    assert await fresh.get("a") == 2


async def test_anew_is_never_answered_by_a_load_that_began_before() -> None:
    table = Table(a=1)
    table.gate.clear()
    fresh = LoadingCache(table.load)
    early = asyncio.create_task(fresh.get("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    table.rows["a"] = 2
    anew = asyncio.create_task(fresh.get("a", bypass_cache=True))
    await asyncio.sleep(0)
    table.gate.set()
    assert (await early, await anew) == (1, 2)
    assert await fresh.get("a") == 2


async def test_a_forgotten_value_is_loaded_again() -> None:
    table = Table(a=1)
    fresh = LoadingCache(table.load)
    await fresh.get("a")
    fresh.forget("a")
    await fresh.get("a")
    assert len(table.loads) == 2


async def test_a_value_that_is_forgotten_during_its_load_is_loaded_again() -> None:
    """A page that refreshes itself reads its session while another request changes it."""
    table = Table(a=1)
    table.gate.clear()
    fresh = LoadingCache(table.load)
    early = asyncio.create_task(fresh.get("a"))
    while not table.loads:  # noqa: ASYNC110 (the batcher's turns of the loop are its own)
        await asyncio.sleep(0)
    table.rows["a"] = 2
    fresh.forget("a")
    late = asyncio.create_task(fresh.get("a"))
    await asyncio.sleep(0)
    table.gate.set()
    assert (await early, await late, await fresh.get("a")) == (1, 2, 2)
    assert len(table.loads) == 2
    # It is not remembered either if nobody asks for it before the load ends.
    table.gate.clear()
    fresh.forget("a")
    early = asyncio.create_task(fresh.get("a"))
    while len(table.loads) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    table.rows["a"] = 3
    fresh.forget("a")
    table.gate.set()
    assert (await early, await fresh.get("a")) == (2, 3)


async def test_nobody_waits_for_a_load_that_began_too_long_ago() -> None:
    """It may have missed a change: however slow the database is, a revoked key is refused in time."""
    table = Table(a=1)
    table.gate.clear()
    fresh = LoadingCache(table.load, max_age=0.02)
    early = asyncio.create_task(fresh.get("a"))
    while not table.loads:  # noqa: ASYNC110
        await asyncio.sleep(0)
    table.rows["a"] = 2
    await asyncio.sleep(0.04)
    late = asyncio.create_task(fresh.get("a"))
    await asyncio.sleep(0)
    table.gate.set()
    assert (await early, await late) == (1, 2)


async def test_a_failed_load_is_not_remembered() -> None:
    table = Table(a=1)
    broken = True

    async def load(keys: Sequence[str]) -> dict[str, int]:
        if broken:
            raise OSError
        return await table.load(keys)

    fresh = LoadingCache(load, indivisible=lambda error: isinstance(error, OSError))
    with pytest.raises(OSError):
        await fresh.get("a")
    broken = False
    assert await fresh.get("a") == 1


async def test_a_caller_that_leaves_does_not_cancel_the_others_load() -> None:
    table = Table(a=1)
    table.gate.clear()
    fresh = LoadingCache(table.load)
    leaving, staying = asyncio.create_task(fresh.get("a")), asyncio.create_task(fresh.get("a"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    table.gate.set()
    assert await staying == 1


async def test_it_does_not_grow_for_ever() -> None:
    fresh = LoadingCache(Table(a=1).load, limit=10)
    for n in range(100):
        await fresh.get(str(n))
        assert sum(fresh.peek(str(k))[0] for k in range(100)) <= 11
