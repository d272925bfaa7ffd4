"""Names contain no invisible characters that reorder the text around them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest

from heliograph.accounts.api_keys import lifecycle
from heliograph.base import naming
from heliograph.base.errors import Invalid
from heliograph.campaigns import plan
from heliograph.contacts import records
from heliograph.people import users
from heliograph.sms.by_hand import saved_texts
from heliograph.webhooks import endpoints
from heliograph.whatsapp.mirror import accounts

KINDS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
TURNS = [chr(n) for n in range(0x3000) if unicodedata.bidirectional(chr(n)) in KINDS]
MARKS = ["\u061c", "\u200e", "\u200f"]


@pytest.mark.parametrize("hidden", [*MARKS, "\u202e", "\u2066", "\0", "\n", "\x85", "\u2028", "\ufeff", "\ud800"])
def test_a_name_with_a_hidden_character_is_refused_everywhere(hidden: str) -> None:
    for check in (
        lifecycle.checked_name,
        plan.checked_name,
        users.checked_name,
        endpoints.checked_description,
        records.name,
    ):
        with pytest.raises(Invalid):
            check(f"gpj{hidden}exe")
    with pytest.raises(Invalid):
        users.checked_email(f"ana{hidden}@example.com")
    if not hidden.isspace():
        with pytest.raises(Invalid):
            records.tag(f"gpj{hidden}exe", "tag")


@pytest.mark.parametrize(
    "blank",
    [
        "\u200b",
        "\u200d\u2060",
        "\u00ad",
        "\u3164\uffa0",
        "\u2800",
        "\u0301",
        "\ufe0f",
        "\u2065",
        "\ufffe",
        "\U000e0fff",
    ],
)
def test_a_name_that_shows_nothing_is_no_name(blank: str) -> None:
    for check in (
        lifecycle.checked_name,
        plan.checked_name,
        users.checked_name,
        records.name,
        lambda text: records.tag(text, "tag"),
        lambda text: saved_texts.checked(text, None),
    ):
        with pytest.raises(Invalid) as refused:
            check(f" {blank} ")
        assert [one["issue"] for one in refused.value.details["fields"]] == ["length"]
    with pytest.raises(Invalid):
        accounts.check(name=blank)
    assert endpoints.checked_description(blank) == ""


def test_a_persons_name_is_refused_for_what_is_wrong_with_it() -> None:
    for name, said in (
        ("gpj\u202eexe", "A name must not contain control characters."),
        ("x" * 201, "A name must have 1 to 200 characters."),
        (" ", "A name must have 1 to 200 characters."),
    ):
        with pytest.raises(Invalid, match=said):
            users.checked_name(name)


@pytest.mark.parametrize(
    "hidden", ["\u200b", "\u200d", "\u2060", "\u00ad", "\u3164", "\u034f", "\ufe0f", "\u180e", "\u2062"]
)
def test_an_address_with_an_invisible_character_is_refused(hidden: str) -> None:
    """It looks like another one, and no mail to it would arrive."""
    for address in (f"ana{hidden}@example.com", f"ana@exam{hidden}ple.com", f"{hidden}@example.com"):
        with pytest.raises(Invalid):
            users.checked_email(address)


@pytest.mark.parametrize(
    "address",
    ["ana+sms_1.a'b@example.com", "josé@exemplo.pt", "用户@例子.广告", "हिन्दी@उदाहरण.भारत", "jose\u0301@exemplo.pt"],
)
def test_addresses_of_other_scripts_are_addresses(address: str) -> None:
    assert users.checked_email(f" {address} ") == address


def test_all_of_unicodes_bidirectional_controls_are_meant() -> None:
    assert len(TURNS) == 9
    assert [one for one in (*TURNS, *MARKS) if naming.is_plain(one)] == []
    assert naming.bare("".join(("a", *TURNS, *MARKS, "b"))) == "ab"


@pytest.mark.parametrize(
    "check",
    [
        lifecycle.checked_name,
        plan.checked_name,
        users.checked_name,
        records.name,
        lambda text: records.tag(text, "tag"),
    ],
)
def test_a_name_is_one_however_its_accents_are_encoded(check: Callable[[str], str]) -> None:
    assert check("cafe\u0301") == check("caf\u00e9") == "caf\u00e9"
    # Composing this would take a minute.
    with pytest.raises(Invalid):
        check("a" + "\u0315" * 50_000 + "\u0316" * 50_000)


@pytest.mark.parametrize(
    "name",
    ["\U0001fae8", "\U00031350", "Ana", "José da Conceição", "می‌خواهم", "क्‍ष", "O'Brien & Söhne", "李小龍", "👩‍💻"],
)
def test_names_of_all_writings_are_names(name: str) -> None:
    assert records.name(f" {name} ") == name
    assert users.checked_name(name) == name


@pytest.mark.parametrize("mark", ["\u0301\u0327", "\u0327\u0301", "\u0f73"], ids=ascii)
def test_heaps_of_marks_are_not_composed(mark: str) -> None:
    """The time grew with the square of their number, which a campaign repeats for each recipient."""
    heap = mark * 400
    assert naming.in_nfc("e" + heap) == "e" + heap
    assert unicodedata.is_normalized("NFC", heap) is False


@pytest.mark.parametrize(
    "text",
    [
        "Joa\u0303o " * 50,
        "e" + "\u0301" * 30 + " and so on" * 10,
        "\u0915\u094d\u093c\u0930 " * 50,
        "\u1100\u1161" * 90,
    ],
    ids=["tildes", "a few marks", "Devanagari", "Hangul"],
)
def test_whatever_somebody_writes_is_composed(text: str) -> None:
    assert naming.in_nfc(text) == unicodedata.normalize("NFC", text) != text
