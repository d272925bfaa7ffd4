"""Messages whose answer was lost, of campaigns that were stopped in the meantime.

The rule nobody may break: a stopped campaign's messages are not sent again either.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.whatsapp.dispatch.claimed import ClaimedMessage

# LIMIT keeps the planner from turning these look-ups into other joins.
STOPPED = """
SELECT asked.id, c.status <> 'paused' AS ended
  FROM unnest($1::uuid[], $2::uuid[]) AS asked (organization_id, id) CROSS JOIN LATERAL (
       SELECT campaign_id FROM whatsapp_messages
        WHERE organization_id = asked.organization_id AND id = asked.id LIMIT 1) m
 CROSS JOIN LATERAL (
       SELECT status, status_reason FROM campaigns
        WHERE organization_id = asked.organization_id AND id = m.campaign_id LIMIT 1) c
 WHERE c.status IN ('canceled', 'failed') OR c.status = 'paused' AND c.status_reason = 'paused_by_request'
"""


async def stopped(conn: Connection, lost: Sequence[ClaimedMessage]) -> dict[UUID, bool]:
    """Those of these messages whose campaign was canceled or has failed (True), or was paused by request (False)."""
    rows = await conn.fetch(STOPPED, [one.lease.organization_id for one in lost], [one.lease.id for one in lost])
    return {row["id"]: row["ended"] for row in rows}
