"""Quiet hours: whether marketing may be sent to a number at a given time, and if not, from when.

An organization chooses ("country": those of the recipient's country; "off"; or hours of its own, such as
"20:00-08:00"); they apply in the time zone of the number, by its country or region. If the country or region has
several zones, quiet hours apply while it is quiet in any of them.

The rule nobody may break: a message that waits becomes due at a time that is not quiet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import phonenumbers
from phonenumbers import timezone

from heliograph.base import phones
from heliograph.classes.countries import COUNTRIES, DEFAULT, Hours, Week

COUNTRY, OFF = "country", "off"
_own = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])").fullmatch
#: Digits that determine region and time zones: calling code and area code.
_PLACE = 8
#: How many answers are memoized.
_MEMO = 50_000
#: The zone of countries and regions of which phonenumbers knows a neighbor's, which once had the same time, or those of
#: all that share a calling code.
_ZONES = {
    "AG": "America/Antigua",
    "AI": "America/Anguilla",
    "AS": "Pacific/Pago_Pago",
    "BB": "America/Barbados",
    "BM": "Atlantic/Bermuda",
    "BS": "America/Nassau",
    "DM": "America/Dominica",
    "DZ": "Africa/Algiers",
    "EH": "Africa/El_Aaiun",
    "GD": "America/Grenada",
    "JM": "America/Jamaica",
    "KN": "America/St_Kitts",
    "KY": "America/Cayman",
    "KZ": "Asia/Almaty",
    "LC": "America/St_Lucia",
    "LY": "Africa/Tripoli",
    "MA": "Africa/Casablanca",
    "MS": "America/Montserrat",
    "NI": "America/Managua",
    "RE": "Indian/Reunion",
    "SS": "Africa/Juba",
    "SX": "America/Lower_Princes",
    "TC": "America/Grand_Turk",
    "TT": "America/Port_of_Spain",
    "VC": "America/St_Vincent",
    "VG": "America/Tortola",
    "YT": "Indian/Mayotte",
}
#: If zones have no allowed hour in common within this time, only the first of them counts.
_LONGEST = timedelta(days=8)


def is_setting(text: str) -> bool:
    """True if an organization may choose this."""
    if text in (COUNTRY, OFF):
        return True
    found = _own(text)
    return found is not None and found.group(1, 2) != found.group(3, 4)


def week(setting: str, country: str) -> Week | None:
    """When marketing may be sent, in local time; None: always. Raises ValueError for an invalid setting."""
    if setting == OFF:
        return None
    if setting == COUNTRY:
        return COUNTRIES.get(country, DEFAULT)
    found = _own(setting)
    if found is None:
        raise ValueError(f"not a setting of quiet hours: {setting!r}")
    first, last = int(found[1]) * 60 + int(found[2]), int(found[3]) * 60 + int(found[4])
    day: Hours = ((last, first),) if first > last else ((0, first), (last, 1440))
    one = tuple(hours for hours in day if hours[0] < hours[1])
    return (one, one, one, one, one, one, one)


class QuietHours:
    """Determines quiet hours, and caches each answer for as long as it holds. One per process."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, tuple[ZoneInfo, ...]]] = {}
        #: (from, until, is_quiet) by setting and place.
        self._known: dict[tuple[str, str], tuple[datetime, datetime, bool]] = {}

    def until(self, setting: str, recipient: str, at: datetime) -> datetime | None:
        """When marketing may next be sent to this number (E.164); None: now."""
        if setting == OFF:
            return None
        key = setting, recipient[:_PLACE]
        known = self._known.get(key)
        if known is None or not known[0] <= at < known[1]:
            known = at, *self._span(setting, recipient, at)
            if len(self._known) >= _MEMO:
                self._known.clear()
            self._known[key] = known
        return known[1] if known[2] else None

    def _span(self, setting: str, recipient: str, at: datetime) -> tuple[datetime, bool]:
        """The end of the current span, and whether it is quiet."""
        country, zones = self._place(recipient)
        allowed = week(setting, country)
        assert allowed is not None
        opens = _opens(allowed, zones, at)
        if opens is None:
            zones = zones[:1]
            opens = _opens(allowed, zones, at)
        assert opens is not None, "no setting forbids every hour"
        if opens > at:
            return opens, True
        return min(end for zone in zones for begin, end in _spans(allowed, zone, at) if begin <= at < end), False

    def _place(self, recipient: str) -> tuple[str, tuple[ZoneInfo, ...]]:
        key = recipient[:_PLACE]
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MEMO:
                self._places.clear()
            place = self._places[key] = _look_up(recipient)
        return place


def _look_up(recipient: str) -> tuple[str, tuple[ZoneInfo, ...]]:
    """The region of a number and its time zones, according to phonenumbers except for _ZONES: those of its area if it
    has one, otherwise all of its country's."""
    number = phonenumbers.parse(recipient)
    country = phonenumbers.region_code_for_number(number) or phones.country(recipient)
    if country in _ZONES:
        return country, (ZoneInfo(_ZONES[country]),)
    zones = [found for name in timezone.time_zones_for_number(number) if (found := _zone(name)) is not None]
    if not zones:
        zones = [
            found for name in timezone.time_zones_for_geographical_number(number) if (found := _zone(name)) is not None
        ]
    return country, tuple(zones or [ZoneInfo("UTC")])


def _zone(name: str) -> ZoneInfo | None:
    try:
        return None if name == timezone.UNKNOWN_TIMEZONE else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return None


def _opens(allowed: Week, zones: Sequence[ZoneInfo], at: datetime) -> datetime | None:
    """The first time at or after `at` that is allowed in all zones; None: there is none within _LONGEST."""
    moment, last = at, at + _LONGEST
    while moment <= last:
        later = max(_next(allowed, zone, moment) for zone in zones)
        if later == moment:
            return moment
        moment = later
    return None


def _next(allowed: Week, zone: ZoneInfo, at: datetime) -> datetime:
    return next(max(begin, at) for begin, end in _spans(allowed, zone, at) if at < end)


def _spans(allowed: Week, zone: ZoneInfo, at: datetime) -> Iterator[tuple[datetime, datetime]]:
    """The allowed spans around `at` and for some days after it, in UTC; adjacent ones are merged."""
    day = at.astimezone(zone).date() - timedelta(days=1)
    # In local time, so that a change of the clocks neither shifts the hours nor separates adjacent ones.
    begin: datetime | None = None
    end: datetime | None = None
    for number in range(10):
        date = day + timedelta(days=number)
        midnight = datetime(date.year, date.month, date.day, tzinfo=zone)
        for first, last in allowed[date.weekday()]:
            opening, closing = midnight + timedelta(minutes=first), midnight + timedelta(minutes=last)
            if end is not None and opening <= end:
                end = closing
                continue
            if begin is not None and end is not None:
                yield _time(begin, fold=1), _time(end, fold=0)
            begin, end = opening, closing
    if begin is not None and end is not None:
        yield _time(begin, fold=1), _time(end, fold=0)


def _time(local: datetime, *, fold: int) -> datetime:
    """A local time in UTC: the moment of the change if clocks skip it, and the first (`fold` 0) or the second (1) if it
    comes twice. A span that opens at the second and closes at the first contains no quiet time."""
    while local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) != local.replace(tzinfo=None):
        local += timedelta(minutes=1)
    return local.replace(fold=fold).astimezone(UTC)
