"""Turns: an organization's requests are answered a few at a time, so that somebody who sends hundreds at once, such as
a script with a session or a key, delays only themselves. There are only a few connections to the database, and others
need them too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable

import msgspec

#: How many requests of one organization, or of one operator, are answered at once.
MOST = 4
#: Connections left to sends, and to what every request needs, such as its key: otherwise requests or forms of several
#: organizations that wait for the same lock would take all of them.
FOR_SENDS = 2


class _Line(msgspec.Struct):
    """Those who have a turn, or wait for one."""

    turns: asyncio.Semaphore
    count: int = 0


class Places:
    """Connections for requests that are no sends. One per process for the API and the dashboard together, and one for
    the console."""

    def __init__(self, number: int, *, patience: float) -> None:
        """`number`: how many may be in use at once. `patience`: seconds that a request waits for one."""
        self._free = asyncio.Semaphore(number)
        self._patience = patience

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A place. Raises TimeoutError if none becomes free in time."""
        async with asyncio.timeout(self._patience):
            await self._free.acquire()
        try:
            yield
        finally:
            self._free.release()


class RequestTurns:
    """One per process and door: pages, console, API."""

    def __init__(self, most: int = MOST, *, together: Places | None = None) -> None:
        """`together`: a request whose turn it is takes one of these places; None: it needs none."""
        self._most = most
        self._together = together
        self._lines: dict[Hashable, _Line] = {}

    @contextlib.asynccontextmanager
    async def of(self, whose: Hashable) -> AsyncIterator[None]:
        """A turn, in order of arrival. Raises TimeoutError if it gets no place."""
        line = self._lines.setdefault(whose, _Line(asyncio.Semaphore(self._most)))
        line.count += 1
        try:
            async with line.turns, contextlib.nullcontext() if self._together is None else self._together.one():
                yield
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[whose]
