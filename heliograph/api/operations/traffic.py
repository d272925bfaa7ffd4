"""Traffic: shapes and handler for the roll-ups that charts are drawn from. The rule is `traffic.read`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from heliograph import traffic
from heliograph.api.door.operation import Call
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import Country, Success, Time, checked_country
from heliograph.base.database.clock import iso, now
from heliograph.base.errors import Invalid
from heliograph.traffic import Point

#: Longest range of each interval, and maximum number of points in a response.
LONGEST = {"hour": timedelta(days=31), "day": timedelta(days=366)}
MOST = 10_000


class TrafficQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Which messages to count, and how to group them."""

    date_from: paging.DateFrom = None
    date_to: paging.DateTo = None
    interval: Annotated[
        Literal["hour", "day"], Meta(description="The interval that a point covers; days are in UTC.")
    ] = "hour"
    group_by: Annotated[
        Literal["channel", "country", "sender"] | None,
        Meta(description="Also group by this, with a point for each value; without it, one point per interval."),
    ] = None
    channel: Annotated[Literal["sms", "whatsapp"] | None, Meta(description="Only messages of this channel.")] = None
    mode: Annotated[
        Literal["live", "test"] | None,
        Meta(description="Only messages of this mode, among those that the key may see."),
    ] = None
    country: Country = None
    sender: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="Only messages from this sender: an SMS sender's value, or a WhatsApp number's id."),
    ] = None


class TrafficTimes(msgspec.Struct):
    """Percentiles in seconds, estimated from a histogram whose buckets double in width."""

    p50: Annotated[float, Meta(description="The median.")]
    p95: Annotated[float, Meta(description="The 95th percentile.")]
    p99: Annotated[float, Meta(description="The 99th percentile.")]


class TrafficPoint(msgspec.Struct, rename="camel"):
    """The messages that were accepted in one interval."""

    at: Annotated[Time, Meta(description="Beginning of the interval.")]
    value: Annotated[str | None, Meta(description="Value of what `groupBy` names; null without it.")]
    messages: Annotated[int, Meta(description="Number of messages accepted.")]
    segments: Annotated[int, Meta(description="Segments of those that are SMS.")]
    statuses: Annotated[
        dict[str, int],
        Meta(description="Counts by current status; `accepted` includes all that are waiting to be sent."),
    ]
    to_sent: Annotated[
        TrafficTimes | None,
        Meta(description="From acceptance, or from `sendAt`, to the handover to a supplier; null: none was sent."),
    ]
    to_delivered: Annotated[
        TrafficTimes | None,
        Meta(description="From acceptance, or from `sendAt`, to delivery; null: none was delivered."),
    ]


class Traffic(msgspec.Struct, rename="camel"):
    """Points in time, oldest first. Intervals in which nothing was accepted are omitted."""

    success: Success
    date_from: Annotated[Time, Meta(description="Beginning of the first interval.")]
    date_to: Annotated[Time, Meta(description="End of the last one.")]
    interval: Annotated[Literal["hour", "day"], Meta(description="The interval that a point covers.")]
    items: Annotated[list[TrafficPoint], Meta(description="The points.")]


async def get_traffic(call: Call, query: TrafficQuery) -> Traffic:
    """Count messages by time.

    Outcomes of the messages of each hour or day, and how long they took; lags by some ten seconds at most. Without
    dates, the last 24 hours or 31 days. The hours or days in which `dateFrom` and `dateTo` lie are counted in full.
    """
    width = timedelta(hours=1) if query.interval == "hour" else timedelta(days=1)
    end = query.date_to or now()
    try:
        until = _ceiling(end, width)
        since = _floor(query.date_from or until - width * (24 if query.interval == "hour" else 31), width)
    except OverflowError:  # rounded to whole hours or days, it would lie outside the years 1 to 9999
        raise Invalid(("dateTo", "range", "`dateTo` is too far away")) from None
    # What was asked for is judged, not the whole hours or days: within one of them, a reversed order would be lost, and
    # the longest range would have to begin on the hour.
    paging.check_range(query.date_from, query.date_to)
    paging.check_range(since, until)
    if end - (query.date_from or since) > LONGEST[query.interval]:
        days = LONGEST[query.interval].days
        raise Invalid(("dateFrom", "range", f"the range may be {days} days long for `interval={query.interval}`"))
    points = await traffic.read(
        call.conn,
        call.actor,
        query=traffic.Query(
            date_from=since,
            date_to=until,
            interval=query.interval,
            split=query.group_by,
            channel=query.channel,
            mode=query.mode,
            country=checked_country(query.country),
            sender=query.sender,
            limit=MOST + 1,
        ),
    )
    if len(points) > MOST:
        raise Invalid(("dateFrom", "range", f"more than {MOST} points: ask for less at a time, or for days"))
    return Traffic(True, iso(since), iso(until), query.interval, [_point(one) for one in points])


def _point(point: Point) -> TrafficPoint:
    return TrafficPoint(
        at=iso(point.at),
        value=point.value,
        messages=sum(point.counts.values()),
        segments=point.segments,
        statuses=dict(point.counts),
        to_sent=_times(point.to_sent),
        to_delivered=_times(point.to_delivered),
    )


def _times(histogram: list[int]) -> TrafficTimes | None:
    found = [traffic.percentile(histogram, share) for share in (0.5, 0.95, 0.99)]
    p50, p95, p99 = (None if one is None else round(one, 3) for one in found)
    return None if p50 is None or p95 is None or p99 is None else TrafficTimes(p50, p95, p99)


def _floor(at: datetime, width: timedelta) -> datetime:
    whole = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return whole if width < timedelta(days=1) else whole.replace(hour=0)


def _ceiling(at: datetime, width: timedelta) -> datetime:
    below = _floor(at, width)
    return below if below == at else below + width
