"""The storage per message, computed from the rows of real messages: in tables, and as entries of their indexes."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec

from heliograph.base.database.migrate import FILL

#: Overhead of a row on its page beyond its own bytes (which include its header): the pointer. Of an index entry:
#: pointer and header.
POINTER, ENTRY = 4, 12
#: The share of an index page that is filled.
FILLED = 0.9

TABLES = """
SELECT c.oid::regclass::text AS name FROM pg_class c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1
"""
INDEXES = """
SELECT x.indexrelid::regclass::text AS name,
       (SELECT array_agg(a.attname::text) FROM unnest(x.indkey::smallint[]) AS k (number)
          JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.number) AS columns,
       pg_get_expr(x.indpred, x.indrelid) AS only
  FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid JOIN pg_am m ON m.oid = c.relam
 WHERE x.indrelid = $1::text::regclass AND m.amname = 'btree' AND x.indexprs IS NULL
"""


class Stored(msgspec.Struct, frozen=True):
    """A table's rows per message, bytes per row, and bytes of its index entries per row."""

    table: str
    rows: float
    row: float
    entries: float

    @property
    def bytes(self) -> float:
        """Bytes per message."""
        return self.rows * (self.row + self.entries)


async def stored(conn: asyncpg.Connection[Any], messages: int) -> list[Stored]:
    """The tables that take ten bytes per message or more, given this many messages."""
    found = []
    for row in await conn.fetch(TABLES):
        table = row["name"]
        count, size = (await conn.fetchrow(f"SELECT count(*), avg(pg_column_size(t.*))::float FROM {table} t")).values()
        if not count or count / messages * size < 10:
            continue
        entries = 0.0
        for index in await conn.fetch(INDEXES, table):
            keys = " + ".join(f"coalesce(pg_column_size({name}), 0)" for name in index["columns"])
            only = f"WHERE {index['only']}" if index["only"] else ""
            share, key = (
                await conn.fetchrow(f"SELECT count(*)::float / {count}, avg({keys})::float FROM {table} {only}")
            ).values()
            # Index entries are aligned to eight bytes.
            entries += share * (ENTRY + -(-float(key or 0) // 8) * 8) / FILLED
        found.append(Stored(table, count / messages, (size + POINTER) / (FILL.get(table, 100) / 100), entries))
    return sorted(found, key=lambda one: -one.bytes)
