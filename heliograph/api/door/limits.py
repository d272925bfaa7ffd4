"""Rate limits: requests of a key per minute, exact across processes.

A window is a row of `rate_windows`, keyed by organization, key and bucket, and `count_requests` (accounts/requests.sql)
is the only function that takes from it. Requests that arrive while a batch of counts is being written go into the next
one, so a minute of traffic costs one small statement per round trip, not one per request. The rule nobody may break:
minutes are the database's, never this machine's.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from heliograph.accounts import rate_limits
from heliograph.accounts.requests import RateUnit
from heliograph.api.shapes.refusals import RateLimited
from heliograph.base.database import clock
from heliograph.base.database.batching import Batcher
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Pool, is_down
from heliograph.base.network.addresses import sharer
from heliograph.base.process.settings import Settings

#: The bucket of refused keys; its windows belong to an address, not to an organization.
FAILURES = "failures"
#: The bucket of requests that need no key.
ANONYMOUS_PER_WINDOW = "unauthenticated"
NOBODY = UUID(int=0)
WINDOW = timedelta(seconds=60)
#: Windows kept in memory; beyond that all are forgotten, which costs one query per window.
CAPACITY = 100_000

TAKE = """
SELECT organization_id, key_id, bucket, taken, window_start, clock_timestamp() AS at
  FROM count_requests($1::uuid[], $2::uuid[], $3::text[], $4::int[])
"""


class WindowState:
    """The state of a window after a request."""

    __slots__ = ("bucket", "headers", "left", "limit", "place")

    def __init__(self, bucket: str, limit: int, place: int, reset: bytes, left: float) -> None:
        """`left`: seconds to the end of the window."""
        self.bucket = bucket
        self.limit = limit
        #: The request's number in the window, from 1.
        self.place = place
        self.left = left
        self.headers = [
            (b"x-ratelimit-limit", b"%d" % limit),
            (b"x-ratelimit-remaining", b"%d" % max(limit - place, 0)),
            (b"x-ratelimit-reset", reset),
        ]

    @property
    def exceeded(self) -> bool:
        return self.place > self.limit

    @property
    def retry_after(self) -> int:
        """Whole seconds to the end of the window, at least 1."""
        return max(math.ceil(self.left), 1)


class _Meter:
    """One window, as far as this process knows."""

    __slots__ = ("bucket", "full_until", "key", "limit", "reset", "window_end", "window_start")

    def __init__(self, key: tuple[UUID, UUID, str], limit: int) -> None:
        self.key = key
        self.bucket = key[2]
        self.limit = limit
        self.window_start = self.window_end = clock.BEGINNING
        self.reset = b""
        #: Local time until which the window is known to be used up; until then there is no point in querying the
        #: database.
        self.full_until = 0.0


class Limiter:
    """Counts requests; one per process."""

    def __init__(self, pool: Pool, settings: Settings, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._now = monotonic
        self.limits = {**rate_limits.of_installation(settings), FAILURES: settings.rate_failures}
        self._meters: dict[tuple[UUID, UUID, str], _Meter] = {}
        #: Local time until which at least one address is locked out.
        self._locked_until = 0.0
        self._batcher: Batcher[_Meter, WindowState] = Batcher(self._take, indivisible=is_down)

    async def take(self, organization_id: UUID, key_id: UUID, bucket: str, own: int | None = None) -> WindowState:
        """Count one request. Raises what the database raises: a request that cannot be counted is not admitted.

        `own`: the organization's own limit; None: the installation's.
        """
        meter = self._meter(organization_id, key_id, bucket, own)
        return self._known_full(meter) or await self._batcher.put(meter)

    def rate_unit(
        self, organization_id: UUID, key_id: UUID, bucket: str, own: int | None = None
    ) -> RateUnit | WindowState:
        """A rate unit to be taken in the operation's own commit, or a WindowState if the window is known to be used up.
        `own` as in `take`."""
        meter = self._meter(organization_id, key_id, bucket, own)
        return self._known_full(meter) or RateUnit(key_id, meter.limit)

    def window_state(self, rate_unit: RateUnit, organization_id: UUID, bucket: str) -> WindowState:
        """The window after a rate unit has been taken."""
        assert rate_unit.window_start is not None
        assert rate_unit.at is not None
        meter = self._meter(organization_id, rate_unit.key_id, bucket, rate_unit.limit)
        left = self._learn(meter, rate_unit.window_start, rate_unit.at)
        if rate_unit.used >= meter.limit:
            meter.full_until = self._now() + left
        return WindowState(bucket, meter.limit, rate_unit.used, meter.reset, left)

    async def take_failure(self, address: str) -> WindowState:
        """Count a refused key against its client address; an IPv6 address counts as its /64."""
        return await self.take(NOBODY, _address_id(address), FAILURES)

    async def fail(self, address: str) -> None:
        """Count a failed authentication. Raises RateLimited beyond the failures allowed per minute.

        Authenticated requests never get here: others may share their address, and behind a proxy all of them do.
        """
        try:
            standing = await self.take_failure(address)
        except Exception as error:
            if is_down(error):
                return  # it is refused anyway
            raise
        if standing.exceeded:
            raise _refusal(standing)

    def is_locked_out(self, address: str) -> bool:
        """Whether the next failure from this address gets 429, as far as this process knows, without a query."""
        if self._now() >= self._locked_until:
            return False  # no address is
        meter = self._meters.get((NOBODY, _address_id(address), FAILURES))
        return meter is not None and self._known_full(meter) is not None

    async def close(self) -> None:
        """Wait for the counts in progress."""
        await self._batcher.drain()

    def _meter(self, organization_id: UUID, key_id: UUID, bucket: str, own: int | None = None) -> _Meter:
        key = (organization_id, key_id, bucket)
        limit = self.limits[bucket] if own is None else own
        meter = self._meters.get(key)
        if meter is None:
            if len(self._meters) >= CAPACITY:
                self._meters.clear()
            meter = self._meters[key] = _Meter(key, limit)
        elif meter.limit != limit:
            # A window that was used up may have room under the new limit: query the database again.
            meter.limit, meter.full_until = limit, 0.0
        return meter

    def _known_full(self, meter: _Meter) -> WindowState | None:
        left = meter.full_until - self._now() if meter.full_until else 0.0
        if left <= 0:
            return None
        return WindowState(meter.bucket, meter.limit, meter.limit + 1, meter.reset, left)

    def _learn(self, meter: _Meter, window_start: datetime, at: datetime) -> float:
        """Record the window; returns its remaining seconds."""
        if meter.window_start != window_start:
            meter.window_start, meter.window_end = window_start, window_start + WINDOW
            meter.reset = iso(meter.window_end).encode()
        return (meter.window_end - at).total_seconds()

    async def _take(self, meters: list[_Meter]) -> list[WindowState]:
        units: dict[_Meter, int] = {}
        for meter in meters:
            units[meter] = units.get(meter, 0) + 1
        asked = self._now()
        rows = await self._pool.fetch(
            TAKE,
            [meter.key[0] for meter in units],
            [meter.key[1] for meter in units],
            [meter.key[2] for meter in units],
            list(units.values()),
        )
        by_key = {meter.key: meter for meter in units}
        places: dict[_Meter, int] = {}
        lefts: dict[_Meter, float] = {}
        for row in rows:
            meter = by_key[row["organization_id"], row["key_id"], row["bucket"]]
            left = lefts[meter] = self._learn(meter, row["window_start"], row["at"])
            places[meter] = row["taken"] - units[meter]
            # Counted from before the query was sent, so that it ends too early rather than too late.
            meter.full_until = asked + left if row["taken"] >= meter.limit else 0.0
            if meter.bucket == FAILURES:
                self._locked_until = max(self._locked_until, meter.full_until)
        standings = []
        for meter in meters:
            places[meter] += 1
            standings.append(WindowState(meter.bucket, meter.limit, places[meter], meter.reset, lefts[meter]))
        return standings


class AnonymousLimiter:
    """Requests that need no key, counted by address, per process: each is cheap, and must remain so when there are
    many."""

    def __init__(self, limit: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`limit`: requests per minute from one address."""
        self._limit = limit
        self._now = monotonic
        self._ends = 0.0
        self._taken: dict[str, int] = {}

    def admit(self, address: str) -> None:
        """Count one request. Raises RateLimited beyond the limit."""
        now = self._now()
        if now >= self._ends or len(self._taken) > CAPACITY:
            self._taken.clear()
            self._ends = now + WINDOW.total_seconds()
        name = sharer(address)
        taken = self._taken[name] = self._taken.get(name, 0) + 1
        if taken > self._limit:
            left = self._ends - now
            reset = iso(clock.now() + timedelta(seconds=left)).encode()
            raise _refusal(WindowState(ANONYMOUS_PER_WINDOW, self._limit, taken, reset, left))


def _refusal(standing: WindowState) -> RateLimited:
    """Add the rate limit headers, which are otherwise added for a key."""
    refusal = RateLimited(standing.bucket, standing.retry_after)
    refusal.headers |= {name.decode(): value.decode() for name, value in standing.headers}
    return refusal


def _address_id(address: str) -> UUID:
    return UUID(bytes=hashlib.sha256((sharer(address) or "unknown").encode()).digest()[:16])
