"""The owner of a number as written by a supplier."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base import phones
from heliograph.sms.received.handsets import Numbering, e164

UNKNOWN, INTERNATIONAL, NATIONAL, NETWORK, ALPHANUMERIC, ABBREVIATED = 0, 1, 2, 3, 5, 6
NOWHERE, MZ = Numbering(), Numbering(country="MZ")


@pytest.mark.parametrize(
    ("address", "ton", "numbering", "expected"),
    [
        # A national number is not Vietnamese because it begins with 84.
        ("841234567", NATIONAL, NOWHERE, None),
        ("841234567", UNKNOWN, NOWHERE, None),
        ("841234567", NATIONAL, MZ, "+258841234567"),
        ("841234567", UNKNOWN, MZ, "+258841234567"),
        ("841234567", INTERNATIONAL, MZ, "+258841234567"),  # the type of number is wrong
        ("258841234567", INTERNATIONAL, NOWHERE, "+258841234567"),
        ("258841234567", UNKNOWN, NOWHERE, "+258841234567"),
        ("258841234567", UNKNOWN, MZ, "+258841234567"),
        ("258841234567", NATIONAL, MZ, "+258841234567"),
        ("84912345678", INTERNATIONAL, MZ, "+84912345678"),
        ("84912345678", UNKNOWN, MZ, "+84912345678"),
        ("27831234567", UNKNOWN, MZ, "+27831234567"),
        ("00258841234567", UNKNOWN, NOWHERE, "+258841234567"),
        ("00258841234567", NATIONAL, MZ, "+258841234567"),
        ("07911123456", NATIONAL, Numbering(country="GB"), "+447911123456"),
        ("0841234567", UNKNOWN, Numbering(strip="0", prepend="258"), "+258841234567"),
        ("00258841234567", UNKNOWN, Numbering(strip="0", prepend="258"), "+258841234567"),
        ("0027831234567", UNKNOWN, Numbering(strip="0", prepend="258"), "+27831234567"),
        ("00258841234567", UNKNOWN, Numbering(strip="00"), "+258841234567"),
        ("841234567", UNKNOWN, Numbering(prepend="258"), "+258841234567"),
        ("258841234567", INTERNATIONAL, Numbering(prepend="258"), "+258841234567"),
        ("258841234567", UNKNOWN, Numbering(prepend="258"), "+258841234567"),
        ("27831234567", UNKNOWN, Numbering(prepend="258"), "+27831234567"),
        ("27831234567", NATIONAL, Numbering(prepend="258"), None),
        ("99258841234567", INTERNATIONAL, Numbering(strip="99"), "+258841234567"),
        ("841", UNKNOWN, MZ, None),
        ("Bank", ALPHANUMERIC, MZ, None),
        ("841234567", ALPHANUMERIC, MZ, None),
        ("12345", NETWORK, MZ, None),
        ("258841234567", NETWORK, MZ, "+258841234567"),
        ("258841234567", ABBREVIATED, MZ, "+258841234567"),
        ("258841234567", NETWORK, NOWHERE, None),
        ("27831234567", NETWORK, MZ, None),
        ("841234567", NETWORK, MZ, None),
        ("258841234567", ALPHANUMERIC, MZ, "+258841234567"),
        ("258841234567", ALPHANUMERIC, NOWHERE, None),
        ("27831234567", ALPHANUMERIC, MZ, None),
        ("258841234567", 7, MZ, "+258841234567"),
        ("258841234567", 0x91, MZ, "+258841234567"),  # as handsets write an international number
        ("258841234567", 0x91, NOWHERE, None),
        ("841234567", 0x81, MZ, None),
        ("", UNKNOWN, MZ, None),
    ],
)
def test_whose_number_it_is(address: str, ton: int, numbering: Numbering, expected: str | None) -> None:
    assert e164(address, ton, numbering) == expected


@given(st.text(max_size=20), st.integers(0, 255), st.sampled_from(["", "MZ", "US", "IT"]), st.sampled_from(["", "0"]))
def test_any_address_is_a_number_or_nobodys(address: str, ton: int, country: str, strip: str) -> None:
    found = e164(address, ton, Numbering(country=country, strip=strip))
    assert found is None or phones.parse(found) == found
