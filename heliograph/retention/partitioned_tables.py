"""The tables that are dropped by month or day: their size, how long rows are kept, and what is dropped next."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.retention.forgetting import bounds
from heliograph.retention.rules import RULES


class PartitionedTable(msgspec.Struct, frozen=True):
    """One partitioned table."""

    name: str
    #: How long a row is kept after the end of its month or day.
    kept: timedelta
    partitions: int
    #: The size of all partitions, including indexes.
    bytes: int
    #: Where its oldest partition begins, when that is dropped, and its size; None: it has no partitions of our own
    #: form.
    oldest: datetime | None
    next_drop: datetime | None
    next_bytes: int


# Sizes are those of the files: no table is read.
SIZES = """
SELECT parent.relname AS parent, child.relname AS name, coalesce(pg_total_relation_size(child.oid), 0) AS bytes
  FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
 WHERE parent.relname = ANY ($1::text[]) AND parent.relnamespace = current_schema()::regnamespace
"""
_MONTH, _DAY = re.compile(r"_(\d{4})_(\d{2})"), re.compile(r"_(\d{4})_(\d{2})_(\d{2})")


async def list_all(conn: Connection, settings: Settings) -> list[PartitionedTable]:
    """All partitioned tables, largest first."""
    at = bounds(settings, clock.now().astimezone(UTC))
    tables = {table.name: table for one in RULES for table in one.tables}
    sizes: dict[str, dict[str, int]] = defaultdict(dict)
    for row in await conn.fetch(SIZES, list(tables)):
        sizes[row["parent"]][row["name"]] = row["bytes"]
    found = []
    for name, table in tables.items():
        kept = at.now - table.bound(at)
        spans = sorted(
            (*span, size) for part, size in sizes[name].items() if (span := _span(part.removeprefix(name))) is not None
        )
        begins, ends, size = spans[0] if spans else (None, None, 0)
        drop = None if ends is None else ends + kept
        found.append(PartitionedTable(name, kept, len(sizes[name]), sum(sizes[name].values()), begins, drop, size))
    return sorted(found, key=lambda one: (-one.bytes, one.name))


def _span(suffix: str) -> tuple[datetime, datetime] | None:
    """The time range of a partition's rows, from the suffix of its name; None: the default partition."""
    if named := _DAY.fullmatch(suffix):
        begins = datetime(int(named[1]), int(named[2]), int(named[3]), tzinfo=UTC)
        return begins, begins + timedelta(days=1)
    if named := _MONTH.fullmatch(suffix):
        year, month = int(named[1]), int(named[2])
        return datetime(year, month, 1, tzinfo=UTC), datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return None
