"""Phone numbers."""

from __future__ import annotations

import phonenumbers
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base import phones


def test_calling_codes_are_those_of_phonenumbers() -> None:
    assert {code: phones.REGIONS[str(code)] for code in phonenumbers.COUNTRY_CODE_TO_REGION_CODE} == {
        code: regions[0] for code, regions in phonenumbers.COUNTRY_CODE_TO_REGION_CODE.items()
    }
    assert len(phones.REGIONS) == len(phonenumbers.COUNTRY_CODE_TO_REGION_CODE)


def test_calling_codes_are_prefix_free() -> None:
    for code in phones.REGIONS:
        assert not any(code[:end] in phones.REGIONS for end in range(1, len(code)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+258841234567", "+258841234567"),
        ("258841234567", "+258841234567"),
        ("14155550100", "+14155550100"),
        ("+4930123456", "+4930123456"),
        ("1234567", "+1234567"),
        ("123456", None),
        ("123456789012345", "+123456789012345"),
        ("1234567890123456", None),
        ("0258841234567", None),
        ("00258841234567", None),
        ("++258841234567", None),
        ("+258 841234567", None),
        ("+258841234567\n", None),
        ("+2101234567", None),  # 210 is unassigned
        ("9991234567", None),
        ("+٢٥٨٨٤١٢٣٤٥٦٧", None),  # digits, but not ASCII ones
        ("²58841234567", None),
        ("", None),
        ("+", None),
    ],
)
def test_parse(text: str, expected: str | None) -> None:
    assert phones.parse(text) == expected


@pytest.mark.parametrize(
    ("number", "code", "country"),
    [
        ("+258841234567", "258", "MZ"),
        ("+14155550100", "1", "US"),
        ("+79161234567", "7", "RU"),
        ("+442079460018", "44", "GB"),
        ("+27821234567", "27", "ZA"),
        ("+38349123456", "383", "XK"),
        ("+882161234567", "882", "001"),
    ],
)
def test_calling_code_and_country(number: str, code: str, country: str) -> None:
    assert phones.calling_code(number) == code
    assert phones.country(number) == country


def test_calling_code_of_nothing() -> None:
    with pytest.raises(ValueError):
        phones.calling_code("+2101234567")


@given(st.from_regex(r"\+?[1-9][0-9]{6,14}", fullmatch=True))
def test_what_parses_has_a_calling_code(text: str) -> None:
    number = phones.parse(text)
    if number is not None:
        assert number[1:].startswith(phones.calling_code(number))
        assert phones.parse(number) == number
    else:
        assert not any(text.lstrip("+").startswith(code) for code in phones.REGIONS)


@given(st.text(max_size=20))
def test_any_text_is_answered(text: str) -> None:
    for number in (phones.parse(text), phones.normalize(text)):
        assert number is None or (number.startswith("+") and number[1:].isascii() and number[1:].isdigit())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+258841234567", "+258841234567"),
        (" (+258) 84-123.4567 ", "+258841234567"),
        ("00258 84 123 4567", "+258841234567"),
        ("258841234567", None),
        ("84 123 4567", None),
        ("+258 84 123 4567 x2", None),
        ("+", None),
        ("00", None),
        ("", None),
    ],
)
def test_international(text: str, expected: str | None) -> None:
    assert phones.international(text) == expected


def test_masked() -> None:
    assert phones.masked("+258841234567") == "…4567"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+258 84 123 4567", "+258841234567"),
        ("258-84-123-4567", "+258841234567"),
        (" +1 (415) 555-0100 ", "+14155550100"),
        ("1.415.555.0100", "+14155550100"),
        ("+44 (0)20 7946 0018", "+442079460018"),
        ("0044 20 7946 0018", "+442079460018"),
        ("+39 06 1234 5678", "+390612345678"),
        ("+258\xa084\u2011123\u20114567", "+258841234567"),
        ("+1 800 FLOWERS", None),
        ("+1 415 555 0100 x12", None),
        ("+1 415", None),
        ("+49 1", None),
        ("0841234567", None),
        ("+258841234567+", None),
        ("+٢٥٨٨٤١٢٣٤٥٦٧", None),
        ("not a number", None),
        ("", None),
    ],
)
def test_normalize(text: str, expected: str | None) -> None:
    assert phones.normalize(text) == expected


def test_the_quick_way_and_the_long_one_agree() -> None:
    for region in phonenumbers.SUPPORTED_REGIONS:
        for kind in (phonenumbers.PhoneNumberType.MOBILE, phonenumbers.PhoneNumberType.FIXED_LINE):
            example = phonenumbers.example_number_for_type(region, kind)
            if example is None:
                continue
            number = phonenumbers.format_number(example, phonenumbers.PhoneNumberFormat.E164)
            # A space takes the slow path.
            assert phones.normalize(number) == phones.normalize(f"{number[:4]} {number[4:]}") == number


#: Former numbers of Norfolk Island, to which phonenumbers adds a digit.
FORMER = "+672"


def test_numbers_in_use_are_those_of_phonenumbers() -> None:
    for region in phonenumbers.SUPPORTED_REGIONS:
        for kind in (phonenumbers.PhoneNumberType.MOBILE, phonenumbers.PhoneNumberType.FIXED_LINE):
            example = phonenumbers.example_number_for_type(region, kind)
            if example is None:
                continue
            number = phonenumbers.format_number(example, phonenumbers.PhoneNumberFormat.E164)
            assert phones.is_valid(number), number
            # With another first digit it may or may not be in use, and with one digit less it rarely is.
            first = len(phones.calling_code(number)) + 1
            for other in (*(f"{number[:first]}{digit}{number[first + 1 :]}" for digit in range(10)), number[:-1]):
                if not other.startswith(FORMER):
                    wanted = phonenumbers.is_valid_number(phonenumbers.parse(other))
                    assert phones.is_valid(other) == wanted, other


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+2588412345678901", None),
        ("+25884123", None),
        ("+4407911123456", "+447911123456"),
        ("+390612345678", "+390612345678"),
        ("+2250701020304", "+2250701020304"),
    ],
)
def test_the_quick_way_takes_no_wrong_number(text: str, expected: str | None) -> None:
    assert phones.normalize(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("841234567", "+258841234567"),
        ("84 123 4567", "+258841234567"),
        ("258841234567", "+258841234567"),
        ("+258841234567", "+258841234567"),
        ("+4407911123456", "+447911123456"),
        ("0044 7911 123456", "+447911123456"),
        ("84123", None),
        ("Ana", None),
    ],
)
def test_numbers_as_people_of_one_country_write_them(text: str, expected: str | None) -> None:
    assert phones.normalize(text, region="MZ") == expected


def test_a_zero_in_front_is_national() -> None:
    assert phones.normalize("07911 123456", region="GB") == "+447911123456"
    assert phones.normalize("07911 123456") is None


#: Spellings of one person's number, and the key of all of them.
PEOPLE = [
    ("+556281234567", ["+5562981234567"]),
    ("+551187654321", ["+5511987654321"]),
    ("+551133334444", []),
    ("+552170123456", ["+5521970123456"]),
    ("+5521921234567", []),
    ("+525512345678", ["+5215512345678"]),
    ("+541123456789", ["+5491123456789", "+54111523456789"]),
    ("+542974123456", ["+5492974123456", "+54297154123456"]),
    ("+543541123456", ["+5493541123456", "+54354115123456"]),
    ("+2290197123456", ["+22997123456"]),
    ("+2250141123456", ["+22541123456"]),
    ("+2250595123456", ["+22595123456"]),
    ("+2250707123456", ["+22507123456"]),
    ("+22520212223", []),  # a landline, whose network its digits do not show
    ("+221771234567", []),
    ("+258841234567", []),
    ("+27821234567", ["+270821234567"]),
    ("+447911123456", ["+4407911123456"]),
    ("+556282234567", ["+55062982234567"]),
    ("+541123456780", ["+54091123456780", "+540111523456780"]),
    ("+390612345678", []),
    ("+14155550100", []),
    ("MZ.13490000000000000001", []),
]


@pytest.mark.parametrize(("key", "others"), PEOPLE)
def test_spellings_of_one_number_have_one_key(key: str, others: list[str]) -> None:
    assert {phones.person(one) for one in (key, *others)} == {key}


def test_countries_with_a_national_zero_are_those_of_phonenumbers() -> None:
    for code, (region, *_) in phonenumbers.COUNTRY_CODE_TO_REGION_CODE.items():
        metadata = None if region == "001" else phonenumbers.PhoneMetadata.metadata_for_region(region, None)
        has_zero = metadata is not None and metadata.national_prefix == "0"
        assert (phones.person(f"+{code}01234567") == f"+{code}1234567") == has_zero, code


def test_different_numbers_have_different_keys() -> None:
    assert len({key for key, _ in PEOPLE}) == len(PEOPLE)
    assert phones.person("+5521921234567") != phones.person("+552121234567")  # a landline is not a mobile number


@given(st.from_regex(r"\+(5[245][0-9]{9,12}|[1-9][0-9]{1,2}0[0-9]{5,11}|[1-9][0-9]{6,14})", fullmatch=True))
def test_a_key_is_its_own_key(number: str) -> None:
    assert phones.person(phones.person(number)) == phones.person(number)
    assert phones.parse(number) is None or phones.parse(phones.person(number)) == phones.person(number)


@pytest.mark.parametrize(
    ("text", "region", "expected"),
    [
        ("+55 62 8123-4567", None, "+5562981234567"),
        ("+5562981234567", None, "+5562981234567"),
        ("+551187654321", None, "+5511987654321"),
        ("(11) 8765-4321", "BR", "+5511987654321"),
        ("+551133334444", None, "+551133334444"),
        ("+552170123456", None, "+552170123456"),
        ("+5521921234567", None, "+5521921234567"),
        ("+5215512345678", None, "+525512345678"),
        ("00 52 1 55 1234 5678", None, "+525512345678"),
        ("044 55 1234 5678", "MX", "+525512345678"),
        ("01 55 1234 5678", "MX", "+525512345678"),
        ("55 1234 5678", "MX", "+525512345678"),
        ("07 12 34 56", "CI", "+2250707123456"),
        ("97 12 34 56", "BJ", "+2290197123456"),
        ("01 97 12 34 56", "BJ", "+2290197123456"),
        ("22997123456", "BJ", "+2290197123456"),
        ("+229 97 12 34 56", None, "+2290197123456"),
        ("00225 07123456", None, "+2250707123456"),
        ("20 21 22 23", "CI", None),
        ("011 15 2345-6789", "AR", "+5491123456789"),
        ("+54111523456789", None, "+5491123456789"),
        ("0297 15 412 3456", "AR", "+5492974123456"),
        ("+541123456789", None, "+541123456789"),
        ("0841234567", "MZ", None),
    ],
)
def test_numbers_are_written_as_they_are_dialed(text: str, region: str | None, expected: str | None) -> None:
    assert phones.normalize(text, region=region) == expected


@pytest.mark.parametrize(
    ("text", "region", "expected"),
    [
        ("841234567", None, None),
        ("258841234567", None, None),
        ("84912345678", None, None),
        ("841234567", "MZ", "+258841234567"),
        ("258841234567", "MZ", "+258841234567"),
        ("27831234567", "MZ", None),
        (" +258 84 123 4567", None, "+258841234567"),
        (" (+258) 84 123-4567", None, "+258841234567"),
        ("(+258)841234567", "ZA", "+258841234567"),
        ("(00258) 84 123 4567", None, "+258841234567"),
        ("(258) 84 123 4567", None, None),
        ("(+258 84 123 4567", None, "+258841234567"),
        ("((+258) 84 123 4567", None, None),
        ("84 (+258) 123 4567", "MZ", None),
        ("00258841234567", None, "+258841234567"),
        # As address books and messengers wrap numbers, and as web pages break them.
        ("\u202a+258 84 123 4567\u202c", None, "+258841234567"),
        ("\u200e84 123 4567\ufeff", "MZ", "+258841234567"),
        ("+258\u200b841234567", None, "+258841234567"),
        # A slash after the area code, and none in other places.
        ("0151/2345 6789", "DE", "+4915123456789"),
        ("+49 (0) 151/23456789", None, "+4915123456789"),
        ("0475/12.34.56", "BE", "+32475123456"),
        ("0151/23456789", None, None),
        ("0151 2345678/9", "DE", None),
        ("841234567/847654321", "MZ", None),
        ("0151/234567/89", "DE", None),
        ("27/11/2026", "DE", None),
        # As a spreadsheet or a program writes a number that it has as a decimal: no digits of it.
        ("1187654321.0", "BR", "+5511987654321"),
        ("1701234567.00", "DE", "+491701234567"),
        ("+491701234567,0", None, "+491701234567"),
        ("0170.123456.00", "DE", "+4917012345600"),
        ("841234567.5", "MZ", None),
    ],
)
def test_a_number_is_never_guessed(text: str, region: str | None, expected: str | None) -> None:
    assert phones.read(text, region=region) == expected


def test_what_is_written_with_the_code_of_its_country() -> None:
    for text in ("+258", "00258 84", " (+258) 84", "(00258)84"):
        assert phones.is_international(text), text
    for text in ("84", "(258) 84", "", "(0)84", "((+258)"):
        assert not phones.is_international(text), text


@pytest.mark.parametrize(("key", "others"), PEOPLE[:-1])
def test_spellings(key: str, others: list[str]) -> None:
    for number in (key, *others):
        found = phones.spellings(number)
        assert {phones.person(one) for one in found} == {key}
        assert found[0] == number
        assert len(found) >= min(2, 1 + len(others))


@pytest.mark.parametrize("address", ["+2101234567", "+0123456", "+", "MZ.1349", "36180", "ACME"])
def test_what_is_no_number_has_one_spelling(address: str) -> None:
    """WhatsApp's addresses and senders of SMS are kept as received."""
    assert phones.spellings(address) == [address]


@pytest.mark.parametrize(
    ("address", "country"), [("+2101234567", "001"), ("+0123456", "001"), ("+", "001"), ("MZ.1349", "MZ")]
)
def test_an_address_of_unknown_calling_code_belongs_to_no_country(address: str, country: str) -> None:
    assert phones.country(address) == country
