"""Figures of a period, compared with the previous period, from the roll-ups: nothing is counted here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from math import sqrt

import msgspec

from heliograph import traffic
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.traffic import LOST, Failed, Point, Query

#: Maximum points read at once: intervals times countries.
MOST = 10_000
ARRIVED = ("delivered", "read")
HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
#: Longer periods are shown by day (UTC); those split by country switch to days sooner.
LONGEST_BY_HOUR, LONGEST_OF_COUNTRIES = timedelta(days=8), timedelta(days=2)
#: Longest period: roll-ups go back further, but a page needs no more.
LONGEST = timedelta(days=366)


class DeliveryStats(msgspec.Struct, frozen=True):
    """The outcome of the messages accepted in a period. Times are in seconds; None: none arrived."""

    accepted: int
    delivered: int
    failed: int
    p50: float | None
    p95: float | None

    @property
    def rate(self) -> float | None:
        """Percentage delivered of messages with a known outcome; None: there are none."""
        known = self.delivered + self.failed
        return None if known == 0 else 100 * self.delivered / known


class Country(msgspec.Struct, frozen=True):
    """The outcome of the messages to a country. `region`: ISO 3166, "001" for none; `course`: accepted, by interval."""

    region: str
    figures: DeliveryStats
    course: list[int]
    #: The most frequent reason for failures there; None: none failed.
    reason: Failed | None


class PeriodComparison(msgspec.Struct, frozen=True):
    """A period, [since, until). `intervals`: (begin, figures) of each `step`; `countries`: those with most messages
    first; `reasons`: why messages failed, most frequent first, across all countries ("")."""

    since: datetime
    until: datetime
    step: timedelta
    now: DeliveryStats
    before: DeliveryStats
    intervals: list[tuple[datetime, DeliveryStats]]
    countries: list[Country]
    reasons: list[Failed]


async def compare_period(conn: Connection, actor: Actor, *, since: datetime, until: datetime) -> PeriodComparison:
    """A period in whole hours, or whole days if it is long, with the same length of time before it."""
    step = HOUR if until - since <= LONGEST_BY_HOUR else DAY
    since, until = _floor(max(since, until - LONGEST), step), _floor(until - timedelta(microseconds=1), step) + step
    length = until - since

    async def read(date_from: datetime, date_to: datetime, interval: str, split: str | None) -> list[Point]:
        query = Query(date_from=date_from, date_to=date_to, interval=interval, split=split, mode=actor.mode, limit=MOST)
        return await traffic.read(conn, actor, query=query)

    name, coarse = "hour" if step == HOUR else "day", "hour" if length <= LONGEST_OF_COUNTRIES else "day"
    countries = await read(since, until, coarse, "country")
    if len(countries) >= MOST:  # cut off: some countries would lack the last days, or be left out
        coarse = "month"
        countries = await read(since, until, coarse, "country")
    # The split by country adds up to the whole.
    points = countries if coarse == name else await read(since, until, name, None)
    # Only the sum is needed, so it is read by day.
    before = await read(since - length, since, "day", None)
    by_time: dict[datetime, list[Point]] = {}
    for point in points:
        by_time.setdefault(point.at, []).append(point)
    failed = await traffic.failures(conn, actor, date_from=since, date_to=until, limit=MOST)
    return PeriodComparison(
        since=since,
        until=until,
        step=step,
        now=summed(points),
        before=summed(before),
        intervals=[(at, summed(by_time.get(at, ()))) for at in _times(since, until, step)],
        countries=_countries(countries, _begins(since, until, coarse), failed),
        reasons=_reasons(failed),
    )


class TrafficSummary(msgspec.Struct, frozen=True):
    """What the roll-ups know about certain messages accepted in [since, until); None: not asked for."""

    since: datetime
    until: datetime
    figures: DeliveryStats | None
    reasons: list[Failed] | None


async def summarize(
    conn: Connection,
    actor: Actor,
    *,
    since: datetime | None,
    until: datetime | None,
    usual: timedelta,
    channel: str | None = None,
    country: str | None = None,
    sender: str | None = None,
    has_figures: bool = True,
    has_reasons: bool = True,
) -> TrafficSummary:
    """Figures and reasons of a channel, country or sender (reasons are not kept by sender), over whole hours, or whole
    days if the period is long. `usual`: the length of the period if it has no beginning."""
    until = until or clock.now()
    since = min(max(since or until - usual, until - LONGEST), until)
    step = HOUR if until - since <= LONGEST_BY_HOUR else DAY
    since, until = _floor(since, step), _floor(until - timedelta(microseconds=1), step) + step
    points, failed = [], []
    if has_figures:
        query = Query(
            date_from=since,
            date_to=until,
            # Only the sum is needed, so it is read by day.
            interval="day",
            channel=channel,
            country=country,
            sender=sender,
            mode=actor.mode,
            limit=MOST,
        )
        points = await traffic.read(conn, actor, query=query)
    if has_reasons:
        failed = await traffic.failures(conn, actor, date_from=since, date_to=until, limit=MOST)
    fitting = (one for one in failed if channel in (None, one.channel) and country in (None, one.country))
    return TrafficSummary(
        since, until, summed(points) if has_figures else None, _reasons(fitting) if has_reasons else None
    )


class DeliveryDrop(msgspec.Struct, frozen=True):
    """A drop in deliveries to a country: the last 24 hours compared with the 7 whole days (UTC) before them."""

    region: str
    now: DeliveryStats
    before: DeliveryStats


#: Thresholds of a drop: messages with a known outcome in both periods, percentage points, and standard errors of the
#: difference. Anything less may be chance.
KNOWN, POINTS, ERRORS = 50, 5.0, 3.0


async def delivery_drops(conn: Connection, actor: Actor) -> list[DeliveryDrop]:
    """Countries with worse delivery than in the week before, worst first."""
    until = _floor(clock.now(), HOUR) + HOUR
    since = until - DAY

    async def read(date_from: datetime, date_to: datetime) -> dict[str, DeliveryStats]:
        query = Query(
            date_from=date_from, date_to=date_to, interval="day", split="country", mode=actor.mode, limit=MOST
        )
        points = await traffic.read(conn, actor, query=query)
        return {one.region: one.figures for one in _countries(points, (), ())}

    midnight = _floor(since, DAY)
    now, before = await read(since, until), await read(midnight - WEEK, midnight)
    found = [DeliveryDrop(region, figures, before[region]) for region, figures in now.items() if region in before]
    return sorted((one for one in found if _fell(one) >= POINTS), key=_fell, reverse=True)


def _fell(one: DeliveryDrop) -> float:
    """The drop in percentage points; 0: too little is known, or it may be chance."""
    if min(known.delivered + known.failed for known in (one.now, one.before)) < KNOWN:
        return 0.0
    known, earlier = (side.delivered + side.failed for side in (one.now, one.before))
    share = (one.now.delivered + one.before.delivered) / (known + earlier)
    error = 100 * sqrt(share * (1 - share) * (1 / known + 1 / earlier))
    points = (one.before.rate or 0.0) - (one.now.rate or 0.0)
    return points if points >= ERRORS * error else 0.0


async def count_reason(
    conn: Connection, actor: Actor, *, channel: str, country: str, reason: str | None
) -> tuple[int, int]:
    """(messages to a country that failed for a reason, all accepted ones) in the last 7 days. `reason`: None counts
    those with an unknown outcome."""
    until = clock.now() + HOUR
    since = until - WEEK
    query = Query(
        date_from=since, date_to=until, interval="day", channel=channel, country=country, mode=actor.mode, limit=MOST
    )
    points = await traffic.read(conn, actor, query=query)
    accepted = sum(sum(point.counts.values()) for point in points)
    if reason is None:
        return _of(points, ("unknown",)), accepted
    failed = await traffic.failures(conn, actor, date_from=since, date_to=until, limit=MOST)
    alike = (one.count for one in failed if (one.channel, one.country, one.reason) == (channel, country, reason))
    return sum(alike), accepted


def summed(points: Iterable[Point]) -> DeliveryStats:
    """The combined figures of several points."""
    listed = list(points)
    histogram = [sum(column) for column in zip_longest(*(point.to_delivered for point in listed), fillvalue=0)]
    return DeliveryStats(
        accepted=sum(sum(point.counts.values()) for point in listed),
        delivered=_of(listed, ARRIVED),
        failed=_of(listed, LOST),
        p50=traffic.percentile(histogram, 0.5) if histogram else None,
        p95=traffic.percentile(histogram, 0.95) if histogram else None,
    )


def _reasons(failed: Iterable[Failed]) -> list[Failed]:
    found: Counter[tuple[str, str]] = Counter()
    for one in failed:
        found[one.channel, one.reason] += one.count
    return [Failed(channel, "", reason, count) for (channel, reason), count in found.most_common()]


def _countries(points: Iterable[Point], times: Sequence[datetime], failed: Sequence[Failed]) -> list[Country]:
    by_country: dict[str, list[Point]] = {}
    for point in points:
        by_country.setdefault(point.value or "001", []).append(point)
    found = []
    for region, listed in by_country.items():
        accepted = {point.at: sum(point.counts.values()) for point in listed}
        reason = next((one for one in failed if one.country == region), None)
        found.append(Country(region, summed(listed), [accepted.get(at, 0) for at in times], reason))
    return sorted(found, key=lambda one: one.figures.accepted, reverse=True)


def _begins(since: datetime, until: datetime, interval: str) -> list[datetime]:
    """The beginnings of the hours, days or months (UTC) of a period, also of one that has begun before it."""
    if interval != "month":
        step = HOUR if interval == "hour" else DAY
        return _times(_floor(since, step), until, step)
    found = [_floor(since, DAY).replace(day=1)]
    while (following := (found[-1] + timedelta(days=31)).replace(day=1)) < until:
        found.append(following)
    return found


def _times(since: datetime, until: datetime, step: timedelta) -> list[datetime]:
    return [since + step * n for n in range(-(-(until - since) // step))]


def _floor(at: datetime, step: timedelta) -> datetime:
    """The beginning of the hour or day (UTC) that contains a time."""
    return clock.EPOCH + (at.astimezone(UTC) - clock.EPOCH) // step * step


def _of(points: Iterable[Point], statuses: Sequence[str]) -> int:
    return sum(point.counts.get(status, 0) for point in points for status in statuses)
