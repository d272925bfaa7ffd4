"""Figures of a stretch of time beside those of the stretch before it, from the roll-ups: nothing is counted here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest

import msgspec

from heliograph import traffic
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.traffic import Point, Query

#: Points of one look: hours times countries.
MOST = 10_000
ARRIVED = ("delivered", "read")
LOST = ("undelivered", "failed", "expired", "rejected")


class Figures(msgspec.Struct, frozen=True):
    """What became of the messages that were accepted in a stretch of time. Times in seconds, None: none arrived."""

    accepted: int
    delivered: int
    failed: int
    p50: float | None
    p95: float | None

    @property
    def rate(self) -> float | None:
        """Delivered of those whose end is known, in percent; None: of none it is."""
        known = self.delivered + self.failed
        return None if known == 0 else 100 * self.delivered / known


class Hour(msgspec.Struct, frozen=True):
    """One bar of the chart."""

    at: datetime
    accepted: int
    delivered: int
    failed: int


class Picture(msgspec.Struct, frozen=True):
    """A stretch of time. `countries`: (ISO region, its figures), those with most messages first."""

    since: datetime
    until: datetime
    now: Figures
    before: Figures
    hours: list[Hour]
    countries: list[tuple[str, Figures]]


async def picture(conn: Connection, actor: Actor, *, hours: int = 24) -> Picture:
    """The last so many hours, the present one included, with the same number before them."""
    until = clock.now().astimezone(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    since = until - timedelta(hours=hours)
    points = await traffic.read(
        conn,
        actor,
        query=Query(
            date_from=since - timedelta(hours=hours),
            date_to=until,
            interval="hour",
            split="country",
            mode=actor.mode,
            limit=MOST,
        ),
    )
    recent = [point for point in points if point.at >= since]
    by_country: dict[str, list[Point]] = {}
    for point in recent:
        by_country.setdefault(point.value or "001", []).append(point)
    countries = sorted(
        ((name, summed(of)) for name, of in by_country.items()), key=lambda one: one[1].accepted, reverse=True
    )
    return Picture(
        since=since,
        until=until,
        now=summed(recent),
        before=summed(point for point in points if point.at < since),
        hours=[_hour(since + timedelta(hours=n), recent) for n in range(hours)],
        countries=countries,
    )


def summed(points: Iterable[Point]) -> Figures:
    """The figures of several points together."""
    listed = list(points)
    histogram = [sum(column) for column in zip_longest(*(point.to_delivered for point in listed), fillvalue=0)]
    return Figures(
        accepted=sum(sum(point.counts.values()) for point in listed),
        delivered=_of(listed, ARRIVED),
        failed=_of(listed, LOST),
        p50=traffic.percentile(histogram, 0.5) if histogram else None,
        p95=traffic.percentile(histogram, 0.95) if histogram else None,
    )


def _hour(at: datetime, points: Sequence[Point]) -> Hour:
    within = [point for point in points if point.at == at]
    accepted = sum(sum(point.counts.values()) for point in within)
    return Hour(at, accepted, _of(within, ARRIVED), _of(within, LOST))


def _of(points: Iterable[Point], statuses: Sequence[str]) -> int:
    return sum(point.counts.get(status, 0) for point in points for status in statuses)
