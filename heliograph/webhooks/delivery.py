"""Delivery: claimed queue rows become signed POSTs, and every answer a row and a decision.

One `Deliverer` per worker process. `round` claims; a claimed row waits for a place (concurrency.py), is posted by
one of a handful of carriers, and its result is recorded with others in one transaction (attempts.py). Carriers go from
delivery to delivery, so that a busy endpoint costs no task per event.

The rule nobody may break: at least once. A row is finished only after a 2xx, the end of the schedule or the end of its
endpoint was committed; whatever else happens, its lease ends and it is posted again with the same event id.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from uuid import UUID

import structlog

from heliograph.base import clock
from heliograph.base.crash import crash_point
from heliograph.base.crypto import Unsealable
from heliograph.base.db import Pool, is_down
from heliograph.base.loading_cache import LoadingCache
from heliograph.base.settings import Settings
from heliograph.http.answers import Answer, Failure
from heliograph.http.client import HttpClient
from heliograph.queue import leases
from heliograph.queue.leases import Lease, Postponed
from heliograph.queue.retry import look_pause, webhook_pause
from heliograph.webhooks import attempts, endpoints, signing
from heliograph.webhooks.attempts import Attempt, Delivery, Destination, Ended
from heliograph.webhooks.concurrency import Concurrency, EndpointQueue
from heliograph.webhooks.events import Event
from heliograph.webhooks.handover import Handover
from heliograph.webhooks.recording import Record

log = structlog.get_logger()

#: Lines that are remembered; the idle ones among them are forgotten past this.
LINES = 10_000
#: Endpoints whose signing keys are kept at hand, 1.5 kB each.
SIGNERS = 2_000
#: Most rows held, in claims.
HELD = 4
#: Most deliveries held that were handed over, in claims.
HANDED = 10
#: Pause before a delivery that could not be sent because too many others were going to the same destination.
BUSY = 0.5
#: Pause of rows that were claimed for an endpoint which then began to fail.
SHED = 1.0
#: Longest Retry-After that is heeded, seconds.
RETRY_AFTER = 3600.0
#: Pause while the endpoints cannot be loaded, seconds.
DATABASE_AWAY = 0.5


class Deliverer:
    """Posts what is queued for webhook endpoints. `round` is called again and again, `renew` each third of a lease."""

    def __init__(
        self,
        pool: Pool,
        outbound: HttpClient,
        settings: Settings,
        *,
        seal_key: bytes,
        chance: random.Random | None = None,
    ) -> None:
        """`seal_key`: `endpoints.seal_key(settings)`. `chance`: for the jitter. Raises ValueError when
        `webhook_schedule` is malformed."""
        self._pool = pool
        self._outbound = outbound
        self._seal_key = seal_key
        self._schedule = tuple(float(pause) for pause in settings.webhook_schedule.split(","))
        self._lease_seconds = settings.lease_seconds
        self._claim_limit = settings.claim_limit
        self._chance = chance or random.Random()
        concurrency = settings.webhook_concurrency
        # HttpClient's own limit for one destination.
        self._places: Concurrency[Delivery] = Concurrency(
            concurrency, widest=min(concurrency, max(8, concurrency // 4))
        )
        self._lines: dict[UUID, EndpointQueue[Delivery]] = {}
        #: Lines that may have more due work than was claimed, in the order in which they are asked next.
        self._due: dict[UUID, None] = {}
        self._after = leases.UNROUTED
        self._look_at = 0.0
        self._later: asyncio.TimerHandle | None = None
        #: Claimed rows whose end is not recorded yet, by id and line.
        self._held: dict[tuple[UUID, UUID], Delivery] = {}
        #: How many of them were handed over; those have a bound of their own, so that no claim waits for them.
        self._handed = 0
        #: Endpoints of organizations, as far as this worker has met them.
        self._known: dict[UUID, set[UUID]] = {}
        self._carriers: set[asyncio.Task[None]] = set()
        self._claiming = asyncio.Lock()
        self._draining = False
        self._stalled = False
        self._unsettle_at = 0.0
        self._destinations: LoadingCache[tuple[UUID, UUID], Destination] = LoadingCache(self._load, indivisible=is_down)
        self._tick = 0
        self._at = datetime.fromtimestamp(0, UTC)
        #: With the sealed secrets that each was made from.
        self._signers: dict[UUID, tuple[list[bytes], signing.Signer]] = {}
        self._record = Record(pool, disable_after=settings.webhook_disable_hours * 3600.0, landed=self._landed)
        #: Set when something may have changed: new work, a free place.
        self.wake = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Attempts under way."""
        return self._places.open

    async def round(self) -> int:
        """Claim once and start what there are places for; returns how many rows were claimed."""
        async with self._claiming:
            return await self._round()

    async def _round(self) -> int:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._stalled = len(self._held) - self._handed >= HELD * self._claim_limit
        if self._draining or self._stalled:
            return 0
        self._unsettle(now)
        if now >= self._look_at:
            await self._look()
        elif self._later is None:
            self._later = loop.call_later(self._look_at - now, self._look_again)
        free = self._free()
        if not free:
            return 0
        async with self._pool.acquire() as conn, conn.transaction():
            claimed = await leases.claim(conn, "webhook", free, seconds=self._lease_seconds)
            loaded = await attempts.load(conn, claimed) if claimed else []
        counts = Counter(lease.line for lease in claimed)
        for line_id, asked in free.items():
            del self._due[line_id]
            if counts[line_id] == asked:
                self._due[line_id] = None
        await self._take(claimed, loaded)
        return len(claimed)

    def handover(self) -> Handover:
        """For one transaction that records events: those for which there is room here, this worker delivers."""
        return Handover(room=self._room, deliver=self._take_over, seconds=self._lease_seconds)

    async def renew(self) -> None:
        """Hold the leases of what was claimed over a third of a lease ago; called that often."""
        at = asyncio.get_running_loop().time()
        old = [one for one in self._held.values() if at - one.claimed_at > self._lease_seconds / 3]
        if not old:
            return
        async with self._record.writing, self._pool.acquire() as conn:
            kept = await leases.renew(conn, [one.lease for one in old], seconds=self._lease_seconds)
        for one in old:
            one.lost = one.lease.id not in kept

    async def drain(self, grace: float) -> None:
        """Claim nothing more, let attempts under way end for at most `grace` seconds, record their results, and give
        back the rest. Raises what the database raises; then the leases end by themselves."""
        self._draining = True
        async with self._claiming:
            waiting = [delivery for line in self._lines.values() for delivery in line.waiting]
            for line in self._lines.values():
                line.waiting.clear()
        if self._later is not None:
            self._later.cancel()
        await self._give_back(waiting)
        if self._carriers:
            await asyncio.wait(self._carriers, timeout=grace)
        for carrier in self._carriers:
            carrier.cancel()
        await asyncio.gather(*self._carriers, return_exceptions=True)
        await asyncio.wait_for(self._record.drain(), max(1.0, grace))
        await self._give_back(list(self._held.values()))

    def _look_again(self) -> None:
        self._later = None
        self.wake.set()

    async def _look(self) -> None:
        """Ask which lines have due work, a thousand at a time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with self._pool.acquire() as conn:
            found, self._after = await leases.lines(conn, "webhook", after=self._after)
        ended = loop.time()
        self._look_at = ended + look_pause(ended - began)
        for line_id in found:
            self._due.setdefault(line_id)
        if self._after != leases.UNROUTED and self._later is None:
            self._later = loop.call_later(self._look_at - ended, self._look_again)

    def _free(self) -> dict[UUID, int]:
        """How many rows to claim of each line, those that waited longest first."""
        free: dict[UUID, int] = {}
        total = 0
        for line_id in self._due:
            line = self._lines.get(line_id) or self._know(line_id)
            depth = self._places.depth(line)
            room = depth - line.held
            # Not for a handful: a claim costs nearly as much for one row as for a hundred.
            if room <= 0 or 2 * room < depth or self._places.crowded(line):
                continue
            free[line_id] = min(room, self._claim_limit - total)
            total += free[line_id]
            if total >= self._claim_limit:
                break
        return free

    def _room(self, organizations: Collection[UUID]) -> dict[UUID, int]:
        """How many deliveries each endpoint may be handed: none while older ones of it are in the queue."""
        left = HANDED * self._claim_limit - self._handed
        free: dict[UUID, int] = {}
        if self._draining:
            return free
        for organization_id in organizations:
            for line_id in self._known.get(organization_id, ()):
                line = self._lines.get(line_id)
                if line is None or line_id in self._due:
                    continue
                room = min(self._places.room(line), left)
                if room > 0:
                    free[line_id] = room
                    left -= room
        return free

    def _take_over(self, token: UUID, taken: Sequence[tuple[Event, UUID]]) -> None:
        """Deliveries that were committed under a lease of ours."""
        at = asyncio.get_running_loop().time()
        lines: dict[UUID, EndpointQueue[Delivery]] = {}
        for event, line_id in taken:
            lease = Lease(
                "webhook", line_id, 0, event.organization_id, event.id, 0, token, again=False, due_at=event.created_at
            )
            delivery = attempts.delivery(lease, event.kind, event.request_id, event.data, event.created_at)
            delivery.claimed_at, delivery.handed = at, True
            self._held[(event.id, line_id)] = delivery
            line = lines.get(line_id)
            if line is None:
                line = lines[line_id] = self._lines.get(line_id) or self._know(line_id)
            if not self._draining:  # else `drain` gives it back
                line.waiting.append(delivery)
        self._handed += len(taken)
        for line in lines.values():
            self._places.offer(line)
        self._pump()

    def _know(self, line_id: UUID) -> EndpointQueue[Delivery]:
        if len(self._lines) >= LINES:
            self._lines = {id: line for id, line in self._lines.items() if line.held}
            self._known.clear()
        line = self._lines[line_id] = self._places.line(line_id)
        return line

    async def _take(self, claimed: Sequence[Lease], loaded: Sequence[Delivery | None]) -> None:
        at = asyncio.get_running_loop().time()
        fresh: dict[tuple[UUID, UUID], EndpointQueue[Delivery]] = {}
        for lease, delivery in zip(claimed, loaded, strict=True):
            if delivery is None:
                self._record.put(Ended(lease, None, None))
                continue
            delivery.claimed_at = at
            self._held[(lease.id, lease.line)] = delivery
            line = self._lines.get(lease.line) or self._know(lease.line)
            self._known.setdefault(lease.organization_id, set()).add(lease.line)
            line.waiting.append(delivery)
            fresh[(lease.organization_id, lease.line)] = line
        await self._expect({key: line for key, line in fresh.items() if line.pool is self._places.unknown})
        for line in fresh.values():
            self._places.offer(line)
        self._pump()

    async def _expect(self, lines: dict[tuple[UUID, UUID], EndpointQueue[Delivery]]) -> None:
        """Sort endpoints that are new to this worker by what others saw of them, before they get a place."""
        try:
            found = await asyncio.gather(*[self._destinations.get(key) for key in lines])
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

    def _pump(self) -> None:
        """Start a carrier for each free place that somebody waits for."""
        now = asyncio.get_running_loop().time()
        while (picked := self._places.pick(now)) is not None:
            carrier = asyncio.create_task(self._carry(*picked))
            self._carriers.add(carrier)
            carrier.add_done_callback(self._carriers.discard)

    async def _carry(self, line: EndpointQueue[Delivery], delivery: Delivery) -> None:
        """Deliver one after the other, on the place taken for `line` and then on whosever turn it is."""
        loop = asyncio.get_running_loop()
        places = self._places
        while True:
            try:
                await self._deliver(line, delivery)
            except Exception:
                log.exception("webhook attempt broke off")
                self._drop(delivery.lease)
            finally:
                places.release(line)
            if line.id in self._due and 2 * line.held <= places.depth(line):
                self.wake.set()
            picked = places.pick(loop.time())
            if picked is None:
                break
            line, delivery = picked
        if self._due:
            self.wake.set()

    async def _deliver(self, line: EndpointQueue[Delivery], delivery: Delivery) -> None:
        """One attempt, and its result on the way to the record."""
        lease = delivery.lease
        key = (lease.organization_id, lease.line)
        fresh, destination = self._destinations.peek(key)
        if not fresh:
            destination = await self._destination(key)
        if delivery.lost:
            self._drop(lease)
            return
        if destination is None:
            self._record.put(Ended(lease, None, None))
            return
        at = self._now()
        try:
            signer = self._signer(lease, destination)
        except Unsealable as error:
            log.error("webhook secret does not open", endpoint=str(lease.line))
            self._record.put(Ended(lease, self._pause(lease), Attempt(at, 0.0, None, "secret", str(error))))
            return
        headers = signer.headers(event_id=delivery.event_id, request_id=delivery.request_id, body=delivery.body, at=at)
        headers["content-type"] = "application/json"
        crash_point("webhook.before_post")
        outcome = await self._outbound.post(destination.url, delivery.body, headers)
        crash_point("webhook.after_post")
        if isinstance(outcome, Failure) and outcome.kind == "busy" and line.in_flight > 1:
            # It goes out when one of the endpoint's own ends.
            self._places.busy(line)
            line.waiting.appendleft(delivery)
            return
        self._record.put(self._judge(line, lease, at, outcome))
        if line.waiting and line.pool is self._places.failing:
            self._shed(line)

    def _judge(self, line: EndpointQueue[Delivery], lease: Lease, at: datetime, outcome: Answer | Failure) -> Ended:
        now = asyncio.get_running_loop().time()
        duration = outcome.duration
        if isinstance(outcome, Failure):
            if outcome.kind == "busy":
                self._places.busy(line)
                return Ended(lease, BUSY * self._chance.uniform(0.8, 1.2), None)
            self._places.failed(line, now, grave=outcome.kind == "timeout")
            return Ended(
                lease, self._pause(lease), Attempt(at, duration, None, outcome.kind, attempts.detail(outcome.detail))
            )
        status = outcome.status
        if 200 <= status < 300:
            self._places.succeeded(line, now, duration)
            return Ended(lease, None, Attempt(at, duration, status, attempts.DELIVERED, ""))
        self._places.failed(line, now, grave=False)
        detail = attempts.detail(outcome.body.decode("utf-8", "replace"))
        if status == 410:
            return Ended(lease, None, Attempt(at, duration, status, attempts.GONE, detail))
        pause = self._pause(lease)
        if pause is not None and status in (429, 503) and outcome.retry_after is not None:
            # Not sooner than asked, but not sooner than the schedule either: its attempts are to last for days.
            pause = max(pause, min(outcome.retry_after, RETRY_AFTER))
        return Ended(lease, pause, Attempt(at, duration, status, attempts.REFUSED, detail))

    def _now(self) -> datetime:
        """The present. Within a millisecond it is the same object, whose text is then written once."""
        tick = clock.milliseconds()
        if tick != self._tick:
            self._tick, self._at = tick, datetime.fromtimestamp(tick / 1000, UTC)
        return self._at

    def _pause(self, lease: Lease) -> float | None:
        return webhook_pause(self._schedule, lease.tries + 1, self._chance)

    async def _destination(self, key: tuple[UUID, UUID]) -> Destination | None:
        while True:
            try:
                return await self._destinations.get(key)
            except Exception as error:
                if not is_down(error):
                    raise
                await asyncio.sleep(DATABASE_AWAY)

    async def _load(self, keys: Sequence[tuple[UUID, UUID]]) -> dict[tuple[UUID, UUID], Destination]:
        async with self._pool.acquire() as conn:
            return await attempts.destinations(conn, keys)

    def _signer(self, lease: Lease, destination: Destination) -> signing.Signer:
        known = self._signers.get(lease.line)
        if known is not None and known[0] == destination.sealed:
            return known[1]
        secrets = [
            endpoints.open_secret(self._seal_key, organization_id=lease.organization_id, id=lease.line, sealed=sealed)
            for sealed in destination.sealed
        ]
        if len(self._signers) >= SIGNERS:
            self._signers.clear()
        signer = signing.Signer(secrets)
        self._signers[lease.line] = (destination.sealed, signer)
        return signer

    def _landed(self, ended: Sequence[Ended], disabled: dict[UUID, str]) -> None:
        """A batch of results is done with."""
        for one in ended:
            self._drop(one.lease)
            if one.lease.line in disabled:
                self._destinations.forget((one.lease.organization_id, one.lease.line))
        for id, reason in disabled.items():
            log.warning("webhook endpoint disabled", endpoint=str(id), reason=reason)
        if self._stalled:
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
        """A failing endpoint's rows go back to the queue, so that they fill no worker's memory for hours."""
        while line.waiting:
            self._record.put(Ended(line.waiting.popleft().lease, SHED, None))

    def _drop(self, lease: Lease) -> None:
        key = (lease.id, lease.line)
        held = self._held.get(key)
        # What was finished may have been queued anew, and claimed, before this was told.
        if held is not None and held.lease.token == lease.token:
            self._handed -= held.handed
            del self._held[key]

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Put rows back at once. It counts as no attempt."""
        if not deliveries:
            return
        async with self._record.writing, self._pool.acquire() as conn:
            await leases.postpone(conn, [Postponed(one.lease, 0.0, one.lease.line, counts=False) for one in deliveries])
        for one in deliveries:
            self._drop(one.lease)
