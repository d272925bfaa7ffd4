"""What a worker runs for one concern: loops, timers, startup and shutdown. `worker.py` is the table of them.

The rule nobody may break: a worker may end at any instant. What is begun here is either committed, or found again by
whoever claims it next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.process.measures import Gauge

#: Seconds after which a loop runs even if nobody woke it.
UNASKED = 60.0


class Loop(msgspec.Struct, frozen=True):
    """Work that is done as long as there is any: `step` returns how much it did, and runs again at once if that is more
    than 0, otherwise when `wake` is set.

    The worker's watch sets `wake` while the SQL condition `when` holds, at most once every `least` seconds. Queued work
    needs no condition: its loop is woken through `Backlog.on_work`. `poll`: seconds after which it runs anyway.
    """

    name: str
    step: Callable[[], Awaitable[int]]
    wake: asyncio.Event
    when: str | None = None
    least: float = 0.0
    poll: float = UNASKED


class Timer(msgspec.Struct, frozen=True):
    """Periodic work that each worker does."""

    name: str
    step: Callable[[], Awaitable[object]]
    seconds: float


class SharedTimer(msgspec.Struct, frozen=True):
    """Periodic work that one worker at a time does, while the SQL condition `when` holds; frequent work uses it to say
    that there is something to do.

    `in_steps`: it commits by itself, since what it locks must not stay locked until its end.
    """

    name: str
    step: Callable[[Connection], Awaitable[object]]
    seconds: float
    when: str = "true"
    in_steps: bool = False


class Work:
    """One concern's part of a worker. Everything is optional."""

    def loops(self) -> Sequence[Loop]:
        """Run until the worker stops."""
        return ()

    def timers(self) -> Sequence[Timer | SharedTimer]:
        """Run until the worker stops."""
        return ()

    def background(self) -> Sequence[Awaitable[None]]:
        """Tasks that run until they are cancelled at the worker's end."""
        return ()

    def gauges(self) -> Iterable[Gauge]:
        """What it holds now, for metrics. Called from another thread: reads, and changes nothing."""
        return ()

    def queued(self) -> None:
        """Somebody queued work: loops that claim it should look."""

    async def start(self) -> None:
        """Open what needs no database."""

    async def begin(self) -> None:
        """Read the tables for the first time; run again if the database goes away meanwhile."""

    async def stop(self, *, grace: float) -> None:
        """Take on no more work; open requests have `grace` seconds to be answered."""

    async def drain(self) -> None:
        """Wait until all answers are recorded, and release what is held."""

    async def renew(self) -> None:
        """Renew the leases of work in progress; called every third of a lease."""

    async def close(self) -> None:
        """Close what is left open."""
