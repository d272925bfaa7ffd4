"""The time range of a list or chart: 1h, 24h, 7d, 30d, or custom times, as given in the address.

range=24h                                     the last 24 hours, whenever that is
from=2027-01-31&to=2027-02-01T12:00           times in the reader's zone; a day without a time is the whole day
from=2027-01-31T10:00:00Z                     an absolute time, for links that are shared
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import msgspec

from heliograph.base.database import clock
from heliograph.pages.requests import Request

LENGTHS = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7), "30d": timedelta(days=30)}
CUSTOM = "custom"
#: The end of a range is exclusive.
INSTANT = timedelta(microseconds=1)
#: Years allowed in a time.
YEARS = range(2000, 3000)


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """[since, until); None: unbounded on that side."""

    #: One of LENGTHS, CUSTOM, or "" for all time.
    name: str
    since: datetime | None = None
    until: datetime | None = None
    #: Values of the form's fields: times in the reader's zone.
    typed_since: str = ""
    typed_until: str = ""
    #: What could not be parsed, by field, in the reader's language; that side is left open.
    problems: dict[str, str] = {}
    #: The same range in absolute times, for sharing, and its neighbours of the same length; empty if the range is
    #: unbounded, or has not begun.
    fixed: dict[str, str] = {}
    earlier: dict[str, str] = {}
    later: dict[str, str] = {}

    @property
    def query(self) -> dict[str, str]:
        """The query parameters of this range."""
        if self.name == CUSTOM:
            return {"from": self.typed_since, "to": self.typed_until}
        return {"range": self.name}


def read(request: Request, *, usual: str = "", given: Mapping[str, str] | None = None) -> Range:
    """The range given in the address. `usual`: the default. `given`: fields of a form to use instead."""
    query = request.query if given is None else given
    name = query.get("range", "")
    typed = {field: query.get(field, "").strip() for field in ("from", "to")}
    if name != CUSTOM and (name in LENGTHS or not any(typed.values())):
        name = name if name in LENGTHS else usual
        if not name:
            return Range(name="")
        now = clock.now()
        began = now - LENGTHS[name]
        fixed, earlier, later = _moved(began, now, now=now)
        return Range(name=name, since=began, fixed=fixed, earlier=earlier, later=later)
    zone = ZoneInfo(request.locale.zone)
    ends: dict[str, datetime | None] = {}
    problems = {}
    for field, text in typed.items():
        try:
            ends[field] = moment(text, zone, is_end=field == "to") if text else None
        except (ValueError, OverflowError):
            ends[field] = None
            problems[field] = request.text("Enter a time as 2027-01-31 or 2027-01-31 14:30.")
    since, until = ends["from"], ends["to"]
    if since is not None and until is not None and since >= until:
        problems["to"] = request.text("The end must be later than the beginning.")
        until = None
    fixed, earlier, later = _moved(since, until, now=clock.now()) if since and until else ({}, {}, {})
    return Range(
        name=CUSTOM,
        since=since,
        until=until,
        typed_since=_local(since, zone) if since else typed["from"],
        typed_until=_local(until, zone) if until else typed["to"],
        problems=problems,
        fixed=fixed,
        earlier=earlier,
        later=later,
    )


def _moved(since: datetime, until: datetime, *, now: datetime) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """`fixed`, `earlier` and `later` of [since, until). A range that ends `now` has no later one."""
    length = until - since
    is_first = since.year - length.days // 365 <= YEARS.start + 1
    earlier = {} if is_first else _query(since - length, since)
    later = _query(until, until + length) if until < now else {}
    return _query(since, until), earlier, later


def _query(since: datetime, until: datetime) -> dict[str, str]:
    return {"from": clock.iso(since), "to": clock.iso(until)}


def moment(text: str, zone: ZoneInfo, *, is_end: bool) -> datetime:
    """A time from a form field, in the reader's zone unless it names one; a date without a time means its beginning or
    its end. Raises ValueError and OverflowError."""
    if len(text) == len("2027-01-31"):
        day = date.fromisoformat(text)
        if day.year not in YEARS:
            raise ValueError(text)
        return datetime.combine(day + timedelta(days=is_end), time(), zone).astimezone(UTC)
    at = datetime.fromisoformat(text)
    if at.year not in YEARS:
        raise ValueError(text)
    if at.tzinfo:
        return at.astimezone(UTC)
    return _widest(at, zone, is_end=is_end)


def _widest(at: datetime, zone: ZoneInfo, *, is_end: bool) -> datetime:
    """A local time as the beginning or end of a range that contains whatever is shown with a time between them: when
    clocks go back, an hour is shown twice."""
    first, second = (at.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if not is_end:
        return min(first, second)
    # The last times before the end are shown twice, too, unless the hour only begins there.
    last = at - INSTANT
    last_first, last_second = (last.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return last_second + INSTANT if last_second > last_first else first


def _local(at: datetime, zone: ZoneInfo) -> str:
    """A time in the format of a form field; with seconds only if they are not zero."""
    local = at.astimezone(zone).replace(tzinfo=None)
    return local.isoformat(timespec="minutes" if local.second == 0 and local.microsecond == 0 else "seconds")
