"""Sharing between workers: the numbers that each has just seen, for the windows of all of them.

    a worker's messages ── in memory ──► rows of organization and class, once a second ──► every other worker's windows

Written by a timer, outside of any transaction that hands messages over, and read with the holds. The table contains
what the windows contain, for as long: ten minutes.

The rule nobody may break: this only completes the windows. A row that is lost, late or read twice delays detection, and
changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.ids import uuid7
from heliograph.guard.windows import MOST, SPAN

#: Seconds between two writes.
EVERY = 1.0
#: A row becomes visible when its transaction ends: rows of this period are read again.
LATE = timedelta(seconds=5)

# Rows older than the windows are deleted, a bounded number with each write, and the rest by retention.
TELL = f"""
WITH old AS (
    DELETE FROM guard_seen WHERE (organization_id, id) IN (
        SELECT organization_id, id FROM guard_seen WHERE at < now() - interval '{SPAN + 60} seconds'
         ORDER BY at LIMIT 500 FOR UPDATE SKIP LOCKED)
)
INSERT INTO guard_seen (organization_id, id, worker_id, class, at, numbers, places)
SELECT item.organization_id, item.id, $1, item.class, now(),
       ($4::bigint[])[item.first:item.last], ($5::bigint[])[item.first:item.last]
  FROM unnest($2::uuid[], $3::uuid[], $6::int[], $7::int[], $8::text[])
       AS item (organization_id, id, first, last, class)
"""
# The newest, as many as the windows hold: ten minutes of full load would take a starting worker seconds to read. Those
# of times to come are from before the clock was set back, and would stay in the windows until then.
HEAR = f"""
SELECT organization_id, id, class, at, numbers, places
  FROM (SELECT *, sum(cardinality(numbers)) OVER (ORDER BY at DESC, id DESC) AS heard
          FROM guard_seen
         WHERE at > greatest(coalesce($1::timestamptz - $2::interval, '-infinity'), now() - interval '{SPAN} seconds')
           AND at <= now() + $2::interval
           AND worker_id <> $3 AND id <> ALL ($5::uuid[])) newest
 WHERE heard <= $4
 ORDER BY at
"""


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A message that another worker was about to hand over."""

    organization_id: UUID
    #: E.164 with `+`.
    to: str
    traffic_class: str
    #: As in `Windows.see`.
    place: int
    #: When the other worker shared it.
    at: datetime


class Shared:
    """One per worker: what it has to share, and what it has read."""

    def __init__(self) -> None:
        self._id = uuid7()
        self._untold: dict[tuple[UUID, str], list[tuple[int, int]]] = {}
        self._count = 0
        #: Rows up to this time have been read; those of the last LATE are also remembered by id.
        self._until: datetime | None = None
        self._read: dict[UUID, datetime] = {}

    def saw(self, organization_id: UUID, to: str, traffic_class: str, place: int) -> None:
        """Note a message to be shared. What the windows could not hold is left out."""
        if self._count < MOST:
            self._count += 1
            self._untold.setdefault((organization_id, traffic_class), []).append((int(to), place))

    async def tell(self, pool: Pool) -> None:
        """Write what was seen since the last time. If there is nothing, runs no statement."""
        if not self._untold:
            return
        untold, self._untold, self._count = self._untold, {}, 0
        numbers: list[int] = []
        places: list[int] = []
        first: list[int] = []
        last: list[int] = []
        for seen in untold.values():
            first.append(len(numbers) + 1)
            numbers += [number for number, _ in seen]
            places += [place for _, place in seen]
            last.append(len(numbers))
        ids = [uuid7() for _ in untold]
        organizations, classes = (list(column) for column in zip(*untold, strict=True))
        await pool.execute(TELL, self._id, organizations, ids, numbers, places, first, last, classes)

    async def hear(self, conn: Connection) -> list[Seen]:
        """What others have shared since the last time; at first, within the last ten minutes. The newest MOST, in
        chronological order."""
        if self._until is not None:  # a later one is from before the clock was set back
            self._until = min(self._until, clock.now())
        rows = await conn.fetch(HEAR, self._until, LATE, self._id, MOST, list(self._read))
        heard: list[Seen] = []
        for row in rows:
            self._read[row["id"]] = row["at"]
            heard += _messages(row)
        if rows:
            self._until = max(rows[-1]["at"], self._until or rows[-1]["at"])
            self._read = {id: at for id, at in self._read.items() if at > self._until - LATE}
        return heard


def _messages(row: asyncpg.Record) -> Iterator[Seen]:
    for number, place in zip(row["numbers"], row["places"], strict=True):
        yield Seen(row["organization_id"], f"+{number}", row["class"], place, row["at"])
