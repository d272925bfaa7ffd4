"""Which endpoints may have an attempt in progress: the distribution of a worker's places among endpoints. Pure: no I/O,
no clock.

The rule nobody may break: receivers that hang or fail never hold all places. An endpoint is in one of three pools (its
last answers were good; it is unknown; it is failing), and each pool has its own limit. Within a pool endpoints take
turns, and none may take the last free place, so there is always room for one more.

An endpoint's window (its concurrent attempts) grows by one with each success, which doubles it each round trip; a
failure halves it, after which it grows by one per round trip. An unknown or failing one has a single place, whatever
its backlog.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Generic, TypeVar
from uuid import UUID

Job = TypeVar("Job")

#: The window of an endpoint once it has given its first answer; until then it has one place.
START = 2
#: Consecutive failures after which an endpoint counts as failing; after a timeout at once, because it costs most.
STREAK = 3
#: An endpoint whose attempts got no answer for this long counts as failing until one arrives; seconds. Waiting for
#: their timeouts instead would let new endpoints that hang keep all new ones from being tried.
SILENT = 1.0
#: Rows claimed ahead, in windows: up to 8 for fast receivers, fewer for those slower than 1/8 s.
AHEAD = 8
#: The same for deliveries handed over: more, since those without room cost a claim. A worker sends them within some
#: four seconds; until then no other worker can.
HANDED, HANDED_SECONDS = 32, 4.0


class Pool(Generic[Job]):
    """Places for endpoints of one standing; `queue` contains those with jobs waiting for a place."""

    __slots__ = ("limit", "queue", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.queue: deque[EndpointQueue[Job]] = deque()


class EndpointQueue(Generic[Job]):
    """One endpoint as this worker sees it."""

    __slots__ = ("heard_at", "id", "in_flight", "knee", "pool", "queued", "streak", "took", "waiting", "window")

    def __init__(self, id: UUID, pool: Pool[Job]) -> None:
        self.id = id
        self.pool = pool
        self.waiting: deque[Job] = deque()
        self.in_flight = 0
        self.window = float(START)
        #: Where the window last met resistance: above it, it grows by one per round trip.
        self.knee = math.inf
        #: Failures since the last success.
        self.streak = 0
        #: Duration of the last success, seconds.
        self.took = 1.0
        #: When an attempt last ended, or the first one in progress began.
        self.heard_at = 0.0
        self.queued = False

    @property
    def held(self) -> int:
        """Jobs waiting or in progress."""
        return len(self.waiting) + self.in_flight


class Concurrency(Generic[Job]):
    """All places of one worker."""

    def __init__(self, concurrency: int, *, widest: int) -> None:
        """Maximum attempts in progress: `concurrency` in total, `widest` for one endpoint."""
        self._limit = concurrency
        #: Maximum places for unknown and failing endpoints together.
        self._doubtful = max(1, 3 * concurrency // 4)
        self._widest = widest
        self.open = 0
        self.good: Pool[Job] = Pool(max(1, concurrency // 2))
        self.unknown: Pool[Job] = Pool(max(1, concurrency // 4))
        self.failing: Pool[Job] = Pool(max(1, concurrency // 4))

    def line(self, id: UUID) -> EndpointQueue[Job]:
        """An endpoint about which nothing is known yet."""
        return EndpointQueue(id, self.unknown)

    def depth(self, line: EndpointQueue[Job]) -> int:
        """Maximum jobs that the endpoint may hold, in progress and waiting."""
        if line.pool is self.failing:
            return 1
        if line.pool is self.unknown:
            return int(line.window)
        return int(int(line.window) * min(AHEAD, max(1.0, 1.0 / max(line.took, 0.001))))

    def room(self, line: EndpointQueue[Job]) -> int:
        """The number of jobs the endpoint may be handed now: none unless its last answers were good."""
        if line.pool is not self.good:
            return 0
        depth = int(int(line.window) * min(HANDED, max(1.0, HANDED_SECONDS / max(line.took, 0.001))))
        return max(0, depth - line.held)

    def crowded(self) -> set[Pool[Job]]:
        """The pools with enough endpoints waiting for a place: another one would only withhold its jobs from other
        workers."""
        return {pool for pool in (self.unknown, self.failing) if len(pool.queue) >= pool.limit}

    def offer(self, line: EndpointQueue[Job]) -> None:
        """Queue the endpoint if it has jobs waiting; call it when jobs arrive or a place becomes free."""
        if line.waiting and not line.queued:
            line.queued = True
            line.pool.queue.append(line)

    def pick(self, now: float) -> tuple[EndpointQueue[Job], Job] | None:
        """The endpoint whose turn it is, with a place taken, and its job; None if nobody waits or no place is free."""
        for pool in (self.good, self.unknown, self.failing):
            queue = pool.queue
            while queue and self._has_room(pool):
                line = queue.popleft()
                if line.pool is not pool:
                    continue
                line.queued = False
                # An endpoint at its limit has attempts in progress, and is offered again when one ends.
                if not line.waiting or line.in_flight >= self._allowed(line):
                    continue
                if line.in_flight == 0:
                    line.heard_at = now
                line.in_flight += 1
                pool.used += 1
                self.open += 1
                job = line.waiting.popleft()
                if line.waiting:
                    line.queued = True
                    queue.append(line)
                return line, job
        return None

    def release(self, line: EndpointQueue[Job]) -> None:
        """Return a place."""
        line.in_flight -= 1
        line.pool.used -= 1
        self.open -= 1
        self.offer(line)

    def expect(self, line: EndpointQueue[Job], *, failures: int, succeeded: bool) -> None:
        """Apply what the database knows about an endpoint that is new to this worker."""
        if line.pool is self.unknown and line.in_flight == 0:
            if failures >= STREAK:
                self._move(line, self.failing)
            elif succeeded and failures == 0:
                self._move(line, self.good)

    def succeeded(self, line: EndpointQueue[Job], now: float, took: float) -> None:
        """An attempt was answered with 2xx after `took` seconds."""
        line.streak = 0
        line.took = took
        line.heard_at = now
        line.window = min(self._widest, line.window + (1.0 if line.window < line.knee else 1.0 / line.window))
        if line.pool is not self.good:
            self._move(line, self.good)

    def failed(self, line: EndpointQueue[Job], now: float, *, grave: bool) -> None:
        """An attempt failed; `grave`: by using up all its time."""
        line.streak += 1
        line.heard_at = now
        line.window = line.knee = max(1.0, line.window // 2)
        if (grave or line.streak >= STREAK) and line.pool is not self.failing:
            line.window = 1.0
            self._move(line, self.failing)

    def busy(self, line: EndpointQueue[Job]) -> None:
        """No further attempt could be sent concurrently: other endpoints use this destination as well."""
        line.window = line.knee = max(1.0, line.in_flight - 1.0)

    def unsettle(self, line: EndpointQueue[Job], now: float) -> None:
        """Treat an endpoint that has gone silent as failing."""
        if line.pool is not self.failing and line.in_flight and now - line.heard_at > SILENT:
            self._move(line, self.failing)

    def _has_room(self, pool: Pool[Job]) -> bool:
        if pool.used >= pool.limit or self.open >= self._limit:
            return False
        return pool is self.good or self.unknown.used + self.failing.used < self._doubtful

    def _allowed(self, line: EndpointQueue[Job]) -> int:
        if line.pool is not self.good:
            return 1
        return min(int(line.window), max(1, line.pool.limit - line.pool.used))

    def _move(self, line: EndpointQueue[Job], pool: Pool[Job]) -> None:
        line.pool.used -= line.in_flight
        pool.used += line.in_flight
        line.pool = pool
        # Its entry in the old queue, if any, is skipped.
        line.queued = bool(line.waiting)
        if line.queued:
            pool.queue.append(line)
