"""A row is found by its key, whenever the plan was made: for an empty table the planner does not mind a bad plan, and a
prepared statement keeps its plan while the table grows.
"""

from __future__ import annotations

import re

import pytest

from heliograph.base.database.pool import Pool

pytestmark = pytest.mark.fresh_database

#: Tables that grow, with the columns of a key of each.
KEYS = {
    "messages": "organization_id id",
    "whatsapp_messages": "organization_id id",
    "whatsapp_conversations": "organization_id id",
    "events": "organization_id id",
    "usage_ledger": "organization_id id",
    "wallet_ledger": "organization_id id",
    "wallet_movements": "organization_id message_id",
    "contacts": "organization_id mode id",
    "campaigns": "organization_id id",
}


@pytest.mark.parametrize("table", KEYS)
async def test_a_look_up_goes_by_the_primary_key(pool: Pool, table: str) -> None:
    columns = KEYS[table].split()
    condition = " AND ".join(f"{name} = item.{name}" for name in columns)
    types = ", ".join("text[]" if name == "mode" else "uuid[]" for name in columns)
    values = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    async with pool.acquire() as conn:
        await conn.execute(
            f"PREPARE look_up ({types}) AS SELECT found.* FROM unnest({values}) AS item ({', '.join(columns)})"
            f" CROSS JOIN LATERAL (SELECT * FROM {table} WHERE {condition} LIMIT 1) found"
        )
        plan = "\n".join(
            row[0] for row in await conn.fetch(f"EXPLAIN EXECUTE look_up ({', '.join(['NULL'] * len(columns))})")
        )
        await conn.execute("DEALLOCATE look_up")
    used = re.findall(r"Index (?:Only )?Scan (?:Backward )?using (\w+)", plan)
    assert used, plan
    assert [name for name in used if not name.endswith("_pkey")] == [], plan
