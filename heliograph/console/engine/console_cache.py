"""What a console process caches: checks that are not ok and since when, what awaits a decision, and rate cards.

Concurrent requests share one refresh, since a refresh makes a hundred queries where there are many suppliers. The bell
on every page accepts values a few seconds old. Pages that show the state of suppliers do not: there, what is known of
their sessions is read again with that state, so that no supplier is shown as connected next to a finding that it is
not.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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
from heliograph.health.database import Durability
from heliograph.overview.installation import approvals, telling
from heliograph.overview.installation.approvals import PendingApprovals, SimilarityCache
from heliograph.overview.installation.now import Now, Watch
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import APPROVALS
from heliograph.people.operators.sessions import Operator
from heliograph.prices.book import Book
from heliograph.sms import checks as sms
from heliograph.sms.dispatch import routing
from heliograph.sms.dispatch.routing import Supplier

#: Maximum age of cached values in seconds: for the bell, and for screens that show them in detail.
FRESH, SHARED = 5.0, 1.0
#: Seconds between checks that read thousands of messages.
COMPARED = 300.0
Examine = Callable[..., Awaitable[list[Check]]]


class Problem(msgspec.Struct, frozen=True):
    """A check that is not ok, and since when this is known."""

    check: Check
    since: datetime


class ConsoleCache:
    """The cache of a process between refreshes."""

    def __init__(self, *, examine: Examine = doctor.examine, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._examine, self._now = examine, monotonic
        self.watch = Watch()
        self.resemblance = SimilarityCache()
        self.known: list[Problem] = []
        #: All checks of the last refresh, including passing ones.
        self.checks: list[Check] = []
        self.waits = PendingApprovals(0, None, None)
        #: Suppliers' rate cards, kept, so that a refresh loads only what has changed.
        self.rates = Book(kinds=("cost",))
        self.database = Durability([], None)
        self._since: dict[tuple[str, str], datetime] = {}
        self._turn = asyncio.Lock()
        self._led: tuple[float, leads.Known] | None = None
        self._at = self._compared_at = -math.inf
        self._compared: list[Check] = []

    def problems(
        self, checks: list[Check], noted: Mapping[tuple[str, str], datetime] = MappingProxyType({})
    ) -> list[Problem]:
        """Checks that are not ok, failures first, oldest first; but a lack of workers precedes all other failures:
        suppliers' sessions, which fail as a consequence, are found missing earlier. `noted`: since when findings have
        been recorded."""
        at = clock.now()
        wrong = [one for one in checks if one.state != "ok"]
        known = {(one.check, one.state) for one in wrong}
        self._since = {key: since for key, since in self._since.items() if key in known}
        for one in wrong:
            key = (one.check, one.state)
            self._since[key] = min(self._since.get(key, at), noted.get(key, at))
        found = [Problem(one, self._since[one.check, one.state]) for one in wrong]
        return sorted(
            found, key=lambda one: (one.check.state != "failed", english(one.check.check) != "workers", one.since)
        )

    async def look(self, conn: Connection, settings: Settings) -> list[Problem]:
        """Run the checks; returns those that are not ok."""
        began = self._now()
        self.database = await database.safety(conn, settings)
        if began - self._compared_at >= COMPARED:
            self._compared, self._compared_at = await doctor.compare(conn, settings), began
        self.checks = await self._examine(conn, settings, far=False, safety=self.database, compared=self._compared)
        self.known = self.problems(self.checks, await findings.since(conn))
        await self.ask(conn)
        self._at = began
        return self.known

    async def with_current_sessions(
        self, conn: Connection, settings: Settings, rows: Sequence[Supplier] | None = None
    ) -> list[Problem]:
        """The problems of the last refresh, with those of suppliers as their sessions are now: for a page that also
        shows the state of suppliers, within `reading`, so that both say the same. `rows`: the suppliers, if they are
        loaded already."""
        seen = await sms.sessions(conn, settings, await routing.load(conn) if rows is None else rows)
        return self.problems([*(one for one in self.checks if sms.subject(one) != "supplier"), *seen])

    async def led(self, conn: Connection, now: Now) -> leads.Known:
        """What is needed to say where findings lead and whom they affect: queried once per refresh, for all readers."""
        if self._led is None or self._led[0] != self._at:
            self._led = self._at, await leads.load(conn, now, [one.check for one in self.known])
        return self._led[1]

    async def ask(self, conn: Connection) -> None:
        """Query what awaits a decision now."""
        self.waits = await approvals.waits(conn)

    async def refresh(self, request: Request, *, fresh: float = FRESH) -> None:
        """Refresh, unless this was done within `fresh` seconds; concurrent callers share one refresh."""
        if self._now() - self._at < fresh:
            return
        async with self._turn:
            if self._now() - self._at >= fresh:
                async with request.reading() as conn:
                    await self.look(conn, request.services.settings)

    @contextlib.asynccontextmanager
    async def reading(self, request: Request, *, fresh: float = FRESH) -> AsyncIterator[Connection]:
        """Refresh, then a connection on which all queries see the same moment."""
        await self.refresh(request, fresh=fresh)
        async with request.reading() as conn, conn.transaction(isolation="repeatable_read", readonly=True):
            yield conn

    def rung(self, operator: Operator) -> list[Problem]:
        """Checks that are not ok, of the kinds that an operator's bell counts."""
        return [one for one in self.known if telling.kind_of(one.check) not in operator.silent]

    def unread(self, operator: Operator) -> int:
        """How many items are new to an operator, of the kinds that their bell counts."""
        told = operator.told_at
        news = sum(told is None or one.since > told for one in self.rung(operator))
        newest = self.waits.newest
        if newest is not None and rings_for_approvals(operator) and (told is None or newest > told):
            news += 1
        return news


def rings_for_approvals(operator: Operator) -> bool:
    """Whether an operator's bell counts what awaits a decision."""
    return operator.may(None, APPROVALS, "live") and "approval.waiting" not in operator.silent


_CACHES: WeakKeyDictionary[Pool, ConsoleCache] = WeakKeyDictionary()


def cache_of(request: Request) -> ConsoleCache:
    """This process's cache for the database."""
    return _CACHES.setdefault(request.services.reads, ConsoleCache())
