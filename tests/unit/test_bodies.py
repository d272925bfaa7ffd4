"""Room for request bodies in transit: small ones have their own, an address its share, and stalled ones give way."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.api.callbacks.bodies import STALLED, Body, BodyBuffers, ByteLimits
from heliograph.base.errors import Unavailable

SMALL, LARGE = ByteLimits(100, 50), ByteLimits(1_000, 500)


class Arriving:
    """A body whose task waits for more of it."""

    def __init__(self, bodies: BodyBuffers, address: str) -> None:
        self.body: Body
        self._begun = asyncio.Event()
        self._bodies = bodies
        self.task = asyncio.create_task(self._wait(address))

    async def _wait(self, address: str) -> str:
        self.body = self._bodies.begin(address)
        self._begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.body.gave_way:
                return type(self.body.gone()).__name__
            raise
        return ""

    async def grow(self, size: int) -> Arriving:
        await self._begun.wait()
        self._bodies.grow(self.body, size)
        return self


def bodies() -> BodyBuffers:
    return BodyBuffers(small=SMALL, large=LARGE, limit=50)


async def test_shares_and_rooms() -> None:
    held = bodies()
    first = await Arriving(held, "192.0.2.1").grow(500)
    with pytest.raises(Unavailable) as refused:
        await Arriving(held, "192.0.2.1").grow(51)
    assert refused.value.headers["connection"] == "close"
    await Arriving(held, "192.0.2.1").grow(50)
    with pytest.raises(Unavailable):
        await Arriving(held, "192.0.2.1").grow(1)
    second = await Arriving(held, "192.0.2.2").grow(50)
    with pytest.raises(Unavailable):
        await Arriving(held, "192.0.2.3").grow(1)
    # A body that grows is large from then on, and leaves its room to others.
    await second.grow(450)
    await Arriving(held, "192.0.2.3").grow(50)
    with pytest.raises(Unavailable):
        await Arriving(held, "192.0.2.4").grow(51)
    held.release(first.body)
    held.release(first.body)
    await Arriving(held, "192.0.2.4").grow(500)


async def test_what_stands_still_gives_way_and_what_is_complete_does_not() -> None:
    held = bodies()
    complete = await Arriving(held, "192.0.2.1").grow(100)
    held.finish(complete.body)
    still, moving = await Arriving(held, "192.0.2.1").grow(200), await Arriving(held, "192.0.2.1").grow(200)
    elsewhere = await Arriving(held, "192.0.2.2").grow(100)
    for one in (complete, still, elsewhere):
        one.body.moved_at -= 2 * STALLED
    elsewhere.body.moved_at -= STALLED
    # Its own share is used up: one from its own address gives way.
    await Arriving(held, "192.0.2.1").grow(150)
    assert await still.task == "Unavailable"
    assert still.task.cancelling() == 0
    assert (still.body.size, moving.body.size, elsewhere.body.size) == (0, 200, 100)
    with pytest.raises(Unavailable):
        await Arriving(held, "192.0.2.1").grow(200)
    # Everything is full: whichever address it has.
    await Arriving(held, "192.0.2.3").grow(451)
    assert await elsewhere.task == "Unavailable"
    assert complete.body.size == 100


async def test_empty_bodies_of_one_address_are_released_one_after_the_other() -> None:
    held = bodies()
    some = [await Arriving(held, "192.0.2.1").grow(0) for _ in range(3)]
    for one in some:
        held.release(one.body)
    await Arriving(held, "192.0.2.1").grow(50)
