"""Reading the roll-ups: points in time with counts by status, and delivery times.

The rule nobody may break: no supplier is named here, since customers read this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A query: [date_from, date_to) in whole hours. None: all."""

    date_from: datetime
    date_to: datetime
    #: "hour", "day" or "month"; days and months are those of UTC.
    interval: str
    #: None, or what each point is split by: "channel", "country" or "sender".
    split: str | None = None
    channel: str | None = None
    mode: str | None = None
    country: str | None = None
    sender: str | None = None
    #: Maximum number of points.
    limit: int


class Point(msgspec.Struct, frozen=True):
    """One interval, for one value of the split. `counts`: messages by status."""

    at: datetime
    value: str | None
    counts: Mapping[str, int]
    segments: int
    to_sent: list[int]
    to_delivered: list[int]


class Failed(msgspec.Struct, frozen=True):
    """How many messages to a country failed for a reason, which is a failure code of the channel."""

    channel: str
    country: str
    reason: str
    count: int


# Only rows with one of two statuses have durations, and adding an empty histogram costs as much as the rest of its row.
_READ = """
SELECT at, value, jsonb_object_agg(status, count)::text AS counts, sum(segments)::bigint AS segments,
       histogram_sum(to_sent) FILTER (WHERE to_sent <> '{{}}') AS to_sent,
       histogram_sum(to_delivered) FILTER (WHERE to_delivered <> '{{}}') AS to_delivered
  FROM (SELECT date_trunc($4, hour, 'UTC') AS at,
               CASE $5 WHEN 'channel' THEN channel WHEN 'country' THEN country WHEN 'sender' THEN sender END AS value,
               status, sum(count)::bigint AS count, sum(segments)::bigint AS segments,
               histogram_sum(to_sent) FILTER (WHERE to_sent <> '{{}}') AS to_sent,
               histogram_sum(to_delivered) FILTER (WHERE to_delivered <> '{{}}') AS to_delivered
          FROM ({table}) traffic
         WHERE organization_id = $1 AND mode = ANY ($6)
           AND ($7::text IS NULL OR channel = $7) AND ($8::text IS NULL OR country = $8)
           AND ($9::text IS NULL OR lower(sender) = lower($9))
         GROUP BY 1, 2, 3) by_status
 GROUP BY at, value ORDER BY at, value LIMIT $10
"""
_COLUMNS = "organization_id, channel, mode, country, sender, status, count, segments, to_sent, to_delivered"
READ = _READ.format(
    table=f"SELECT hour, {_COLUMNS} FROM traffic WHERE organization_id = $1 AND hour >= $2 AND hour < $3",
)
#: By day or month: whole days, from $11 until $12, take one row instead of 24 hourly ones per supplier; the rest is
#: read by hour.
READ_DAYS = _READ.format(
    table=f"""
                SELECT hour, {_COLUMNS} FROM traffic
                 WHERE organization_id = $1 AND hour >= $2 AND hour < $11
                 UNION ALL
                SELECT hour, {_COLUMNS} FROM traffic
                 WHERE organization_id = $1 AND hour >= $12 AND hour < $3
                 UNION ALL
                SELECT day::timestamp AT TIME ZONE 'UTC' AS hour, {_COLUMNS} FROM traffic_days
                 WHERE organization_id = $1 AND day >= ($11::timestamptz AT TIME ZONE 'UTC')::date
                   AND day < ($12::timestamptz AT TIME ZONE 'UTC')::date"""
)


async def read(conn: Connection, actor: Actor, *, query: Query) -> list[Point]:
    """The points of an organization, oldest first; intervals without a message are left out."""
    modes = [mode for mode in actor.modes if query.mode in (None, mode)]
    is_daily = query.interval != "hour"
    rows = await conn.fetch(
        READ_DAYS if is_daily else READ,
        actor.organization_id,
        query.date_from,
        query.date_to,
        query.interval,
        query.split,
        modes,
        query.channel,
        query.country,
        query.sender,
        query.limit,
        *(_whole(query.date_from, query.date_to) if is_daily else ()),
    )
    return [
        Point(
            row["at"],
            row["value"],
            {status: count for status, count in msgspec.json.decode(row["counts"]).items() if count},
            row["segments"],
            row["to_sent"],
            row["to_delivered"],
        )
        for row in rows
    ]


# Both bounds, so that a plan made while the table was empty uses the hours. Deltas not yet folded are at most ten
# seconds old.
DELIVERED = """
SELECT histogram_sum(to_delivered) FROM traffic
 WHERE hour >= $1 AND hour <= now() AND mode = 'live' AND to_delivered <> '{}'
"""


async def delivered(conn: Connection, *, since: datetime) -> list[int]:
    """How long live messages of both channels took from acceptance, or from when they were due, to the handset, in
    buckets of `base.histogram`: for all organizations' messages accepted in the hours from `since` on."""
    histogram: list[int] | None = await conn.fetchval(DELIVERED, since)
    return histogram or []


def _whole(since: datetime, until: datetime) -> tuple[datetime, datetime]:
    """Start and end of the whole UTC days in a period; if it has none, its end twice."""
    first = clock.midnight(since)
    first = min(first if first == since else first + timedelta(days=1), until)
    return first, max(first, clock.midnight(until))


# Roll-ups outlive messages. A message that moves on leaves a count of 0. The first row that matches is enough.
EVER = """
SELECT EXISTS (SELECT FROM traffic_days
                WHERE organization_id = $1 AND mode = $2 AND count > 0 AND ($3::text[] IS NULL OR status = ANY ($3)))
"""


async def ever(conn: Connection, actor: Actor, *, statuses: Sequence[str] | None = None) -> bool:
    """Whether there has been a message of the actor's mode with one of these statuses, or with any, even if it has been
    deleted since."""
    found: bool = await conn.fetchval(EVER, actor.organization_id, actor.mode, statuses)
    return found


BY_SENDER = """
SELECT sender, country, jsonb_object_agg(status, count)::text AS counts
  FROM (SELECT sender, country, status, sum(count)::bigint AS count FROM traffic_days
         WHERE organization_id = $1 AND day >= $2 AND mode = $3 AND channel = 'sms' AND sender = ANY ($4)
         GROUP BY 1, 2, 3) by_status
 GROUP BY sender, country
"""


async def by_sender(
    conn: Connection, actor: Actor, *, senders: Sequence[str], since: date
) -> dict[str, dict[str, dict[str, int]]]:
    """SMS of the actor's mode from these senders, accepted since a day (UTC): for each sender and country, the count by
    status."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    rows = await conn.fetch(BY_SENDER, actor.organization_id, since, actor.mode, senders)
    for sender, country, counts in rows:
        known = msgspec.json.decode(counts, type=dict[str, int])
        found.setdefault(sender, {})[country] = {status: count for status, count in known.items() if count}
    return found


FAILED = """
SELECT channel, country, reason, sum(count)::bigint AS count FROM failure_counts
 WHERE organization_id = $1 AND hour >= $2 AND hour < $3 AND mode = $4
 GROUP BY 1, 2, 3 HAVING sum(count) > 0 ORDER BY count DESC, channel, country, reason LIMIT $5
"""


async def failures(
    conn: Connection, actor: Actor, *, date_from: datetime, date_to: datetime, limit: int
) -> list[Failed]:
    """Why messages accepted in [date_from, date_to) failed, most frequent reason first."""
    rows = await conn.fetch(FAILED, actor.organization_id, date_from, date_to, actor.mode, limit)
    return [Failed(*row) for row in rows]
