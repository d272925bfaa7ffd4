"""The calendar of rates: what holds in which month, where nothing does, and where a broader rate does."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from heliograph.prices import calendar
from heliograph.prices.calendar import Span
from heliograph.prices.tariff import EVER, NEVER, Rate


def day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def span(name: str, begins: str = "", ends: str = "") -> Span[str]:
    return Span(day(begins) if begins else EVER, day(ends) if ends else NEVER, name)


def told(*spans: Span[str], lending: tuple[Span[str], ...] = ()) -> list[str]:
    """January to March, in short."""

    def days(some: list[calendar.Time]) -> str:
        return "".join(f" {one:%d}-{other:%d}" for one, other in some)

    return [
        "".join(f"{value}{'' if at is None else f'@{at:%d}'}" for value, at in cell.holding)
        + (f" !{days(cell.missing)}" if cell.missing else "")
        + (f" ~{days(cell.lent)}" if cell.lent else "")
        for cell in calendar.cells(spans, lending, calendar.months(date(2027, 1, 1), 3))
    ]


@pytest.mark.parametrize(
    ("spans", "lending", "said"),
    [
        ([span("a")], (), ["a", "a", "a"]),
        ([span("b", "2027-02-10"), span("a", ends="2027-02-10")], (), ["a", "ab@10", "b"]),
        # The last day of one is not the first of the next.
        ([span("a", ends="2027-02-10"), span("b", "2027-02-12")], (), ["a", "ab@12 ! 10-12", "b"]),
        ([span("a", "2027-02-01", "2027-03-01")], (), ["! 01-01", "a", "! 01-01"]),
        ([span("a", "2027-02-15")], (span("x", ends="2027-02-01"),), ["~ 01-01", "a@15 ! 01-15", "a"]),
        ([span("a", "2027-03-01")], (span("x", "2027-01-11"),), ["! 01-11 ~ 11-01", "~ 01-01", "a"]),
        ([], (), ["! 01-01", "! 01-01", "! 01-01"]),
    ],
)  # fmt: skip
def test_a_month_says_what_holds_and_when_nothing_does(
    spans: list[Span[str]], lending: tuple[Span[str], ...], said: list[str]
) -> None:
    assert [one.strip() for one in told(*spans, lending=lending)] == said


def test_a_line_in_which_nothing_changes_is_quiet() -> None:
    shown = calendar.months(date(2027, 1, 1), 3)
    for spans, quiet in (
        ([span("a")], True),
        ([span("a", "2026-07-01", "2027-04-01")], True),
        ([span("a", ends="2027-02-01"), span("b", "2027-02-01")], False),
        ([span("a", ends="2027-02-01")], False),
        ([], False),
    ):
        assert calendar.is_quiet(calendar.cells(spans, (), shown)) == quiet, spans
    assert not calendar.is_quiet(calendar.cells([], [span("x")], shown))


def test_months_go_over_the_end_of_a_year() -> None:
    assert [str(one) for one in calendar.months(date(2026, 11, 1), 4)] == [
        "2026-11-01", "2026-12-01", "2027-01-01", "2027-02-01",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "lent_by"),
    [
        ({"country": "MZ"}, ["default"]),
        ({"country": "MZ", "message_class": "otp"}, ["default", "mz"]),
        ({"mcc": "643", "mnc": "04", "country": "MZ"}, ["default", "mz"]),
        ({"prefix": "25884"}, ["default", "mz", "258"]),
        ({"country": "PT"}, ["default"]),
    ],
)
def test_a_rate_falls_back_to_those_that_are_for_more(rate: dict[str, Any], lent_by: list[str]) -> None:
    others: dict[str, dict[str, Any]] = {
        "default": {},
        "mz": {"country": "MZ"},
        "258": {"prefix": "258"},
        "pt": {"country": "PT", "message_class": "otp"},
    }
    known = [Rate(price=1, currency="EUR", notes=name, **values) for name, values in others.items()]
    found = calendar.lenders(Rate(price=2, currency="EUR", **rate), known)
    assert [one.notes for one in found] == lent_by
