"""Slots: the leases by which workers share the sessions that suppliers allow (the table `supplier_sessions`).

The rule nobody may break: which leases count is decided here alone, so that no page shows a session as held that a
worker would take.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from uuid import UUID

import asyncpg

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool, is_down

#: Seconds after which a slot that was not renewed is free again.
SLOT_LEASE = 5.0
#: A lease is renewed once this many seconds are left: with a check every second, at every other check.
SLOT_RENEWED = 3.5
#: A lease that seems to last for more seconds than this was taken before the clock was set back, and does not count.
SLOT_LONGEST = 60.0
#: An SQL condition: this row of `supplier_sessions` is held by a worker.
IS_HELD = f"lease_until > now() AND lease_until <= now() + interval '{SLOT_LONGEST:g} seconds'"


# An expired lease may be taken by another worker.
RENEW = """
WITH renewed AS (
    UPDATE supplier_sessions SET lease_until = now() + make_interval(secs => $2)
     WHERE (supplier_id, slot) IN (
           SELECT supplier_id, slot FROM supplier_sessions
            WHERE worker_id = $1 AND lease_until > now() AND lease_until <= now() + make_interval(secs => $3)
            ORDER BY supplier_id, slot FOR UPDATE SKIP LOCKED)
)
SELECT clock_timestamp()
"""


async def renew(conn: Connection | Pool, worker_id: UUID) -> None:
    """Renew a worker's leases that end soon, and follow the database's clock; called every second."""
    own, asked = clock.reading()
    there = await conn.fetchval(RENEW, worker_id, SLOT_LEASE, SLOT_RENEWED)
    clock.note(there, own=own, asked=asked, answered=clock.reading()[1])


@contextlib.asynccontextmanager
async def renewed(pool: Pool, worker_id: UUID) -> AsyncIterator[None]:
    """Renew a worker's leases meanwhile: its sessions are being closed, and the supplier still counts them."""

    ended = asyncio.Event()

    async def run() -> None:
        while not ended.is_set():
            try:
                await renew(pool, worker_id)
            except Exception as error:
                if not is_down(error):
                    raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await ended.wait()

    # Not cancelled: an error of a connection that breaks meanwhile would take the cancellation's place.
    task = asyncio.create_task(run())
    try:
        yield
    finally:
        ended.set()
        await asyncio.gather(task, return_exceptions=True)


class Leases:
    """Decides which leases of other workers count. A lease that lasts longer than any can was taken before the clock
    was set back, and one that has just ended perhaps before it was set forward: a live worker renews it, and its
    session is taken only after a lease's time in which it was not."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        #: When such leases were first seen: by supplier, slot and worker.
        self._ahead: dict[tuple[UUID, int, UUID], float] = {}

    def held_by_others(self, slots: Iterable[asyncpg.Record]) -> set[tuple[UUID, int]]:
        """Suppliers and slots. Rows: supplier_id, slot, worker_id, mine, left (seconds that the lease still lasts)."""
        at, known, self._ahead = self._monotonic(), self._ahead, {}
        held = set()
        may_have_ended = clock.since_forward() >= SLOT_LEASE
        for row in slots:
            if row["mine"] or (row["left"] < 0 and may_have_ended):
                continue
            if row["left"] > SLOT_LONGEST:
                key = (row["supplier_id"], row["slot"], row["worker_id"])
                since = self._ahead[key] = known.get(key, at)
                if at - since >= SLOT_LEASE:
                    continue
            held.add((row["supplier_id"], row["slot"]))
        return held
