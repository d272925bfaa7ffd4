"""Approvals that stop counting before their campaign begins, because their approver has left or lost the role: whoever
may give another one is notified then, and not only once the campaign has to wait. And approvals that a campaign needs
no longer, because they count again, or its organization asks for none now. Checked every five minutes.
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

_SCHEDULED = "c.step_at IS NOT NULL AND c.status = 'scheduled'"
_LAPSED = f"{_SCHEDULED} AND c.approved_at IS NOT NULL AND {rule.APPROVED_FOR} IS NULL"
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
ASKED = f"""
SELECT organization_id, id FROM campaigns c
 WHERE {_SCHEDULED} AND {_KNOWN}
 ORDER BY step_at LIMIT $1
"""
# It cannot begin, and wait, until its notice is withdrawn.
HOLD_ASKED = f"""
SELECT true FROM campaigns c WHERE organization_id = $1 AND id = $2 AND {_SCHEDULED} FOR UPDATE SKIP LOCKED
"""


async def report(conn: Connection) -> None:
    """Ring for scheduled campaigns that need another approval, because the one they have no longer counts, and withdraw
    the notices of those that need none any more. Commits by itself."""
    for organization_id, id in await conn.fetch(ASKED, MOST, KIND):
        async with conn.transaction():
            held = await conn.fetchval(HOLD_ASKED, organization_id, id)
            if held and await rule.expected(conn, organization_id, id) is None:
                await notices.withdraw(conn, organization_id, KIND, str(id))
    for row in await conn.fetch(LAPSED, MOST, KIND, rule.APPROVERS):
        place = row["organization_id"], row["id"]
        async with conn.transaction():
            if not await conn.fetchval(HOLD, *place, rule.APPROVERS) or await rule.expected(conn, *place) is None:
                continue
            facts = {"channel": row["channel"]}
            await notices.record(conn, Notice(place[0], KIND, str(place[1]), row["name"], facts=facts))
