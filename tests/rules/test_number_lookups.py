"""Look-ups of numbers before messages are sent: when, at what price, and what happens without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import SettingsError
from heliograph.networks import asked, learned
from heliograph.networks.directory import Directory
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from heliograph.simulators.aggregators.simulator import Aggregator, Options
from heliograph.sms.charges import Charges
from heliograph.sms.dispatch import explaining
from heliograph.sms.lookups import accounts
from heliograph.sms.lookups.asking import Lookups, countries
from heliograph.suppliers.http.kind import SECRET, Answer
from heliograph.suppliers.lookups import kinds
from tests.rules.dispatching import Bench
from tests.rules.factories import blocked, message, organization, supplier

KEY = derive_key(("a secret key of thirty-two characters",), "suppliers")
API_KEY = "an API key"
#: In Vodacom's range; Movitel has it.
PORTED = "+258841230002"
#: In Vodacom's range; no look-up supplier knows it.
UNKNOWN = "+258841230003"
PRICED: dict[str, Any] = {"base_url": "https://x1y2z3.api.infobip.com", "price": "0.003", "currency": "EUR"}


@pytest.mark.parametrize(
    ("values", "is_worth_it"),
    [
        ({"ported": 0.06, "loss": "0.02", "reuses": 4}, True),
        ({"ported": 0.06, "loss": "0.02", "reuses": 1}, False),
        ({"ported": 0, "loss": "1", "reuses": 4}, False),
        ({"ported": 0.15, "loss": "0.02", "reuses": 1}, False),
        ({"ported": 0.1501, "loss": "0.02", "reuses": 1}, True),
    ],
)
def test_a_look_up_is_worth_what_it_saves(values: dict[str, Any], is_worth_it: bool) -> None:
    assert kinds.settings_from("infobip", PRICED | values).is_worth_it is is_worth_it


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"price": "free"}, "price"),
        ({"price": "-1"}, "price"),
        ({"currency": "euro"}, "currency"),
        ({"countries": ["Mozambique"]}, "countries"),
        ({"ported": 6}, "ported"),
        ({"reuses": 0}, "reuses"),
        ({"wait_seconds": 11}, "wait_seconds"),
        ({"batch": 0}, "batch"),
        ({"base_url": "api.infobip.com"}, "base_url"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_settings_say_what_is_wrong(values: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        kinds.settings_from("infobip", PRICED | values)


def result(number: str, group: int, **more: Any) -> dict[str, Any]:
    return {"to": number, "originalNetwork": {}, "status": {"groupId": group, "id": 5, "name": f"GROUP_{group}"}} | more


def test_infobip_asks_for_several_and_reads_each() -> None:
    kind, settings = kinds.KINDS["infobip"], kinds.settings_from("infobip", PRICED)
    asked_for = kind.request(settings, {SECRET: API_KEY}, ["258841230002", "258841230003"])
    assert (asked_for.method, asked_for.url) == ("POST", "https://x1y2z3.api.infobip.com/number/1/query")
    assert asked_for.headers["Authorization"] == f"App {API_KEY}"
    assert msgspec.json.decode(asked_for.body) == {"to": ["258841230002", "258841230003"]}

    def read(status: int, body: Any) -> tuple[dict[str, str], str]:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        found = kind.answer(settings, ["1", "2", "3"], Answer(status, raw))
        return dict(found.told), found.error

    some = [result("1", 3, mccMnc="64303"), result("2", 2, mccMnc="64304"), result("3", 5), result("9", 3, mccMnc="1")]
    # A number whose handset is off has a network all the same; numbers that were not requested do not count.
    assert read(200, {"results": some}) == ({"1": "64303", "2": "64304"}, "GROUP_5")
    assert read(200, {"results": [result("1", 2)]}) == ({"1": ""}, "")
    assert read(200, b"<html>It works!</html>") == ({}, "no results")
    error = {"requestError": {"serviceException": {"messageId": "UNAUTHORIZED", "text": "Invalid login details"}}}
    assert read(401, error) == ({}, "HTTP 401 Invalid login details")
    assert read(500, b"") == ({}, "HTTP 500")


class Looking:
    """A worker with a look-up supplier, and routes by network."""

    def __init__(self, pool: Pool, aggregator: Aggregator) -> None:
        self.pool, self.aggregator = pool, aggregator
        self.movitel, self.rest = supplier("movitel", id=uuid7()), supplier("rest", id=uuid7())
        self.routes = [
            Route(id=uuid7(), name="network", network="643-03", choices=(Choice(self.movitel.id),)),
            Route(id=uuid7(), name="rest", choices=(Choice(self.rest.id),)),
        ]
        charges = Charges()
        self.lookups = Lookups(pool, KEY, charges.directory)
        self.bench = Bench(pool, self.movitel, self.rest, routes=self.routes, charges=charges, lookups=self.lookups)

    async def add(self, **values: Any) -> UUID:
        given = PRICED | {"base_url": self.aggregator.base_url, "wait_seconds": 10.0} | values
        async with self.pool.acquire() as conn:
            id = await accounts.add(conn, KEY, name="mnp", kind="infobip", values=given, secrets={SECRET: API_KEY})
        await self.refresh()
        return id

    async def refresh(self) -> None:
        await self.lookups.refresh(self.pool, self.routes)

    async def rounds(self) -> None:
        """Examine messages that wait for a look-up again."""
        await self.bench.later(seconds=1)
        await self.bench.round()

    def sent(self) -> tuple[list[UUID], list[UUID]]:
        """By whom."""
        by = [self.bench.connectors[one.id].submitted for one in (self.movitel, self.rest)]
        return [one.message_id for one in by[0]], [one.message_id for one in by[1]]

    async def rows(self) -> list[tuple[Any, ...]]:
        found = await self.pool.fetch(
            "SELECT number, state, network, times, price, currency FROM number_lookups ORDER BY number"
        )
        return [tuple(row) for row in found]


@pytest.fixture
async def looking(pool: Pool) -> AsyncIterator[Looking]:
    aggregator = Aggregator(Options(profile="infobip", secret=API_KEY, networks={PORTED[1:]: "64303"}))
    await aggregator.start()
    made = Looking(pool, aggregator)
    yield made
    await made.lookups.close()
    await aggregator.stop()


async def test_a_number_is_looked_up_once_and_its_network_decides(looking: Looking, pool: Pool) -> None:
    await looking.add()
    actor = await organization(pool)
    first, same, other = [await message(pool, actor, to=to) for to in (PORTED, PORTED, UNKNOWN)]
    await looking.bench.round()
    assert looking.sent() == ([], [])
    assert [row[:2] for row in await looking.rows()] == [(int(PORTED[1:]), "asked"), (int(UNKNOWN[1:]), "asked")]
    assert looking.lookups.wake.is_set()
    # No answer has arrived yet.
    await looking.rounds()
    assert looking.sent() == ([], [])
    assert await looking.lookups.round() == 2
    assert sorted(looking.aggregator.looked_up) == [PORTED[1:], UNKNOWN[1:]]
    assert await looking.rows() == [
        (int(PORTED[1:]), "found", "643-03", 1, 3_000, "EUR"),
        (int(UNKNOWN[1:]), "unknown", "", 1, 3_000, "EUR"),
    ]
    await looking.rounds()
    assert looking.sent() == (sorted([first, same]), [other])
    # The result is kept: by this worker, by another one, and for 90 days.
    later = [await message(pool, actor, to=to) for to in (PORTED, UNKNOWN)]
    await looking.bench.round()
    assert looking.sent() == ([*sorted([first, same]), later[0]], [other, later[1]])
    assert await looking.lookups.round() == 0
    known = await pool.fetch("SELECT number, network, source FROM number_networks")
    assert [tuple(row) for row in known] == [(int(PORTED[1:]), "643-03", "lookup")]
    directory = Directory()
    await directory.refresh(pool)
    assert (directory.place(PORTED).network, directory.place(PORTED).source) == ("643-03", "lookup")
    async with pool.acquire() as conn:
        (spent,) = await asked.spent(conn)
        assert (spent.numbers, spent.charged, spent.found, spent.unknown, spent.price) == (2, 2, 1, 1, 6_000)
        await asked.forget(conn, [PORTED])
        # The person is erased, and the supplier's bill is not.
        assert await asked.spent(conn) == [spent]
        assert await asked.states(conn, [int(PORTED[1:])]) == {}
    erased, kept = await looking.rows()
    assert kept[0] == int(UNKNOWN[1:])
    assert (erased[0] < 0, erased[3:]) == (True, (1, 3_000, "EUR"))
    assert await pool.fetchval("SELECT min(asked_at) = min(asked_on)::timestamp AT TIME ZONE 'UTC' FROM number_lookups")


async def test_a_look_up_under_way_is_not_paid_twice_because_the_clock_was_set_forward(
    looking: Looking, pool: Pool, set_forward: Callable[..., None]
) -> None:
    """Another worker asked again, or gave it up, and then its cost was not counted."""
    account = await looking.add()
    await message(pool, await organization(pool), to=PORTED)
    await looking.bench.round()
    async with pool.acquire() as conn:
        assert await asked.take(conn, account, limit=10) == [int(PORTED[1:])]
        await conn.execute("UPDATE number_lookups SET taken_until = now(), asked_at = now() - interval '1 hour'")
        set_forward(3600)
    other = Lookups(pool, KEY, Directory())
    await other.refresh(pool, looking.routes)
    assert await other.round() == 0
    assert await looking.rows() == [(int(PORTED[1:]), "asked", "", 0, 0, "")]
    # What nobody has taken yet is asked for.
    await message(pool, await organization(pool), to=UNKNOWN)
    await looking.bench.round()
    assert await other.round() == 1
    set_forward(3600, ago=asked.TAKEN.total_seconds() + 1)
    assert await other.round() == 1
    assert looking.aggregator.looked_up == [UNKNOWN[1:], PORTED[1:]]
    await other.close()


async def test_after_the_clock_was_set_back_nobody_waits_for_what_was_requested_before(
    looking: Looking, pool: Pool
) -> None:
    """Messages to such a number waited for as long as the clock had been ahead."""
    await looking.add()
    actor = await organization(pool)
    first = await message(pool, actor, to=PORTED)
    await looking.bench.round()
    await pool.execute("UPDATE number_lookups SET asked_at = now() + interval '1 hour'")
    later = await message(pool, actor, to=PORTED)
    await looking.rounds()
    assert [sorted(some) for some in looking.sent()] == [[], sorted([first, later])], "by its range"
    assert await looking.lookups.round() == 1
    assert await looking.rows() == [(int(PORTED[1:]), "found", "643-03", 1, 3_000, "EUR")]


async def test_a_supplier_that_fails_delays_nobody_for_long_and_is_asked_again_after_an_hour(
    looking: Looking, pool: Pool
) -> None:
    await looking.add()
    await looking.aggregator.stop()
    actor = await organization(pool)
    id = await message(pool, actor, to=PORTED)
    await looking.bench.round()
    assert await looking.lookups.round() == 1
    assert await looking.rows() == [(int(PORTED[1:]), "failed", "", 0, 0, "EUR")]
    assert await pool.fetchval("SELECT detail <> '' FROM number_lookups")
    await looking.rounds()
    # By its range it is Vodacom's.
    assert looking.sent() == ([], [id])
    again = await message(pool, actor, to=PORTED)
    await looking.bench.round()
    assert looking.sent() == ([], [id, again])
    await pool.execute("UPDATE number_lookups SET asked_at = asked_at - $1::interval", asked.FAILED)
    third = await message(pool, actor, to=PORTED)
    await looking.bench.round()
    assert third not in looking.sent()[1]
    assert [row[1] for row in await looking.rows()] == ["asked"]


async def test_a_supplier_that_is_slow_to_answer_delays_no_other(looking: Looking, pool: Pool) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await over.wait()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    values = PRICED | {"base_url": f"http://{host}:{port}", "response_seconds": 60.0}
    async with pool.acquire() as conn:
        slow = await accounts.add(conn, KEY, name="slow", kind="infobip", values=values, secrets={SECRET: API_KEY})
        await asked.ask(conn, {int(UNKNOWN[1:]): slow})
    near = await looking.add()
    await looking.lookups.round()
    await begun.wait()
    async with pool.acquire() as conn:
        await asked.ask(conn, {int(PORTED[1:]): near})
    assert await looking.lookups.round() == 1
    assert [row[:2] for row in await looking.rows()] == [(int(PORTED[1:]), "found"), (int(UNKNOWN[1:]), "asked")]
    over.set()
    server.close()


async def test_words_of_a_supplier_that_cannot_be_stored_as_they_are_end_a_look_up_all_the_same(pool: Pool) -> None:
    number = int(PORTED[1:])
    async with pool.acquire() as conn:
        supplier_id = uuid7()
        await asked.ask(conn, {number: supplier_id})
        words = "HTTP 500 \0oops"
        await asked.answered(conn, [number], {}, supplier_id=supplier_id, error=words, price=0, currency="EUR")
        assert (await asked.states(conn, [number]))[number].state == "failed"


async def test_what_was_paid_stays_with_whom_it_was_paid_to(pool: Pool) -> None:
    """A number that one supplier did not know, and another one is asked for, cost what each of them charged, in its own
    currency."""
    number, first, second = int(UNKNOWN[1:]), uuid7(), uuid7()
    async with pool.acquire() as conn:

        async def look_up(of: UUID, told: dict[int, str], price: int, currency: str) -> None:
            await asked.ask(conn, {number: of})
            await asked.answered(conn, [number], told, supplier_id=of, error="", price=price, currency=currency)

        async def paid() -> set[tuple[UUID, str, int, int]]:
            return {(one.supplier_id, one.currency, one.charged, one.price) for one in await asked.spent(conn)}

        await look_up(first, {number: ""}, 3_000, "EUR")
        await look_up(first, {number: ""}, 3_500, "EUR")
        assert await paid() == {(first, "EUR", 2, 6_500)}
        await asked.ask(conn, {number: second})
        assert await paid() == {(first, "EUR", 2, 6_500), (second, "", 0, 0)}
        await asked.answered(conn, [number], {number: ""}, supplier_id=second, error="", price=4_000, currency="EUR")
        assert await paid() == {(first, "EUR", 2, 6_500), (second, "EUR", 1, 4_000)}
        # It charges in another currency from now on; a look-up without an answer costs nothing.
        await look_up(second, {}, 5_000, "USD")
        assert await paid() == {(first, "EUR", 2, 6_500), (second, "EUR", 1, 4_000), (second, "USD", 0, 0)}
        await look_up(second, {number: "643-03"}, 5_000, "USD")
        assert await paid() == {(first, "EUR", 2, 6_500), (second, "EUR", 1, 4_000), (second, "USD", 1, 5_000)}
        await asked.forget(conn, [UNKNOWN])
        assert await paid() == {(first, "EUR", 2, 6_500), (second, "EUR", 1, 4_000), (second, "USD", 1, 5_000)}


async def test_what_is_answered_while_another_supplier_is_asked_stays_paid_to_the_first(pool: Pool) -> None:
    """The request waits for another number, which somebody else is asking for at this moment."""
    other, number, first, second = 258841000001, 258841000002, uuid7(), uuid7()
    async with pool.acquire() as one, pool.acquire() as two:
        await asked.ask(one, {other: first, number: first})
        await asked.answered(one, [other], {}, supplier_id=first, error="", price=3_000, currency="EUR")
        async with one.transaction():
            await asked.ask(one, {other: first})
            waiting = asyncio.create_task(asked.ask(two, {other: second, number: second}))
            await blocked(pool)
            async with pool.acquire() as three:
                await asked.answered(
                    three, [number], {number: ""}, supplier_id=first, error="", price=3_000, currency="EUR"
                )
        await waiting
        assert [(row.supplier_id, row.numbers, row.price) for row in await asked.spent(one)] == [(first, 2, 3_000)]


async def test_nobody_waits_longer_than_the_setting(looking: Looking, pool: Pool) -> None:
    await looking.add()
    id = await message(pool, await organization(pool), to=PORTED)
    await looking.bench.round()
    assert looking.sent() == ([], [])
    await pool.execute("UPDATE number_lookups SET asked_at = asked_at - interval '11 seconds'")
    await looking.rounds()
    assert looking.sent() == ([], [id])
    # A late answer is useful for the next message. A dead worker's claim on the number ends.
    await pool.execute("UPDATE number_lookups SET taken_until = now() + interval '1 minute'")
    assert await looking.lookups.round() == 0
    await pool.execute("UPDATE number_lookups SET taken_until = now() - interval '1 second'")
    assert await looking.lookups.round() == 1
    assert [row[1] for row in await looking.rows()] == ["found"]


@pytest.mark.parametrize(
    "why", ["not worth its price", "another country", "paused", "no such route", "test", "suspended", "too many"]
)
async def test_nobody_is_asked_where_it_would_not_help(looking: Looking, pool: Pool, why: str) -> None:
    values: dict[str, dict[str, Any]] = {
        "not worth its price": {"reuses": 1.0},
        "another country": {"countries": ["ZA"]},
    }
    await looking.add(**values.get(why, {}))
    if why == "paused":
        async with pool.acquire() as conn:
            await accounts.set_state(conn, account="mnp", state="paused")
        await looking.refresh()
    if why == "no such route":
        await looking.lookups.refresh(pool, looking.routes[1:])
    if why == "too many":
        async with pool.acquire() as conn:
            some = dict.fromkeys(range(258_850_000_000, 258_850_000_000 + asked.MOST_OPEN), uuid7())
            assert len(await asked.ask(conn, some)) == asked.MOST_OPEN
    actor = await organization(pool)
    id = await message(pool, actor, to=PORTED, mode="test" if why == "test" else "live")
    if why == "suspended":
        await pool.execute("UPDATE organizations SET state = 'suspended' WHERE id = $1", actor.organization_id)
    await looking.bench.round()
    assert not [row for row in await looking.rows() if row[0] == int(PORTED[1:])]
    if why != "suspended":
        assert await pool.fetchval("SELECT count(*) FROM queue WHERE id = $1 AND due_at > now()", id) == 0


def test_a_route_to_any_network_of_a_country_has_its_numbers_looked_up() -> None:
    """Also for a network that the numbering plan does not list, such as a virtual operator's, or any in a country for
    which it lists none: only look-ups and receipts can tell."""
    named = ("643-03", "234-33", "310-260", "404-10", "425-05", "999-01", None)
    found = countries([Route(id=uuid7(), name=f"{one}", network=one) for one in named])
    assert found == {"MZ", "GB", "US", "IN", "PS"}


async def test_what_a_paused_supplier_was_to_be_asked_makes_room_for_others(looking: Looking, pool: Pool) -> None:
    await looking.add()
    await message(pool, await organization(pool), to=PORTED)
    await looking.bench.round()
    async with pool.acquire() as conn:
        await accounts.set_state(conn, account="mnp", state="paused")
    await looking.refresh()
    assert await looking.lookups.round() == 0
    assert [row[1] for row in await looking.rows()] == ["asked"]
    await pool.execute("UPDATE number_lookups SET asked_at = asked_at - $1::interval", asked.NOBODY)
    assert await looking.lookups.round() == 0
    assert [row[1] for row in await looking.rows()] == ["failed"]
    assert looking.aggregator.looked_up == []
    assert not await pool.fetchval(f"SELECT {asked.ANY}")


async def test_the_account_of_the_country_is_asked_and_a_removed_one_keeps_no_secret(pool: Pool) -> None:
    async with pool.acquire() as conn:
        await conn.execute("DELETE FROM lookup_suppliers")
        for name, countries in (("all", []), ("near", ["MZ", "ZA"])):
            values = PRICED | {"countries": countries}
            await accounts.add(conn, KEY, name=name, kind="infobip", values=values, secrets={SECRET: API_KEY})
        known = await accounts.load(conn)
        chosen = [accounts.serving(known, country) for country in ("MZ", "KE")]
        assert [one.name for one in chosen if one] == ["near", "all"]
        with pytest.raises(Invalid, match="already"):
            await accounts.add(conn, KEY, name="all", kind="infobip", values=PRICED, secrets={SECRET: API_KEY})
        changed = await accounts.change(
            conn, KEY, account="near", values=accounts.parsed("infobip", ["price=0.004", "countries=", "reuses=9"])
        )
        assert (changed.settings.cost, changed.settings.countries, changed.settings.reuses) == (4_000, (), 9.0)
        assert (
            accounts.open_secret(KEY, (await accounts.load(conn))[1]) == msgspec.json.encode({SECRET: API_KEY}).decode()
        )
        for pair, named in (("price=free", "price"), ("reuses=often", "reuses"), ("colour=red", "colour")):
            with pytest.raises(Invalid, match=named):
                await accounts.change(conn, KEY, account="near", values=accounts.parsed("infobip", [pair]))
        await accounts.set_state(conn, account="near", state="removed")
        assert [one.name for one in await accounts.load(conn)] == ["all"]
        assert await conn.fetchval("SELECT secret = '' FROM lookup_suppliers WHERE name = 'near'")
        with pytest.raises(NotFound):
            await accounts.set_state(conn, account="near", state="active")


async def test_explain_says_that_a_number_is_looked_up_and_how_its_network_is_known(
    looking: Looking, pool: Pool
) -> None:
    await looking.add()
    actor = await organization(pool)
    for one in (looking.movitel, looking.rest):
        await pool.execute(
            "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
            " VALUES ($1, $2, 'smpp', '{}', '', now(), now())",
            one.id,
            f"{one.name} {one.id}",
        )
    async with pool.acquire() as conn:
        for route in looking.routes:
            await rules.add(conn, msgspec.structs.replace(route, name=f"{route.name} {route.id}"))

    async def explained(to: str) -> tuple[str | None, str]:
        async with pool.acquire() as conn:
            said = await explaining.explain(
                conn,
                to,
                organization_id=actor.organization_id,
                organization="acme",
                sender="ACME",
                traffic_class="otp",
            )
        return said.network, (said.route or "").split()[0]

    range_ = "643-04 (by its range"
    assert await explained(PORTED) == (f"{range_}, looked up first by mnp for 0.003 EUR)", "rest")
    for to in (PORTED, UNKNOWN):
        await message(pool, actor, to=to)
    await looking.bench.round()
    await looking.lookups.round()
    assert await explained(PORTED) == ("643-03 (known from a look-up)", "network")
    assert await explained(UNKNOWN) == (f"{range_}, not found)", "rest")
    await pool.execute(
        "UPDATE number_networks SET learned_at = learned_at - $1::interval", learned.KEPT + timedelta(days=1)
    )
    # Vector R9: the known network is stale, and the new look-up failed.
    day = await pool.fetchval("SELECT to_char(max(learned_at AT TIME ZONE 'UTC'), 'YYYY-MM-DD') FROM number_networks")
    stale = f"{range_}, stale: 643-03 on {day}, too long ago"
    network, route = await explained(PORTED)
    assert ((network or "").startswith(stale), route) == (True, "rest")
    await pool.execute(
        "UPDATE number_lookups SET state = 'failed', answered_at = now() WHERE number = $1", int(PORTED[1:])
    )
    assert await explained(PORTED) == (f"{stale}, its look-up failed)", "rest")
    async with pool.acquire() as conn:
        for route in await rules.load(conn):
            await rules.remove(conn, route)
