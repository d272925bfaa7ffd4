"""Hourly statistics for charts: how full a supplier's window was, and how long its answers took.

Each worker takes a sample every second, sums them in memory, and adds the sums to the row of the hour once a minute.
The rule nobody may break: this costs nothing per message.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.histogram import LENGTH, as_text, percentile
from heliograph.suppliers.contract import Connector, Health, InspectableConnector

KEEP = """
INSERT INTO supplier_hours AS known (supplier_id, hour, in_flight, room, answers)
SELECT id, date_trunc('hour', now(), 'UTC'), in_flight, room, answers::bigint[]
  FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[]) AS item (id, in_flight, room, answers)
 WHERE EXISTS (SELECT FROM suppliers WHERE suppliers.id = item.id) ORDER BY id
ON CONFLICT (supplier_id, hour) DO UPDATE
   SET in_flight = known.in_flight + excluded.in_flight, room = known.room + excluded.room,
       answers = histogram_add(known.answers, excluded.answers)
"""
READ = """
SELECT hour, in_flight, room, answers FROM supplier_hours WHERE supplier_id = $1 AND hour >= $2 AND hour < $3
 ORDER BY hour
"""
DELETE = """
DELETE FROM supplier_hours WHERE (supplier_id, hour) IN (
    SELECT supplier_id, hour FROM supplier_hours WHERE hour < $1 LIMIT $2)
"""


class Hour(msgspec.Struct, frozen=True):
    """The sums of an hour's samples."""

    hour: datetime
    in_flight: int
    room: int
    answers: list[int]

    @property
    def used(self) -> float | None:
        """The average share of the window that was in use; None: there was no window."""
        return self.in_flight / self.room if self.room else None

    def seconds(self, share: float) -> float | None:
        """The time within which `share` (0 to 1) of the answers arrived; None: there were none."""
        return percentile(self.answers, share)


class Hours:
    """A worker's samples that have not been stored yet."""

    def __init__(self) -> None:
        self._sums: dict[UUID, tuple[int, int, list[int]]] = {}

    def look(self, supplier_id: UUID, connector: Connector, health: Health) -> None:
        """Take a sample from a connector."""
        took = connector.answers() if isinstance(connector, InspectableConnector) else []
        if health.window or any(took):
            self._add(supplier_id, health.in_flight, health.window, took)

    async def store(self, conn: Connection) -> None:
        """Add the samples since the last time to the hour's row."""
        sums, self._sums = self._sums, {}
        if not sums:
            return
        columns = zip(*sums.values(), strict=True)
        in_flight, room, took = (list(column) for column in columns)
        try:
            await conn.execute(KEEP, list(sums), in_flight, room, [as_text(one) for one in took])
        except BaseException:  # also if this task is cancelled
            for id, one in sums.items():
                self._add(id, *one)
            raise

    def _add(self, supplier_id: UUID, in_flight: int, room: int, took: list[int]) -> None:
        before = self._sums.get(supplier_id, (0, 0, [0] * LENGTH))
        answers = [a + b for a, b in zip(before[2], took or [0] * LENGTH, strict=True)]
        self._sums[supplier_id] = (before[0] + in_flight, before[1] + room, answers)


async def read(conn: Connection, supplier_id: UUID, *, since: datetime, until: datetime) -> list[Hour]:
    """The hours of a supplier that have any samples, oldest first."""
    return [Hour(**row) for row in await conn.fetch(READ, supplier_id, since, until)]
