"""Roll-ups of attempts: how many each endpoint had by hour and result, and how long they took.

    results ── deltas, in the same commit ──► webhook_traffic_deltas ── folded every ten seconds ──► webhook_traffic

The rule nobody may break: a delta is written by the statement, or in the transaction, that records its attempts, so an
attempt counts once, and no page ever counts attempts.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.histogram import LENGTH, as_text, bucket_of
from heliograph.base.ids import uuid7
from heliograph.queue import folding

#: Durations in milliseconds below this, which are nearly all, have a table of buckets: a look-up costs a tenth.
SHORT = 1024
_BUCKETS = [bucket_of(one) for one in range(SHORT)]

#: organization, endpoint, hour, result
Key = tuple[UUID, UUID, datetime, str]


class Tally:
    """The roll-up of a batch: one row for each endpoint, hour and result in it."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[Key, list[int]] = {}

    def add(self, organization_id: UUID, endpoint_id: UUID, began: datetime, result: str, took: Iterable[int]) -> None:
        """Add attempts that began within the hour of `began`. `took`: the milliseconds that each took."""
        key = (organization_id, endpoint_id, began.replace(minute=0, second=0, microsecond=0), result)
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0] * LENGTH
        for one in took:
            counts[_BUCKETS[one] if one < SHORT else bucket_of(one)] += 1

    def columns(self) -> tuple[list[UUID], list[UUID], list[datetime], list[str], list[int], list[str]]:
        """The columns that `ROWS` takes."""
        keys = self._counts
        return (
            [key[0] for key in keys],
            [key[1] for key in keys],
            [key[2] for key in keys],
            [key[3] for key in keys],
            [sum(counts) for counts in keys.values()],
            [as_text(counts) for counts in keys.values()],
        )


#: The rows of a statement: `{n}` are its parameter numbers, the batch first, then the columns of a tally.
ROWS = """
INSERT INTO webhook_traffic_deltas (organization_id, batch, n, endpoint_id, hour, result, count, took)
SELECT organization_id, ${0}::uuid, n, endpoint_id, hour, result, count, took::bigint[]
  FROM unnest(${1}::uuid[], ${2}::uuid[], ${3}::timestamptz[], ${4}::text[], ${5}::bigint[], ${6}::text[])
       WITH ORDINALITY AS item (organization_id, endpoint_id, hour, result, count, took, n)
"""
APPEND = ROWS.format(*range(1, 8))


async def record(conn: Connection, tally: Tally) -> None:
    """Append a tally in the caller's transaction, the one that records its attempts."""
    await conn.execute(APPEND, uuid7(), *tally.columns())


ANY = "EXISTS (SELECT FROM webhook_traffic_deltas)"
# Ordered by key, so that two concurrent folds cannot deadlock.
FOLD = """
WITH gone AS (
    DELETE FROM webhook_traffic_deltas
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM webhook_traffic_deltas LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING *
), added AS (
    INSERT INTO webhook_traffic AS known (organization_id, endpoint_id, hour, result, count, took)
    SELECT organization_id, endpoint_id, hour, result, sum(count)::bigint, histogram_sum(took)
      FROM gone GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (organization_id, endpoint_id, hour, result) DO UPDATE
       SET count = known.count + excluded.count, took = histogram_add(known.took, excluded.took)
)
SELECT count(*) FROM gone
"""


async def fold(conn: Connection) -> int:
    """Fold the deltas gathered so far; returns how many there were."""
    return await folding.fold(conn, FOLD)
