"""Withdrawing the staged messages of a campaign that was canceled or has failed, chunk by chunk, and refunding their
cost.

Messages that a worker holds at that time may return to the queue: a supplier defers them, or a session is lost. So
chunks that still have queued messages are checked again until none are left.

The rule nobody may break: a message is canceled only together with its queue row, so that it can never be sent later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import asyncpg

from heliograph.base.database.pool import BRIEFLY, Connection
from heliograph.campaigns import counting
from heliograph.campaigns.channels.contract import DueCampaign
from heliograph.campaigns.channels.table import CHANNELS
from heliograph.queue import leases

#: Pause between two checks of the remaining messages: half the time since the last change, within these bounds.
SOONEST, LATEST = timedelta(seconds=5), timedelta(minutes=10)
#: Chunks with remaining messages that are checked per step: workers hold few messages.
CHUNKS = 50
#: Chunks that are passed over in one step because a message of each is locked.
MOST_LOCKED = 5

# From the end: messages due last are most likely not to have been sent.
STAGED = """
SELECT first_id, last_id FROM campaign_chunks
 WHERE organization_id = $1 AND campaign_id = $2 AND NOT withdrawn AND queued > 0
   AND ($3::uuid IS NULL OR first_id < $3) ORDER BY first_id DESC LIMIT 1
"""
WITHDRAWN = """
UPDATE campaign_chunks SET withdrawn = true WHERE organization_id = $1 AND campaign_id = $2 AND first_id = $3
"""
MORE = "UPDATE campaigns SET step_at = clock_timestamp() WHERE organization_id = $1 AND id = $2"
LEFT = """
SELECT first_id, last_id FROM campaign_chunks
 WHERE organization_id = $1 AND campaign_id = $2 AND withdrawn AND queued > 0 ORDER BY first_id DESC LIMIT $3
"""
# Without such a chunk, nothing is left.
AGAIN = """
UPDATE campaigns SET step_at = (
       SELECT clock_timestamp() + least(greatest((now() - max(changed_at)) / 2, $3::interval), $4::interval)
         FROM campaign_chunks WHERE organization_id = $1 AND campaign_id = $2 AND queued > 0 HAVING count(*) > 0)
 WHERE organization_id = $1 AND id = $2
"""


async def withdraw(conn: Connection, due: DueCampaign) -> None:
    """Cancel the messages of one chunk that no worker has taken yet, and refund their cost.

    Runs in the caller's transaction, which holds the campaign's row. Raises plan.StepOutdated.
    """
    campaign = due.organization_id, due.id

    async def work(chunk: asyncpg.Record) -> None:
        await CHANNELS[due.channel].withdraw(conn, due, chunk["first_id"], chunk["last_id"])
        await conn.execute(WITHDRAWN, *campaign, chunk["first_id"])
        await counting.recount(conn, due.channel, [(*campaign, chunk["first_id"])])

    if await of_last_free(conn, STAGED, due, work):
        await conn.execute(MORE, *campaign)
    else:
        await _look_again(conn, due)


async def of_last_free(
    conn: Connection, statement: str, due: DueCampaign, work: Callable[[asyncpg.Record], Awaitable[None]]
) -> bool:
    """Run `work` on the last of the chunks that `statement` finds of which no message stays locked, as by an open
    session: of a campaign that was stopped, the others must not be sent because of it. False: it finds none. Raises
    LockNotAvailableError if all of them, or the last MOST_LOCKED, have such a message."""
    before: UUID | None = None
    locks: list[asyncpg.LockNotAvailableError] = []
    while (chunk := await conn.fetchrow(statement, due.organization_id, due.id, before)) is not None:
        try:
            async with conn.transaction():
                await conn.execute(BRIEFLY)
                await work(chunk)
            return True
        except asyncpg.LockNotAvailableError as error:
            locks.append(error)
            if len(locks) == MOST_LOCKED:
                break
            before = chunk["first_id"]
    if locks:
        raise locks[0]
    return False


async def _look_again(conn: Connection, due: DueCampaign) -> None:
    campaign = due.organization_id, due.id
    # Other campaigns would wait for each of its turns if a row were locked.
    await conn.execute(leases.PATIENCE)
    left = await conn.fetch(LEFT, *campaign, CHUNKS)
    for chunk in left:
        await CHANNELS[due.channel].withdraw(conn, due, chunk["first_id"], chunk["last_id"])
    if left:
        await counting.recount(conn, due.channel, [(*campaign, chunk["first_id"]) for chunk in left])
    await conn.execute(AGAIN, *campaign, SOONEST, LATEST)
