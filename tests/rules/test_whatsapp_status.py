"""A WhatsApp message's way through its states: any order and any number of statuses end in the same row, with the same
money and at most the events that the contract allows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.suppliers.whatsapp_cloud import errors as whatsapp_errors
from heliograph.whatsapp import intervening, status
from heliograph.whatsapp.money import rates
from heliograph.whatsapp.money.rates import RateBook
from heliograph.whatsapp.status import Move, Pricing, move_many
from tests.rules.factories import endpoint, events_of
from tests.rules.machines import Machine, run_machine
from tests.rules.whatsapp_factories import Made, check_wallets, made, message

REGULAR, FREE = Pricing("regular", "utility"), Pricing("free_customer_service", "service")
ABROAD = Pricing("regular", "authentication")
#: There is no rate for it.
UNRATED = Pricing("regular", "authentication-international")
PRICE = 10_000


async def move(pool: Pool, *moves: Move, announce: Any = None) -> set[UUID]:
    async with pool.acquire() as conn, conn.transaction():
        moved, _ = await move_many(conn, moves, rates=RateBook(pool), announce=announce)
    return moved


def says(who: Made, id: UUID, word: str, seconds: float = 0.0, **values: Any) -> Move:
    code = "recipient_unreachable" if word == "failed" else None
    at = clock.now() + timedelta(seconds=seconds)
    return Move(who.organization_id, id, word, at, values.pop("failure_code", code), **values)


async def row_of(pool: Pool, id: UUID) -> Any:
    return await pool.fetchrow("SELECT * FROM whatsapp_messages WHERE id = $1", id)


async def test_the_usual_way_consumes_at_delivery_and_raises_one_event(pool: Pool) -> None:
    who = await made(pool)
    id = await message(pool, who, queued=False)
    assert await move(pool, says(who, id, "sent")) == {id}
    assert (await row_of(pool, id))["charge"] == "reserved"
    assert await move(pool, says(who, id, "delivered", pricing=REGULAR)) == {id}
    assert await move(pool, says(who, id, "read")) == {id}
    row = await row_of(pool, id)
    assert (row["status"], row["charge"], row["consumed"], row["pricing"]) == (
        "read",
        "consumed",
        PRICE,
        "regular/utility",
    )
    assert row["sent_at"] <= row["delivered_at"] <= row["read_at"]
    assert await events_of(pool, id) == ["message.delivered"]
    await check_wallets(pool, [who.organization_id])


async def test_read_then_delivered_then_sent_is_read(pool: Pool) -> None:
    who = await made(pool)
    id = await message(pool, who, queued=False)
    for word, seconds in (("read", 3), ("delivered", 2), ("sent", 1)):
        await move(pool, says(who, id, word, seconds))
    row = await row_of(pool, id)
    assert row["status"] == "read"
    assert row["sent_at"] < row["delivered_at"] < row["read_at"]
    assert await events_of(pool, id) == ["message.delivered"]


async def test_fifty_times_delivered_at_once_is_one_consumption(pool: Pool) -> None:
    who = await made(pool)
    id = await message(pool, who, queued=False)
    one = says(who, id, "delivered", pricing=REGULAR)
    results = await asyncio.gather(*(move(pool, one) for _ in range(50)))
    assert sum(len(moved) for moved in results) == 1
    assert (await row_of(pool, id))["consumed"] == PRICE
    assert await events_of(pool, id) == ["message.delivered"]
    await check_wallets(pool, [who.organization_id])


async def test_a_late_delivery_takes_the_failure_back_and_is_paid_for(pool: Pool) -> None:
    who = await made(pool, balance=PRICE)
    id = await message(pool, who, queued=False)
    await move(pool, says(who, id, "failed", failure_code="expired"))
    row = await row_of(pool, id)
    assert (row["status"], row["failure_code"], row["charge"]) == ("failed", "expired", "released")
    # What was given back is spent meanwhile, so the balance goes below zero.
    await message(pool, who, queued=False)
    await move(pool, says(who, id, "delivered", pricing=REGULAR))
    row = await row_of(pool, id)
    assert (row["status"], row["failure_code"], row["failed_at"]) == ("delivered", None, None)
    assert row["charge"] == "consumed"
    await move(pool, says(who, id, "delivered"), says(who, id, "failed"))
    assert await events_of(pool, id) == ["message.failed", "message.delivered"]
    wallet = await pool.fetchrow("SELECT available, consumed FROM wallets")
    assert tuple(wallet) == (-PRICE, PRICE)
    await check_wallets(pool, [who.organization_id])


async def test_a_failure_after_delivery_changes_nothing(pool: Pool) -> None:
    who = await made(pool)
    id = await message(pool, who, queued=False)
    await move(pool, says(who, id, "delivered"))
    before = await row_of(pool, id)
    assert await move(pool, says(who, id, "failed", 5)) == set()
    assert await row_of(pool, id) == before
    assert await events_of(pool, id) == ["message.delivered"]


@pytest.mark.parametrize(
    ("pricing", "consumed"),
    [(FREE, 0), (REGULAR, PRICE), (ABROAD, 30_000), (UNRATED, PRICE)],
)
async def test_the_price_is_what_meta_says_whenever_it_says_so(pool: Pool, pricing: Pricing, consumed: int) -> None:
    """With the status before, with it, or after; a category without a rate costs what was reserved."""
    who = await made(pool)
    before, within, after = [await message(pool, who, queued=False) for _ in range(3)]
    await move(pool, says(who, before, "sent", pricing=pricing))
    await move(pool, says(who, before, "delivered"))
    await move(pool, says(who, within, "delivered", pricing=pricing))
    await move(pool, says(who, after, "delivered"))
    for _ in range(2):
        await move(pool, says(who, after, "read", pricing=pricing))
    for id in (before, within, after):
        assert (await row_of(pool, id))["consumed"] == consumed
    await check_wallets(pool, [who.organization_id])


@pytest.mark.parametrize("earlier", [FREE, ABROAD, REGULAR, UNRATED, None])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_category_without_a_rate_costs_what_was_reserved_whatever_was_said_before(
    pool: Pool, earlier: Pricing | None, is_late: bool
) -> None:
    """That of `read` counts, whichever comes first."""
    who = await made(pool)
    id = await message(pool, who, queued=False)
    both = [says(who, id, "delivered", pricing=earlier), says(who, id, "read", pricing=UNRATED)]
    for one in reversed(both) if is_late else both:
        await move(pool, one)
    assert (await row_of(pool, id))["consumed"] == PRICE
    await check_wallets(pool, [who.organization_id])


@pytest.mark.parametrize("spelling", ["authentication-international", "authentication_international"])
async def test_an_authentication_message_from_abroad_costs_what_meta_charges_there(pool: Pool, spelling: str) -> None:
    """In either of the spellings, in the file as in the status."""
    who = await made(pool)
    id = await message(pool, who, queued=False)
    lines = ["currency,category,country,valid_from,price", f"EUR,{spelling},*,2025-01-01,0.09"]
    async with pool.acquire() as conn:
        await rates.import_rates(conn, rates.read_rates(lines))
    await move(pool, says(who, id, "delivered", pricing=Pricing("regular", spelling)))
    assert (await row_of(pool, id))["consumed"] == 90_000
    await check_wallets(pool, [who.organization_id])


@pytest.mark.parametrize(("pricing", "consumed"), [(FREE, 0), (REGULAR, PRICE), (ABROAD, 30_000)])
@pytest.mark.parametrize("ends", ["delivered", "read"])
async def test_the_price_is_what_meta_said_also_where_an_operator_says_that_it_arrived(
    pool: Pool, pricing: Pricing, consumed: int, ends: str
) -> None:
    who = await made(pool)
    id = await message(pool, who, queued=False)
    await move(pool, says(who, id, "sent", pricing=pricing))
    async with pool.acquire() as conn:
        await intervening.decide(
            conn, Principal("operator", name="kim"), id=id, status=ends, reason="their ticket 4711"
        )
    assert (await row_of(pool, id))["consumed"] == consumed
    await check_wallets(pool, [who.organization_id])


async def test_a_free_price_lowers_what_is_reserved(pool: Pool) -> None:
    who = await made(pool)
    id = await message(pool, who, queued=False)
    await move(pool, says(who, id, "sent", pricing=FREE))
    row = await row_of(pool, id)
    assert (row["charge"], row["reserved"]) == ("reserved", 0)
    await move(pool, says(who, id, "failed"))
    assert (await row_of(pool, id))["charge"] == "released"
    await check_wallets(pool, [who.organization_id])


async def test_sent_and_read_are_told_to_those_who_asked(pool: Pool) -> None:
    who, other = await made(pool), await made(pool)
    await endpoint(pool, who.actor, "message.sent", "message.read")
    wanted = frozenset({(who.organization_id, "live")})
    announce = {"message.sent": wanted, "message.read": wanted}
    mine, theirs = await message(pool, who, queued=False), await message(pool, other, queued=False)
    for _ in range(2):
        await move(pool, *(says(*one, word) for one in ((who, mine), (other, theirs)) for word in ("sent", "read")),
                   announce=announce)  # fmt: skip
    assert await events_of(pool, mine) == ["message.sent", "message.delivered", "message.read"]
    assert await events_of(pool, theirs) == ["message.delivered"]
    rows = await pool.fetch("SELECT kind, data FROM events WHERE message_id = $1 ORDER BY id", mine)
    shown = [msgspec.json.decode(row["data"])["message"] for row in rows]
    assert [one["status"] for one in shown] == ["sent", "delivered", "read"]
    assert {one["channel"] for one in shown} == {"whatsapp"}
    assert shown[-1]["readAt"] is not None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("delivered", "sent", "sent"), ["message.sent", "message.delivered"]),
        (("read", "delivered", "sent"), ["message.sent", "message.delivered", "message.read"]),
        (("failed", "sent", "delivered"), ["message.failed", "message.delivered"]),
    ],
)
async def test_a_message_is_told_as_sent_once_in_any_order(pool: Pool, words: Sequence[str], told: list[str]) -> None:
    """Callbacks have no order, and Meta leaves out what a later status implies."""
    who = await made(pool)
    await endpoint(pool, who.actor, "message.sent", "message.read")
    wanted = frozenset({(who.organization_id, "live")})
    id = await message(pool, who, queued=False)
    for word in words:
        await move(pool, says(who, id, word), announce={"message.sent": wanted, "message.read": wanted})
    assert await events_of(pool, id) == told


async def test_what_is_decided_before_an_answer_gives_way_to_it(pool: Pool) -> None:
    """A failure decided here is void once Meta has the message, and nothing is canceled that may have gone out."""
    who = await made(pool)
    taken, open_, fresh = [await message(pool, who, status="queued", queued=False) for _ in range(3)]
    await pool.executemany(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
        " VALUES ($1, $2, 1, $3, $4, now(), now())",
        [(who.organization_id, id, who.number_id, state) for id, state in ((taken, "accepted"), (open_, "unknown"))],
    )
    assert await move(pool, says(who, taken, "failed", unsent=True), says(who, fresh, "failed", unsent=True)) == {fresh}
    assert await move(pool, says(who, taken, "canceled"), says(who, open_, "canceled")) == set()
    waiting = await message(pool, who)
    assert await move(pool, says(who, waiting, "canceled")) == {waiting}
    row = await row_of(pool, waiting)
    assert (row["status"], row["charge"]) == ("canceled", "released")
    assert await events_of(pool, waiting) == []
    # In one breath: what Meta says is heard alone.
    both = await message(pool, who, queued=False)
    await move(pool, says(who, both, "failed", unsent=True), says(who, both, "sent"))
    assert (await row_of(pool, both))["status"] == "sent"
    await check_wallets(pool, [who.organization_id])


async def test_another_organization_s_message_does_not_move(pool: Pool) -> None:
    who, other = await made(pool), await made(pool)
    id = await message(pool, who, queued=False)
    assert await move(pool, says(other, id, "delivered")) == set()
    assert (await row_of(pool, id))["status"] == "accepted"


def test_every_failure_has_a_sentence() -> None:
    assert status.FAILURES.keys() >= whatsapp_errors.FAILURES


class Order(Machine):
    """Statuses of one message, each with its time and its price, in any order, number and company."""

    tables = ("wallet_movements", "wallet_ledger", "events", "queue", "whatsapp_messages", "whatsapp_aliases",
              "whatsapp_conversations", "whatsapp_templates", "whatsapp_numbers", "whatsapp_accounts", "whatsapp_apps",
              "wallets", "sender_ids", "usage_ledger", "quotas", "organizations")  # fmt: skip
    words = ("sent", "failed", "delivered", "read")

    @initialize(prices=st.lists(st.sampled_from([None, None, REGULAR, FREE, ABROAD, UNRATED]), min_size=3, max_size=3))
    def begin(self, prices: list[Pricing | None]) -> None:
        self.who = self.run(made(self.pool))
        self.id = self.run(message(self.pool, self.who, queued=False))
        pricing = dict(zip(("sent", "delivered", "read"), prices, strict=True))
        self.all = {
            word: says(self.who, self.id, word, seconds, pricing=pricing.get(word))
            for seconds, word in enumerate(self.words, 1)
        }
        self.said: set[str] = set()

    @rule(words=st.lists(st.sampled_from(words), min_size=1, max_size=4))
    def say(self, words: list[str]) -> None:
        self.run(move(self.pool, *(self.all[word] for word in words)))
        self.said.update(words)

    @invariant()
    def follows_from_what_was_said_alone(self) -> None:
        row = self.run(row_of(self.pool, self.id))
        said = self.said
        arrived = bool(said & {"delivered", "read"})
        best = max(said, key=lambda word: status.RANK[word], default="accepted")
        assert row["status"] == best
        times = {word: self.all[word].at for word in said}
        assert row["sent_at"] == min((times[word] for word in said - {"failed"}), default=None)
        assert row["delivered_at"] == min((times[word] for word in said & {"delivered", "read"}), default=None)
        assert row["read_at"] == times.get("read")
        assert row["failed_at"] == (times["failed"] if best == "failed" else None)
        assert (row["failure_code"] is not None) == (best == "failed")
        priced = [self.all[word].pricing for word in ("read", "delivered", "sent") if word in said]
        pricing = next((one for one in priced if one), None)
        if arrived:
            price = {None: PRICE, REGULAR: PRICE, FREE: 0, ABROAD: 30_000, UNRATED: PRICE}[pricing]
            assert (row["charge"], row["consumed"]) == ("consumed", price)
        else:
            assert row["charge"] == ("released" if best == "failed" else "reserved")
        kinds = self.run(events_of(self.pool, self.id))
        assert kinds.count("message.delivered") == arrived
        assert kinds.count("message.failed") <= ("failed" in said)
        assert kinds in ([], ["message.delivered"], ["message.failed"], ["message.failed", "message.delivered"])
        self.run(check_wallets(self.pool, [self.who.organization_id]))


async def test_statuses_in_any_order_end_alike(database_url: str) -> None:
    await asyncio.to_thread(run_machine, Order, database_url)
