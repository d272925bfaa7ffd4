"""Refunds of failed messages: always if they were never sent, otherwise as the installation decides, and once."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import msgspec
import pytest

from heliograph.base.actor import Actor
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.base.money import Charge
from heliograph.overview import messages as overview
from heliograph.prices import margins
from heliograph.sms import refunds
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.status import NO_RECEIPT, OUTCOME_UNKNOWN, Move, SupplierAcceptance, move_many
from heliograph.suppliers.contract import Outcome, ReceiptState, Verdict
from tests.rules.dispatching import Bench
from tests.rules.factories import accepted, check_ledger, organization, receipt, send, supplier

SUPPLIER = UUID(int=7)
#: Class → the moves by which a message gets into it.
ENDS = {
    "unsent": [("expired", "expired", True)],
    "refused": [("rejected", "rejected", True)],
    "undelivered": [("sent", None, False), ("undelivered", "undelivered", False)],
    "failed": [("sent", None, False), ("failed", "failed", False)],
    "expired": [("sent", None, False), ("expired", "expired", False)],
    "rejected": [("sent", None, False), ("rejected", "rejected", False)],
    "unknown": [("sent", None, False), ("unknown", NO_RECEIPT, False)],
}


async def accept(pool: Pool, actor: Actor, mode: str = "live") -> UUID:
    answer = await Acceptor(pool).accept(send(msgspec.structs.replace(actor, mode=mode)))
    return UUID(msgspec.json.decode(answer.body)["message"]["id"])


async def end(pool: Pool, actor: Actor, id: UUID, name: str) -> None:
    async with pool.acquire() as conn, conn.transaction():
        for status, code, unsent in ENDS[name]:
            await move_many(conn, [Move(actor.organization_id, id, status, now(), code, unsent=unsent)])


async def charged_by_messages(pool: Pool, actor: Actor) -> int:
    """What the organization's messages say that they cost, in millionths."""
    ids = [row["id"] for row in await pool.fetch("SELECT id FROM messages")]
    async with pool.acquire() as conn:
        listed = await overview.by_ids(conn, actor, ids=ids)
        prices = await overview.prices(conn, actor, listed=listed)
    return sum(one.amount for one in prices.values() if one.is_due)


async def refunded(pool: Pool, actor: Actor) -> dict[UUID, str]:
    """Message → the reason in the ledger. Checks that the balance agrees."""
    await check_ledger(pool, [actor.organization_id])
    rows = await pool.fetch(
        "SELECT message_id, reason FROM usage_ledger WHERE organization_id = $1 AND type = 'refund'",
        actor.organization_id,
    )
    return {row["message_id"]: row["reason"] for row in rows}


async def test_every_class_gives_back_what_is_chosen(pool: Pool) -> None:
    actor = await organization(pool, quota=100)
    for chosen in ((), ("refused", "unknown"), refunds.CHOICES):
        async with pool.acquire() as conn:
            await refunds.change_policy(conn, {name: name in chosen for name in refunds.CHOICES})
        ids = {name: await accept(pool, actor) for name in ENDS}
        before = await refunded(pool, actor)
        for name, id in ids.items():
            await end(pool, actor, id, name)
        found = {id: reason for id, reason in (await refunded(pool, actor)).items() if id not in before}
        assert found == {ids[name]: refunds.REASONS[name] for name in ("unsent", *chosen)}


async def test_a_message_of_a_test_key_costs_nothing_and_gives_nothing_back(pool: Pool) -> None:
    actor = await organization(pool, quota=100)
    await end(pool, actor, await accept(pool, actor, "test"), "unsent")
    assert await refunded(pool, actor) == {}


async def test_a_message_that_arrives_after_all_is_refunded_once(pool: Pool) -> None:
    actor = await organization(pool, quota=100)
    async with pool.acquire() as conn:
        await refunds.change_policy(conn, {"expired": True})
    id = await accept(pool, actor)
    await end(pool, actor, id, "expired")
    async with pool.acquire() as conn, conn.transaction():
        await move_many(conn, [Move(actor.organization_id, id, "delivered", now())])
    assert await refunded(pool, actor) == {id: "expired"}


async def test_a_batch_of_several_organizations_is_refunded_together(pool: Pool) -> None:
    actors = [await organization(pool, quota=10) for _ in range(3)]
    ids = [(actor, await accept(pool, actor)) for actor in actors for _ in range(2)]
    moves = [Move(actor.organization_id, id, "expired", now(), "expired", unsent=True) for actor, id in ids]
    async with pool.acquire() as conn, conn.transaction():
        await move_many(conn, moves)
    for actor in actors:
        assert len(await refunded(pool, actor)) == 2


async def test_what_suppliers_say_decides_the_class(pool: Pool) -> None:
    """From responses and receipts, through the dispatcher: the classes that it produces."""
    actor = await organization(pool, quota=100)
    async with pool.acquire() as conn:
        await refunds.change_policy(conn, dict.fromkeys(refunds.CHOICES, True))
    bench = Bench(pool, supplier("main"))
    bench.only.script = lambda one: Outcome(Verdict.REFUSED)
    refused = await accept(pool, actor)
    await bench.round()
    bench.only.script = lambda one: accepted(str(one.message_id))
    lost, got = await accept(pool, actor), await accept(pool, actor)
    await bench.round()
    await bench.receive(bench.only_id, receipt(str(lost), state=ReceiptState.UNDELIVERED), receipt(str(got)))
    unsent = await accept(pool, actor)
    await pool.execute("UPDATE messages SET expires_at = now() - interval '1 second' WHERE id = $1", unsent)
    await bench.round()
    assert await refunded(pool, actor) == {refused: "refused", lost: "not delivered", unsent: "not sent"}


@pytest.mark.parametrize("chosen", [False, True])
async def test_who_opted_out_at_a_supplier_was_refused_there_and_who_opted_out_with_us_was_not(
    pool: Pool, chosen: bool
) -> None:
    actor = await organization(pool, quota=100)
    async with pool.acquire() as conn:
        await refunds.change_policy(conn, {"refused": chosen})
    bench = Bench(pool, supplier("main"))
    bench.only.script = lambda one: Outcome(Verdict.REFUSED, opted_out=True)
    there, here = await accept(pool, actor), await accept(pool, actor)
    await pool.execute("UPDATE queue SET due_at = now() + interval '1 hour' WHERE id = $1", here)
    await bench.round()
    # The recipient of what waits has opted out now, and no supplier gets it.
    await pool.execute("UPDATE queue SET due_at = now() WHERE id = $1", here)
    await bench.round()
    rows = await pool.fetch("SELECT id, failure_code FROM messages ORDER BY id")
    assert [tuple(row) for row in rows] == [(there, "opted_out"), (here, "opted_out")]
    assert len(bench.only.submitted) == 1
    assert await refunded(pool, actor) == {here: "not sent"} | ({there: "refused"} if chosen else {})


async def test_whether_it_was_sent_may_be_unknown(pool: Pool) -> None:
    actor = await organization(pool, quota=100)
    async with pool.acquire() as conn:
        await refunds.change_policy(conn, {"unknown": True})
    id = await accept(pool, actor)
    async with pool.acquire() as conn, conn.transaction():
        await move_many(conn, [Move(actor.organization_id, id, "unknown", now(), OUTCOME_UNKNOWN, unsent=True)])
    assert await refunded(pool, actor) == {id: "outcome unknown"}


@pytest.mark.parametrize("last", ["busy", "refused", "expired"])
async def test_what_somebody_may_have_is_not_given_back_as_unsent(pool: Pool, last: str) -> None:
    """An attempt without a response, and then one that the supplier refuses, or that expires."""
    actor = await organization(pool, quota=100)
    bench = Bench(pool, supplier("main"), grace=1.0)
    bench.only.script = lambda one: Outcome(Verdict.UNKNOWN)
    id = await accept(pool, actor)
    await bench.round()
    await bench.later(seconds=2)
    bench.only.script = lambda one: Outcome(Verdict.REFUSED if last == "refused" else Verdict.BUSY)
    if last == "busy":
        await bench.round()
        await bench.later(seconds=60)
    if last != "refused":
        await pool.execute("UPDATE messages SET expires_at = now() - interval '1 second' WHERE id = $1", id)
    await bench.round()
    row = await pool.fetchrow("SELECT status, failure_code FROM messages WHERE id = $1", id)
    assert (row["status"], row["failure_code"]) == ("unknown", OUTCOME_UNKNOWN)
    assert await refunded(pool, actor) == {}


@pytest.mark.parametrize("ended", ["unknown", "expired"])
async def test_what_arrives_though_nobody_was_known_to_have_it_is_due(pool: Pool, ended: str) -> None:
    actor = await organization(pool, quota=100)
    id = await accept(pool, actor)
    await pool.execute(
        "UPDATE messages SET price = 50000, price_currency = 'USD', price_due = 'submit' WHERE id = $1", id
    )
    async with pool.acquire() as conn:
        for status, unsent in ((ended, True), ("delivered", False)):
            code = {"unknown": OUTCOME_UNKNOWN, "expired": "expired"}.get(status)
            async with conn.transaction():
                await move_many(conn, [Move(actor.organization_id, id, status, now(), code, unsent=unsent)])
        today = now().date()
        (line,) = await margins.read(conn, first=today - timedelta(days=1), last=today + timedelta(days=2), by=())
    assert (line.messages, line.price, line.price_currency) == (1, 50000, "USD")
    assert await charged_by_messages(pool, actor) == line.price


@pytest.mark.parametrize("billed", ["submit", "delivered"])
@pytest.mark.parametrize("ended", ["undelivered", "failed", "expired", "rejected", "unknown"])
async def test_what_is_refunded_is_not_charged(pool: Pool, ended: str, billed: str) -> None:
    """On the day of the refund; what the supplier charges stays."""
    actor = await organization(pool, quota=100)
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        " VALUES ($1, 'main', 'smpp', '{}', '', now(), now())",
        SUPPLIER,
    )

    async def sent_and_ended(*, at_once: bool) -> UUID:
        id = await accept(pool, actor)
        await pool.execute(
            "UPDATE messages SET price = 50000, price_currency = 'USD', price_due = $2 WHERE id = $1", id, billed
        )
        taken = SupplierAcceptance(
            after_others=False, network="643-04", cost=Charge(30_000, "USD", "submit"), route="codes"
        )
        sent_at = now() - timedelta(days=1)
        moves = [
            Move(actor.organization_id, id, "sent", sent_at, supplier_id=SUPPLIER, taken=taken),
            Move(actor.organization_id, id, ended, now(), None if ended == "unknown" else ended),
        ]
        for some in [moves] if at_once else [[one] for one in moves]:
            async with pool.acquire() as conn, conn.transaction():
                await move_many(conn, some)
        return id

    async def lines() -> list[tuple[int, int, int]]:
        first = now().date() - timedelta(days=2)
        async with pool.acquire() as conn:
            found = await margins.read(conn, first=first, last=first + timedelta(days=4), by=("supplier", "route"))
        assert {(one.supplier, one.route) for one in found} == {("main", "codes")}
        assert await charged_by_messages(pool, actor) == sum(one.price for one in found), "as on the invoice"
        return [(one.messages, one.price, one.cost) for one in found]

    charged = 50_000 if billed == "submit" else 0
    await sent_and_ended(at_once=False)
    assert await lines() == [(1, charged, 30_000)], "it was not refunded"
    async with pool.acquire() as conn:
        await refunds.change_policy(conn, {ended: True})
    ids = {await sent_and_ended(at_once=at_once) for at_once in (False, True)}
    assert set(await refunded(pool, actor)) == ids
    assert await lines() == [(3, charged, 90_000)]
    if ended in ("expired", "unknown"):
        # A refund is final even if the message is delivered; a price on delivery becomes due then.
        async with pool.acquire() as conn, conn.transaction():
            await move_many(conn, [Move(actor.organization_id, id, "delivered", now()) for id in ids])
        assert await lines() == [(3, 50_000 if billed == "submit" else 100_000, 90_000)]


async def test_the_policy_is_shown_changed_and_recorded(pool: Pool) -> None:
    async with pool.acquire() as conn:
        assert await refunds.policy(conn) == {name: name == "unsent" for name in refunds.REASONS}
        after = await refunds.change_policy(conn, {"refused": True, "unsent": True})
        assert await refunds.policy(conn) == after
        await refunds.change_policy(conn, {"refused": True})  # nothing new
        for wrong in ({"unsent": False}, {"nonsense": True}):
            with pytest.raises(Invalid):
                await refunds.change_policy(conn, wrong)
    rows = await pool.fetch("SELECT before, after FROM audit_log WHERE action = 'refunds.changed' ORDER BY id")
    assert len(rows) == 1
    assert "refused" in rows[0]["after"]


@pytest.mark.parametrize("ended", ["delivered", "undelivered"])
async def test_what_is_learned_late_changes_no_day_that_is_over(pool: Pool, ended: str) -> None:
    """A receipt that waited for its message, or for an operator: invoices of the month in which it arrived have been
    written."""
    actor = await organization(pool, quota=100)
    async with pool.acquire() as conn:
        await refunds.change_policy(conn, {"undelivered": True})
    id = await accept(pool, actor)
    due = "submit" if ended == "undelivered" else "delivered"
    await pool.execute(
        "UPDATE messages SET price = 50000, price_currency = 'USD', price_due = $2 WHERE id = $1", id, due
    )
    came, code = now() - timedelta(days=40), None if ended == "delivered" else ended
    async with pool.acquire() as conn:
        for move in (
            Move(actor.organization_id, id, "sent", came),
            Move(actor.organization_id, id, ended, came, code),
        ):
            async with conn.transaction():
                await move_many(conn, [move])
        today = now().date()
        lines = await margins.read(conn, first=today - timedelta(days=50), last=today + timedelta(days=2), by=("day",))
    assert [(one.messages, one.price) for one in lines] == [(1, 0 if ended == "undelivered" else 50000)]
    assert all(one.day is not None and one.day >= today - timedelta(days=1) for one in lines), lines
    if ended == "undelivered":
        refund = await pool.fetchval("SELECT created_at FROM usage_ledger WHERE message_id = $1", id)
        assert [one.day for one in lines] == [refund.date()]
