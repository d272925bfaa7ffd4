"""Plans that are made while tables fill, before anything was analyzed: a new installation's first campaign, or the
first minute of a month's partitions. With a few hundred rows, half a key looks to PostgreSQL as good as all of it; the
pulse has such plans made again as the tables grow, and by then each statement finds its rows by complete keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from heliograph.base.database import pulse
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from tests.rules.test_plans import STATEMENTS, assert_bound, plan_of

pytestmark = pytest.mark.fresh_database

Owner = Callable[[str], Awaitable[None]]
#: Once per step of a job that takes minutes, they may read an organization's attempts until there are statistics.
MAY_WAIT = {"beginnings of responses that name a person", "beginnings of responses that have expired"}
TABLES = sorted({table for _, keys in STATEMENTS.values() for table in keys})
# All columns that must have a value, or are in an index. A domain is filled as the type that it is made of.
COLUMNS = """
SELECT a.attname AS name, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL) AS type
  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
 WHERE a.attrelid = $1::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity = '' AND a.attgenerated = ''
   AND (a.attnotnull OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND a.attnum = ANY (i.indkey)))
"""
CONSTRAINTS = """
SELECT format('ALTER TABLE %s DROP CONSTRAINT %I CASCADE', conrelid::regclass, conname) FROM pg_constraint
 WHERE conrelid::regclass::text = ANY ($1) AND contype IN ('c', 'f')
 UNION ALL
SELECT format('ALTER DOMAIN %s DROP CONSTRAINT %I', contypid::regtype, conname) FROM pg_constraint
 WHERE contypid <> 0 AND contype = 'c' AND connamespace = 'public'::regnamespace
"""
LEAVES = """
SELECT tree.relid::regclass::text FROM unnest($1::text[]) AS one (name), pg_partition_tree(one.name::regclass) tree
 WHERE tree.isleaf
"""
#: The value of a column, by its name or its type: rows of one organization, over one supplier and to one endpoint.
BY_NAME = {
    "mode": "'live'",
    "recipient_suffix": "lpad((n % 1000)::text, 4, '0')",
    **dict.fromkeys(("organization_id", "target_id", "supplier_id", "endpoint_id", "number_id", "account_id"), "one"),
}
BY_TYPE = {
    "uuid": "id",
    "text": "'x' || n",
    "character varying": "'x' || n",
    "timestamp with time zone": "now()",
    "date": "current_date",
    "bigint": "n",
    "integer": "n",
    "smallint": "n % 3",
    "boolean": "true",
    "bytea": "decode(md5(n::text), 'hex')",
    "interval": "interval '0'",
    "jsonb": "'{}'",
}


async def fill(pool: Pool, as_owner: Owner, table: str, ids: list[str]) -> None:
    """Give `table` a row for each of `ids`, of no meaning but with the shape of real ones."""
    columns = {
        column["name"]: f"'{{}}'::{column['type']}"
        if column["type"].endswith("[]")
        else BY_NAME.get(column["name"]) or BY_TYPE[column["type"]]
        for column in await pool.fetch(COLUMNS, table)
    }
    await as_owner(
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(columns.values())}"
        f"  FROM unnest('{{{','.join(ids)}}}'::uuid[]) WITH ORDINALITY AS item (id, n),"
        f"       (SELECT '{uuid7()}'::uuid AS one) the ON CONFLICT DO NOTHING"
    )


@pytest.fixture
async def unchecked(pool: Pool, as_owner: Owner) -> AsyncIterator[None]:
    """The tables accept rows without meaning, and the server does not analyze them by itself."""
    for (command,) in await pool.fetch(CONSTRAINTS, TABLES):
        await as_owner(command)
    for (leaf,) in await pool.fetch(LEAVES, TABLES):
        await as_owner(f"ALTER TABLE {leaf} SET (autovacuum_enabled = false)")
    yield
    await as_owner(f"TRUNCATE {', '.join(TABLES)} CASCADE")


@pytest.mark.usefixtures("partitions_ahead", "unchecked")
async def test_rows_are_found_by_their_keys_once_there_are_some_thousands_though_nothing_was_analyzed(
    pool: Pool, as_owner: Owner
) -> None:
    wrong = {}
    filled = 0
    for rows in (2_000, 20_000):
        ids = [str(uuid7()) for _ in range(rows - filled)]
        for table in TABLES:
            await fill(pool, as_owner, table, ids)
        filled = rows
        for name, (sql, keys) in STATEMENTS.items():
            if name in MAY_WAIT:
                continue
            try:
                assert_bound(await plan_of(pool, sql), keys)
            except AssertionError as error:
                wrong[name, rows] = str(error)
    assert not wrong, "\n\n".join(f"{name} among {rows}: {told}" for (name, rows), told in wrong.items())


@pytest.mark.usefixtures("unchecked")
async def test_the_pulse_sees_a_table_outgrow_its_plans(pool: Pool, as_owner: Owner) -> None:
    """Each time it is four times as large as when its statements were last planned, and not when it shrinks or is as
    large as it was before."""
    sizes = pulse._Sizes()

    async with pool.acquire() as conn:

        async def differs(rows: int) -> bool:
            """Whether it has, with that many attempts."""
            here = await conn.fetchval("SELECT count(*) FROM attempts")
            await fill(pool, as_owner, "attempts", [str(uuid7()) for _ in range(rows - here)])
            return sizes.differ(await _seen(conn, rows))

        sizes.differ(await _seen(conn, 0))
        assert not await differs(100)
        assert await differs(300)
        assert not await differs(1_199)
        assert await differs(1_200)
        assert not await differs(1_300)
        await as_owner("TRUNCATE attempts")
        assert not await differs(1_250)


async def _seen(conn: asyncpg.pool.PoolConnectionProxy[asyncpg.Record], rows: int) -> asyncpg.Record:
    """What a beat returns once the statistics say that there are `rows` attempts."""
    leaves = [leaf for (leaf,) in await conn.fetch(LEAVES, ["attempts"])]
    counted = "SELECT sum(pg_stat_get_live_tuples(leaf::regclass)) FROM unnest($1::text[]) AS one (leaf)"
    while await conn.fetchval(counted, leaves) != rows:  # noqa: ASYNC110  # nobody is told
        await asyncio.sleep(0.05)
    row = await conn.fetchrow(pulse.BEAT, pulse.STOPPED)
    assert row is not None
    return row
