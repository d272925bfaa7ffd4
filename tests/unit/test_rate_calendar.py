"""The calendar of rates: what applies in each month, gaps, and where a broader rate applies."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from heliograph.prices import calendar
from heliograph.prices.calendar import Row, Span
from heliograph.prices.tariff import EVER, NEVER, Destination, Rate, Tariff
from heliograph.sms import charges
from heliograph.whatsapp.money import rates as whatsapp


def day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def span(name: str, begins: str = "", ends: str = "") -> Span[str]:
    return Span(day(begins) if begins else EVER, day(ends) if ends else NEVER, name)


def abbreviated(*spans: Span[str], lending: tuple[Span[Any], ...] = ()) -> list[str]:
    """January to March, abbreviated."""

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
    assert [one.strip() for one in abbreviated(*spans, lending=lending)] == said


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
    assert not calendar.is_quiet(calendar.cells([], [Span(EVER, NEVER, None)], shown))


def test_months_go_over_the_end_of_a_year() -> None:
    assert [str(one) for one in calendar.months(date(2026, 11, 1), 4)] == [
        "2026-11-01", "2026-12-01", "2027-01-01", "2027-02-01",
    ]  # fmt: skip


def states(rows: list[Row[Any]], turns: list[datetime], at: datetime) -> list[str]:
    """A calendar at some time, row by row."""
    month = at.date().replace(day=1)
    found = []
    for row in rows:
        (cell,) = calendar.line(row, turns, [month])
        is_in = [any(one <= at < other for one, other in times) for times in (cell.missing, cell.lent)]
        found.append("none" if is_in[0] else "another" if is_in[1] else "own")
    return found


def boundaries(turns: list[datetime]) -> list[datetime]:
    """Each, and the moment before."""
    return [at for one in turns if one not in (EVER, NEVER) for at in (one - timedelta(microseconds=1), one)]


def test_a_calendar_says_of_each_boundary_what_the_look_up_of_messages_finds() -> None:
    march, may, july = day("2027-03-10"), day("2027-05-10"), day("2027-07-10")
    cases: list[tuple[dict[str, Any], Destination]] = [
        # A network falls back to the prefix of all numbers of its country, and to its country.
        ({"mcc": "643", "mnc": "04", "effective_to": march}, Destination("258851234567", "MZ", "643-04", True)),
        ({"prefix": "258", "effective_from": may}, Destination("258861234567", "MZ")),
        # A prefix falls back to its network in the numbering plan, before its country.
        ({"prefix": "25884", "effective_to": march}, Destination("258841234567", "MZ", "643-04")),
        ({"country": "MZ", "effective_from": july}, Destination("258821234567", "MZ", "643-01")),
        ({"country": "PT", "message_class": "otp", "effective_from": may}, Destination("351911234567", "PT")),
        ({"country": "PT", "effective_to": july}, Destination("351911234567", "PT")),
        # Any of a country's codes can stand in for another.
        ({"country": "US", "mcc": "310", "effective_to": march}, Destination("12025550123", "US", "310-260", True)),
        ({"country": "US", "mcc": "311", "effective_from": march}, Destination("12025550123", "US", "311-480", True)),
        # Such a prefix belongs to no single country, also if countries share the calling code.
        ({"prefix": "3", "effective_from": may}, Destination("33612345678", "FR")),
        ({"prefix": "14", "effective_from": may}, Destination("14165550123", "CA")),
        ({"country": "RU"}, Destination("79161234567", "RU")),
        ({"prefix": "7", "effective_from": may}, Destination("77012345678", "KZ")),
        ({"prefix": "79", "effective_from": may}, Destination("79161234567", "RU")),
        ({"message_class": "otp", "effective_from": july}, Destination("6591234567", "SG")),
    ]  # fmt: skip
    rates = [Rate(price=1, currency="EUR", **values) for values, _ in cases]
    tariff = Tariff(UUID(int=1), "main", "EUR", rates)
    rows, turns = charges.calendar(tariff, rates)
    told = set()
    for at in boundaries(turns):
        for rate, (_, to), said in zip(rates, cases, states(rows, turns, at), strict=True):
            kind = {"message_class": rate.message_class, "sender_type": rate.sender_type}
            found = tariff.find(to, at, **kind)
            # A rate that takes precedence over a country's own, such as one for a prefix of all its numbers, changes no
            # gap.
            wanted = "own" if rate.begins <= at < rate.ends else "none" if found is None else "another"
            assert said == wanted, (rate, at, found)
            told.add((rate.destination, said))
    assert len(told) > 2 * len(rates), "hardly anything changes"


def test_a_prefix_that_only_some_numbers_of_a_network_have_does_not_stand_in_for_it() -> None:
    rates = [
        Rate(price=1, currency="EUR", mcc="643", mnc="04", effective_from=day("2027-03-10")),
        Rate(price=1, currency="EUR", prefix="25884"),
    ]
    rows, turns = charges.calendar(Tariff(UUID(int=1), "main", "EUR", rates), rates)
    assert states(rows, turns, day("2027-03-09")) == ["none", "own"]


def test_a_calendar_of_whatsapp_says_of_each_boundary_what_the_look_up_finds() -> None:
    shown = [
        whatsapp.Rate("EUR", "service", "MZ", day("2027-07-10"), 1),
        whatsapp.Rate("EUR", "service", "PT", day("2027-05-10"), 1),
        whatsapp.Rate("EUR", "service", "PT", day("2027-06-10"), 2),
        whatsapp.Rate("EUR", "marketing", "MZ", day("2027-04-10"), 1),
        whatsapp.Rate("USD", "service", "MZ", day("2027-06-10"), 1),
    ]
    lending = [
        whatsapp.Rate("EUR", "utility", "MZ", day("2027-03-10"), 1),
        whatsapp.Rate("EUR", "utility", "*", day("2027-04-10"), 1),
        whatsapp.Rate("EUR", "marketing", "*", day("2027-02-10"), 1),
    ]
    rows, turns = whatsapp.calendar(shown, lending)
    books = {
        currency: whatsapp.Rates(one for one in (*shown, *lending) if one.currency == currency)
        for currency in ("EUR", "USD")
    }
    told = set()
    for at in boundaries(turns):
        for row, said in zip(rows, states(rows, turns, at), strict=True):
            one = row.of
            price = books[one.currency].price(one.category, one.country, at)
            wanted = "own" if at >= one.valid_from else "none" if price is None else "another"
            assert said == wanted, (one, at)
            holding = [span.value.price for span in row.spans if span.begins <= at < span.ends]
            assert holding == ([price] if said == "own" else []), (one, at)
            told.add((one.currency, one.category, one.country, said))
    assert len(told) == 11, told
