"""Which days the pages about money show: those of a month, or of a range of the reader's own."""

from __future__ import annotations

from datetime import date, timedelta
from zoneinfo import ZoneInfo

import msgspec

from heliograph.base.database import clock
from heliograph.base.errors import Invalid
from heliograph.overview import usage
from heliograph.pages.lists import ranges
from heliograph.pages.lists.ranges import Range
from heliograph.pages.requests import Request


class Days(msgspec.Struct, frozen=True):
    """[since, until), as days of UTC are called; a day that the reader names is that day of UTC."""

    since: date
    until: date
    #: The whole of it; None: a range.
    month: date | None
    range: Range

    @property
    def shown_until(self) -> date:
        """Days that have not come are not drawn."""
        return min(self.until, max(clock.now().date(), self.since) + timedelta(days=1))

    @property
    def id(self) -> str:
        """For a chart of it."""
        return "days" if self.month is None else f"{self.month:%Y-%m}"


def read(request: Request) -> tuple[Days, Invalid | None]:
    """What the address asks for, and what of it could not be understood; the present month if it names none."""
    range = ranges.read(request)
    if range.since is not None:
        zone, now = ZoneInfo(request.speech.zone), clock.now()
        last = (range.until or now) - timedelta(microseconds=1)
        until = max(last.astimezone(zone).date(), range.since.astimezone(zone).date()) + timedelta(days=1)
        since = max(range.since.astimezone(zone).date(), until - timedelta(days=usage.MOST_DAYS))
        return Days(since, until, None, range), None
    problem = None
    try:
        month = usage.month_of(request.query.get("month") or f"{clock.now().date():%Y-%m}")
    except Invalid as refusal:
        month, problem = clock.now().date().replace(day=1), refusal
    return of_month(month, range), problem


def of_month(month: date, range: Range) -> Days:
    """All days of a month."""
    return Days(month, (month + timedelta(days=31)).replace(day=1), month, range)
