"""What is staged of a campaign that was canceled, or has failed, is taken back chunk by chunk, and its quota returned.

The rule nobody may break: a message is canceled only together with its queue row, so that it can never be sent after.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from heliograph.accounts import quota
from heliograph.base.db import Connection
from heliograph.campaigns import counting, plan
from heliograph.queue import leases
from heliograph.sms.status import Move, move_many

# From the end: what is due last has the best chance of not having been sent.
STAGED = """
SELECT first_id, last_id FROM campaign_chunks
 WHERE organization_id = $1 AND campaign_id = $2 AND NOT withdrawn AND queued > 0 ORDER BY first_id DESC LIMIT 1
"""
UNSENT = """
SELECT id, segments FROM messages
 WHERE organization_id = $1 AND id BETWEEN $2 AND $3 AND campaign_id = $4 AND status = 'accepted'
"""
WITHDRAWN = """
UPDATE campaign_chunks SET withdrawn = true WHERE organization_id = $1 AND campaign_id = $2 AND first_id = $3
"""
MORE = "UPDATE campaigns SET step_at = clock_timestamp() WHERE organization_id = $1 AND id = $2"
NOTHING_LEFT = "UPDATE campaigns SET step_at = NULL WHERE organization_id = $1 AND id = $2"


async def withdraw(conn: Connection, organization_id: UUID, id: UUID, *, mode: str, at: datetime) -> None:
    """Cancel what no worker has taken yet of one chunk, and give back its quota.

    Runs in the caller's transaction, which holds the campaign's row. Raises plan.Anew.
    """
    campaign = organization_id, id
    chunk = await conn.fetchrow(STAGED, *campaign)
    if chunk is None:
        await conn.execute(NOTHING_LEFT, *campaign)
        return
    unsent = {
        row["id"]: row["segments"]
        for row in await conn.fetch(UNSENT, organization_id, chunk["first_id"], chunk["last_id"], id)
    }
    taken = await leases.withdraw(conn, "sms", list(unsent))
    moves = [Move(organization_id, message_id, "canceled", at, unsent=True) for message_id in taken]
    moved, _ = await move_many(conn, moves)
    if moved != taken:  # a worker tried it and put it back, between the two
        raise plan.Anew
    if mode == "live" and moved:
        refunds = [(organization_id, message_id, unsent[message_id]) for message_id in moved]
        await quota.refund_many(conn, refunds, "campaign canceled")
    await conn.execute(WITHDRAWN, *campaign, chunk["first_id"])
    await counting.recount(conn, [(*campaign, chunk["first_id"])])
    await conn.execute(MORE, *campaign)
