"""The network of a number: a learned one outranks its range, is kept in memory, and is erased with the person."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import phonenumbers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phonenumbers.carrierdata import CARRIER_DATA

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7
from heliograph.networks import learned, plan
from heliograph.networks.directory import Directory, NumberOrigin
from heliograph.networks.learned import LOOKUP, RECEIPT, LearnedNetwork, Notes
from heliograph.prices import rows
from heliograph.prices.tariff import Destination, Tariff
from heliograph.privacy import erasure
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from tests.house.plan import FILE, made
from tests.rules.factories import key, organization

PORTED = "+258841234567"
ANA, ANA_8 = "+5511987654321", "+551187654321"


def test_the_plan_is_as_made_from_the_libraries_data() -> None:
    assert FILE.read_text() == made(), "run `python -m tests.house.plan`"


@given(st.sampled_from(sorted(CARRIER_DATA)), st.text("0123456789", min_size=6, max_size=6))
def test_a_range_is_what_the_library_says_it_is(prefix: str, rest: str) -> None:
    digits = prefix + rest
    listed = [one for one in plan.networks().values() if digits.startswith(one.code)]
    if not listed:
        return
    said = CARRIER_DATA[max((digits[:end] for end in range(1, 12) if digits[:end] in CARRIER_DATA), key=len)]
    name = said.get("en") or next(iter(said.values()))
    wanted = next((one.key for one in listed if name in one.range_names.split("|")), "")
    assert plan.ranges(listed[0].code).network(digits) == wanted


def test_networks_are_of_known_countries() -> None:
    assert set(plan._countries().values()) | set(plan.ELSEWHERE.values()) <= phonenumbers.SUPPORTED_REGIONS
    for one in plan.networks().values():
        assert plan.country_of(one.key) == one.country
        assert phones.REGIONS[one.code] == one.country
        assert learned.network_of(one.key) == one.key


def test_numbers_of_shared_codes_have_their_own_countries() -> None:
    known = {"+12025550123": "US", "+14165550123": "CA", "+18765550123": "JM", "+77012345678": "KZ"}
    known |= {"+79161234567": "RU", PORTED: "MZ", "+10000000": "US"}
    assert {number: plan.country(number) for number in known} == known
    assert [plan.countries(prefix) for prefix in ("1416", "77", "79", "2588")] == [{"CA"}, {"KZ"}, {"RU"}, {"MZ"}]
    assert {"US", "CA", "JM"} < plan.countries("1")
    assert {"KZ", "RU"} == plan.countries("7")
    assert {"MZ", "EG"} < plan.countries("2")
    assert [plan.counted_as(one) for one in ("CA", "US", "KZ", "MZ")] == ["US", "US", "RU", "MZ"]


def test_a_range_is_exact_only_where_numbers_cannot_be_ported() -> None:
    directory = Directory()
    assert directory.place(PORTED) == NumberOrigin("MZ", "643-04", "range", False)
    assert directory.place("+251911234567") == NumberOrigin("ET", "636-01", "range", True)
    assert directory.place("+14165550123") == NumberOrigin("CA", "", "", False)
    assert directory.place("+97312345678") == NumberOrigin("BH", "", "", False)
    assert directory.place("+258991234567") == NumberOrigin("MZ", "", "", False)


def test_what_suppliers_call_a_network() -> None:
    known = {"64304": "643-04", "643-04": "643-04", "310260": "310-260", "": "", "unknown": "", "99999": ""}
    known |= {"6434": "643-04", "643-4": "643-04", "643004": "643-04", "33420": "334-020", "33426": "334-26"}
    known |= {"6439": "", "643": "", "0643": "", "6430404": "", "٦٤٣٠٤": ""}
    assert {text: learned.network_of(text) for text in known} == known


def test_a_network_that_lost_a_zero_is_refused_with_the_one_that_is_meant() -> None:
    """It would never be the network of any number."""
    known = {"643-4": "643-04", "643-004": "643-04", "334-20": "334-020", "643-04": None, "310-26": None, "643-9": None}
    assert {text: plan.meant(text) for text in known} == known
    wrong = {
        "643-4": "did you mean 643-04?",
        "334-20": "did you mean 334-020?",
        "643-9": "such as 643-04",
        "64304": "such",
    }
    for text, said in wrong.items():
        assert said in plan.no_network(text)
        with pytest.raises(Invalid) as refused:
            rules.checked(Route(id=uuid7(), name="x", network=text, choices=(Choice(uuid7(), 0, 1),)))
        assert [(one["field"], said in one["message"]) for one in refused.value.details["fields"]] == [
            ("network", True)
        ]
    for text in ("643-04", "334-020", "643-99", "310-26"):
        assert plan.no_network(text) == ""


def test_networks_whose_zeros_cannot_be_checked_are_named() -> None:
    assert plan.unlisted(["643-04", "", "334-020"]) == ""
    assert plan.unlisted(["643-04", "643-99", "338-50", "338-50"]).startswith("The zeros of 338-50, 643-99 cannot")
    many = plan.unlisted(f"338-{n}" for n in range(10, 25))
    assert many.startswith("The zeros of 338-10, 338-11, ")
    assert "338-19 and 5 more cannot" in many


async def learn(pool: Pool, number: str, network: str, *, source: str = RECEIPT, days: int = 0) -> None:
    async with pool.acquire() as conn:
        await learned.learn(conn, [LearnedNetwork(int(number[1:]), network, source)])
        if days:
            await conn.execute(
                "UPDATE number_networks SET learned_at = learned_at - make_interval(days => $2),"
                " learned_on = date_trunc('month', (learned_at - make_interval(days => $2)) AT TIME ZONE 'UTC')::date"
                " WHERE number = $1",
                int(number[1:]),
                days,
            )


async def refresh(directory: Directory, pool: Pool) -> None:
    async with pool.acquire() as conn:
        await directory.refresh(conn)


async def test_what_was_learned_goes_before_the_range(pool: Pool) -> None:
    directory = Directory()
    await refresh(directory, pool)
    assert directory.place(PORTED).network == "643-04"
    await learn(pool, PORTED, "643-03")
    await refresh(directory, pool)
    assert directory.place(PORTED) == NumberOrigin("MZ", "643-03", RECEIPT, True)
    assert directory.place("+258841234568") == NumberOrigin("MZ", "643-04", "range", False)
    await learn(pool, PORTED, "643-01", source=LOOKUP)
    await refresh(directory, pool)
    assert directory.place(PORTED) == NumberOrigin("MZ", "643-01", LOOKUP, True)
    another = Directory()
    await refresh(another, pool)
    assert another.place(PORTED) == directory.place(PORTED)


async def test_many_numbers_are_found_and_their_neighbours_are_not(pool: Pool) -> None:
    numbers = [258_840_000_000 + 7 * n for n in range(45_000)]
    async with pool.acquire() as conn:
        await learned.learn(conn, [LearnedNetwork(one, "643-03", RECEIPT) for one in reversed(numbers)])
    directory = Directory()
    await refresh(directory, pool)
    for one in (numbers[0], numbers[19_999], numbers[20_000], numbers[-1]):
        assert directory.place(f"+{one}").network == "643-03"
        assert directory.place(f"+{one + 1}").source == "range"


@pytest.mark.parametrize("apart", [0, 1], ids=["at once", "one after the other"])
async def test_news_is_complete_however_many_are_learned_in_a_second(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, apart: int
) -> None:
    """With more rows in the overlap than one query reads, no later number used to be found until everything was
    reloaded."""
    monkeypatch.setattr(learned, "STEP", 100)
    directory = Directory()
    await refresh(directory, pool)
    for begin in (258_840_000_000, 258_841_000_000):
        numbers = range(begin, begin + 350)
        async with pool.acquire() as conn:
            await learned.learn(conn, [LearnedNetwork(one, "643-03", RECEIPT) for one in numbers])
            await conn.execute(
                "UPDATE number_networks SET learned_at = learned_at + $2 * (number - $1) * interval '1 microsecond'"
                " WHERE number >= $1",
                begin,
                apart,
            )
        await refresh(directory, pool)
        assert {directory.place(f"+{one}").source for one in numbers} == {RECEIPT}


async def test_news_beyond_the_overlays_size_is_loaded_with_everything(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned, "STEP", 100)
    monkeypatch.setattr("heliograph.networks.directory.OVERLAY", 150)
    directory = Directory()
    await refresh(directory, pool)
    numbers = range(258_840_000_000, 258_840_000_350)
    async with pool.acquire() as conn:
        await learned.learn(conn, [LearnedNetwork(one, "643-03", RECEIPT) for one in numbers])
    await refresh(directory, pool)
    assert [directory.place(f"+{numbers[at]}").source for at in (0, 199, 200)] == [RECEIPT, RECEIPT, "range"]
    for _ in range(2):  # what was loaded is not added again
        await refresh(directory, pool)
        assert {directory.place(f"+{one}").source for one in numbers} == {RECEIPT}
        assert directory._recent == {}


async def test_a_row_that_is_committed_late_is_found(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory()
    await refresh(directory, pool)
    await learn(pool, "+258840000001", "643-03")
    await refresh(directory, pool)
    for number, late in (("+258840000002", 3), ("+258840000003", 30)):
        await learn(pool, number, "643-03")
        await pool.execute(
            "UPDATE number_networks SET learned_at = learned_at - make_interval(secs => $2) WHERE number = $1",
            int(number[1:]),
            late,
        )
    await refresh(directory, pool)
    assert directory.place("+258840000002").source == RECEIPT
    monkeypatch.setattr("heliograph.networks.directory.AGAIN", 0.0)
    await refresh(directory, pool)
    assert directory.place("+258840000003").source == RECEIPT


async def test_what_others_learn_is_heard_after_the_clock_was_set_back(pool: Pool) -> None:
    """It used to be for as long as the clock had been ahead, up to the hour after which everything is loaded again."""
    directory = Directory()
    await refresh(directory, pool)
    await learn(pool, "+258840000001", "643-03")
    await pool.execute("UPDATE number_networks SET learned_at = learned_at + interval '1 hour'")
    assert directory._until is not None
    directory._until += timedelta(hours=1)
    await learn(pool, PORTED, "643-03")
    await refresh(directory, pool)
    assert directory.place(PORTED).source == RECEIPT
    assert directory._until < clock.now() + timedelta(minutes=1), "what is from times to come is not read each time"


async def test_after_ninety_days_the_range_counts_again(pool: Pool) -> None:
    await learn(pool, PORTED, "643-03", days=91)
    directory = Directory()
    await refresh(directory, pool)
    assert directory.place(PORTED).source == "range"
    await learn(pool, PORTED, "643-01")
    another = Directory()
    await refresh(another, pool)
    assert another.place(PORTED).network == "643-01"


async def test_the_same_news_is_not_written_again(pool: Pool) -> None:
    place = "SELECT xmin::text, network FROM number_networks"
    await learn(pool, PORTED, "643-03")
    first = await pool.fetchrow(place)
    await learn(pool, PORTED, "643-03")
    assert await pool.fetchrow(place) == first
    await learn(pool, PORTED, "643-04")
    assert (await pool.fetchrow(place))["network"] == "643-04"


async def test_receipts_are_noted_and_stored_together(pool: Pool) -> None:
    notes = Notes()
    notes.add(PORTED[1:], "64304")
    notes.add(PORTED, "643-03")
    notes.add("0841234567", "64303")
    notes.add("258841234568", "nobody")
    async with pool.acquire() as conn:
        await notes.store(conn)
        await notes.store(conn)
    rows = await pool.fetch("SELECT number, network, source FROM number_networks")
    assert [tuple(row) for row in rows] == [(int(PORTED[1:]), "643-03", RECEIPT)]


async def test_notes_that_cannot_be_stored_are_kept(pool: Pool) -> None:
    notes = Notes()
    notes.add(PORTED, "643-03")
    async with pool.acquire() as conn:
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            async with conn.transaction(readonly=True):
                await notes.store(conn)
        await notes.store(conn)
    assert await pool.fetchval("SELECT network FROM number_networks") == "643-03"


async def test_a_persons_networks_are_erased_in_all_spellings(pool: Pool) -> None:
    actor = await organization(pool)
    for number in (ANA, ANA_8, PORTED):
        await learn(pool, number, "643-03")
    async with pool.acquire() as conn:
        await erasure.erase(conn, actor, address=ANA_8)
    assert [row[0] for row in await pool.fetch("SELECT number FROM number_networks")] == [int(PORTED[1:])]


async def test_r8_and_r9_a_network_goes_before_a_prefix_while_it_is_known(pool: Pool) -> None:
    """As with rates: a prefix names B's price, although the number was ported to network A."""
    text = "mcc,mnc,prefix,price,currency\n643,03,,1,USD\n,,25884,2,USD\n"
    tariff = Tariff(key("card"), "main", "USD", [rate for _, rate in rows.read(text.splitlines(keepends=True))])
    at = await pool.fetchval("SELECT now()")

    async def level() -> str:
        directory = Directory()
        await refresh(directory, pool)
        place = directory.place(PORTED)
        found = tariff.find(Destination(PORTED[1:], place.country, place.network, place.is_exact), at)
        assert found is not None
        return found.level

    await learn(pool, PORTED, "643-03", source=LOOKUP)
    assert await level() == "network"
    await learn(pool, PORTED, "643-03", source=LOOKUP, days=100)
    assert await level() == "prefix"


@pytest.mark.parametrize(
    ("country", "code", "networks"),
    [
        ("MZ", "258", "643-01 643-03 643-04"),
        ("ZA", "27", "655-01 655-02 655-07 655-10"),
        ("NG", "234", "621-20 621-30 621-50 621-60"),
        ("KE", "254", "639-02 639-03 639-07"),
        ("TZ", "255", "640-02 640-04 640-05 640-09"),
        ("AO", "244", "631-02 631-04"),
        ("GH", "233", "620-01 620-02 620-03 620-06"),
        ("ZM", "260", "645-01 645-02 645-03"),
        ("MW", "265", "650-01 650-10"),
        ("ZW", "263", "648-01 648-03 648-04"),
        ("ET", "251", "636-01"),
        ("EG", "20", "602-01 602-02 602-03 602-04"),
        ("MA", "212", "604-00 604-01 604-02 604-05"),
        ("BR", "55", "724-02 724-03 724-04 724-05 724-06 724-10 724-11 724-23"),
        ("MX", "52", "334-020 334-030 334-050 334-090"),
        ("AR", "54", "722-010 722-070 722-034 722-341 722-310"),
        ("CO", "57", "732-101 732-103 732-111 732-123"),
        ("PE", "51", "716-06 716-10 716-15 716-17"),
        ("PT", "351", "268-01 268-03 268-06"),
        ("ES", "34", "214-01 214-03 214-04 214-07"),
        ("FR", "33", "208-01 208-10 208-15 208-20"),
        ("GB", "44", "234-10 234-15 234-20 234-30 234-33"),
        ("DE", "49", "262-01 262-02 262-03"),
        ("ID", "62", "510-01 510-10 510-11 510-89"),
        ("VN", "84", "452-01 452-02 452-04"),
    ],
)
def test_the_networks_of_the_places_we_serve(country: str, code: str, networks: str) -> None:
    assert phones.REGIONS[code] == country
    # Of some operators only the main network is listed: the others are in the same country all the same.
    assert {plan.country_of(one) for one in networks.split()} == {country}
    assert {one.country for one in plan.networks().values() if one.key in networks.split()} == {country}
    assert plan.country_of("999-01") is None
