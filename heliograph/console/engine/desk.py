"""What a process of the console knows of the installation between two looks: what is not well, and since when.

Of several who look at once, one does: a look asks the database a hundred questions where there are many suppliers. The
bell of every page is content with what is a few seconds old.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from weakref import WeakKeyDictionary

import msgspec

from heliograph import doctor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check, english
from heliograph.console.engine import leads
from heliograph.health import database, findings
from heliograph.health.database import Safety
from heliograph.overview.installation import approvals, telling
from heliograph.overview.installation.approvals import Resemblance, Waits
from heliograph.overview.installation.now import Now, Watch
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import APPROVALS
from heliograph.people.operators.sessions import Operator

#: The bell looks again when what is known is older, seconds; a screen that tells of it, so much sooner.
FRESH, SHARED = 5.0, 1.0
#: What reads thousands of messages is asked again after so long, seconds.
COMPARED = 300.0
Examine = Callable[..., Awaitable[list[Check]]]


class Trouble(msgspec.Struct, frozen=True):
    """A check that is not well, and since when that is known."""

    check: Check
    since: datetime


class Desk:
    """What a process remembers between two looks."""

    def __init__(self, *, examine: Examine = doctor.examine, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._examine, self._now = examine, monotonic
        self.watch = Watch()
        self.resemblance = Resemblance()
        self.known: list[Trouble] = []
        #: All checks of the last look, those that are well too.
        self.checks: list[Check] = []
        self.waits = Waits(0, None, None)
        self.database = Safety([], None)
        self._since: dict[tuple[str, str], datetime] = {}
        self._turn = asyncio.Lock()
        self._led: tuple[float, leads.Known] | None = None
        self._at = self._compared_at = -math.inf
        self._compared: list[Check] = []

    def troubles(
        self, checks: list[Check], noted: Mapping[tuple[str, str], datetime] = MappingProxyType({})
    ) -> list[Trouble]:
        """Those that are not well, failures first, the oldest of them first; but before all that there is no worker:
        sessions of suppliers are found missing earlier, and follow from it. `noted`: since when findings are written
        down."""
        at = clock.now()
        wrong = [one for one in checks if one.state != "ok"]
        known = {(one.check, one.state) for one in wrong}
        self._since = {key: since for key, since in self._since.items() if key in known}
        for one in wrong:
            key = (one.check, one.state)
            self._since[key] = min(self._since.get(key, at), noted.get(key, at))
        found = [Trouble(one, self._since[one.check, one.state]) for one in wrong]
        return sorted(
            found, key=lambda one: (one.check.state != "failed", english(one.check.check) != "workers", one.since)
        )

    async def look(self, conn: Connection, settings: Settings) -> list[Trouble]:
        """What is not well now."""
        began = self._now()
        self.database = await database.safety(conn, settings)
        if began - self._compared_at >= COMPARED:
            self._compared, self._compared_at = await doctor.compare(conn, settings), began
        self.checks = await self._examine(conn, settings, far=False, safety=self.database, compared=self._compared)
        self.known = self.troubles(self.checks, await findings.since(conn))
        await self.ask(conn)
        self._at = began
        return self.known

    async def led(self, conn: Connection, now: Now) -> leads.Known:
        """What says where the findings lead and whom they hit: asked once for each look, whoever sees it."""
        if self._led is None or self._led[0] != self._at:
            self._led = self._at, await leads.known(conn, now, [one.check for one in self.known])
        return self._led[1]

    async def ask(self, conn: Connection) -> None:
        """What waits for a decision now."""
        self.waits = await approvals.waits(conn)

    async def refresh(self, request: Request, *, fresh: float = FRESH) -> None:
        """Look, unless that was done within `fresh` seconds: of many who ask at once, one does."""
        if self._now() - self._at < fresh:
            return
        async with self._turn:
            if self._now() - self._at >= fresh:
                async with request.reading() as conn:
                    await self.look(conn, request.services.settings)

    def rung(self, operator: Operator) -> list[Trouble]:
        """What is not well, of the kinds that an operator's bell counts."""
        return [one for one in self.known if telling.kind_of(one.check) not in operator.silent]

    def unread(self, operator: Operator) -> int:
        """How much of what is known is news to an operator, of the kinds that their bell counts."""
        told = operator.told_at
        news = sum(told is None or one.since > told for one in self.rung(operator))
        newest = self.waits.newest
        if newest is not None and rings_for_approvals(operator) and (told is None or newest > told):
            news += 1
        return news


def rings_for_approvals(operator: Operator) -> bool:
    """Whether an operator's bell counts what waits for a decision."""
    return operator.may(None, APPROVALS, "live") and "approval.waiting" not in operator.silent


_DESKS: WeakKeyDictionary[Pool, Desk] = WeakKeyDictionary()


def desk(request: Request) -> Desk:
    """The process's, of this database."""
    return _DESKS.setdefault(request.services.reads, Desk())
