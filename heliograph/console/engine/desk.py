"""What a process of the console knows of the installation between two looks: what is not well, and since when.

The wall screen looks anew each time; the bell of every page is content with what is a few seconds old.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from weakref import WeakKeyDictionary

import msgspec

from heliograph import doctor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check
from heliograph.overview.installation import approvals
from heliograph.overview.installation.approvals import Waits
from heliograph.overview.installation.now import Watch
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import APPROVALS
from heliograph.people.operators.sessions import Operator

#: The bell looks again when what is known is older, seconds.
FRESH = 5.0


class Trouble(msgspec.Struct, frozen=True):
    """A check that is not well, and since when this process has seen it so."""

    check: Check
    since: datetime


class Desk:
    """What a process remembers between two looks."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.known: list[Trouble] = []
        self.waits = Waits(0, None, None)
        self._since: dict[tuple[str, str], datetime] = {}
        self._turn = asyncio.Lock()
        self._at = -FRESH

    def troubles(self, checks: list[Check]) -> list[Trouble]:
        """Those that are not well, failures first."""
        at = clock.now()
        wrong = [one for one in checks if one.state != "ok"]
        known = {(one.check, one.state) for one in wrong}
        self._since = {key: since for key, since in self._since.items() if key in known}
        found = [Trouble(one, self._since.setdefault((one.check, one.state), at)) for one in wrong]
        return sorted(found, key=lambda one: (one.check.state != "failed", one.since))

    async def look(self, conn: Connection, settings: Settings) -> list[Trouble]:
        """What is not well now."""
        self.known = self.troubles(await doctor.examine(conn, settings, far=False))
        self.waits = await approvals.waits(conn)
        self._at = time.monotonic()
        return self.known

    async def refresh(self, request: Request) -> None:
        """Look, unless that was done within FRESH: of many who ask at once, one does."""
        if time.monotonic() - self._at < FRESH:
            return
        async with self._turn:
            if time.monotonic() - self._at >= FRESH:
                async with request.reading() as conn:
                    await self.look(conn, request.services.settings)

    def unread(self, operator: Operator) -> int:
        """How much of what is known is news to an operator."""
        told = operator.told_at
        news = sum(told is None or one.since > told for one in self.known)
        newest = self.waits.newest
        if newest is not None and operator.may(None, APPROVALS, "live") and (told is None or newest > told):
            news += 1
        return news


_DESKS: WeakKeyDictionary[Pool, Desk] = WeakKeyDictionary()


def desk(request: Request) -> Desk:
    """The process's, of this database."""
    return _DESKS.setdefault(request.services.reads, Desk())
