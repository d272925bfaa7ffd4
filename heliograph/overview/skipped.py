"""Who a campaign skipped, for pages and files. What keeps them is `campaigns/skipped.py`."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of


class Skipped(msgspec.Struct, frozen=True):
    """One recipient. `recipient`: a number, or the text that was listed as one."""

    id: UUID
    recipient: str
    #: Of the contact with this number; None: there is none.
    name: str | None
    reason: str

    @property
    def at(self) -> datetime:
        """When they were passed."""
        return time_of(self.id)


# Names are those of now, read by the index of numbers.
LIST = """
SELECT s.id, s.recipient, c.name, s.reason
  FROM (SELECT id, recipient, reason FROM campaign_skipped
         WHERE organization_id = $1 AND campaign_id = $2 AND reason = $3 AND id > $4 ORDER BY id LIMIT $5) s
       LEFT JOIN LATERAL (SELECT name FROM contacts
                           WHERE organization_id = $1 AND mode = $6 AND phone = s.recipient LIMIT 1) c ON true
 ORDER BY s.id
"""


async def list_page(
    conn: Connection, actor: Actor, *, campaign_id: UUID, reason: str, after: UUID | None = None, limit: int
) -> list[Skipped]:
    """Those of a reason, in the order in which they were passed, after `after`: up to `limit` + 1."""
    rows = await conn.fetch(
        LIST, actor.organization_id, campaign_id, reason, after or UUID(int=0), limit + 1, actor.mode
    )
    return [Skipped(**row) for row in rows]


REASONS = """
SELECT one.reason FROM unnest($3::text[]) WITH ORDINALITY AS one (reason, n) CROSS JOIN LATERAL (
       SELECT FROM campaign_skipped
        WHERE organization_id = $1 AND campaign_id = $2 AND reason = one.reason LIMIT 1) s
 ORDER BY n
"""


async def reasons(conn: Connection, actor: Actor, *, campaign_id: UUID, known: tuple[str, ...]) -> list[str]:
    """Those of these reasons for which the campaign skipped somebody."""
    rows = await conn.fetch(REASONS, actor.organization_id, campaign_id, list(known))
    return [row["reason"] for row in rows]
