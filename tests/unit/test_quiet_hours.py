"""Quiet hours: which apply where, by the recipient's local time."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from zoneinfo import ZoneInfo

import phonenumbers
import pytest
from phonenumbers import PhoneNumberType, timezone
from phonenumbers.tzdata import TIMEZONE_DATA

from heliograph.classes import kinds, quiet
from heliograph.classes.countries import COUNTRIES, DEFAULT
from heliograph.classes.quiet import QuietHours, _look_up, is_setting, week

MOZAMBIQUE, SOUTH_AFRICA, NEW_YORK, LOS_ANGELES = "+258841234567", "+27821234567", "+12125550123", "+12135550123"
HAVANA, MOROCCO, ALGERIA, JAMAICA = "+5352345678", "+212650123456", "+213551234567", "+18762101234"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("setting", "recipient", "now", "opens"),
    [
        # Mozambique is two hours ahead of UTC: 08:00 to 20:00 there.
        ("country", MOZAMBIQUE, "2026-03-02T05:59", "2026-03-02T06:00"),
        ("country", MOZAMBIQUE, "2026-03-02T06:00", None),
        ("country", MOZAMBIQUE, "2026-03-02T17:59", None),
        ("country", MOZAMBIQUE, "2026-03-02T18:00", "2026-03-03T06:00"),
        ("off", MOZAMBIQUE, "2026-03-02T02:00", None),
        # South Africa: Saturday from 9 to 13, no Sunday.
        ("country", SOUTH_AFRICA, "2026-03-07T06:30", "2026-03-07T07:00"),
        ("country", SOUTH_AFRICA, "2026-03-07T11:00", "2026-03-09T06:00"),
        ("country", SOUTH_AFRICA, "2026-03-08T10:00", "2026-03-09T06:00"),
        # India: from 10, and its offset has half an hour.
        ("country", "+919812345678", "2026-03-02T04:00", "2026-03-02T04:30"),
        # The United States have 08 to 21, each area in its own time zone; clocks go forward on 8 March 2026.
        ("country", NEW_YORK, "2026-03-06T12:59", "2026-03-06T13:00"),
        ("country", LOS_ANGELES, "2026-03-06T13:00", "2026-03-06T16:00"),
        ("country", NEW_YORK, "2026-03-09T11:59", "2026-03-09T12:00"),
        # Morocco was an hour ahead of UTC, where phonenumbers has it on the time of the Canaries, except for Ramadan;
        # since 2026 that is over.
        ("country", MOROCCO, "2025-01-15T18:59", None),
        ("country", MOROCCO, "2025-01-15T19:00", "2025-01-16T07:00"),
        ("country", MOROCCO, "2025-03-13T19:59", None),
        # Algeria's clocks do not change as those of Paris, nor are Jamaica's hours those of all that have its code.
        ("country", ALGERIA, "2025-07-01T06:59", "2025-07-01T07:00"),
        ("22:00-09:00", JAMAICA, "2025-01-15T13:59", "2025-01-15T14:00"),
        ("22:00-09:00", JAMAICA, "2025-01-16T02:59", None),
        ("22:00-09:00", JAMAICA, "2025-01-16T03:00", "2025-01-16T14:00"),
        # An organization's own hours, around midnight and within a day.
        ("22:30-07:15", MOZAMBIQUE, "2026-03-02T20:29", None),
        ("22:30-07:15", MOZAMBIQUE, "2026-03-02T20:30", "2026-03-03T05:15"),
        ("13:00-15:00", MOZAMBIQUE, "2026-03-02T11:00", "2026-03-02T13:00"),
        ("13:00-15:00", MOZAMBIQUE, "2026-03-02T23:00", None),
        ("00:00-08:00", MOZAMBIQUE, "2026-03-01T22:00", "2026-03-02T06:00"),
        # On 8 March the clocks in New York go from 02:00 (07:00 UTC) to 03:00: half past two does not exist.
        ("22:00-02:30", NEW_YORK, "2026-03-08T06:59", "2026-03-08T07:00"),
        ("02:30-08:00", NEW_YORK, "2026-03-08T06:59", None),
        ("02:30-08:00", NEW_YORK, "2026-03-08T07:00", "2026-03-08T12:00"),
        # On 1 November it exists twice: quiet until the second, or from the first.
        ("22:00-01:30", NEW_YORK, "2026-11-01T05:30", "2026-11-01T06:30"),
        ("01:30-08:00", NEW_YORK, "2026-11-01T05:29", None),
        ("01:30-08:00", NEW_YORK, "2026-11-01T05:30", "2026-11-01T13:00"),
        ("01:45-01:15", NEW_YORK, "2026-11-01T05:20", "2026-11-02T06:15"),
        # In Cuba it is midnight that is skipped, or occurs twice; someone who is not quiet then stays so.
        ("05:00-08:00", HAVANA, "2026-03-08T05:00", None),
        ("05:00-08:00", HAVANA, "2026-11-01T04:30", None),
    ],
)
def test_marketing_waits_until_it_is_day_there(setting: str, recipient: str, now: str, opens: str | None) -> None:
    assert QuietHours().until(setting, recipient, at(now)) == (None if opens is None else at(opens))


def test_where_a_number_may_be_in_several_zones_it_is_quiet_if_it_is_quiet_in_one() -> None:
    # A Russian mobile may be anywhere from Kaliningrad (UTC+2) to Kamchatka (UTC+12).
    hours = QuietHours()
    for now in (at("2026-03-02T00:00") + timedelta(minutes=10 * n) for n in range(6 * 24)):
        opens = hours.until("country", "+79161234567", now)
        allowed = all(8 <= (now + timedelta(hours=offset)).hour < 20 for offset in (2, 12))
        assert (opens is None) == allowed, now
        if opens is not None:
            assert opens > now
            assert all(8 <= (opens + timedelta(hours=offset)).hour < 20 for offset in (2, 12))


def test_zones_that_share_no_hour_do_not_keep_a_message_for_ever() -> None:
    # One hour a day, over eleven zones.
    opens = QuietHours().until("10:00-09:00", "+79161234567", at("2026-03-02T00:00"))
    assert opens is not None
    assert opens - at("2026-03-02T00:00") <= timedelta(days=1)


def test_what_is_remembered_says_the_same_as_what_is_not() -> None:
    remembering = QuietHours()
    for number in range(2_000):
        now = at("2026-03-01T00:00") + timedelta(minutes=7 * number)
        for recipient in (MOZAMBIQUE, SOUTH_AFRICA, NEW_YORK):
            assert remembering.until("country", recipient, now) == QuietHours().until("country", recipient, now), now


def test_every_country_opens_at_some_time_and_closes_at_some_time() -> None:
    for country, one in {**COUNTRIES, "default": DEFAULT}.items():
        for hours in one:
            assert all(0 <= first < last <= 1440 for first, last in hours), country
        assert any(one), country
    assert week("country", "ZW") == DEFAULT
    assert week("off", "ZW") is None


def test_numbers_of_a_country_with_one_time_have_that_one() -> None:
    """Numbers of Morocco, Algeria, Libya, Nicaragua and South Sudan were messaged in their quiet hours, as it was day
    where phonenumbers takes them to be; those of the Caribbean only while it was day in Alaska and Guam, too."""
    times = [at("2027-01-01T00:00") + timedelta(days=7 * n) for n in range(104)]
    zones: dict[str, set[tuple[timedelta | None, ...]]] = {}
    for line in files("tzdata").joinpath("zoneinfo/zone.tab").read_text().splitlines():
        if not line.startswith("#"):
            country, _, name = line.split("\t")[:3]
            zones.setdefault(country, set()).add(_offsets(name, times))
    kinds_of_number = (PhoneNumberType.MOBILE, PhoneNumberType.FIXED_LINE, PhoneNumberType.VOIP)
    looked = 0
    for country, wanted in zones.items():
        for kind in kinds_of_number:
            example = phonenumbers.example_number_for_type(country, kind)
            if example is None or len(wanted) > 1:
                continue
            place, found = _look_up(phonenumbers.format_number(example, phonenumbers.PhoneNumberFormat.E164))
            if place == country:  # other countries with its calling code may have the same ranges
                assert {_offsets(one.key, times) for one in found} == wanted, (country, example, found)
                looked += 1
    assert looked > 300


def _offsets(name: str, times: list[datetime]) -> tuple[timedelta | None, ...]:
    return tuple(one.astimezone(ZoneInfo(name)).utcoffset() for one in times)


@pytest.mark.parametrize("wrong", ["", "on", "8-20", "20:00-20:00", "24:00-08:00", "20:00–08:00", "20:00-08:60"])
def test_what_is_no_setting_is_refused(wrong: str) -> None:
    assert not is_setting(wrong)


def test_a_class_bounds_the_usual_validity_and_not_what_a_send_asks_for() -> None:
    assert kinds.validity("otp", None, None) == 600
    assert kinds.validity("otp", None, 86_400) == 600
    assert kinds.validity("otp", None, 120) == 120
    assert kinds.validity("otp", 3_600, 120) == 3_600
    assert kinds.validity("transactional", None, 7_200) == 7_200
    assert kinds.validity("marketing", None, None) is None
    assert [one.name for one in kinds.CLASSES.values() if one.waits_for_day] == ["marketing"]


def test_the_time_zones_of_numbers_do_not_depend_on_the_system() -> None:
    """Debian 13 has older names, such as India's, in a package that is not installed, and images have none at all."""
    names = {name for zones in TIMEZONE_DATA.values() for name in zones} - {timezone.UNKNOWN_TIMEZONE}
    names |= {*quiet._ZONES.values()}
    looked = f"import zoneinfo; [zoneinfo.ZoneInfo(name) for name in {sorted(names)}]"
    subprocess.run([sys.executable, "-c", looked], env={"PYTHONTZPATH": ""}, check=True)
