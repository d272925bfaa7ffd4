"""Prices at acceptance, costs at the attempt, and margins that agree with the messages."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts.organizations import DestinationNotAllowed
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.money import UNIT, Charge
from heliograph.networks import learned
from heliograph.networks.learned import RECEIPT, LearnedNetwork
from heliograph.prices import book, margins, rows, tariffs
from heliograph.prices.tariff import Tariff
from heliograph.routes.lookup import Choice, Route
from heliograph.sms.accepting import preview
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.accepting.bulk import Bulk, accept_bulk
from heliograph.suppliers.contract import Outcome, Part, Receipt, ReceiptState, Submission, Verdict
from tests.rules.dispatching import Bench
from tests.rules.factories import accepted, organization, send, supplier

TO, PORTED = "+258841234567", "+258841234568"
LIST = "country,mcc,mnc,price,currency,bill_on\nMZ,,,0.05,EUR,submit\nMZ,643,03,0.06,EUR,submit\nPT,,,,EUR,\n"
CARD = "mcc,mnc,prefix,price,currency,bill_on\n643,04,,0.03,EUR,submit\n643,03,,0.04,EUR,delivered\n"


async def tariff(pool: Pool, text: str, *, supplier_id: UUID | None = None, name: str = "list") -> None:
    given = rows.read(text.replace("PT,,,,EUR,", "PT,,,9,EUR,").splitlines(keepends=True))
    async with pool.acquire() as conn:
        await tariffs.import_rates(
            conn, given, kind="cost" if supplier_id else "price", name=name, supplier_id=supplier_id, whole=True
        )


async def default(pool: Pool, text: str = LIST, *, name: str = "list") -> None:
    await tariff(pool, text, name=name)
    async with pool.acquire() as conn:
        await tariffs.make_default(conn, price_list=name)


async def charged(pool: Pool, *names: str) -> list[tuple[Any, ...]]:
    found = await pool.fetch(f"SELECT {', '.join(names)} FROM messages ORDER BY id")
    return [tuple(row) for row in found]


PRICE = ("price", "price_currency", "price_due")
COST = ("network", "cost", "cost_currency", "cost_due")


async def test_a_price_is_settled_when_a_message_is_accepted(pool: Pool) -> None:
    actor, test = await organization(pool), await organization(pool, mode="test")
    await default(pool)
    async with pool.acquire() as conn:
        await learned.learn(conn, [LearnedNetwork(int(PORTED[1:]), "643-03", RECEIPT)])
    acceptor = Acceptor(pool)
    await acceptor.accept(send(actor, to=TO))
    await acceptor.accept(send(actor, "x" * 200, to=PORTED))
    await acceptor.accept(send(actor, to="+27821234567"))
    await acceptor.accept(send(test, to=TO))
    assert await charged(pool, *PRICE) == [
        (50_000, "EUR", "submit"),
        (120_000, "EUR", "submit"),
        (None, None, None),
        (None, None, None),
    ]
    await acceptor.drain()


async def test_a_batch_is_priced_like_each_of_it(pool: Pool) -> None:
    actor, free = await organization(pool), await organization(pool)
    await tariff(pool, LIST)
    async with pool.acquire() as conn:
        await tariffs.assign(conn, actor, price_list="list")
    acceptor = Acceptor(pool)
    answers = await acceptor.accept_many(
        [send(actor, to=TO, key_name="one"), send(free, to=TO), send(actor, to="+351912345678"), send(actor, to=TO)]
    )
    assert [getattr(one, "status", None) for one in answers] == [202, 202, 202, 202]
    prices = await pool.fetch("SELECT organization_id, recipient, price FROM messages ORDER BY id")
    assert [(row["organization_id"] == actor.organization_id, row["price"]) for row in prices] == [
        (True, 50_000),
        (False, None),
        (True, 9 * UNIT),
        (True, 50_000),
    ]
    await acceptor.drain()


async def test_p10_what_was_accepted_keeps_its_price(pool: Pool) -> None:
    actor = await organization(pool)
    await default(pool)
    acceptor = Acceptor(pool)
    await acceptor.accept(send(actor, to=TO))
    await default(pool, LIST.replace("0.05", "0.07"))
    other = Acceptor(pool)
    await other.accept(send(actor, to=TO))
    assert await charged(pool, "price") == [(50_000,), (70_000,)]
    await acceptor.drain()
    await other.drain()


async def test_p10_what_is_accepted_before_a_price_changes_and_sent_after_it_keeps_its_price(pool: Pool) -> None:
    """A supplier charges what its card says on the day of the attempt."""
    later = "2999-07-01"
    dated = (
        f"mcc,mnc,price,currency,effective_from,effective_to\n643,04,0.038,EUR,,{later}\n643,04,0.041,EUR,{later},\n"
    )
    made = await carried(pool, prices=dated, card=dated)
    await made.acceptor.accept(send(made.actor, to=TO))
    # That day comes.
    for column in ("effective_to", "effective_from"):
        await pool.execute(f"UPDATE tariff_rates SET {column} = now() - interval '1 minute' WHERE {column} IS NOT NULL")
    await pool.execute("UPDATE tariffs SET changed_at = now()")
    after = Acceptor(pool)
    await after.accept(send(made.actor, to=TO))
    assert await charged(pool, "price") == [(38_000,), (41_000,)]
    made.bench.charges._refreshed_at = float("-inf")
    await made.bench.charges.refresh(pool)
    await made.bench.round()
    assert await charged(pool, "price", "cost") == [(38_000, 41_000), (41_000, 41_000)]
    assert await totals(pool) == [("643-04", 2, 2, 79_000, 82_000, -3_000)]
    await made.acceptor.drain()
    await after.drain()


async def test_an_import_counts_within_seconds_also_where_nobody_asked_for_long(pool: Pool) -> None:
    actor = await organization(pool)
    acceptor = Acceptor(pool)
    await acceptor.accept(send(actor, to=TO))
    await default(pool)
    acceptor.charges._held._refreshed_at -= 3600
    await acceptor.accept(send(actor, to=TO))
    assert await charged(pool, "price") == [(None,), (50_000,)]
    await acceptor.drain()


async def test_a_rate_that_had_ended_only_by_a_clock_that_was_ahead_counts_once_it_is_set_back(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process had loaded the list while the clock was ahead."""
    actor = await organization(pool)
    ends = (clock.now() + timedelta(days=1)).date()
    await default(
        pool, f"country,price,currency,effective_from,effective_to\nMZ,0.05,EUR,,{ends}\nMZ,0.06,EUR,{ends},\n"
    )
    acceptor, at = Acceptor(pool), clock.now
    with monkeypatch.context() as ahead:
        ahead.setattr(clock, "now", lambda: at() + timedelta(days=3))
        held = await acceptor.charges.get()
    await held.book.refresh(pool)
    await acceptor.accept(send(actor, to=TO))
    assert await charged(pool, "price") == [(50_000,)]
    await acceptor.drain()


async def test_where_the_price_list_rejects_nothing_is_accepted(pool: Pool) -> None:
    actor = await organization(pool)
    await default(pool, "country,price,currency,reject\nMZ,0.05,EUR,yes\nPT,0.05,EUR,\n")
    acceptor = Acceptor(pool)
    with pytest.raises(DestinationNotAllowed) as refused:
        await acceptor.accept(send(actor, to=TO))
    assert refused.value.details == {"country": "MZ", "reason": "not_carried"}
    await acceptor.accept(send(actor, to="+351912345678"))
    assert await charged(pool, "price") == [(50_000,)]
    await acceptor.drain()


@pytest.mark.parametrize("opted_out", [False, True])
async def test_a_preview_refuses_what_the_price_list_rejects_as_the_send_does(pool: Pool, opted_out: bool) -> None:
    actor = await organization(pool)
    await default(pool, "country,price,currency,reject\nMZ,0.05,EUR,yes\nPT,0.05,EUR,\n")
    if opted_out:
        await pool.execute("INSERT INTO opt_outs VALUES ($1, $2, now(), 'test')", actor.organization_id, TO)
    acceptor, wanted = Acceptor(pool), send(actor, to=TO)
    with pytest.raises(DestinationNotAllowed) as sent:
        await acceptor.accept(wanted)
    for asked in (acceptor, Acceptor(pool)):
        # Also if no prices have been loaded yet: then they are read on the connection that the preview holds.
        async with pool.acquire() as conn:
            with pytest.raises(DestinationNotAllowed) as shown:
                await preview.preview(conn, asked, wanted)
            assert shown.value.details == sent.value.details == {"country": "MZ", "reason": "not_carried"}
            assert (await preview.preview(conn, asked, send(actor, to="+351912345678"))).cost == 1
            if not opted_out:
                tester = msgspec.structs.replace(actor, mode="test")
                assert (await preview.preview(conn, asked, send(tester, to=TO))).cost == 0
        await asked.drain()
    assert await charged(pool, "price") == []


async def test_messages_of_a_campaign_have_their_prices(pool: Pool) -> None:
    actor = await organization(pool)
    sender_id = await pool.fetchval("SELECT id FROM sender_ids WHERE organization_id = $1", actor.organization_id)
    bulk = Bulk(
        organization_id=actor.organization_id,
        mode="live",
        campaign_id=uuid7(),
        sender_id=sender_id,
        sender="ACME",
        request_id="r",
        ids=[uuid7() for _ in range(3)],
        recipients=[TO, PORTED, "+351912345678"],
        texts=[],
        text="hello",
        encodings=["gsm7"] * 3,
        segments=[1] * 3,
        due=[],
        prices=[Charge(5, "EUR", "submit"), None, Charge(7, "USD", "delivered")],
    )
    async with pool.acquire() as conn:
        assert await accept_bulk(conn, bulk, at=clock.now()) is not None
    assert await charged(pool, *PRICE) == [(5, "EUR", "submit"), (None, None, None), (7, "USD", "delivered")]


class Carried:
    """A supplier with a rate card, an organization with a price list, and a worker."""

    actor: Actor
    bench: Bench
    acceptor: Acceptor


async def carried(pool: Pool, *, prices: str = LIST, card: str = CARD, route: str | None = None) -> Carried:
    """`route`: the name of the supplier's route to Mozambique."""
    made = Carried()
    made.actor = await organization(pool)
    row = supplier()
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        " VALUES ($1, $2, 'smpp', '{}', '', now(), now())",
        row.id,
        row.name,
    )
    await default(pool, prices)
    await tariff(pool, card, supplier_id=row.id, name=row.name)
    routes = [Route(id=uuid7(), name=route, country="MZ", choices=(Choice(row.id),))] if route else []
    made.bench, made.acceptor = Bench(pool, row, routes=routes), Acceptor(pool)
    await made.bench.charges.refresh(pool)
    return made


async def test_rates_are_compiled_beside_the_event_loop(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that other requests are served meanwhile. Comparing suppliers does not load price lists."""
    await carried(pool)
    compiled, on_loop = [], []

    def noted(id: UUID, name: str, *given: Any) -> Tariff:
        compiled.append(name)
        with suppress(RuntimeError):
            on_loop.append(asyncio.get_running_loop())
        return Tariff(id, name, *given)

    monkeypatch.setattr(book, "Tariff", noted)
    found = book.Book(kinds=("cost",))
    await found.refresh(pool)
    assert (compiled, on_loop, found.has_cards, found.has_lists) == (["one"], [], True, False)


async def test_a_long_text_costs_its_segments_also_where_it_is_handed_over_whole(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP suppliers split texts themselves."""
    made = await carried(pool)
    monkeypatch.setattr(made.bench.only, "parts", lambda submission: 1, raising=False)
    for text in ("x" * 200, "é😀" * 60, "x"):
        await made.acceptor.accept(send(made.actor, text, to=TO))
    await made.acceptor.drain()
    await made.bench.round()
    assert sorted(await charged(pool, "cost", "segments")) == [(30_000, 1), (60_000, 2), (90_000, 3)]


async def totals(pool: Pool) -> list[tuple[Any, ...]]:
    async with pool.acquire() as conn:
        today = clock.now().date()
        lines = await margins.read(conn, first=today, last=today + timedelta(days=1), by=["country", "network"])
    return [(one.network, one.messages, one.segments, one.price, one.cost, one.margin) for one in lines]


async def test_a_cost_is_settled_with_the_attempt_and_both_become_due_when_it_is_taken(pool: Pool) -> None:
    made = await carried(pool)
    await made.acceptor.accept(send(made.actor, "x" * 200, to=TO))
    assert await totals(pool) == []
    await made.bench.round()
    assert await charged(pool, *COST, "price") == [("643-04", 60_000, "EUR", "submit", 100_000)]
    row = await pool.fetchrow("SELECT cost, cost_currency, cost_due FROM attempts")
    assert tuple(row) == (60_000, "EUR", "submit")
    assert await totals(pool) == [("643-04", 1, 2, 100_000, 60_000, 40_000)]
    async with pool.acquire() as conn:
        assert await margins.fold(conn) == 1
    assert await totals(pool) == [("643-04", 1, 2, 100_000, 60_000, 40_000)]
    await made.acceptor.drain()


def receipt(state: ReceiptState, id: str, to: str = PORTED) -> Receipt:
    return Receipt((id,), state, to[1:], "ACME", f"{state} {id}".encode())


@pytest.mark.parametrize("arrives", [True, False], ids=["delivered", "P9"])
async def test_p9_what_is_billed_on_delivery_costs_nothing_before(pool: Pool, arrives: bool) -> None:
    made = await carried(pool)
    async with pool.acquire() as conn:
        await learned.learn(conn, [LearnedNetwork(int(PORTED[1:]), "643-03", RECEIPT)])
    made.bench.charges._refreshed_at = float("-inf")
    await made.bench.charges.refresh(pool)
    made.bench.only.script = lambda submission: accepted("k1")
    await made.acceptor.accept(send(made.actor, to=PORTED))
    await made.bench.round()
    assert await totals(pool) == [("643-03", 1, 1, 60_000, 0, 60_000)]
    state = ReceiptState.DELIVERED if arrives else ReceiptState.UNDELIVERED
    await made.bench.receive(made.bench.only_id, receipt(state, "k1"))
    await made.bench.receive(made.bench.only_id, receipt(state, "k1"))
    cost = 40_000 if arrives else 0
    assert await totals(pool) == [("643-03", 1, 1, 60_000, cost, 60_000 - cost)]
    await made.acceptor.drain()


async def test_what_became_due_stands_under_the_route_as_it_was_when_its_message_was_taken(pool: Pool) -> None:
    prices = LIST.replace("MZ,643,03,0.06,EUR,submit", "MZ,643,03,0.06,EUR,delivered") + "ZA,,,0.07,EUR,submit\n"
    made = await carried(pool, prices=prices, route="codes")
    ids = iter(("k1", "k2", "k3"))
    made.bench.only.script = lambda submission: accepted(next(ids))
    to = "+258861234567"
    await made.acceptor.accept(send(made.actor, to=to))
    await made.bench.round()
    # It is removed before the receipt arrives, and before the next message is claimed.
    made.bench.channel._selection._routes = lambda: ()
    await made.bench.receive(made.bench.only_id, receipt(ReceiptState.DELIVERED, "k1", to))
    await made.acceptor.accept(send(made.actor, to=TO))
    await made.acceptor.accept(send(made.actor, to="+27821234567"))
    await made.bench.round()
    today = clock.now().date()

    async def by_route(**filters: str) -> list[tuple[Any, ...]]:
        async with pool.acquire() as conn:
            lines = await margins.read(conn, first=today, last=today + timedelta(days=1), by=["route"], **filters)
        return [(one.route, one.messages, one.price, one.cost, one.cost_currency) for one in lines]

    expected = [("", 1, 70_000, 0, ""), ("", 1, 50_000, 30_000, "EUR"), ("codes", 1, 60_000, 40_000, "EUR")]
    for _ in range(2):
        assert await by_route() == expected
        assert await by_route(route="codes") == expected[2:]
        async with pool.acquire() as conn:
            await margins.fold(conn)
    await made.acceptor.drain()


async def test_what_no_supplier_took_is_due_from_nobody(pool: Pool) -> None:
    made = await carried(pool)
    made.bench.only.script = lambda submission: Outcome(Verdict.REFUSED, code="0x0000000B", total=1)
    await made.acceptor.accept(send(made.actor, to=TO))
    await made.bench.round()
    assert await pool.fetchval("SELECT status FROM messages") == "rejected"
    assert await totals(pool) == []
    assert await charged(pool, "cost", "price") == [(None, 50_000)]
    assert await pool.fetchval("SELECT cost FROM attempts") == 30_000
    await made.acceptor.drain()


async def test_amounts_of_two_currencies_are_not_added(pool: Pool) -> None:
    made = await carried(pool, card=CARD.replace("EUR", "USD"))
    await made.acceptor.accept(send(made.actor, to=TO))
    await made.bench.round()
    assert await totals(pool) == [("643-04", 1, 1, 50_000, 30_000, None)]
    await made.acceptor.drain()


async def test_a_message_without_any_price_leaves_no_row(pool: Pool) -> None:
    actor = await organization(pool)
    bench, acceptor = Bench(pool), Acceptor(pool)
    await acceptor.accept(send(actor, to=TO))
    await bench.round()
    assert await charged(pool, "network", "cost", "price") == [("643-04", None, None)]
    assert await pool.fetchval("SELECT count(*) FROM margin_deltas") == 0
    await acceptor.drain()


async def test_margins_are_the_sums_of_their_messages(pool: Pool) -> None:
    made = await carried(pool, prices=LIST.replace("0.05,EUR,submit", "0.05,EUR,delivered"))
    taken = 0

    def answer(submission: Submission) -> Outcome:
        nonlocal taken
        taken += 1
        if taken % 5 == 0:
            return Outcome(Verdict.REFUSED, code="0x0000000B", total=1)
        return Outcome(Verdict.ACCEPTED, (Part(1, f"n{taken}"),))

    made.bench.only.script = answer
    await made.acceptor.accept_many([send(made.actor, to=f"+2588412345{n:02d}") for n in range(40)])
    await made.bench.round(2)
    ids = await pool.fetch("SELECT supplier_message_id AS id FROM attempts WHERE state = 'accepted' ORDER BY 1")
    received = [
        Receipt((row["id"],), ReceiptState.DELIVERED if n % 3 else ReceiptState.EXPIRED, "", "", row["id"].encode())
        for n, row in enumerate(ids)
    ]
    await made.bench.receive(made.bench.only_id, *received[:20])
    await made.bench.receive(made.bench.only_id, *received)
    expected = await pool.fetchrow(
        "SELECT count(*) FILTER (WHERE sent_at IS NOT NULL) AS messages,"
        " sum(price) FILTER (WHERE status = 'delivered')::bigint AS price,"
        " sum(cost) FILTER (WHERE sent_at IS NOT NULL)::bigint AS cost FROM messages"
    )
    assert expected["messages"] == 32
    assert await totals(pool) == [
        ("643-04", 32, 32, expected["price"], expected["cost"], expected["price"] - expected["cost"])
    ]
    await made.acceptor.drain()
