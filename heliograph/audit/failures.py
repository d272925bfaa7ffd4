"""Failed authentications, aggregated: one entry per address and minute, however many there were.

A guess causes no write: what is counted here is written once a minute, in one statement, and neither memory nor rows
grow with the number of addresses. The rule nobody may break: nobody waits for this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from heliograph.audit.recording import Entry, record_many
from heliograph.base.actor import Who
from heliograph.base.database.pool import Pool, is_down
from heliograph.base.network.addresses import sharer

#: Seconds over which failures are aggregated, and how many entries a process writes at most in that time.
EVERY, MOST = 60.0, 200
#: Stands for the addresses beyond MOST.
OTHERS = "others"


class Failures:
    """One per process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._counts: dict[tuple[str, str], int] = {}

    def note(self, address: str, *, door: str = "api") -> None:
        """Somebody at `address` did not prove who they are. `door`: where, "api" or a page's realm."""
        key = (door, sharer(address) or "unknown")
        if key not in self._counts and len(self._counts) >= MOST:
            key = (door, OTHERS)
        self._counts[key] = self._counts.get(key, 0) + 1

    async def run(self) -> None:
        """Write what has been counted, periodically, until canceled."""
        while True:
            await asyncio.sleep(EVERY)
            await self.close()

    async def close(self) -> None:
        """Write what has been counted. If the database is away, it is kept for the next time."""
        counts, self._counts = self._counts, {}
        try:
            await self._write([*counts.items()])
        except Exception as error:
            if not is_down(error):
                raise
            for key, count in counts.items():
                self._counts[key] = self._counts.get(key, 0) + count

    async def _write(self, counts: Sequence[tuple[tuple[str, str], int]]) -> None:
        if not counts:
            return
        entries = [
            Entry(action="authentication.failed", object_id=address, after={"door": door}, count=count)
            for (door, address), count in counts
        ]
        async with self._pool.acquire() as conn:
            await record_many(conn, Who("unknown"), entries)
