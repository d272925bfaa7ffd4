"""Withdrawing the staged messages of a campaign that was canceled or has failed, chunk by chunk, and refunding their
cost.

Messages that a worker holds at that time may return to the queue: a supplier defers them, or a session is lost. So
chunks that still have queued messages are checked again until none are left.

The rule nobody may break: a message is canceled only together with its queue row, so that it can never be sent later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from uuid import UUID

import asyncpg

from heliograph.base.database.pool import BRIEFLY, Connection
from heliograph.campaigns import counting
from heliograph.campaigns.channels.contract import DueCampaign
from heliograph.campaigns.channels.table import CHANNELS

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
SOON = "UPDATE campaigns SET step_at = clock_timestamp() + $3::interval WHERE organization_id = $1 AND id = $2"
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

    is_done, are_locked = await of_last_free(conn, STAGED, due, work)
    if is_done:
        await conn.execute(MORE, *campaign)
        return

    async def again(chunk: asyncpg.Record) -> None:
        await CHANNELS[due.channel].withdraw(conn, due, chunk["first_id"], chunk["last_id"])
        await counting.recount(conn, due.channel, [(*campaign, chunk["first_id"])])

    are_locked |= await of_each_free(conn, await conn.fetch(LEFT, *campaign, CHUNKS), again)
    await conn.execute(AGAIN, *campaign, SOONEST, LATEST)
    if are_locked:
        await conn.execute(SOON, *campaign, SOONEST)


async def of_last_free(
    conn: Connection, statement: str, due: DueCampaign, work: Callable[[asyncpg.Record], Awaitable[None]]
) -> tuple[bool, bool]:
    """Run `work` on the last of the chunks that `statement` finds of which no message stays locked, as by an open
    session: of a campaign that was stopped, the others must not be sent because of it. Returns whether there was one,
    and whether it passed over others: at most MOST_LOCKED."""
    before: UUID | None = None
    for passed in range(MOST_LOCKED):
        chunk = await conn.fetchrow(statement, due.organization_id, due.id, before)
        if chunk is None:
            return False, passed > 0
        if await _is_free(conn, chunk, work):
            return True, passed > 0
        before = chunk["first_id"]
    return False, True


async def of_each_free(
    conn: Connection, chunks: Sequence[asyncpg.Record], work: Callable[[asyncpg.Record], Awaitable[None]]
) -> bool:
    """Run `work` on each of these chunks of which no message stays locked, up to MOST_LOCKED others; returns whether
    there are any."""
    passed = 0
    for chunk in chunks:
        passed += not await _is_free(conn, chunk, work)
        if passed == MOST_LOCKED:
            break
    return passed > 0


async def _is_free(conn: Connection, chunk: asyncpg.Record, work: Callable[[asyncpg.Record], Awaitable[None]]) -> bool:
    """Run `work`; False: a row stays locked, and nothing was done."""
    try:
        async with conn.transaction():
            await conn.execute(BRIEFLY)
            await work(chunk)
    except asyncpg.LockNotAvailableError:
        return False
    return True
