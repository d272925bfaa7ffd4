"""Regions of pages are rendered once for all who see the same, and never older than what a reader has seen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from heliograph.console.places import TEMPLATES
from heliograph.console.table import ROUTES
from heliograph.pages.live.sharing import BUSY, CAPACITY, FORGOTTEN, LEAST, MEASURED, MOST, SHARE, Sharing
from heliograph.pages.routes import WALL


class World:
    """A clock, and what was rendered when."""

    def __init__(self) -> None:
        self.now = 100.0
        #: The processor time that the process has used, in seconds.
        self.used = 3.0
        self.made: list[tuple[str, int]] = []
        self.sharing: Sharing[str] = Sharing(monotonic=lambda: self.now, processor=lambda: self.used)

    def pass_by(self, seconds: float, *, busy: float) -> None:
        """Let time pass, in which the process is this busy."""
        self.now += seconds
        self.used += seconds * busy

    async def get(self, key: str = "home", *, seen: int = 0, takes: float = 0.001, most: float = MOST) -> str:
        return await self.sharing.get(key, seen=seen, clock=self.clock, make=self.make(key, takes), most=most)

    def clock(self) -> int:
        return round(self.now * 1000)

    def make(self, key: str, takes: float) -> Callable[[int], Awaitable[str]]:
        async def run(made: int) -> str:
            self.made.append((key, made))
            self.now += takes
            return f"{key} of {made}"

        return run


async def test_what_is_fresh_is_not_made_again() -> None:
    world = World()
    first = await world.get()
    world.now += LEAST / 2
    assert await world.get() == first
    world.now += LEAST
    assert await world.get() != first
    assert len(world.made) == 2


async def test_nobody_gets_anything_older_than_what_they_have_seen() -> None:
    world = World()
    await world.get()
    world.now += LEAST / 2
    seen = world.clock()
    assert await world.get(seen=seen) == f"home of {seen}"
    assert await world.get() == f"home of {seen}"


async def test_a_wall_shows_what_is_so_now_however_long_it_takes_to_make() -> None:
    """In an outage it takes long, and would be valid for as long as nobody may wait then."""
    assert [route.path for route in ROUTES if route.good_for < MOST] == ["/console/now"]
    (live,) = re.findall(r'data-live="(\d+)" data-wall', (TEMPLATES / "engine/now.html").read_text())
    assert int(live) > 1000 * WALL
    world = World()
    first = await world.get(takes=2.0, most=WALL)
    world.now += int(live) / 1000
    assert world.sharing.good_for() == pytest.approx(MOST, rel=0.01)
    assert await world.get() == first
    assert await world.get(most=WALL) != first


async def test_the_more_regions_cost_the_longer_they_stay_good() -> None:
    world = World()
    await world.get(takes=0.1)
    assert world.sharing.good_for() == pytest.approx(0.1 * SHARE)
    await world.get("messages", takes=0.05)
    assert world.sharing.good_for() == pytest.approx(0.15 * SHARE)
    await world.get("campaigns", takes=5)
    assert world.sharing.good_for() == pytest.approx(MOST, rel=0.01)
    world.now += FORGOTTEN + 1
    await world.get("messages")
    # Regions that nobody looks at any more do not count.
    assert world.sharing.good_for() == LEAST


async def test_a_busy_process_makes_them_less_often() -> None:
    world = World()
    await world.get(takes=0.02)
    assert world.sharing.good_for() == LEAST
    goods = []
    for busy in (0.0, 0.5, 0.8, 1.0, 0.0):
        # So long that the time of rendering is nothing beside it.
        world.pass_by(100 * MEASURED, busy=busy)
        await world.get(takes=0.02)
        goods.append(world.sharing.good_for())
    assert goods[0] == goods[4] == LEAST
    wanted = [0.02 / ((1 - busy) / SHARE + busy / BUSY) for busy in (0.5, 0.8)]
    assert goods[1:4] == [*(pytest.approx(one, rel=0.01) for one in wanted), pytest.approx(MOST, rel=0.01)]
    # More threads than one: no more than busy.
    world.pass_by(MEASURED, busy=1.7)
    await world.get(takes=0.02)
    assert world.sharing.good_for() == pytest.approx(MOST, rel=0.01)


async def test_who_comes_meanwhile_waits_for_the_same_and_the_first_may_go() -> None:
    world = World()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(made: int) -> str:
        begun.set()
        await go_on.wait()
        world.made.append(("home", made))
        return "home"

    def ask(seen: int = 0) -> asyncio.Task[str]:
        return asyncio.create_task(world.sharing.get("home", seen=seen, clock=world.clock, make=slow))

    first = ask()
    await begun.wait()
    second = ask()
    world.now += 1
    # The rendering in progress began before what this reader has seen.
    third = ask(seen=world.clock())
    await asyncio.sleep(0)
    first.cancel()
    go_on.set()
    assert await second == await third == "home"
    assert sorted(made for _, made in world.made) == [100_000, 101_000]
    assert first.cancelled() or first.cancelling()


async def test_an_error_is_everybodys_and_is_not_kept() -> None:
    world = World()

    async def fail(made: int) -> str:
        raise LookupError("gone")

    asked = [world.sharing.get("home", seen=0, clock=world.clock, make=fail) for _ in range(2)]
    assert [type(one) for one in await asyncio.gather(*asked, return_exceptions=True)] == [LookupError] * 2
    assert await world.get() == "home of 100000"


async def test_so_many_are_kept() -> None:
    world = World()
    for number in range(CAPACITY + 1):
        await world.get(str(number), takes=0.0001)
    made = len(world.made)
    await world.get(str(CAPACITY))
    await world.get("0")
    assert len(world.made) == made + 1
