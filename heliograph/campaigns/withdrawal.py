"""Taking back the staged messages of a campaign that was canceled or has failed, chunk by chunk, and returning their
cost.

The rule nobody may break: a message is canceled only together with its queue row, so that it can never be sent after.
"""

from __future__ import annotations

from heliograph.base.database.pool import Connection
from heliograph.campaigns import counting
from heliograph.campaigns.channels.contract import Due
from heliograph.campaigns.channels.table import CHANNELS

# From the end: what is due last has the best chance of not having been sent.
STAGED = """
SELECT first_id, last_id FROM campaign_chunks
 WHERE organization_id = $1 AND campaign_id = $2 AND NOT withdrawn AND queued > 0 ORDER BY first_id DESC LIMIT 1
"""
WITHDRAWN = """
UPDATE campaign_chunks SET withdrawn = true WHERE organization_id = $1 AND campaign_id = $2 AND first_id = $3
"""
MORE = "UPDATE campaigns SET step_at = clock_timestamp() WHERE organization_id = $1 AND id = $2"
NOTHING_LEFT = "UPDATE campaigns SET step_at = NULL WHERE organization_id = $1 AND id = $2"


async def withdraw(conn: Connection, due: Due) -> None:
    """Cancel the messages of one chunk that no worker has taken yet, and return their cost.

    Runs in the caller's transaction, which holds the campaign's row. Raises plan.Anew.
    """
    campaign = due.organization_id, due.id
    chunk = await conn.fetchrow(STAGED, *campaign)
    if chunk is None:
        await conn.execute(NOTHING_LEFT, *campaign)
        return
    await CHANNELS[due.channel].withdraw(conn, due, chunk["first_id"], chunk["last_id"])
    await conn.execute(WITHDRAWN, *campaign, chunk["first_id"])
    await counting.recount(conn, due.channel, [(*campaign, chunk["first_id"])])
    await conn.execute(MORE, *campaign)
