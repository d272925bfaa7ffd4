"""The days that pages about money show: a month, or a range chosen by the reader."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec

from heliograph.base.database import clock
from heliograph.base.errors import Invalid
from heliograph.overview import usage
from heliograph.pages.lists import ranges
from heliograph.pages.lists.ranges import Range
from heliograph.pages.requests import Request

INSTANT = timedelta(microseconds=1)


class Days(msgspec.Struct, frozen=True):
    """[since, until) as UTC dates. A date chosen by the reader is taken as that UTC day; times, such as the last 24
    hours, as all UTC days that they touch."""

    since: date
    until: date
    #: A whole month; None: a range.
    month: date | None
    range: Range

    @property
    def shown_until(self) -> date:
        """The end of what is drawn: future days are not."""
        return min(self.until, max(clock.now().date(), self.since) + timedelta(days=1))

    @property
    def id(self) -> str:
        """Identifies these days' chart."""
        return "days" if self.month is None else f"{self.month:%Y-%m}"


def read(request: Request) -> tuple[Days, Invalid | None]:
    """(the requested days, what could not be understood); the current month by default."""
    range = ranges.read(request)
    if range.since is not None:
        first, until = of_times(range.since, range.until or clock.now(), ZoneInfo(request.locale.zone))
        return Days(first, until, None, range), None
    problem = None
    try:
        month = usage.month_of(request.query.get("month") or f"{clock.now().date():%Y-%m}")
    except Invalid as refusal:
        month, problem = clock.now().date().replace(day=1), refusal
    return of_month(month, range), problem


def of_times(since: datetime, until: datetime, zone: ZoneInfo) -> tuple[date, date]:
    """(first day, day after the last one) that these times mean to a reader in this zone, as UTC dates: at least one,
    and at most the last MOST_DAYS."""
    first = _day(since, zone)
    end = max(_day(until, zone, is_end=True), first + timedelta(days=1))
    return max(first, end - timedelta(days=usage.MOST_DAYS)), end


def _day(at: datetime, zone: ZoneInfo, *, is_end: bool = False) -> date:
    """The day that begins with `at` in the reader's zone, or else its UTC day; `is_end`: the day after the last one
    before `at`."""
    day = at.astimezone(zone).date()
    # Where clocks skip midnight, the day begins at one o'clock.
    if (at - INSTANT).astimezone(zone).date() < day:
        return day
    if is_end:
        return (clock.in_utc(at) - INSTANT).date() + timedelta(days=1)
    return clock.in_utc(at).date()


def of_month(month: date, range: Range) -> Days:
    """All days of a month."""
    return Days(month, (month + timedelta(days=31)).replace(day=1), month, range)
