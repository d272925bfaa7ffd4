"""PostgreSQL's own statistics: commits, WAL, rows."""

from __future__ import annotations

import asyncio

import asyncpg
import msgspec

from bench.stage import Stage

#: Since the database started: commits, bytes of WAL, rows. HOT updates, which stay on their page, write no index.
MARK = """
SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())::float8 AS commits,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 AS wal,
       (SELECT sum(n_tup_ins) FROM pg_stat_user_tables)::float8 AS inserted,
       (SELECT sum(n_tup_upd) FROM pg_stat_user_tables)::float8 AS updated,
       (SELECT sum(n_tup_upd - n_tup_hot_upd) FROM pg_stat_user_tables)::float8 AS moved,
       (SELECT sum(n_tup_del) FROM pg_stat_user_tables)::float8 AS deleted
"""
#: An idle backend reports its statistics within this many seconds (PGSTAT_MIN_INTERVAL, and some slack).
TOLD = 1.5


class Work(msgspec.Struct, frozen=True):
    """Totals so far, between two marks, or for one message of many. `wal` in bytes; `moved`: updated rows whose new
    version went to another page, and therefore into every index."""

    commits: float
    wal: float
    inserted: float
    updated: float
    moved: float
    deleted: float

    def since(self, earlier: Work, *, messages: float = 1.0) -> Work:
        """The difference of the two, for each of `messages`."""
        return Work(
            *(
                (now - then) / max(messages, 1.0)
                for now, then in zip(msgspec.structs.astuple(self), msgspec.structs.astuple(earlier), strict=True)
            )
        )


async def mark(stage: Stage) -> Work:
    """Totals so far, once all backends have reported theirs."""
    await asyncio.sleep(TOLD)
    async with stage.connection() as conn:
        return await read(conn)


async def read(conn: asyncpg.Connection[asyncpg.Record]) -> Work:
    """The current statistics."""
    await conn.execute("SELECT pg_stat_clear_snapshot()")
    row = await conn.fetchrow(MARK)
    assert row is not None
    return Work(*row)
