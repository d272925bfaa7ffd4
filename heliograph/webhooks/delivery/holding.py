"""The deliveries whose queue rows this worker has under leases, until their results are recorded.

The rule nobody may break: while the leases may have ended, nothing is begun, since other workers may have sent it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from heliograph.base.database.pool import Pool
from heliograph.queue import leases
from heliograph.queue.leases import Lease
from heliograph.webhooks.delivery.attempts import Delivery


class EndedEarly(Exception):
    """A claim may have found rows that other workers hold: the database's clock was set forward, which ended their
    leases, and they have not been renewed yet."""


class OwnRows(Exception):
    """A claim found rows that this worker holds: their leases have ended. It stood still, or the database's clock was
    set; a machine that is suspended does both, and no process notices how long."""


class Held:
    """The deliveries of one worker. `renew` is called every third of a lease."""

    def __init__(self, pool: Pool, writing: asyncio.Lock, *, seconds: float) -> None:
        """`writing`: held while rows are finished. `seconds`: the duration of a lease."""
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._writing = writing
        self._seconds = seconds
        self._numbers = itertools.count(1)
        self._deliveries: dict[int, Delivery] = {}
        #: How many of them were handed over, and how many were claimed, except those whose results are set aside.
        self.handed = self.claimed = 0
        #: On the loop's clock.
        self._renewed_at = self._loop.time()

    def add(self, delivery: Delivery, at: float) -> None:
        """Number a delivery, and hold it from now on. `at`: no later than its lease began, on the loop's clock. If this
        process has stood still since, it is overdue even if everything else has been renewed."""
        delivery.claimed_at = at
        self._renewed_at = min(self._renewed_at, at)
        delivery.number = next(self._numbers)
        self._deliveries[delivery.number] = delivery
        self._count(delivery, 1)

    def drop(self, number: int) -> None:
        """Hold this delivery no longer."""
        delivery = self._deliveries.pop(number, None)
        if delivery is not None and not delivery.is_aside:
            self._count(delivery, -1)

    def set_aside(self, number: int) -> None:
        """Hold this delivery, but count it no longer: it leaves room for those of other endpoints."""
        delivery = self._deliveries.get(number)
        if delivery is not None and not delivery.is_aside:
            self._count(delivery, -1)
            delivery.is_aside = True

    def every(self) -> list[Delivery]:
        """All that are held."""
        return list(self._deliveries.values())

    def has_any(self, claimed: Sequence[Lease]) -> bool:
        """Whether one of these rows is held already, unless it is known to be another worker's since."""
        again = {(one.line, one.id) for one in claimed if one.again}
        return bool(again) and any(
            (one.lease.line, one.lease.id) in again and not one.lost for one in self._deliveries.values()
        )

    def is_overdue(self, now: float) -> bool:
        """Whether leases may have ended because they were not renewed in time. The oldest may be older than the last
        renewal by a third of its duration. `now`: on the loop's clock."""
        return now - self._renewed_at > self._seconds / 2

    async def renew(self) -> None:
        """Renew leases that are older than a third of their duration, or all, if that is overdue."""
        at, last = self._loop.time(), next(reversed(self._deliveries), 0)
        young = at if self.is_overdue(at) else at - self._seconds / 3
        await self._renew([one for one in self._deliveries.values() if one.claimed_at <= young])
        # Of those added meanwhile, none was renewed, and each may have been leased before this process stood still.
        added = itertools.takewhile(lambda one: one.number > last, reversed(self._deliveries.values()))
        self._renewed_at = min([at, *(one.claimed_at for one in added)])

    async def renew_all(self) -> None:
        """Renew all leases, which may have ended whatever the loop's clock says."""
        await self._renew(self.every())

    async def _renew(self, held: Sequence[Delivery]) -> None:
        # What was lost stays lost, also if this worker has claimed its row again, under another lease.
        held = [one for one in held if not one.lost]
        if not held:
            return
        async with self._writing, self._pool.acquire() as conn:
            kept = await leases.renew(conn, [one.lease for one in held], seconds=self._seconds)
        for one in held:
            one.lost = (one.lease.line, one.lease.id) not in kept

    def _count(self, delivery: Delivery, by: int) -> None:
        if delivery.handed:
            self.handed += by
        else:
            self.claimed += by
