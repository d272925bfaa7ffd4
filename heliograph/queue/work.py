"""What a worker runs for one concern: loops, timers, startup and shutdown. `worker.py` lists them.

The rule nobody may break: a worker may end at any instant. Whatever has begun is either committed, or found again by
the worker that claims it next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.process.measures import Gauge

#: Seconds after which a loop runs even if nothing woke it.
UNASKED = 60.0


class Loop(msgspec.Struct, frozen=True):
    """Work that runs as long as there is any: `step` returns how much it did, and runs again at once if that is more
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
    """Periodic work done by one worker at a time, while the SQL condition `when` holds; frequent work uses the
    condition to indicate that there is something to do.

    `in_steps`: it commits by itself, since its locks must not be held until it ends.
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
        """What it currently holds, for metrics. Called from another thread: must only read."""
        return ()

    def queued(self) -> None:
        """Called when work has been queued: loops that claim it should look."""

    async def start(self) -> None:
        """Open everything that needs no database."""

    async def begin(self) -> None:
        """Read the tables for the first time; called again if the database becomes unavailable meanwhile."""

    async def stop(self, *, grace: float) -> None:
        """Take on no more work; outstanding requests have `grace` seconds to be answered."""

    async def drain(self) -> None:
        """Wait until all answers are recorded, except those of `linger`, and release what is held."""

    async def linger(self) -> None:
        """Wait for answers that cannot be recorded because somebody keeps a row locked, perhaps for hours; called once
        all parts are drained, with what is left of the time to stop."""

    async def renew(self) -> None:
        """Renew the leases of work in progress; called every third of a lease."""

    async def close(self) -> None:
        """Close whatever is still open."""
