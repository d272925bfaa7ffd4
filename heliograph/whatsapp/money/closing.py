"""Closes a month of wallets: sums replace the movements of deleted messages.

The rule nobody may break: the entries of a wallet add up to it at every commit. A month's sums become valid in the very
commit that drops its movements, and nothing is counted while a message of the month could still move money.
"""

from __future__ import annotations

from datetime import date
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.database.retention_rules import Counted

READY = "SELECT to_regclass('whatsapp_messages_' || to_char($1::date, 'YYYY_MM')) IS NULL"
COUNT = """
WITH looked_at AS MATERIALIZED (
    SELECT organization_id, id, available, reserved, consumed FROM {partition}
     WHERE (organization_id, id) > ($2, $3) ORDER BY organization_id, id LIMIT $4
), summed AS (
    INSERT INTO wallet_months AS known (organization_id, month, available, reserved, consumed)
    SELECT organization_id, $1::date, sum(available), sum(reserved), sum(consumed) FROM looked_at
     GROUP BY organization_id
    ON CONFLICT (organization_id, month) DO UPDATE
       SET available = known.available + excluded.available, reserved = known.reserved + excluded.reserved,
           consumed = known.consumed + excluded.consumed
)
SELECT (SELECT count(*) FROM looked_at) AS rows, organization_id, id FROM looked_at
 ORDER BY organization_id DESC, id DESC LIMIT 1
"""


async def is_ready(conn: Connection, *, month: date) -> bool:
    """Whether the month's messages are gone, so that none of them can move money anymore."""
    ready: bool = await conn.fetchval(READY, month)
    return ready


async def count(
    conn: Connection, *, partition: str, month: date, after: tuple[UUID, UUID], limit: int
) -> Counted | None:
    """Add up to `limit` movements of a partition after the key `after` to its month's sums; None: there were no more.

    Runs in the caller's transaction, which also advances `after`. Nothing reads the sums before `close`.
    """
    row = await conn.fetchrow(COUNT.format(partition=partition), month, *after, limit)
    return None if row is None else Counted(row["rows"], (row["organization_id"], row["id"]))


CLOSE = "UPDATE wallet_months SET is_closed = true WHERE month = $1"


async def close(conn: Connection, *, partition: str, month: date) -> None:
    """Make the month's sums replace its movements. Runs in the transaction that drops them."""
    await conn.execute(CLOSE, month)
