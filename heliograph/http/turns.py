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

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lines: dict[Hashable, _Line] = {}

    @contextlib.asynccontextmanager
    async def of(self, whose: Hashable) -> AsyncIterator[None]:
        """A turn, in order of arrival."""
        line = self._lines.setdefault(whose, _Line(asyncio.Semaphore(self._most)))
        line.count += 1
        try:
            async with line.turns:
                yield
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[whose]
