"""An organization's pages are rendered a few at a time, and do not delay those of others."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.http.turns import Places, RequestTurns


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_each_has_turns_of_its_own_in_order_of_arrival() -> None:
    turns, over, made = RequestTurns(2), asyncio.Event(), list[str]()

    async def make(whose: str, name: str) -> None:
        async with turns.of(whose):
            made.append(name)
            await over.wait()

    tasks = [asyncio.create_task(make("acme", f"acme {n}")) for n in range(5)]
    await settled()
    tasks.append(asyncio.create_task(make("other", "other")))
    await settled()
    assert made == ["acme 0", "acme 1", "other"]
    # Someone who leaves while waiting takes no turn, and someone who leaves during theirs passes it on.
    tasks[2].cancel()
    tasks[0].cancel()
    await settled()
    assert made == ["acme 0", "acme 1", "other", "acme 3"]
    over.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert made[-1] == "acme 4"
    assert not turns._lines


async def test_all_of_them_together_get_no_more_than_their_places() -> None:
    turns, over, made = RequestTurns(2, together=Places(3, patience=60.0)), asyncio.Event(), list[str]()

    async def make(whose: str, name: str) -> None:
        async with turns.of(whose):
            made.append(name)
            await over.wait()

    tasks = [asyncio.create_task(make(whose, f"{whose} {n}")) for whose in ("acme", "other") for n in range(3)]
    await settled()
    assert made == ["acme 0", "acme 1", "other 0"]
    tasks[0].cancel()
    await settled()
    assert made == ["acme 0", "acme 1", "other 0", "other 1"]
    over.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(made[4:]) == ["acme 2", "other 2"]
    impatient = RequestTurns(2, together=Places(1, patience=0.01))
    async with impatient.of("acme"):
        with pytest.raises(TimeoutError):
            async with impatient.of("other"):
                raise AssertionError("there was no place")
    async with impatient.of("other"):
        assert len(impatient._lines) == 1
