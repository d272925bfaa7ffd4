"""Rates: files imported whole or not at all, and the price that applies at a time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from heliograph.base.database.pool import Pool
from heliograph.whatsapp.money import rates
from heliograph.whatsapp.money.rates import Imported, Rate, RateBook, RatesInvalid, read_rates

FILE = """currency,category,country,valid_from,price
EUR,utility,MZ,2026-01-01,0.01
eur,Utility,*,2026-01-01,0.02
EUR,utility,MZ,2026-04-01T00:00:00+02:00,0.015

EUR,authentication,*,2026-01-01,0.03
"""
AT = datetime(2026, 3, 1, tzinfo=UTC)


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def test_a_file_is_read() -> None:
    found = read_rates(lines("\ufeff" + FILE))
    assert len(found) == 4
    assert found[0] == Rate("EUR", "utility", "MZ", datetime(2026, 1, 1, tzinfo=UTC), 10_000)
    assert found[2].valid_from == datetime(2026, 3, 31, 22, tzinfo=UTC)
    # As written by a spreadsheet with a decimal comma, and with empty columns at the end.
    assert read_rates(lines(FILE.replace(",", ";"))) == read_rates(lines(FILE.replace("\n", ",,\n"))) == found


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", {1: "the header row must contain"}),
        ("currency,category,country,price\n", {1: "lacks valid_from"}),
        ("\ufeff\n", {1: "the header row lacks currency"}),
        (FILE + "EURO,utility,MZ,2026-01-01,1\n", {7: "currency"}),
        (FILE + "EUR,gossip,MZ,2026-01-01,1\nEUR,utility,ZZ,2026-01-01,1\n", {7: "category", 8: "country"}),
        (FILE + "EUR,utility,MZ,1.1.2026,1\nEUR,utility,MZ,2026-01-01T00:00:00,1\n", {7: "date", 8: "zone"}),
        (FILE + "EUR,utility,PT,2026-01-01,-1\nEUR,utility,PT,2026-01-01,0.0000001\n", {7: "price", 8: "price"}),
        (FILE + "EUR,utility,PT,2026-01-01,1000000.000001\n", {7: "price '1000000.000001' is more than a million"}),
        (FILE + "EUR,utility,MZ,2026-01-01,0.02\n", {7: "a different price"}),
        (FILE + "EUR,utility\n", {7: "2 cells"}),
        (FILE + "EUR,utility,PT,2026-01-01,0,01\nEUR,utility,MZ,2026-01-01,0.01,,\n", {7: "has 6 cells, not 5"}),
        (FILE.replace(",", ";") + "EUR;utility;PT;2026-01-01;0,01\n", {7: "price '0,01' is not a number"}),
        ("\n\ncurrency,category,country,valid_from,price,price\n", {3: "the column price appears twice"}),
        ("currency,category,country,valid_from,price\n" + "x,y,z,a,b\n" * 100, {2: "currency", 52: "not checked"}),
    ],
)
def test_all_that_is_wrong_is_named(text: str, named: dict[int, str]) -> None:
    with pytest.raises(RatesInvalid) as refused:
        read_rates(lines(text))
    errors = {error["line"]: error["message"] for error in refused.value.details["errors"]}
    assert all(words in errors[line] for line, words in named.items()), errors


async def test_the_second_import_changes_nothing(pool: Pool) -> None:
    found = read_rates(lines(FILE))
    async with pool.acquire() as conn:
        assert await rates.import_rates(conn, found) == Imported(4, 0, 0)
        assert await rates.import_rates(conn, found) == Imported(0, 0, 4)
        again = read_rates(lines(FILE.replace("0.02", "0.025")))
        assert await rates.import_rates(conn, again) == Imported(0, 1, 3)
        assert len(await rates.list_rates(conn)) == 4
        assert await rates.list_rates(conn, currency="USD") == []


async def test_the_price_is_that_of_the_country_and_the_day(pool: Pool) -> None:
    book = RateBook(pool)
    assert await book.price("EUR", "utility", "MZ", AT) is None
    async with pool.acquire() as conn:
        await rates.import_rates(conn, read_rates(lines(FILE)))
    assert await book.price("EUR", "utility", "MZ", AT) == 10_000
    assert await book.price("EUR", "utility", "PT", AT) == 20_000
    assert await book.price("EUR", "utility", "MZ", datetime(2026, 3, 31, 22, tzinfo=UTC)) == 15_000
    assert await book.price("EUR", "utility", "MZ", datetime(2025, 12, 31, tzinfo=UTC)) is None
    assert await book.price("EUR", "authentication", "MZ", AT) == 30_000
    assert await book.price("EUR", "marketing", "MZ", AT) is None
    assert await book.price("USD", "utility", "MZ", AT) is None


async def test_a_reply_costs_what_a_utility_template_does_until_it_has_a_rate(pool: Pool) -> None:
    book = RateBook(pool)
    async with pool.acquire() as conn:
        await rates.import_rates(conn, read_rates(lines(FILE)))
        assert await book.price("EUR", "service", "MZ", AT) == 10_000
        await rates.import_rates(conn, [Rate("EUR", "service", "*", datetime(2026, 2, 1, tzinfo=UTC), 5_000)])
    found = await RateBook(pool).of("EUR")
    assert found.price("service", "MZ", AT) == 5_000
    assert found.price("service", "MZ", datetime(2026, 1, 15, tzinfo=UTC)) == 10_000
