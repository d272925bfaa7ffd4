"""Numbers as people type them: parsed unambiguously, or refused."""

from __future__ import annotations

import pytest

from heliograph.base.errors import Invalid
from heliograph.pages.forms import figures


def wrong(said: str = "") -> Invalid:
    return Invalid(("amount", "format", said))


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("", None), ("  ", None), ("0", 0), ("1500", 1500), (" 1 500 ", 1500), ("1\u00a0500\u202f000", 1_500_000),
        ("1'500", 1500), ("1.500", 1500), ("1,500", 1500), ("1.500.000", 1_500_000), ("12,345,678", 12_345_678),
    ],
)  # fmt: skip
def test_a_whole_number_is_read(typed: str, read: int | None) -> None:
    assert figures.whole(typed, wrong("Write a number.")) == read


@pytest.mark.parametrize(
    "typed",
    [
        "1.5", "1,5", "1.50", "15 00", "1.5000", "1,500.000", "1.500,5", "0.500", ".500", "1.", "1..500", "1500.000",
        "1 500.5", "1e3", "-5", "+5", "٣", "½", "9" * 16, "1.000.000.000.000.000",
    ],
)  # fmt: skip
def test_what_is_no_whole_number_is_refused(typed: str) -> None:
    with pytest.raises(Invalid) as refused:
        figures.whole(typed, wrong("Write a number."))
    assert refused.value.details["fields"] == [{"field": "amount", "issue": "format", "message": "Write a number."}]


@pytest.mark.parametrize(
    ("typed", "read"),
    [("", None), ("1", 1), ("1.000", 1000), ("0", "refused"), ("1001", "refused"), ("1.5", "refused")],
)
def test_a_number_may_have_bounds(typed: str, read: int | str | None) -> None:
    try:
        assert figures.within(typed, wrong(), least=1, most=1000) == read
    except Invalid:
        assert read == "refused"


@pytest.mark.parametrize(("typed", "read"), [("-1.500", -1500), ("\u22125", -5), ("+5", 5)])
def test_a_number_may_have_a_sign_where_that_means_something(typed: str, read: int) -> None:
    assert figures.whole(typed, wrong(""), is_signed=True) == read


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("", None), ("12", 12_000_000), ("12.5", 12_500_000), ("12,50", 12_500_000), ("0.031", 31_000),
        ("0,031", 31_000), ("1500.125", 1_500_125_000), ("1.1250", 1_125_000), ("1.500,25", 1_500_250_000),
        ("1,500.250", 1_500_250_000), ("1 500,25", 1_500_250_000), ("1.500.000", 1_500_000_000_000),
        ("-0,5", -500_000), ("1.500000", 1_500_000),
    ],
)  # fmt: skip
def test_an_amount_is_read_to_the_millionth(typed: str, read: int | None) -> None:
    assert figures.money(typed, wrong("Write an amount.")) == read


@pytest.mark.parametrize("amount", [0, 5_000_000, 12_500_000, 1_125_000, -31_000, 999_999_999_999, 1])
def test_what_a_form_shows_is_read_as_it_was_meant(amount: int) -> None:
    assert figures.money(figures.written(amount), wrong("")) == amount


@pytest.mark.parametrize(("typed", "both"), [("1.500", ("1500", "1.5000")), ("12,345", ("12345", "12,3450"))])
def test_an_amount_that_can_be_read_in_two_ways_says_both(typed: str, both: tuple[str, str]) -> None:
    for sign in ("", "-"):
        with pytest.raises(Invalid) as refused:
            figures.money(sign + typed, wrong("Write an amount."))
        (field,) = refused.value.details["fields"]
        assert field["message"] == f"This can be read in two ways. Write {both[0]} or {both[1]}."
    assert figures.money(both[0], wrong("")) != figures.money(both[1], wrong(""))


@pytest.mark.parametrize(
    "typed", ["1.50.00", "1,500,25", "1.5.5", "1.1234567", "1,", ",5", "15 00,5", "1_5", "€5", "9" * 12]
)
def test_what_is_no_amount_is_refused(typed: str) -> None:
    with pytest.raises(Invalid) as refused:
        figures.money(typed, wrong("Write an amount."))
    assert refused.value.details["fields"][0]["message"] == "Write an amount."
