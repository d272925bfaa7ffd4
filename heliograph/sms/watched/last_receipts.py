"""When a supplier last sent a receipt, for operators: noted in memory, and stored every few seconds.

The rule nobody may break: no receipt waits for it, and none is counted here; a batch of receipts is one note.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection

# The account of test keys is not stored.
UPSERT = """
INSERT INTO supplier_health AS known (supplier_id, receipt_at)
SELECT id, at FROM unnest($1::uuid[], $2::timestamptz[]) AS item (id, at)
 WHERE EXISTS (SELECT FROM suppliers WHERE suppliers.id = item.id) ORDER BY id
ON CONFLICT (supplier_id) DO UPDATE SET receipt_at = greatest(known.receipt_at, excluded.receipt_at)
"""
LAST = "SELECT supplier_id, receipt_at FROM supplier_health WHERE receipt_at IS NOT NULL"


class LastReceipts:
    """A worker's notes."""

    def __init__(self) -> None:
        self._at: dict[UUID, datetime] = {}

    def note(self, supplier_id: UUID) -> None:
        """Note that receipts from a supplier have just arrived."""
        self._at[supplier_id] = clock.now()

    async def store(self, conn: Connection) -> None:
        """Store what has been noted since the last time."""
        noted, self._at = self._at, {}
        if not noted:
            return
        try:
            await conn.execute(UPSERT, list(noted), list(noted.values()))
        except BaseException:  # also if this task is cancelled
            self._at = noted | self._at
            raise


async def last(conn: Connection) -> Mapping[UUID, datetime]:
    """When each supplier last sent receipts, for those that ever did."""
    return {row["supplier_id"]: row["receipt_at"] for row in await conn.fetch(LAST)}
