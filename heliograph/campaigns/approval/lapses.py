"""Approvals that stop counting before their campaign begins, because their approver has left or lost the role: whoever
may give another one is notified then, and not only once the campaign has to wait. Checked every five minutes.
"""

from __future__ import annotations

from heliograph import notices
from heliograph.base.database.pool import Connection
from heliograph.campaigns.approval import rule
from heliograph.notices import Notice

#: The timer, and its interval in seconds.
TIMER, EVERY = "approvals", 300.0
#: Maximum number of campaigns examined at once, those that begin first.
MOST = 1_000

# Nobody is notified twice: the notice is withdrawn when somebody approves the campaign.
LAPSED = f"""
SELECT organization_id, id, name, channel FROM campaigns c
 WHERE step_at IS NOT NULL AND status = 'scheduled' AND approved_at IS NOT NULL AND {rule.APPROVED_FOR} IS NULL
   AND NOT EXISTS (SELECT FROM notices known
                    WHERE known.organization_id = c.organization_id AND known.kind = $2 AND known.object = c.id::text)
 ORDER BY step_at LIMIT $1
"""


async def report(conn: Connection) -> None:
    """Ring for scheduled campaigns that need another approval, because the one they have no longer counts."""
    for row in await conn.fetch(LAPSED, MOST, "campaign.approval", rule.APPROVERS):
        if await rule.expected(conn, row["organization_id"], row["id"]) is not None:
            facts = {"channel": row["channel"]}
            waits = Notice(row["organization_id"], "campaign.approval", str(row["id"]), row["name"], facts=facts)
            await notices.record(conn, waits)
