"""How an organization's endpoints are doing: attempts by hour and result, their durations, and what is waiting.

The rule nobody may break: no attempt and no delivery is counted here without a bound. Figures come from the roll-ups,
which are about ten seconds old; waiting deliveries are counted up to MOST_WAITING.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base import histogram
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7_floor
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery.attempts import DELIVERED
from heliograph.webhooks.endpoints import Endpoint

#: Waiting deliveries are counted up to this many; beyond it the figure is "more".
MOST_WAITING = 1_000
#: At most this many events of a pause are scanned to count those waiting.
LOOKED = 5_000
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
#: The longest range shown in intervals of an hour.
HOURLY = timedelta(days=7, hours=1)


class Hour(msgspec.Struct, frozen=True):
    """Attempts that began within the hour starting at `at`. `results`: their number, by result."""

    at: datetime
    results: dict[str, int]

    @property
    def delivered(self) -> int:
        return self.results.get(DELIVERED, 0)

    @property
    def failed(self) -> int:
        return sum(self.results.values()) - self.delivered


class Interval(msgspec.Struct, frozen=True):
    """Attempts that began within the interval starting at `at`. `results`: their number, by result; `p50`, `p95`:
    seconds within which that percentage of the successes were answered."""

    at: datetime
    results: dict[str, int]
    p50: float | None
    p95: float | None


class AttemptCourse(msgspec.Struct, frozen=True):
    """The attempts at an endpoint over a range: in total, and in intervals of `step`, empty ones included."""

    step: timedelta
    intervals: list[Interval]
    results: dict[str, int]
    p50: float | None
    p95: float | None


class Health(msgspec.Struct, frozen=True):
    """An endpoint and how it is doing. `waiting`: deliveries in the queue, where MOST_WAITING + 1 means more than
    MOST_WAITING; `next_at`: when the first of them is due; `oldest`: the event that has waited longest."""

    endpoint: Endpoint
    failing_since: datetime | None
    hours: list[Hour]
    #: Seconds within which 50 % and 95 % of the successes were answered.
    p50: float | None
    p95: float | None
    waiting: int
    next_at: datetime | None
    oldest: UUID | None

    @property
    def delivered(self) -> int:
        return sum(hour.delivered for hour in self.hours)

    @property
    def failed(self) -> int:
        return sum(hour.failed for hour in self.hours)

    @property
    def state(self) -> str:
        """One word: disabled, paused, failing, new (nothing tried yet) or well."""
        if self.endpoint.status != "active":
            return self.endpoint.status
        if self.endpoint.consecutive_failures:
            return "failing"
        return "well" if self.endpoint.last_success_at is not None else "new"


TRAFFIC = """
SELECT endpoint_id, hour, result, count, took FROM webhook_traffic
 WHERE organization_id = $1 AND endpoint_id = ANY ($2) AND hour >= $3 AND hour < $4
"""
WAITING = """
SELECT e.id, e.failing_since, found.waiting, found.next_at, found.oldest
  FROM webhook_endpoints e
       CROSS JOIN LATERAL (
       SELECT count(*) AS waiting, min(due_at) AS next_at, min(id::text)::uuid AS oldest
         FROM (SELECT id, due_at FROM queue
                WHERE kind = 'webhook' AND line = e.id AND organization_id = $1 LIMIT $3) few) found
 WHERE e.organization_id = $1 AND e.id = ANY ($2)
"""


# During a pause events are only recorded, not queued; at most LOOKED of them are scanned.
MISSED = """
SELECT e.id, e.dropped + found.count AS count, found.looked
  FROM unnest($2::uuid[], $3::uuid[]) AS item (id, since)
       JOIN webhook_endpoints e ON e.organization_id = $1 AND e.id = item.id
       CROSS JOIN LATERAL (
       SELECT count(*) AS looked, count(*) FILTER (WHERE kind = ANY (e.subscribed_events) AND mode = e.mode) AS count
         FROM (SELECT kind, mode FROM events WHERE organization_id = $1 AND id >= item.since ORDER BY id LIMIT $4) few
       ) found
"""


class Waiting(msgspec.Struct, frozen=True):
    """What is waiting for an endpoint: deliveries in the queue, where MOST_WAITING + 1 means more than MOST_WAITING."""

    failing_since: datetime | None
    count: int


async def waiting(conn: Connection, actor: Actor, *, ids: Sequence[UUID]) -> dict[UUID, Waiting]:
    """What is waiting for these endpoints of the actor's, and since when they have been failing."""
    rows = await conn.fetch(WAITING, actor.organization_id, ids, MOST_WAITING + 1)
    return {row["id"]: Waiting(row["failing_since"], row["waiting"]) for row in rows}


# For each table, over at most $4 of its newest rows: deliveries, rows, and when the oldest of them began.
LATELY = f"""
SELECT coalesce(sum(cardinality(status)), 0)::bigint AS count, count(*) AS rows, min(started_from) AS since
  FROM (SELECT status, started_from FROM webhook_successes
         WHERE organization_id = $1 AND endpoint_id = $2 AND started_to >= $3
         ORDER BY started_to DESC LIMIT $4) first_attempts
UNION ALL
SELECT count(*) FILTER (WHERE result = '{DELIVERED}'), count(*), min(started_at)
  FROM (SELECT result, started_at FROM webhook_attempts
         WHERE organization_id = $1 AND endpoint_id = $2 AND started_at >= $3
         ORDER BY started_at DESC LIMIT $4) others
"""
#: What "lately" means, and the shortest time over which a pace is measured.
PACE_OVER, SHORTEST = timedelta(minutes=5), timedelta(seconds=10)


async def pace(conn: Connection, actor: Actor, *, id: UUID, look: int = LOOKED) -> float:
    """Deliveries a minute to one of the actor's endpoints, over the last five minutes; if there are more rows than
    `look`, over the time that the newest `look` of them cover."""
    now = clock.now()
    found = 0.0
    for count, rows, since in await conn.fetch(LATELY, actor.organization_id, id, now - PACE_OVER, look):
        span = PACE_OVER if rows < look else max(now - since, SHORTEST)
        found += count * (MINUTE / span)
    return found


async def overview(conn: Connection, actor: Actor, *, hours: int = 24) -> list[Health]:
    """The endpoints in use, newest first, each with its last `hours` hours."""
    return await _healths(conn, actor, await endpoints.used(conn, actor), hours)


async def of(conn: Connection, actor: Actor, *, id: UUID, hours: int = 24) -> Health:
    """One endpoint. Raises NotFound."""
    endpoint = await endpoints.get(conn, actor, id=id)
    return (await _healths(conn, actor, [endpoint], hours))[0]


async def course(conn: Connection, actor: Actor, *, id: UUID, since: datetime, until: datetime) -> AttemptCourse:
    """The attempts at one of the actor's endpoints, by the hour, or in steps of 24 hours if the range is over a week;
    `since` is rounded down to the hour. Raises NotFound."""
    await endpoints.get(conn, actor, id=id)
    since = since.replace(minute=0, second=0, microsecond=0)
    step = HOUR if until - since <= HOURLY else 24 * HOUR
    count = max(-((since - until) // step), 1)
    results: list[dict[str, int]] = [{} for _ in range(count)]
    took = [[0] * histogram.LENGTH for _ in range(count)]
    for _, hour, result, attempts, durations in await conn.fetch(TRAFFIC, actor.organization_id, [id], since, until):
        place = (hour - since) // step
        results[place][result] = results[place].get(result, 0) + attempts
        if result == DELIVERED:
            took[place] = [one + other for one, other in zip(took[place], durations, strict=True)]
    total = Counter[str]()
    for each in results:
        total.update(each)
    whole = [sum(column) for column in zip(*took, strict=True)]
    return AttemptCourse(
        step,
        [
            Interval(
                since + n * step, results[n], histogram.percentile(took[n], 0.5), histogram.percentile(took[n], 0.95)
            )
            for n in range(count)
        ],
        dict(total),
        histogram.percentile(whole, 0.5),
        histogram.percentile(whole, 0.95),
    )


async def _healths(conn: Connection, actor: Actor, listed: Sequence[Endpoint], hours: int) -> list[Health]:
    now = clock.now()
    end = now.replace(minute=0, second=0, microsecond=0) + HOUR
    start = end - hours * HOUR
    # Endpoints disabled before the range have no attempts in it.
    asked = [one.id for one in listed if one.disabled_at is None or one.disabled_at >= start]
    counted: dict[UUID, dict[datetime, dict[str, int]]] = {id: {} for id in asked}
    took: dict[UUID, list[int]] = {id: [0] * histogram.LENGTH for id in asked}
    for id, hour, result, count, durations in await conn.fetch(TRAFFIC, actor.organization_id, asked, start, end):
        counted[id].setdefault(hour, {})[result] = count
        if result == DELIVERED:
            took[id] = [one + other for one, other in zip(took[id], durations, strict=True)]
    found = {row["id"]: row for row in await conn.fetch(WAITING, actor.organization_id, asked, MOST_WAITING + 1)}
    missed = await _missed(conn, actor, [one for one in listed if one.status == "paused"])
    healths = []
    for one in listed:
        row = found.get(one.id)
        by_hour, durations = counted.get(one.id, {}), took.get(one.id, [])
        healths.append(
            Health(
                endpoint=one,
                failing_since=None if row is None else row["failing_since"],
                hours=[Hour(at, by_hour.get(at, {})) for at in (start + n * HOUR for n in range(hours))],
                p50=histogram.percentile(durations, 0.5),
                p95=histogram.percentile(durations, 0.95),
                waiting=missed[one.id] if one.id in missed else 0 if row is None else row["waiting"],
                next_at=None if row is None else row["next_at"],
                oldest=None if row is None else row["oldest"],
            )
        )
    return healths


async def _missed(conn: Connection, actor: Actor, paused: Sequence[Endpoint]) -> dict[UUID, int]:
    """How many events are waiting for each paused endpoint, at most MOST_WAITING + 1."""
    if not paused:
        return {}
    since = [uuid7_floor(one.paused_at) for one in paused if one.paused_at is not None]
    rows = await conn.fetch(MISSED, actor.organization_id, [one.id for one in paused], since, LOOKED)
    most = MOST_WAITING + 1
    return {row["id"]: most if row["looked"] == LOOKED else min(row["count"], most) for row in rows}
