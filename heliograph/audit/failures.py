"""Failed authentications, aggregated: one entry per address and minute, however many there were.

A guess causes no write: counts are written once a minute, in one statement, and neither memory nor rows grow with the
number of addresses. The rule nobody may break: no request waits for this.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import add

from heliograph.audit.recording import Entry, record_many
from heliograph.base.actor import Principal
from heliograph.base.database.batching import WriteBehind
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.network.addresses import sharer

#: Seconds over which failures are aggregated, and how many entries a process writes at most in that time.
EVERY, MOST = 60.0, 200
#: Stands for the addresses beyond MOST.
OTHERS = "others"


class Failures:
    """One per process."""

    def __init__(self, pool: Pool) -> None:
        self.noted: WriteBehind[tuple[str, str], int] = WriteBehind(
            pool, _write, every=EVERY, most=MOST, merged=add, beyond=lambda key: (key[0], OTHERS)
        )

    def note(self, address: str, *, door: str = "api") -> None:
        """Note a failed authentication from `address`. `door`: where, "api" or a page's realm."""
        self.noted.note((door, sharer(address) or "unknown"), 1)


async def _write(conn: Connection, counts: Mapping[tuple[str, str], int]) -> None:
    entries = [
        Entry(action="authentication.failed", object_id=address, after={"door": door}, count=count)
        for (door, address), count in counts.items()
    ]
    await record_many(conn, Principal("unknown"), entries)
