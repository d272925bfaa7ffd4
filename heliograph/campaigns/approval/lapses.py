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
#: The kind of these notices.
KIND = "campaign.approval"

_APPROVED = "c.step_at IS NOT NULL AND c.status = 'scheduled' AND c.approved_at IS NOT NULL"
_LAPSED = f"{_APPROVED} AND {rule.APPROVED_FOR} IS NULL"
# OFFSET 0: not a join, which might begin with the notices of everybody.
_KNOWN = """EXISTS (SELECT FROM notices
            WHERE organization_id = c.organization_id AND kind = $2 AND object = c.id::text OFFSET 0)"""
# Nobody is notified twice: the notice is withdrawn when somebody approves the campaign.
LAPSED = f"""
SELECT organization_id, id, name, channel FROM campaigns c
 WHERE {_LAPSED} AND NOT {_KNOWN}
 ORDER BY step_at LIMIT $1
"""
# Nobody else can approve it until it is recorded that it waits. Whoever holds it may be about to.
HOLD = f"SELECT true FROM campaigns c WHERE organization_id = $1 AND id = $2 AND {_LAPSED} FOR UPDATE SKIP LOCKED"
# Their approver has the role again.
COUNTS_AGAIN = f"""
SELECT organization_id, id FROM campaigns c
 WHERE {_APPROVED} AND {rule.APPROVED_FOR} IS NOT NULL AND {_KNOWN}
 LIMIT $1
"""


async def report(conn: Connection) -> None:
    """Ring for scheduled campaigns that need another approval, because the one they have no longer counts, and withdraw
    the notices of those whose approval counts again. Commits by itself."""
    for row in await conn.fetch(COUNTS_AGAIN, MOST, KIND, rule.APPROVERS):
        await notices.withdraw(conn, row["organization_id"], KIND, str(row["id"]))
    for row in await conn.fetch(LAPSED, MOST, KIND, rule.APPROVERS):
        place = row["organization_id"], row["id"]
        async with conn.transaction():
            if not await conn.fetchval(HOLD, *place, rule.APPROVERS) or await rule.expected(conn, *place) is None:
                continue
            facts = {"channel": row["channel"]}
            await notices.record(conn, Notice(place[0], KIND, str(place[1]), row["name"], facts=facts))
