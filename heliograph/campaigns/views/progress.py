"""A campaign minute by minute: what was handed over and delivered, and when it was paused.

Minutes are added up by `counting.recount`, from the differences that it moves the campaign's counts by: a message
stands in the minute in which its outcome was counted, a second after it changed at the soonest and a minute at the
latest. Messages are never counted for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.campaigns.record import Campaign

#: Intervals of a chart, and the lengths that they may have, in minutes.
MOST, STEPS = 240, (1, 2, 5, 10, 30, 60, 120, 360, 720, 1_440)
#: Minutes that are read; they are kept for 90 days (`retention.rules`).
LOOK = 20_000
#: Pauses and starts that are shown, the first ones.
MARKS = 50
#: What was handed over within this time says how fast a campaign goes now; below so many seconds nothing does.
RECENT, EARLY = timedelta(minutes=10), 5


class Moved(msgspec.Struct, frozen=True):
    """The campaign was paused, or went on. `reason`: why it was paused."""

    at: datetime
    status: str
    reason: str | None


class Progress(msgspec.Struct, frozen=True):
    """A campaign's course."""

    #: Minutes of an interval.
    step: int
    #: (its beginning, handed over, delivered), without gaps.
    intervals: list[tuple[datetime, int, int]]
    moves: list[Moved]


MINUTES = """
SELECT minute, sent, delivered FROM campaign_minutes
 WHERE organization_id = $1 AND campaign_id = $2 ORDER BY minute LIMIT $3
"""
# The organization's own log of what happened to it; its index by object finds the few entries.
MOVES = """
SELECT at, after::jsonb ->> 'status' AS status, after::jsonb ->> 'status_reason' AS reason FROM audit_log
 WHERE object_id = $2 AND organization_id = $1 AND action = 'campaign.moved' ORDER BY id LIMIT $3
"""


# Since it started or went on, if that was a moment ago: a pause is no slowness. The log's index by object finds the
# last move from behind. Of the minute in which it went on, what was handed over before the pause is in the sum; so the
# whole minute is in the time, or a short pause would make it look faster than it ever is.
RATES = """
SELECT item.id, 60 * handed.sent / extract(epoch FROM now() - begun.at) AS rate
  FROM unnest($2::uuid[], $3::timestamptz[]) AS item (id, started_at)
  LEFT JOIN LATERAL (
       SELECT at FROM audit_log
        WHERE object_id = item.id::text AND organization_id = $1 AND action = 'campaign.moved'
        ORDER BY id DESC LIMIT 1) moved ON true
 CROSS JOIN LATERAL (
       SELECT greatest(item.started_at, date_trunc('minute', now() - $4::interval),
                       date_trunc('minute', moved.at)) AS at) begun
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(sent), 0)::float8 AS sent FROM campaign_minutes
        WHERE organization_id = $1 AND campaign_id = item.id AND minute >= date_trunc('minute', begun.at)) handed
 WHERE greatest(begun.at, moved.at) <= now() - $5::interval AND handed.sent > 0
"""


async def rates(conn: Connection, actor: Actor, *, campaigns: Sequence[Campaign]) -> dict[UUID, float]:
    """Messages that each of these that is running hands over in a minute at present; those of which that cannot be said
    yet are left out."""
    running = [one for one in campaigns if one.status == "running" and one.started_at is not None]
    if not running:
        return {}
    ids, starts = [one.id for one in running], [one.started_at for one in running]
    rows = await conn.fetch(RATES, actor.organization_id, ids, starts, RECENT, timedelta(seconds=EARLY))
    return {row["id"]: float(row["rate"]) for row in rows}


async def read(conn: Connection, actor: Actor, *, campaign_id: UUID) -> Progress:
    """The course of one of the organization's campaigns, in at most MOST intervals."""
    rows = await conn.fetch(MINUTES, actor.organization_id, campaign_id, LOOK)
    moves = await conn.fetch(MOVES, actor.organization_id, str(campaign_id), MARKS)
    marks = [Moved(*row.values()) for row in moves if row["status"] in ("paused", "running")]
    if not rows:
        return Progress(1, [], marks)
    first, last = rows[0]["minute"], rows[-1]["minute"]
    minutes = int((last - first) / timedelta(minutes=1)) + 1
    step = next((one for one in STEPS if minutes / one <= MOST), -(-minutes // MOST))
    sums = [[0, 0] for _ in range(-(-minutes // step))]
    for row in rows:
        place = sums[int((row["minute"] - first) / timedelta(minutes=step))]
        place[0] += row["sent"]
        place[1] += row["delivered"]
    intervals = [(first + n * timedelta(minutes=step), max(one[0], 0), max(one[1], 0)) for n, one in enumerate(sums)]
    return Progress(step, intervals, marks)
