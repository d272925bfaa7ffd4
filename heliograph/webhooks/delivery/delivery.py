"""Delivery: queue rows become signed POSTs, and each answer is evaluated and recorded.

There is one `Deliverer` per worker process. Deliveries that it claims or is handed (handover.py) wait for a place
(concurrency.py) and are posted (posting.py); each result is recorded with others in one statement
(`recording/results.py`). Claiming, posting and recording are concurrent: none waits for another's commit.

The rule nobody may break: at least once. A row is finished only after a 2xx, the end of the schedule or the end of its
endpoint was committed; otherwise its lease ends and it is posted again with the same event id.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Collection, Sequence
from uuid import UUID, uuid4

import structlog

from heliograph.base.crypto import Key
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, follow_clock, is_down
from heliograph.base.process.settings import Settings
from heliograph.http.client import HttpClient
from heliograph.queue import leases
from heliograph.queue.backlog import Backlog
from heliograph.queue.leases import SINGLE, Lease, Postponed
from heliograph.webhooks.delivery import attempts
from heliograph.webhooks.delivery.attempts import Delivery, Ended
from heliograph.webhooks.delivery.concurrency import Concurrency, EndpointQueue
from heliograph.webhooks.delivery.holding import EndedEarly, Held, OwnRows
from heliograph.webhooks.delivery.posting import Poster
from heliograph.webhooks.recording.events import Event
from heliograph.webhooks.recording.handover import Handover
from heliograph.webhooks.recording.results import Record

log = structlog.get_logger()

#: Lines remembered; beyond this, idle ones are forgotten.
LINES = 10_000
#: Maximum rows held, in multiples of a claim.
HELD = 4
#: Maximum deliveries held that were handed over, in multiples of a claim.
HANDED = 10
#: Pause of rows claimed for an endpoint that then began to fail.
SHED = 1.0


class Deliverer:
    """Posts what is queued for webhook endpoints. `round` is called repeatedly, `renew` every third of a lease."""

    def __init__(
        self,
        pool: Pool,
        client: HttpClient,
        settings: Settings,
        *,
        seal_key: Key,
        chance: random.Random | None = None,
        backlog: Backlog | None = None,
    ) -> None:
        """`seal_key`: `endpoints.seal_key(settings)`. `chance`: for the jitter. `backlog`: the worker's; None: its
        own."""
        # Kept: before Python 3.12, finding the running loop is a system call.
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._lease_seconds = settings.lease_seconds
        self._claim_limit = settings.claim_limit
        self._backlog = backlog or Backlog(cycle=0.0)
        concurrency = settings.webhook_concurrency
        # HttpClient's own limit for one destination.
        self._places: Concurrency[Delivery] = Concurrency(
            concurrency, widest=min(concurrency, max(8, concurrency // 4))
        )
        self._lines: dict[UUID, EndpointQueue[Delivery]] = {}
        #: Lines that may have more due work than was claimed, in the order of their turns.
        self._due: dict[UUID, None] = {}
        #: Rows that a commit may have leased although it seemed to fail.
        self._lost: list[Lease] = []
        #: The token of rows that are handed over. A row has it from its insert to its first pause.
        self._token = uuid4()
        #: Endpoints by organization, as far as this worker knows them.
        self._known: dict[UUID, set[UUID]] = {}
        self._claiming = asyncio.Lock()
        self._draining = False
        self._idle = asyncio.Event()
        self._stalled, self._unsettle_at = False, 0.0
        disable_after = settings.webhook_disable_hours * 3600.0
        self._record = Record(pool, disable_after=disable_after, landed=self._landed, held_up=self._set_aside)
        self._held = Held(pool, self._record.writing, seconds=settings.lease_seconds)
        self._poster = Poster(
            pool,
            client,
            settings,
            seal_key=seal_key,
            chance=chance or random.Random(),
            places=self._places,
            record=self._record.put,
            ended=self._ended,
            is_overdue=lambda: self._held.is_overdue(self._loop.time()),
        )
        #: Set when something may have changed: new work, a free place.
        self.wake = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Attempts in progress."""
        return self._places.open

    async def round(self) -> int:
        """Claim once and start as many as there are places for; returns how many rows were claimed."""
        async with self._claiming:
            return await self._round()

    async def _round(self) -> int:
        now = self._loop.time()
        # What was handed over has a separate limit, so that no claim waits for it.
        self._stalled = self._held.claimed >= HELD * self._claim_limit
        if self._draining or self._stalled:
            return 0
        if self._held.is_overdue(now):
            await self.renew()
        self._unsettle(now)
        await self._put_back_lost()
        async with self._pool.acquire() as conn:
            await self._backlog.look(conn, "webhook")
        for line_id in self._backlog.found("webhook"):
            self._due.setdefault(line_id)
        free = self._free()
        if not free:
            return 0
        claimed: list[Lease] = []
        at = self._loop.time()
        try:
            async with self._pool.acquire() as conn, self._backlog.transaction(conn):
                ended = clock.since_forward() > self._lease_seconds
                claimed = await self._backlog.claim(conn, "webhook", free, seconds=self._lease_seconds, ended=ended)
                if self._held.has_any(claimed):
                    raise OwnRows
                if ended and any(lease.again for lease in claimed):
                    await follow_clock(conn)
                    if clock.since_forward() <= self._lease_seconds:
                        raise EndedEarly
                loaded = await attempts.load(conn, claimed) if claimed else []
        except OwnRows:
            await self._held.renew_all()
            return 1
        except EndedEarly:
            return 1  # the next claim leaves them for as long as a lease lasts
        except BaseException:
            self._lose(claimed)
            raise
        counts = Counter(lease.line for lease in claimed)
        for line_id, asked in free.items():
            del self._due[line_id]
            if counts[line_id] == asked:
                self._due[line_id] = None
        await self._take(claimed, loaded, at)
        return len(claimed)

    def adapt(self) -> None:
        """Adjust places as time passes; called twice a second."""
        if self._draining:
            return
        self._unsettle(self._loop.time())
        if self._due:
            self.wake.set()

    def handover(self) -> Handover:
        """A handover for one transaction that records events: this worker delivers those that it has room for."""
        at = self._loop.time()
        return Handover(
            self._token,
            room=self._room,
            deliver=lambda taken: self._take_over(taken, at),
            abandon=lambda taken: self._lose([self._lease(*one) for one in taken]),
            seconds=self._lease_seconds,
        )

    async def renew(self) -> None:
        """Renew leases; called every third of one. What was not begun because that was overdue begins now."""
        await self._held.renew()
        self._pump()

    async def drain(self, grace: float) -> None:
        """Claim nothing more, let attempts in progress end for at most `grace` seconds, record their results, and
        return the rest. Raises the database's errors; the leases then end by themselves."""
        self._draining = True
        async with self._claiming:
            waiting = [delivery for line in self._lines.values() for delivery in line.waiting]
            for line in self._lines.values():
                line.waiting.clear()
        try:
            await self._give_back(waiting)
        except Exception as error:  # they are still held, and returned below
            if not is_down(error):
                raise
        if self._places.open:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), grace)
        await self._poster.close()
        for line in self._lines.values():
            while line.in_flight:
                self._places.release(line)
        await asyncio.wait_for(self._record.drain(aside=False), max(1.0, grace))
        await self._give_back([one for one in self._held.every() if not self._record.is_aside(one.lease.line)])
        await self._put_back_lost()

    async def linger(self) -> None:
        """Wait for results that a locked row holds up; called after `drain`."""
        await self._record.drain()

    def _free(self) -> dict[UUID, int]:
        """How many rows to claim from each line, longest-waiting lines first."""
        free: dict[UUID, int] = {}
        total = 0
        crowded = self._places.crowded()
        for line_id in self._due:
            if self._record.is_aside(line_id):  # what is held of it is not recorded
                continue
            # Checked first: thousands of endpoints may be failing, and each time a place becomes free, all are passed.
            line = self._lines.get(line_id)
            if (self._places.unknown if line is None else line.pool) in crowded:
                continue
            line = line or self._know(line_id)
            depth = self._places.depth(line)
            room = depth - line.held
            # Not for a handful: a claim costs almost as much for one row as for a hundred.
            if room <= 0 or 2 * room < depth:
                continue
            free[line_id] = min(room, self._claim_limit - total)
            total += free[line_id]
            if total >= self._claim_limit:
                break
        return free

    def _room(self, organizations: Collection[UUID]) -> dict[UUID, int]:
        """How many deliveries each endpoint may be handed: none while older ones for it are in the queue."""
        left = HANDED * self._claim_limit - self._held.handed
        free: dict[UUID, int] = {}
        if self._draining:
            return free
        for organization_id in organizations:
            for line_id in self._known.get(organization_id, ()):
                line = self._lines.get(line_id)
                if line is None or line_id in self._due or self._record.is_aside(line_id):
                    continue
                room = min(self._places.room(line), left)
                if room > 0:
                    free[line_id] = room
                    left -= room
        return free

    def _take_over(self, taken: Sequence[tuple[Event, UUID]], at: float) -> None:
        """Take deliveries that were committed under our lease, since `at`."""
        lines: dict[UUID, EndpointQueue[Delivery]] = {}
        for event, line_id in taken:
            lease = self._lease(event, line_id)
            delivery = attempts.delivery(lease, event.kind, event.request_id, event.data, event.created_at)
            delivery.handed = True
            self._held.add(delivery, at)
            line = lines.get(line_id)
            if line is None:
                line = lines[line_id] = self._lines.get(line_id) or self._know(line_id)
            if not self._draining:  # otherwise `drain` returns it
                line.waiting.append(delivery)
        for line in lines.values():
            self._places.offer(line)
        self._pump()

    def _lease(self, event: Event, line_id: UUID) -> Lease:
        """That of a delivery which is handed over."""
        return Lease(
            "webhook", self._token, line_id, SINGLE, event.organization_id, event.id, 0, False, event.created_at
        )

    def _lose(self, lost: Sequence[Lease]) -> None:
        """Note rows of a transaction that failed: if only the answer to its commit was lost, nobody has them."""
        room = HANDED * self._claim_limit - len(self._lost)
        self._lost += lost[:room]
        self.wake.set()

    async def _put_back_lost(self) -> None:
        """Return those to the queue at once. What is committed even later waits until its lease ends."""
        lost = list(self._lost)
        if not lost:
            return
        async with self._record.writing, self._pool.acquire() as conn:
            await leases.postpone(conn, [Postponed(one, 0.0, one.line, counts=False) for one in lost])
        del self._lost[: len(lost)]

    def _know(self, line_id: UUID) -> EndpointQueue[Delivery]:
        if len(self._lines) >= LINES:
            self._lines = {id: line for id, line in self._lines.items() if line.held}
            self._known.clear()
        line = self._lines[line_id] = self._places.line(line_id)
        return line

    async def _take(self, claimed: Sequence[Lease], loaded: Sequence[Delivery | Ended], at: float) -> None:
        fresh: dict[tuple[UUID, UUID], EndpointQueue[Delivery]] = {}
        for lease, delivery in zip(claimed, loaded, strict=True):
            if isinstance(delivery, Ended):
                self._record.put(delivery)
                continue
            self._held.add(delivery, at)
            line = self._lines.get(lease.line) or self._know(lease.line)
            self._known.setdefault(lease.organization_id, set()).add(lease.line)
            line.waiting.append(delivery)
            fresh[(lease.organization_id, lease.line)] = line
        await self._expect({key: line for key, line in fresh.items() if line.pool is self._places.unknown})
        for line in fresh.values():
            self._places.offer(line)
        self._pump()

    async def _expect(self, lines: dict[tuple[UUID, UUID], EndpointQueue[Delivery]]) -> None:
        """Assign endpoints that are new to this worker to pools, based on what other workers recorded, before they get
        a place."""
        try:
            found = await self._poster.destinations(list(lines))
        except Exception as error:
            if not is_down(error):
                raise
            return
        for line, destination in zip(lines.values(), found, strict=True):
            if destination is not None:
                self._places.expect(
                    line,
                    failures=destination.consecutive_failures,
                    succeeded=destination.last_success_at is not None,
                )

    def _pump(self) -> bool:
        """Begin attempts while deliveries wait and places are free, unless their leases have to be renewed first;
        returns whether there was one to begin."""
        now = self._loop.time()
        begun = False
        if self._held.is_overdue(now):
            return False
        while (picked := self._places.pick(now)) is not None:
            begun = True
            if not self._poster.start(*picked):
                self._places.release(picked[0])
        return begun

    def _ended(self, line: EndpointQueue[Delivery]) -> None:
        """An attempt has ended; its place goes to the next in turn."""
        places = self._places
        places.release(line)
        if line.waiting and line.pool is places.failing:
            self._shed(line)
        begun = self._pump()
        if self._due and (not begun or (line.id in self._due and 2 * line.held <= places.depth(line))):
            self.wake.set()
        if self._draining and not places.open:
            self._idle.set()

    def _landed(self, ended: Sequence[Ended], disabled: dict[UUID, str]) -> None:
        """A batch of results was recorded."""
        for one in ended:
            self._held.drop(one.number)
            if one.lease.line in disabled:
                self._poster.forget(one.lease.organization_id, one.lease.line)
        for id, reason in disabled.items():
            log.warning("webhook endpoint disabled", endpoint_id=str(id), reason=reason)
        if self._stalled:
            self.wake.set()

    def _set_aside(self, ended: Sequence[Ended]) -> None:
        """Results of an endpoint wait for a locked row."""
        for one in ended:
            self._held.set_aside(one.number)
        self.wake.set()

    def _unsettle(self, now: float) -> None:
        if now < self._unsettle_at:
            return
        self._unsettle_at = now + 0.25
        for line in self._lines.values():
            if line.in_flight:
                self._places.unsettle(line, now)
                if line.waiting and line.pool is self._places.failing:
                    self._shed(line)
        self._pump()

    def _shed(self, line: EndpointQueue[Delivery]) -> None:
        """Return a failing endpoint's rows to the queue, so that they do not fill a worker's memory for hours."""
        while line.waiting:
            delivery = line.waiting.popleft()
            self._record.put(Ended(delivery.lease, SHED, None, delivery.number))

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return rows to the queue at once. This does not count as an attempt."""
        if not deliveries:
            return
        async with self._record.writing, self._pool.acquire() as conn:
            await leases.postpone(conn, [Postponed(one.lease, 0.0, one.lease.line, counts=False) for one in deliveries])
        for one in deliveries:
            self._held.drop(one.number)
