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


class _Line(msgspec.Struct):
    """Those who have a turn, or wait for one."""

    turns: asyncio.Semaphore
    count: int = 0


class RequestTurns:
    """One per process and door: pages, console, API."""

    def __init__(self, most: int = MOST, *, together: int | None = None, patience: float | None = None) -> None:
        """`together`: how many requests of all organizations are answered at once; None: any number. `patience`:
        seconds that a request whose turn it is waits for that."""
        self._most = most
        self._together = None if together is None else asyncio.Semaphore(together)
        self._patience = patience
        self._lines: dict[Hashable, _Line] = {}

    @contextlib.asynccontextmanager
    async def of(self, whose: Hashable) -> AsyncIterator[None]:
        """A turn, in order of arrival. Raises TimeoutError if it waited for longer than its patience."""
        line = self._lines.setdefault(whose, _Line(asyncio.Semaphore(self._most)))
        line.count += 1
        try:
            async with line.turns, self._place():
                yield
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[whose]

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        if self._together is None:
            yield
            return
        async with asyncio.timeout(self._patience):
            await self._together.acquire()
        try:
            yield
        finally:
            self._together.release()
