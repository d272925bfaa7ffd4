"""Staged messages of a campaign that somebody paused: they are postponed chunk by chunk, and resume where they stopped.

Their queue rows are postponed by a hundred years instead of removed, so nothing is refunded and messages keep their
order. A message that a worker already has is sent, unless it comes back: its supplier was busy, or a session was lost.
So chunks are checked again for a while. When the campaign is resumed, each message is due later by the length of the
pause, and so is the next one to be staged. One that waited for a time further ahead than campaigns are staged, such as
the end of quiet hours, is due at that time as before. The rule nobody may break: a chunk is marked as postponed in the
commit that postpones its rows, so nothing is postponed twice and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from time import monotonic
from uuid import UUID

import asyncpg

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.campaigns import counting, plan, withdrawal
from heliograph.campaigns.channels.contract import DueCampaign
from heliograph.campaigns.channels.table import CHANNELS
from heliograph.queue import leases

#: Later than anything else is due.
AWAY = timedelta(days=36_500)
#: How long chunks are checked again after the last one was postponed, longer than workers hold a message; the interval
#: between two checks is half the time since then, and at least this.
SETTLED, SOONEST = timedelta(minutes=10), timedelta(seconds=5)
#: Chunks per such check: workers hold few messages, those that were due first.
CHUNKS = 20
#: A message due further ahead than this, when it is postponed, waits for a time of its own: it is longer than the
#: interval of the slowest pace, plus LEAD.
OWN = plan.LEAD + timedelta(minutes=1)

# From the end: messages due last are most likely not to have been sent.
WAITING = """
SELECT first_id, last_id FROM campaign_chunks
 WHERE organization_id = $1 AND campaign_id = $2 AND put_off_at IS NULL AND NOT withdrawn AND queued > 0
   AND ($3::uuid IS NULL OR first_id < $3) ORDER BY first_id DESC LIMIT 1
"""
PUT_OFF = """
UPDATE campaign_chunks SET put_off_at = $4 WHERE organization_id = $1 AND campaign_id = $2 AND first_id = $3
"""
# Resumed in the original order.
AWAY_CHUNK = """
SELECT first_id, last_id, put_off_at,
       NOT EXISTS (SELECT FROM campaign_chunks later
                    WHERE later.organization_id = $1 AND later.campaign_id = $2 AND later.first_id > c.first_id)
       AS is_last
  FROM campaign_chunks c
 WHERE organization_id = $1 AND campaign_id = $2 AND put_off_at IS NOT NULL AND NOT withdrawn ORDER BY first_id LIMIT 1
"""
# The next chunk of a paced campaign follows its last one. If its times began from now, both would be sent side by side,
# at twice the pace.
FOLLOW = "UPDATE campaigns SET due_at = due_at + $3::interval WHERE organization_id = $1 AND id = $2"
MORE = "UPDATE campaigns SET step_at = clock_timestamp() WHERE organization_id = $1 AND id = $2"
LATELY = """
SELECT first_id, last_id FROM campaign_chunks
 WHERE organization_id = $1 AND campaign_id = $2 AND put_off_at > $3::timestamptz - $4::interval AND NOT withdrawn
   AND queued > 0
 ORDER BY first_id LIMIT $5
"""
# Without such a chunk, nothing is left.
AGAIN = """
UPDATE campaigns SET step_at = (
       SELECT clock_timestamp() + greatest(($3::timestamptz - max(put_off_at)) / 2, $5::interval)
         FROM campaign_chunks
        WHERE organization_id = $1 AND campaign_id = $2 AND put_off_at > $3 - $4::interval AND NOT withdrawn
          AND queued > 0
       HAVING count(*) > 0)
 WHERE organization_id = $1 AND id = $2
"""


#: How soon a campaign that is paused because something is lacking is checked again: a twentieth of the time for which
#: it has been paused, within these bounds. There may be thousands, some of them paused forever.
CHECKED_SOONEST, CHECKED_LATEST = 1.0, 15.0


class Patience:
    """How soon a worker checks paused campaigns again. It only knows what it has seen itself."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        """`now` gives seconds."""
        self._now = now
        #: When each was first and last found paused, the last one last.
        self._seen: dict[UUID, tuple[float, float]] = {}

    def pause(self, id: UUID) -> timedelta:
        """The time until the next check of a campaign that was just found paused."""
        now = self._now()
        # Campaigns not seen for a while were sent or canceled.
        while self._seen and now - self._seen[eldest := next(iter(self._seen))][1] > 4 * CHECKED_LATEST:
            del self._seen[eldest]
        first, _ = self._seen.pop(id, (now, now))
        self._seen[id] = first, now
        return timedelta(seconds=min(max((now - first) / 20, CHECKED_SOONEST), CHECKED_LATEST))


def is_put_off(due_at: datetime) -> bool:
    """Whether a message that is due then waits for its campaign to be resumed."""
    return due_at - clock.now() > AWAY / 2


async def put_off(conn: Connection, due: DueCampaign) -> None:
    """Postpone one chunk of a paused campaign or, once all are postponed, the messages that workers have put back.

    Runs in the caller's transaction, which holds the campaign's row.
    """
    campaign = due.organization_id, due.id

    async def work(chunk: asyncpg.Record) -> None:
        ids = await CHANNELS[due.channel].unsent(conn, due, chunk["first_id"], chunk["last_id"])
        await leases.shift(conn, due.channel, ids, by=AWAY)
        await conn.execute(PUT_OFF, *campaign, chunk["first_id"], due.at)
        await counting.recount(conn, due.channel, [(*campaign, chunk["first_id"])])

    is_done, are_locked = await withdrawal.of_last_free(conn, WAITING, due, work)
    if is_done:
        await conn.execute(MORE, *campaign)
        return

    async def again(chunk: asyncpg.Record) -> None:
        ids = await CHANNELS[due.channel].unsent(conn, due, chunk["first_id"], chunk["last_id"])
        await leases.shift(conn, due.channel, ids, by=AWAY, only_within=AWAY / 2)

    lately = await conn.fetch(LATELY, *campaign, due.at, SETTLED, CHUNKS)
    are_locked |= await withdrawal.of_each_free(conn, lately, again)
    await conn.execute(AGAIN, *campaign, due.at, SETTLED, SOONEST)
    if are_locked:
        await conn.execute(withdrawal.SOON, *campaign, SOONEST)


async def take_up(conn: Connection, due: DueCampaign) -> bool:
    """Resume one postponed chunk; False: there is none. Runs in the caller's transaction, which holds the campaign's
    row."""
    campaign = due.organization_id, due.id
    chunk = await conn.fetchrow(AWAY_CHUNK, *campaign)
    if chunk is None:
        return False
    # Other campaigns would wait for each of its turns if a row were locked, as by an open session.
    await conn.execute(leases.PATIENCE)
    pause: timedelta = due.at - chunk["put_off_at"]
    ids = await CHANNELS[due.channel].unsent(conn, due, chunk["first_id"], chunk["last_id"])
    own = chunk["put_off_at"] + OWN + AWAY
    await leases.shift(conn, due.channel, ids, by=pause - AWAY, only_beyond=AWAY / 2, later_than=own, later_by=-AWAY)
    await conn.execute(PUT_OFF, *campaign, chunk["first_id"], None)
    if chunk["is_last"]:
        await conn.execute(FOLLOW, *campaign, pause)
    await conn.execute(MORE, *campaign)
    return True
