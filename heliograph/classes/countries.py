"""The hours during which marketing may be sent to each country, by day of the week, in local time.

Countries that are not listed have the default. Sources: regulators' rules and operators' terms as published by
suppliers; where they differ within a country, the strictest. Public holidays are ignored. Brazil and Mexico: Twilio;
India: TRAI's promotional hours; Kenya: Safaricom's; Colombia: Ley 2300; Vietnam: Decree 91/2020; France: Arcep and the
operators' charter; South Africa: Consumer Protection Act, s. 11.
"""

from __future__ import annotations

#: Allowed times of one day: (from, to), minutes since midnight.
Hours = tuple[tuple[int, int], ...]
#: Monday to Sunday.
Week = tuple[Hours, Hours, Hours, Hours, Hours, Hours, Hours]


def _day(first: int, last: int) -> Hours:
    return ((first * 60, last * 60),)


def _daily(first: int, last: int) -> Week:
    return _week(_day(first, last), _day(first, last), _day(first, last))


def _week(workday: Hours, saturday: Hours, sunday: Hours = ()) -> Week:
    return (workday, workday, workday, workday, workday, saturday, sunday)


#: For countries that are not listed.
DEFAULT: Week = _daily(8, 20)
COUNTRIES: dict[str, Week] = {
    "BR": _daily(9, 22),
    "CO": _week(_day(7, 19), _day(8, 15)),
    "FR": _week(_day(8, 20), _day(8, 20)),
    "IN": _daily(10, 21),
    "KE": _daily(8, 18),
    "MX": _daily(9, 21),
    "US": _daily(8, 21),
    "VN": _daily(7, 22),
    "ZA": _week(_day(8, 20), _day(9, 13)),
}
