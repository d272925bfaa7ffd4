"""What a worker runs for one concern: loops, timers, a beginning and an end. `worker.py` is the table of them.

The rule nobody may break: a worker may end at any instant. What is begun here is either committed, or found again by
whoever claims it next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from heliograph.base.database.pool import Connection

#: Seconds after which a loop that nobody woke runs all the same.
UNASKED = 60.0


class Loop(msgspec.Struct, frozen=True):
    """Work that is done as long as there is some: `step` returns how much it did, and is run again at once if that is
    more than 0, else when `wake` is set.

    The worker's watch sets `wake` while the SQL condition `when` holds, each `least` seconds at most. Work that waits
    in the queue needs none: who wakes a kind's loop is told with `Backlog.on_work`. `poll`: seconds after which it runs
    all the same.
    """

    name: str
    step: Callable[[], Awaitable[int]]
    wake: asyncio.Event
    when: str | None = None
    least: float = 0.0
    poll: float = UNASKED


class Timer(msgspec.Struct, frozen=True):
    """Work that each worker does every so many seconds."""

    name: str
    step: Callable[[], Awaitable[object]]
    seconds: float


class SharedTimer(msgspec.Struct, frozen=True):
    """Work that one worker at a time does every so many seconds, as long as the SQL condition `when` holds: what is
    done often says by it that there is something to do.

    `in_steps`: it commits by itself, since what it locks must not stay locked until its end.
    """

    name: str
    step: Callable[[Connection], Awaitable[object]]
    seconds: float
    when: str = "true"
    in_steps: bool = False


class Work:
    """One concern's part of a worker. A part says what it runs; the rest is optional."""

    def loops(self) -> Sequence[Loop]:
        """Run until the worker stops."""
        return ()

    def timers(self) -> Sequence[Timer | SharedTimer]:
        """Run until the worker stops."""
        return ()

    def background(self) -> Sequence[Awaitable[None]]:
        """Tasks that run until they are cancelled at the worker's end."""
        return ()

    def queued(self) -> None:
        """Somebody queued work: loops that claim some should look."""

    async def start(self) -> None:
        """Open what needs no database."""

    async def begin(self) -> None:
        """Look at the tables for the first time; run again if the database goes away meanwhile."""

    async def stop(self, *, grace: float) -> None:
        """Take up nothing more; what is open has `grace` seconds to be answered."""

    async def drain(self) -> None:
        """Wait until all that was answered is recorded, and give back what is held."""

    async def renew(self) -> None:
        """Hold the leases of what is under way; called each third of a lease."""

    async def close(self) -> None:
        """Close what is left open."""
