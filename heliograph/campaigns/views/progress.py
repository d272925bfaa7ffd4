"""A campaign minute by minute: messages handed over, delivered and refused, and pauses.

Minutes are summed by `counting.recount`, from the differences that it adds to the campaign's counts: a message belongs
to the minute in which its outcome was counted, between a second and a minute after it changed. Messages are never
counted for this.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.campaigns.record import Campaign

#: Maximum intervals of a chart, and their possible lengths in minutes.
MOST, STEPS = 240, (1, 2, 5, 10, 30, 60, 120, 360, 720, 1_440)
#: Maximum minutes read; they are kept for 90 days (`retention.rules`).
LOOK = 20_000
#: Maximum pauses and starts shown, the first ones.
MARKS = 50
#: The period over which the current speed is measured, and the minimum number of seconds for a result.
RECENT, EARLY = timedelta(minutes=10), 5


class Move(msgspec.Struct, frozen=True):
    """The campaign was paused, resumed or ended. `reason`: why it was paused."""

    at: datetime
    status: str
    reason: str | None
    #: The person or API key that did it; "": an operator, who is not named to organizations; None: the service itself.
    who: str | None


class Interval(NamedTuple):
    """The counts of a minute. `never_sent`: failed, and no supplier can have the message."""

    at: datetime
    sent: int
    delivered: int
    never_sent: int


class Progress(msgspec.Struct, frozen=True):
    """A campaign's course."""

    #: Length of an interval in minutes.
    step: int
    #: Without gaps.
    intervals: list[Interval]
    #: Pauses and starts.
    moves: list[Move]
    #: By whom it was canceled, and when.
    canceled: Move | None


MINUTES = """
SELECT minute, sent, delivered, never_sent FROM campaign_minutes
 WHERE organization_id = $1 AND campaign_id = $2 ORDER BY minute LIMIT $3
"""
# The moves are in the organization's own log; its index by object finds the few entries.
MOVES = """
SELECT at, after::jsonb ->> 'status' AS status, after::jsonb ->> 'status_reason' AS reason,
       CASE WHEN who = 'person' THEN who_name WHEN who IN ('operator', 'cli') THEN ''
            ELSE (SELECT name FROM api_keys WHERE organization_id = $1 AND id = who_id) END AS who
  FROM audit_log
 WHERE object_id = $2 AND organization_id = $1 AND action = 'campaign.moved' ORDER BY id LIMIT $3
"""


# Measured since it started or resumed, if that was recent: a pause must not look like slowness. The log's index by
# object finds the last move backward. The sum includes messages handed over before the pause in the minute in which it
# resumed, so that whole minute counts as time, or a short pause would make it look faster than it ever is.
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
       SELECT coalesce(sum(sent + never_sent), 0)::float8 AS sent FROM campaign_minutes
        WHERE organization_id = $1 AND campaign_id = item.id AND minute >= date_trunc('minute', begun.at)) handed
 WHERE greatest(begun.at, moved.at) <= now() - $5::interval AND handed.sent > 0
"""


async def rates(conn: Connection, actor: Actor, *, campaigns: Sequence[Campaign]) -> dict[UUID, float]:
    """Messages per minute that each running campaign currently hands over, or fails to; those for which it is too early
    to tell are omitted."""
    running = [one for one in campaigns if one.status == "running" and one.started_at is not None]
    if not running:
        return {}
    ids, starts = [one.id for one in running], [one.started_at for one in running]
    rows = await conn.fetch(RATES, actor.organization_id, ids, starts, RECENT, timedelta(seconds=EARLY))
    return {row["id"]: float(row["rate"]) for row in rows}


async def read(conn: Connection, actor: Actor, *, campaign_id: UUID) -> Progress:
    """The progress of one of the organization's campaigns, in at most MOST intervals."""
    rows = await conn.fetch(MINUTES, actor.organization_id, campaign_id, LOOK)
    moves = await conn.fetch(MOVES, actor.organization_id, str(campaign_id), MARKS)
    known = [Move(*row.values()) for row in moves]
    marks = [one for one in known if one.status in ("paused", "running")]
    canceled = next((one for one in known if one.status == "canceled"), None)
    if not rows:
        return Progress(1, [], marks, canceled)
    first, last = rows[0]["minute"], rows[-1]["minute"]
    minutes = int((last - first) / timedelta(minutes=1)) + 1
    step = next((one for one in STEPS if minutes / one <= MOST), -(-minutes // MOST))
    sums = [[0, 0, 0] for _ in range(-(-minutes // step))]
    for row in rows:
        place = sums[int((row["minute"] - first) / timedelta(minutes=step))]
        for n, name in enumerate(Interval._fields[1:]):
            place[n] += row[name]
    intervals = [
        Interval(first + n * timedelta(minutes=step), *(max(count, 0) for count in one)) for n, one in enumerate(sums)
    ]
    return Progress(step, intervals, marks, canceled)
