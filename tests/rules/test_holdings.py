"""The data set that `make bench` measures pages on: every table they read is filled, and sums agree with messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg

from bench import growth, holdings
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from tests.rules.factories import organization

AMOUNT = 2_000
DIFFERENT = """
SELECT (SELECT count(*) FROM bench_ids) - (SELECT sum(count) FROM traffic),
       (SELECT count(*) FROM bench_ids WHERE failed) - (SELECT sum(count) FROM failure_counts),
       (SELECT sum(used) FROM quotas) - (SELECT sum(messages) FROM usage_days),
       (SELECT sum(total) FROM campaigns) - (SELECT count(*) FROM bench_ids WHERE campaign_id IS NOT NULL)
"""
SUPPLIER = """
INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)
VALUES ($1, 'one', 'smpp', '{}', '', now(), now())
"""
OF = "SELECT count(*) FROM bench_ids WHERE organization_id = $1"


async def test_an_installation_of_many_sizes_is_made_whole(pool: Pool, owner_url: str) -> None:
    large = (await organization(pool)).organization_id
    first = uuid7()
    await pool.execute(SUPPLIER, first)
    conn = await asyncpg.connect(owner_url)
    try:
        await holdings.organizations(conn, large)
        start = datetime.now(UTC) - timedelta(days=2)
        await conn.execute(growth.IDS, large, start, timedelta(days=2), AMOUNT, first)
        for table, statement in holdings.THEN.items():
            await conn.execute(holdings.filled(statement, large, AMOUNT))
            assert await conn.fetchval(f"SELECT EXISTS (SELECT FROM {table})"), table
        row = await conn.fetchrow(DIFFERENT)
        assert row is not None
        assert tuple(row) == (0, 0, 0, 0)
        assert await conn.fetchval(OF, large) == AMOUNT / 2
        assert await conn.fetchval("SELECT count(*) FROM organizations") == holdings.ORGANIZATIONS
        assert await conn.fetchval("SELECT count(*) FROM suppliers") == holdings.SUPPLIERS
    finally:
        await conn.close()
