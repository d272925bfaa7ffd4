"""An organization's pages are rendered a few at a time, and do not delay those of others."""

from __future__ import annotations

import asyncio

from heliograph.http.turns import RequestTurns


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
