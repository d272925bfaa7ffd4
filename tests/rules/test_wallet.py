"""The wallet: how messages settle, once, in any order; and operators' credits and debits."""

from __future__ import annotations

import asyncio
import itertools
import json
from uuid import UUID

import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7
from heliograph.base.money import UNIT, decimal, micros
from heliograph.whatsapp.money import wallet
from heliograph.whatsapp.money.wallet import Movement, Wallet, WalletInsufficientFunds
from tests import wallets
from tests.rules import factories
from tests.rules import whatsapp_factories as making
from tests.rules.whatsapp_factories import Made, check_wallets, made


async def settle(pool: Pool, *movements: Movement) -> set[tuple[UUID, str]]:
    async with pool.acquire() as conn, conn.transaction():
        return await wallets.settle(conn, movements)


async def balance(pool: Pool, one: Made) -> tuple[int, int, int]:
    async with pool.acquire() as conn:
        found = await wallet.show(conn, one.actor)
    await check_wallets(pool, [one.organization_id])
    return found.available, found.reserved, found.consumed


async def test_what_becomes_of_a_message_moves_its_price(pool: Pool) -> None:
    one = await made(pool, balance=100)
    gone, lost, late, cheap = [await making.message(pool, one, price=10) for _ in range(4)]
    me = one.organization_id
    assert await balance(pool, one) == (60, 40, 0)
    await settle(pool, Movement(me, gone, "consume", 8, "regular/utility"), Movement(me, lost, "release"))
    assert await balance(pool, one) == (72, 20, 8)
    await settle(pool, Movement(me, late, "release"))
    await settle(pool, Movement(me, late, "consume", 10))
    assert await balance(pool, one) == (72, 10, 18)
    await settle(pool, Movement(me, cheap, "lower", 0, "free"), Movement(me, cheap, "consume", 0, "free"))
    assert await balance(pool, one) == (82, 0, 18)
    await settle(pool, Movement(me, gone, "reprice", 20, "regular/marketing"))
    assert await balance(pool, one) == (70, 0, 30)


async def test_what_was_done_before_changes_nothing(pool: Pool) -> None:
    one = await made(pool, balance=100)
    id = await making.message(pool, one, price=10)
    me = one.organization_id
    lower = Movement(me, id, "lower", 4, "free")
    consume = Movement(me, id, "consume", 10, "regular")
    reprice = Movement(me, id, "reprice", 7, "other")
    assert await settle(pool, lower, lower, Movement(me, id, "lower", 2, "free")) == {(id, "lower")}
    assert await settle(pool, consume, consume) == {(id, "consume")}
    assert await settle(pool, consume, lower, Movement(me, id, "release")) == set()
    assert await settle(pool, Movement(me, id, "reprice", 1, "regular")) == set()
    assert await settle(pool, reprice) == {(id, "reprice")}
    assert await settle(pool, Movement(me, id, "reprice", 9, "third"), reprice, reprice) == {(id, "reprice")}
    assert await balance(pool, one) == (91, 0, 9)


async def test_late_delivery_may_drive_what_is_available_below_zero(pool: Pool) -> None:
    one = await made(pool, balance=10)
    first = await making.message(pool, one, price=10)
    await settle(pool, Movement(one.organization_id, first, "release"))
    second = await making.message(pool, one, price=10)
    await settle(pool, Movement(one.organization_id, first, "consume", 10))
    assert await balance(pool, one) == (-10, 10, 10)
    async with pool.acquire() as conn:
        after = await wallet.top_up(conn, one.organization_id, amount=4)
    assert (after.available, after.total) == (-6, 14)
    await settle(pool, Movement(one.organization_id, second, "release"))
    assert await balance(pool, one) == (4, 0, 10)


async def test_a_test_keys_message_and_an_unknown_one_cost_nothing(pool: Pool) -> None:
    one, other = await made(pool, balance=100), await made(pool, balance=100)
    tried = await making.message(pool, one, mode="test")
    theirs = await making.message(pool, other, price=10)
    movements = [
        Movement(one.organization_id, id, kind, 10)
        for id in (tried, theirs, uuid7())
        for kind in ("consume", "release", "lower", "reprice")
    ]
    assert await settle(pool, *movements) == set()
    assert await settle(pool) == set()
    assert await balance(pool, one) == (100, 0, 0)
    assert await balance(pool, other) == (90, 10, 0)


async def test_fifty_at_once_consume_once(pool: Pool) -> None:
    one = await made(pool, balance=100)
    ids = [await making.message(pool, one, price=10) for _ in range(3)]
    movements = [Movement(one.organization_id, id, "consume", 10, "regular") for id in ids]
    some = list(itertools.permutations(movements)) * 8
    done = await asyncio.gather(*(settle(pool, *each) for each in some))
    assert sum(len(each) for each in done) == 3
    assert await balance(pool, one) == (70, 0, 30)


async def test_an_operator_adds_and_takes_what_is_available(pool: Pool) -> None:
    one = await made(pool, balance=100)
    await making.message(pool, one, price=60)
    async with pool.acquire() as conn:
        after = await wallet.adjust(conn, one.organization_id, amount=-40, reason="entered twice")
        assert (after.available, after.reserved, after.total) == (0, 60, 60)
        with pytest.raises(WalletInsufficientFunds) as refused:
            await wallet.adjust(conn, one.organization_id, amount=-1, reason="more")
        assert refused.value.details == {"available": "0.000000", "required": "0.000001", "currency": "EUR"}
        entries = await wallet.ledger(conn, one.actor, limit=2)
        assert [(each.movement, each.available, each.reason) for each in entries] == [
            ("adjustment", -40, "entered twice"),
            ("reserve", -60, None),
        ]
    await check_wallets(pool, [one.organization_id])


async def test_a_first_top_up_chooses_the_currency(pool: Pool) -> None:
    actor = await factories.organization(pool)
    async with pool.acquire() as conn:
        assert await wallet.show(conn, actor) == Wallet(None, 0, 0, 0, 0, None)
        await making.account(pool, actor.organization_id, await making.make_app(pool), currency="MZN")
        assert (await wallet.show(conn, actor)).currency == "MZN"
        with pytest.raises(WalletInsufficientFunds):
            await wallet.adjust(conn, actor.organization_id, amount=-1, reason="nothing there")
        assert (await wallet.show(conn, actor)).updated_at is None
        assert (await wallet.top_up(conn, actor.organization_id, amount=UNIT, currency="EUR")).currency == "EUR"
        logged = await conn.fetchrow("SELECT before::json, after::json FROM audit_log WHERE action = 'wallet.changed'")
        assert json.loads(logged["before"]) == {"total": "0.000000", "currency": None}
        assert json.loads(logged["after"]) == {"total": "1.000000", "currency": "EUR"}
        assert (await wallet.top_up(conn, actor.organization_id, amount=UNIT)).total == 2 * UNIT
        with pytest.raises(Invalid, match="EUR"):
            await wallet.top_up(conn, actor.organization_id, amount=UNIT, currency="USD")


async def test_without_an_account_the_currency_is_asked_for(pool: Pool) -> None:
    id = (await factories.organization(pool)).organization_id
    async with pool.acquire() as conn:
        for _ in range(2):
            for change in (wallet.top_up(conn, id, amount=UNIT), wallet.adjust(conn, id, amount=UNIT, reason="typo")):
                with pytest.raises(Invalid, match="`currency` is required"):
                    await change
            # The alert's wallet is in a currency that nobody chose.
            await wallet.set_alert(conn, id, below=50 * UNIT)
        assert (await wallet.top_up(conn, id, amount=UNIT, currency="EUR")).currency == "EUR"
        assert (await wallet.top_up(conn, id, amount=UNIT)).total == 2 * UNIT
    await check_wallets(pool, [id])


async def test_a_wallet_that_was_never_used_takes_the_currency_of_the_account(pool: Pool) -> None:
    """An alert creates a wallet before the organization's currency is known; so does a free message."""
    actor = await factories.organization(pool)
    id = actor.organization_id
    async with pool.acquire() as conn:
        assert (await wallet.set_alert(conn, id, below=50 * UNIT)).currency == wallet.DEFAULT_CURRENCY
    await making.account(pool, id, await making.make_app(pool), currency="EUR")
    await pool.execute(
        "INSERT INTO wallet_movements (organization_id, id, movement, message_id, available, reserved, consumed,"
        " created_at) VALUES ($1, $2, 'reserve', $2, 0, 0, 0, now())",
        id,
        uuid7(),
    )
    async with pool.acquire() as conn:
        # Until then, too, it is shown in the one in which messages are priced.
        assert (await wallet.show(conn, actor)).currency == "EUR"
        with pytest.raises(WalletInsufficientFunds) as refused:
            await wallet.adjust(conn, id, amount=-1, reason="nothing there")
        assert refused.value.details["currency"] == "EUR"
        found = await wallet.top_up(conn, id, amount=250 * UNIT)
        assert (found.currency, found.available, found.alert_below) == ("EUR", 250 * UNIT, 50 * UNIT)
        # From then on it keeps it, whatever accounts there are.
        await pool.execute("UPDATE whatsapp_accounts SET currency = 'MZN' WHERE organization_id = $1", id)
        assert (await wallet.top_up(conn, id, amount=UNIT)).currency == "EUR"
        await wallet.adjust(conn, id, amount=-251 * UNIT, reason="all of it")
        assert (await wallet.show(conn, actor)).currency == "EUR"
    await check_wallets(pool, [id])


@pytest.mark.parametrize(
    "values",
    [
        {"amount": 0},
        {"amount": -1},
        {"amount": 10**30},
        {"amount": 1, "currency": "euro"},
        {"amount": 1, "reason": " "},
        {"amount": 1, "reason": "x" * 501},
    ],
)
async def test_top_ups_that_cannot_be(pool: Pool, values: dict[str, object]) -> None:
    one = await made(pool)
    async with pool.acquire() as conn:
        with pytest.raises(Invalid):
            await wallet.top_up(conn, one.organization_id, **values)  # type: ignore[arg-type]


async def test_an_unknown_organization_has_no_wallet(pool: Pool) -> None:
    async with pool.acquire() as conn:
        with pytest.raises(NotFound) as refused:
            await wallet.top_up(conn, uuid7(), amount=1)
    assert isinstance(refused.value, Refusal)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("12", 12_000_000),
        ("0.000001", 1),
        ("-0.5", -500_000),
        (" 3.250000 ", 3_250_000),
        ("1.0000001", None),
        ("1e3", None),
        ("1,5", None),
        ("", None),
        (".5", None),
        ("١", None),
        ("1000000000.000001", None),
    ],
)
def test_money_is_read_exactly(text: str, amount: int | None) -> None:
    assert micros(text) == amount
    if amount is not None:
        assert micros(decimal(amount)) == amount


def test_money_is_written_with_six_places() -> None:
    assert [decimal(amount) for amount in (0, 1, -1, 1_500_000, -2_000_001)] == [
        "0.000000",
        "0.000001",
        "-0.000001",
        "1.500000",
        "-2.000001",
    ]
