"""Rate cards and price lists: which rate applies, files imported whole or not at all, and their differences."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from fractions import Fraction
from io import StringIO
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.money import UNIT, decimal, half_up
from heliograph.prices import drafting, rows, tariffs
from heliograph.prices.rows import TariffInvalid
from heliograph.prices.tariff import Destination, Rate, Tariff
from tests.rules.factories import blocked, organization

CARD = """country,mcc,mnc,prefix,price,currency,effective_from,effective_to
MZ,643,,,0.0450,USD,,
MZ,643,04,,0.0380,USD,,2026-07-01
MZ,643,04,,0.0410,USD,2026-07-01,
MZ,,,25887,0.0520,USD,,
"""
JUNE, JULY = datetime(2026, 6, 15, tzinfo=UTC), datetime(2026, 7, 1, tzinfo=UTC)
ID = UUID(int=1)


def rates(text: str, *, decimal_comma: bool = False) -> list[Rate]:
    return [rate for _, rate in rows.read(text.splitlines(keepends=True), decimal_comma=decimal_comma)]


def tariff(text: str = CARD) -> Tariff:
    return Tariff(ID, "main", "USD", rates(text))


def to(digits: str = "258841234567", network: str = "", *, exact: bool = False, country: str = "MZ") -> Destination:
    return Destination(digits, country, network, exact)


def price(found: Tariff, where: Destination, at: datetime = JUNE, segments: int = 1, **asked: str) -> str | None:
    result = found.find(where, at, segments=segments, **asked)
    return None if result is None else decimal(result.rate.amount(segments))


@pytest.mark.parametrize(
    ("where", "at", "segments", "expected"),
    [
        (to(network="643-04", exact=True), datetime(2026, 6, 30, 23, 59, 59, tzinfo=UTC), 1, "0.038000"),  # P1
        (to(network="643-04", exact=True), JULY, 1, "0.041000"),  # P2
        (to(network="643-03", exact=True), JUNE, 1, "0.045000"),  # P3
        (to("258871234567"), JUNE, 1, "0.052000"),  # P4
        (to(network="643-04", exact=True), JUNE, 3, "0.114000"),  # P5
    ],
    ids=["P1", "P2", "P3", "P4", "P5"],
)
def test_a_card_says_what_a_message_costs(where: Destination, at: datetime, segments: int, expected: str) -> None:
    assert price(tariff(), where, at, segments) == expected


def test_p6_a_markup_and_a_margin_are_not_the_same() -> None:
    cost = [one for one in rates(CARD) if one.price == 38_000]
    for by, expected in (
        (drafting.factor(markup=Fraction(25)), "0.047500"),
        (drafting.factor(margin=Fraction(25)), "0.050667"),
        (drafting.factor(), "0.038000"),
    ):
        assert [decimal(one.price) for one in drafting.draft(cost, by)] == [expected]


def test_p7_an_exchange_is_rounded_half_up() -> None:
    (cost, *_) = [one for one in rates(CARD) if one.price == 38_000]
    (sold,) = drafting.draft(
        [cost], drafting.factor(markup=Fraction(25)), exchange=Fraction("63.90"), currency="MZN", places=4
    )
    assert (decimal(sold.price), sold.currency) == ("3.035300", "MZN")


@pytest.mark.parametrize(
    ("amount", "places", "expected"),
    [
        (3_035_250, 4, "3.035300"),  # P7; half-even would be 3.0352
        (3_035_350, 4, "3.035400"),
        (3_035_249, 4, "3.035200"),
        (-3_035_250, 4, "-3.035200"),
        (30_352_500_000, 2, "30352.500000"),
        (500_000, 0, "1.000000"),
        (1_234_567, 6, "1.234567"),
    ],
)
def test_amounts_are_rounded_half_up(amount: int, places: int, expected: str) -> None:
    assert decimal(half_up(amount, places)) == expected
    assert half_up(amount, places) == drafting.half_up(Fraction(amount, 10 ** (6 - places))) * 10 ** (6 - places)


def test_p8_a_sum_is_rounded_once() -> None:
    (cost, *_) = [one for one in rates(CARD) if one.price == 38_000]
    (sold,) = drafting.draft([cost], Fraction("1.25"), exchange=Fraction("63.90"), currency="MZN")
    assert decimal(sold.price * 10_000) == "30352.500000"
    (rounded,) = drafting.draft([cost], Fraction("1.25"), exchange=Fraction("63.90"), currency="MZN", places=2)
    assert decimal(rounded.price * 10_000) == "30400.000000"


@pytest.mark.parametrize(
    ("markup", "margin"), [(Fraction(1), Fraction(1)), (None, Fraction(100)), (Fraction(-101), None)]
)
def test_a_draft_refuses_what_makes_no_price(markup: Fraction | None, margin: Fraction | None) -> None:
    with pytest.raises(Invalid):
        drafting.factor(markup=markup, margin=margin)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12.5", Fraction(25, 2)),
        (" -0.5 ", Fraction(-1, 2)),
        ("+.5", Fraction(1, 2)),
        ("7.", Fraction(7)),
        *dict.fromkeys(
            ("", ".", "-", "1e99999999", "1E3", "1/3", "1_000", "NaN", "Infinity", "１２", "٣", "9" * 33, "1,5")
        ).items(),
    ],
)
def test_a_percentage_is_a_decimal_number(text: str, number: Fraction | None) -> None:
    """`1e999999999` as a Fraction has a billion digits, and kept a processor busy for minutes."""
    assert drafting.number(text) == number


@given(st.fractions(min_value=-1000, max_value=1000))
def test_half_up_is_the_nearest_number(amount: Fraction) -> None:
    found = drafting.half_up(amount)
    assert -Fraction(1, 2) < found - amount <= Fraction(1, 2)


async def test_p11_rates_that_overlap_are_refused(pool: Pool) -> None:
    with pytest.raises(TariffInvalid) as refused:
        await imported(pool, CARD + "MZ,643,04,,0.04,USD,2026-06-01,2026-06-02\n")
    assert [error["line"] for error in refused.value.details["errors"]] == [6]
    async with pool.acquire() as conn:
        assert await tariffs.list_tariffs(conn, "price") == []


def test_precedence() -> None:
    found = tariff(
        "country,mcc,mnc,prefix,price,currency\n"
        ",643,04,,1,USD\n,,,25884,2,USD\n,,,2588,3,USD\nMZ,,,,4,USD\n,,,,5,USD\nUS,310,,,6,USD\nUS,311,,,7,USD\n"
    )
    cases = [
        (to(network="643-04", exact=True), "1.000000", "network"),
        (to(network="643-04"), "2.000000", "prefix"),
        (to("258821234567", network="643-04"), "3.000000", "prefix"),
        (to("258921234567", network="643-04"), "1.000000", "range"),
        (to("258921234567", network="643-03", exact=True), "4.000000", "country"),
        (to("351911234567", country="PT"), "5.000000", "default"),
        (to("12025550123", country="US", network="310-260"), "6.000000", "country"),
        (to("12025550123", country="US"), "7.000000", "country"),
    ]
    for where, expected, level in cases:
        result = found.find(where, JUNE)
        assert result is not None
        assert (decimal(result.rate.price), result.level) == (expected, level), where


def test_a_rate_for_the_class_or_the_kind_of_sender_goes_first() -> None:
    found = tariff(
        "country,class,sender_type,price,currency\nMZ,,,1,USD\nMZ,otp,,2,USD\nMZ,otp,short,3,USD\nMZ,,numeric,4,USD\n"
    )
    assert price(found, to()) == "1.000000"
    assert price(found, to(), message_class="marketing", sender_type="alphanumeric") == "1.000000"
    assert price(found, to(), message_class="otp", sender_type="alphanumeric") == "2.000000"
    assert price(found, to(), message_class="otp", sender_type="short") == "3.000000"
    assert price(found, to(), message_class="marketing", sender_type="numeric") == "4.000000"


def test_a_rate_that_ended_leaves_its_place_to_the_less_specific_one() -> None:
    found = tariff(CARD.replace("0.0410,USD,2026-07-01,", "0.0410,USD,2026-07-01,2026-08-01"))
    assert price(found, to(network="643-04", exact=True), datetime(2026, 8, 1, tzinfo=UTC)) == "0.045000"
    assert tariff("country,price,currency\nPT,1,USD\n").find(to(), JUNE) is None


def test_what_is_rejected_is_found_whatever_its_price() -> None:
    found = tariff("country,price,currency,reject\nMZ,,USD,yes\n").find(to(), JUNE)
    assert found is not None
    assert found.rate.rejects


def test_a_message_costs_by_its_unit() -> None:
    found = tariff("country,price,currency,unit\nMZ,0.03,USD,message\n")
    assert price(found, to(), segments=3) == "0.030000"


def test_the_dearest_of_several_mccs_is_that_for_this_very_message() -> None:
    """Of its length, its class and its kind of sender."""
    found = tariff(
        "country,mcc,class,price,currency,unit\n"
        "US,310,,0.05,USD,message\nUS,311,,0.03,USD,segment\nUS,312,otp,0.01,USD,segment\nUS,312,,0.06,USD,message\n"
    )
    where = to("12025550123", country="US")
    assert [price(found, where, segments=n) for n in (1, 2, 3)] == ["0.060000", "0.060000", "0.090000"]
    assert price(found, where, segments=1, message_class="otp") == "0.050000"


def test_network_codes_are_text() -> None:
    found = tariff("mcc,mnc,price,currency\n310,26,1,USD\n310,260,2,USD\n")
    assert price(found, to(network="310-26", exact=True)) == "1.000000"
    assert price(found, to(network="310-260", exact=True)) == "2.000000"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", {1: "lacks price, currency"}),
        ("price,currency\n", {1: "no rate"}),
        ("price,currency,effective_form\n", {1: "effective_form"}),
        ("price,currency,price\n", {1: "twice"}),
        ("mcc,mnc,price,currency\n643,4,1,USD\n64,04,1,USD\n,04,1,USD\n643,,1,USD\n",
         {2: "did you mean 643-04? A spreadsheet", 3: "three digits", 4: "without mcc", 5: "without mnc"}),
        ("mcc,mnc,price,currency\n334,20,1,USD\n643,004,1,USD\n643,9,1,USD\n310,26,1,USD\n",
         {2: "no network 334-20; did you mean 334-020?", 3: "did you mean 643-04?", 4: "leading zero"}),
        ("country,mcc,mnc,prefix,price,currency\nUK,,,,1,USD\nJE,,,,1,USD\nUK,234,,,1,USD\n",
         {2: "'UK'", 3: "prefix", 4: "'UK'"}),
        ("prefix,mcc,mnc,price,currency\n25884,643,04,1,USD\n2x,,,1,USD\n210,,,1,USD\n",
         {2: "not for both", 3: "first digits", 4: "first digits"}),
        ("country,price,currency\nMZ,,USD\nMZ,0.0000001,USD\nMZ,-1,USD\nMZ,\"0,5\",USD\nMoz,1,USD\nMZ,1,dollar\n",
         {2: "empty", 3: "six decimal", 4: "six decimal", 5: "comma", 6: "two letters", 7: "ISO 4217"}),
        ("price,currency,prefix\n1000000,USD,258\n1000000.000001,USD,351\n999999999.999999,USD,260\n1e6,USD,261\n",
         {3: "price '1000000.000001' is more than a million", 4: "more than a million", 5: "six decimal"}),
        ("price,currency,effective_from,effective_to\n1,USD,1.7.2026,\n1,USD,2026-07-01T00:00:00,\n"
         "1,USD,2026-07-01,2026-07-01\n", {2: "neither", 3: "time zone", 4: "not after"}),
        ("price,currency,class,unit,bill_on,reject,sender_type\n1,USD,gossip,,,,\n1,USD,,page,,,\n1,USD,,,never,,\n"
         "1,USD,,,,maybe,\n1,USD,,,,,rude\n1,USD\n",
         {2: "class", 3: "unit", 4: "bill_on", 5: "reject", 6: "sender_type", 7: "2 cells"}),
        ("price,currency\n" + "x,USD\n" * 100, {2: "price", 52: "not checked"}),
    ],
)  # fmt: skip
def test_all_that_is_wrong_with_a_file_is_named(text: str, named: dict[int, str]) -> None:
    with pytest.raises(TariffInvalid) as refused:
        rates(text)
    errors = {error["line"]: error["message"] for error in refused.value.details["errors"]}
    assert all(words in errors.get(line, "") for line, words in named.items()), errors


def test_countries_are_those_that_numbers_are_told_to_be_of() -> None:
    """Countries that share +1 or +7 are distinguished by area. A network or a prefix needs no country."""
    text = "country,mcc,mnc,prefix,price,currency\nCA,,,,1,USD\nKZ,,,,1,USD\nXK,,,,1,USD\nUK,234,30,,1,USD\n"
    assert [one.country for one in rates(text + "JE,,,447797,1,USD\n")] == ["CA", "KZ", "XK", "UK", "JE"]


def test_a_decimal_comma_is_read_if_it_is_declared() -> None:
    text = "country;price;currency\nMZ;0,0380;USD\n"
    assert [one.price for one in rates(text, decimal_comma=True)] == [38_000]
    with pytest.raises(TariffInvalid):
        rates(text)
    with pytest.raises(TariffInvalid):
        rates("country;price;currency\nMZ;0.0380;USD\n", decimal_comma=True)


def test_what_is_written_can_be_read() -> None:
    file = StringIO()
    known = rates(CARD)
    rows.write(known, file)
    assert rates(file.getvalue()) == known


def numbered(text: str) -> list[tuple[int, Rate]]:
    return rows.read(text.splitlines(keepends=True))


async def imported(pool: Pool, text: str, **options: bool) -> tariffs.Imported:
    async with pool.acquire() as conn:
        return await tariffs.import_rates(conn, numbered(text), kind="price", name="Standard", **options)


async def stored(pool: Pool) -> list[str]:
    async with pool.acquire() as conn:
        found = await tariffs.rates_of(conn, await tariffs.find(conn, "price", name="standard"))
    return sorted(f"{one.network or one.prefix or one.country} {decimal(one.price)}" for one in found)


async def test_a_dry_run_shows_the_differences_and_stores_nothing(pool: Pool) -> None:
    done = await imported(pool, CARD, dry_run=True)
    assert (done.added, done.changed, done.removed, done.unchanged) == (4, 0, 0, 0)
    async with pool.acquire() as conn:
        assert await tariffs.list_tariffs(conn, "price") == []
    await imported(pool, CARD)
    before = await stored(pool)
    done = await imported(pool, CARD.replace("0.0520", "0.0650"), dry_run=True)
    assert (done.added, done.changed, done.unchanged, done.large) == (0, 1, 3, 1)
    assert [(one.before, one.rate.price, one.percent, one.is_large) for one in done.differences] == [
        (52_000, 65_000, 25.0, True)
    ]
    assert await stored(pool) == before


async def test_what_was_free_and_gets_a_price_is_flagged(pool: Pool) -> None:
    """It has no percentage, and was not among the prices to check."""
    await imported(pool, "country,price,currency\nMZ,0,USD\nPT,0,USD\nES,0,USD\n")
    text = "country,price,currency,reject\nMZ,0.05,USD,\nPT,0,USD,yes\nES,0,USD,\n"
    done = await imported(pool, text, dry_run=True)
    assert [(one.rate.country, one.percent, one.is_large) for one in done.differences] == [
        ("MZ", None, True),
        ("PT", None, False),
    ]
    assert done.large == 1
    # What was rejected was not free; what was is flagged also if a whole file has only what follows it.
    await imported(pool, text)
    text = "country,price,currency,effective_from\nES,0.05,USD,2027-01-01\nPT,0.05,USD,2027-01-01\n"
    done = await imported(pool, text, whole=True, dry_run=True)
    found = [(one.rate.country, one.before, one.is_large) for one in done.differences[:2]]
    assert found == [("ES", 0, True), ("PT", None, False)]


async def test_the_second_import_changes_nothing(pool: Pool) -> None:
    await imported(pool, CARD)
    async with pool.acquire() as conn:
        (first,) = await tariffs.list_tariffs(conn, "price")
    done = await imported(pool, CARD, whole=True)
    assert (done.added, done.changed, done.removed, done.unchanged) == (0, 0, 0, 4)
    async with pool.acquire() as conn:
        assert await tariffs.list_tariffs(conn, "price") == [first]


async def test_a_price_that_follows_another_is_compared_with_it(pool: Pool) -> None:
    await imported(pool, "country,price,currency\nMZ,1,USD\n")
    done = await imported(
        pool,
        "country,price,currency,effective_from,effective_to\nMZ,1,USD,,2027-01-01\nMZ,1.1,USD,2027-01-01,\n",
    )
    assert [(one.change, one.before, one.percent) for one in done.differences] == [
        ("changed", UNIT, 0.0),
        ("added", UNIT, 10.0),
    ]


async def test_an_overlap_with_what_is_stored_is_refused(pool: Pool) -> None:
    await imported(pool, CARD)
    with pytest.raises(TariffInvalid) as refused:
        await imported(pool, "mcc,mnc,price,currency,effective_from\n643,04,1,USD,2027-01-01\n")
    assert refused.value.details["errors"] == [
        {
            "line": 2,
            "message": "overlaps a stored rate: the earlier one has no end, the later one begins at"
            " 2027-01-01T00:00:00.000Z; to end the earlier one then, give it effective_to 2027-01-01T00:00:00.000Z",
        }
    ]
    with pytest.raises(TariffInvalid):
        await imported(pool, "country,price,currency\nPT,1,USD\nPT,2,USD\n")
    assert len(await stored(pool)) == 4


async def test_a_tariff_has_one_currency_and_the_odd_lines_are_named(pool: Pool) -> None:
    """Unusual: a price that differs from the stored tariff, or from most of the file."""
    mixed = "country,price,currency\nPT,1,USD\n\nMZ,2,EUR\nZA,3,USD\nZW,4,ZAR\n"
    assert await refused_lines(pool, mixed) == {
        4: "a tariff has one currency: most of the file has USD, this line has EUR",
        6: "a tariff has one currency: most of the file has USD, this line has ZAR",
    }
    await imported(pool, CARD.replace("USD", "EUR"))
    told = await refused_lines(pool, mixed)
    assert list(told) == [2, 5, 6]
    assert told[2] == "a tariff has one currency: this one has EUR, this line has USD"
    assert await refused_lines(pool, "country,price,currency\n\nPT,1,USD\n") == {
        3: "the currency is EUR; the file has USD"
    }


async def refused_lines(pool: Pool, text: str) -> dict[int, str]:
    with pytest.raises(TariffInvalid) as refused:
        await imported(pool, text)
    return {one["line"]: one["message"] for one in refused.value.details["errors"]}


async def test_a_whole_file_removes_what_it_lacks(pool: Pool) -> None:
    await imported(pool, CARD)
    done = await imported(pool, "country,price,currency\nPT,1,USD\n", whole=True)
    assert (done.added, done.removed) == (1, 4)
    assert await stored(pool) == ["PT 1.000000"]


async def test_of_two_lists_made_the_default_at_once_the_last_is(pool: Pool) -> None:
    await imported(pool, CARD)
    async with pool.acquire() as conn:
        await tariffs.import_rates(conn, numbered(CARD), kind="price", name="Reseller")

    async def second() -> None:
        async with pool.acquire() as conn:
            await tariffs.make_default(conn, price_list="reseller")

    async with pool.acquire() as conn, conn.transaction():
        await tariffs.make_default(conn, price_list="standard")
        other = asyncio.create_task(second())
        await blocked(pool)
    await other
    async with pool.acquire() as conn:
        found = await tariffs.list_tariffs(conn, "price")
    assert {one.name: one.is_default for one in found} == {"Standard": False, "Reseller": True}


async def test_a_list_is_assigned_or_is_the_default(pool: Pool) -> None:
    await imported(pool, CARD)
    actor = await organization(pool)
    async with pool.acquire() as conn:
        with pytest.raises(NotFound):
            await tariffs.assign(conn, actor, price_list="missing")
        await tariffs.assign(conn, actor, price_list="STANDARD")
        await tariffs.make_default(conn, price_list="standard")
        (found,) = await tariffs.list_tariffs(conn, "price")
        assert (found.organizations, found.is_default) == (1, True)
        await tariffs.assign(conn, actor, price_list=None)
        await tariffs.make_default(conn, price_list=None)
        (found,) = await tariffs.list_tariffs(conn, "price")
        assert (found.organizations, found.is_default) == (0, False)
