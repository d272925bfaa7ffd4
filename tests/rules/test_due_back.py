"""What suppliers owe us back: exactly what their cards charge for messages that they accepted and that were not
delivered.

However often a message was tried, whatever came late, and also when only sums of it are left.
"""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta
from uuid import UUID

import pytest

from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.overview import intervening
from heliograph.queue import timers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.reports import reconciliation as reports
from heliograph.sms.reports import silence, unmatched
from heliograph.suppliers.contract import Outcome, Receipt, ReceiptState, Submission, Verdict
from heliograph.traffic import reconciliation
from heliograph.traffic.reconciliation import Query
from tests.rules.dispatching import Bench
from tests.rules.factories import TO, accepted, message, organization, receipt, status_of, supplier
from tests.rules.test_charges import tariff

SEED = 20261123
#: Of another network than TO.
OTHER = "+258861234567"
MAIN = "mcc,mnc,prefix,price,currency,bill_on\n643,04,,0.03,EUR,submit\n643,03,,0.04,EUR,delivered\n"
BACKUP = "mcc,mnc,prefix,price,currency,bill_on\n643,04,,0.05,USD,submit\n643,03,,0.07,USD,submit\n"
ELSEWHERE = Outcome(Verdict.REFUSED, code="0x0000000A", failover=True)
UNKNOWN = Outcome(Verdict.UNKNOWN)


class Asked:
    """A worker with two suppliers that have rate cards, and one that has none; tried in this order."""

    bench: Bench
    main: Supplier
    backup: Supplier
    free: Supplier


async def asked(pool: Pool, *, grace: float = 90.0) -> Asked:
    made = Asked()
    made.main, made.backup, made.free = (
        supplier(name, priority=n) for n, name in enumerate(("main", "backup", "free"), 1)
    )
    for row, card in ((made.main, MAIN), (made.backup, BACKUP), (made.free, None)):
        await pool.execute(
            "INSERT INTO suppliers (id, name, kind, settings, secret, priority, created_at, changed_at)"
            " VALUES ($1, $2, 'smpp', '{}', '', $3, now(), now())",
            *(row.id, row.name, row.priority),
        )
        if card is not None:
            await tariff(pool, card, supplier_id=row.id, name=row.name)
    made.bench = Bench(pool, made.main, made.backup, made.free, grace=grace)
    for id, connector in made.bench.connectors.items():
        connector.script = lambda one, id=id: accepted(f"{id}-{one.message_id}")  # type: ignore[misc]
    await made.bench.charges.refresh(pool)
    return made


async def in_euros(pool: Pool, made: Asked) -> None:
    """From now on, the second supplier charges in another currency."""
    await pool.execute("UPDATE tariffs SET currency = 'EUR', changed_at = now() WHERE supplier_id = $1", made.backup.id)
    made.bench.charges._refreshed_at = float("-inf")
    await made.bench.charges.refresh(pool)


async def report(pool: Pool) -> dict[str, reports.Reconciled]:
    """By supplier, over four days; folding does not change it."""

    async def read() -> dict[str, reports.Reconciled]:
        at = clock.now()
        query = Query(date_from=at - timedelta(days=4), date_to=at + timedelta(hours=2), by=())
        async with pool.acquire() as conn:
            return {one.supplier: one for one in await reports.report(conn, query)}

    found = await read()
    async with pool.acquire() as conn:
        await reconciliation.fold(conn)
    assert await read() == found
    return found


async def money(pool: Pool, name: str) -> tuple[str | None, str | None, int]:
    """What a supplier charged, how much of that is due back, and for how many messages that is unknown."""
    row = (await report(pool))[name].row()
    return row["charged"], row["due_back"], row["owed_unpriced"]


def about(row: Supplier, id: UUID, state: ReceiptState, to: str = TO) -> Receipt:
    return receipt(f"{row.id}-{id}", state=state, to=to)


async def give_up(pool: Pool) -> None:
    """No more receipts arrive for messages that are still waiting for one."""
    await pool.execute("UPDATE messages SET sent_at = sent_at - interval '73 hours' WHERE status = 'sent'")
    await pool.execute("UPDATE attempts SET ended_at = ended_at - interval '73 hours'")
    async with pool.acquire() as conn, conn.transaction():
        await timers.ensure(conn, "silent")
        await silence.close_silent(conn, deadline=timedelta(hours=72), span=timedelta(hours=1))


@pytest.mark.parametrize("state", [ReceiptState.EXPIRED, None], ids=["expired", "never reported"])
async def test_what_arrives_late_is_taken_off_again(pool: Pool, state: ReceiptState | None) -> None:
    made = await asked(pool)
    actor = await organization(pool)
    late, lost = [await message(pool, actor) for _ in range(2)]
    await made.bench.round()
    assert await money(pool, "main") == ("0.060000 EUR", None, 0)
    for id in (late, lost):
        if state is not None:
            await made.bench.receive(made.main.id, about(made.main, id, state))
    if state is None:
        await give_up(pool)
    assert await money(pool, "main") == ("0.060000 EUR", "0.060000 EUR", 0)
    for _ in range(2):
        await made.bench.receive(made.main.id, about(made.main, late, ReceiptState.DELIVERED))
        assert await money(pool, "main") == ("0.060000 EUR", "0.030000 EUR", 0)


async def test_nothing_is_due_back_of_what_is_charged_on_delivery(pool: Pool) -> None:
    made = await asked(pool)
    actor = await organization(pool)
    arrived, lost = [await message(pool, actor, to=OTHER) for _ in range(2)]
    await made.bench.round()
    assert await money(pool, "main") == (None, None, 0)
    await made.bench.receive(made.main.id, about(made.main, arrived, ReceiptState.DELIVERED, OTHER))
    await made.bench.receive(made.main.id, about(made.main, lost, ReceiptState.UNDELIVERED, OTHER))
    assert await money(pool, "main") == ("0.040000 EUR", None, 0)


async def test_only_who_took_a_message_owes_for_it_and_each_in_its_own_currencies(pool: Pool) -> None:
    made = await asked(pool)
    made.bench.connectors[made.main.id].script = lambda _: ELSEWHERE
    actor = await organization(pool)
    for step in range(2):
        id = await message(pool, actor)
        await made.bench.round(2)
        # The refused attempt has a cost of its own.
        costs = await pool.fetch("SELECT cost FROM attempts WHERE message_id = $1 ORDER BY attempt", id)
        assert [row["cost"] for row in costs] == [30_000, 50_000]
        await made.bench.receive(made.backup.id, about(made.backup, id, ReceiptState.UNDELIVERED))
        if not step:
            await in_euros(pool, made)
    assert await money(pool, "main") == (None, None, 0)
    assert await money(pool, "backup") == ("0.050000 EUR; 0.050000 USD", "0.050000 EUR; 0.050000 USD", 0)


async def test_what_has_no_known_cost_is_counted_and_not_guessed(pool: Pool) -> None:
    made = await asked(pool)
    for row in (made.main, made.backup):
        made.bench.accounts.pop(row.id)
    actor = await organization(pool)
    arrived, lost, _ = [await message(pool, actor) for _ in range(3)]
    await made.bench.round()
    await made.bench.receive(made.free.id, about(made.free, arrived, ReceiptState.DELIVERED))
    await made.bench.receive(made.free.id, about(made.free, lost, ReceiptState.FAILED))
    assert await money(pool, "free") == (None, None, 1)


async def test_what_two_suppliers_took_is_charged_by_both_and_due_back_from_the_one_that_counts(pool: Pool) -> None:
    made = await asked(pool)
    main = made.bench.connectors[made.main.id]
    main.script = lambda _: UNKNOWN
    id = await message(pool, await organization(pool))
    await made.bench.round()
    made.bench.accounts.pop(made.main.id)
    await made.bench.later(seconds=91)
    await made.bench.round()
    assert (await report(pool))["main"].line["unknown"] == 1
    # It accepted the message after all, and charges for it.
    made.bench.answer(main.submitted[0], accepted(f"{made.main.id}-{id}"))
    await made.bench.settle()
    counts = (await report(pool))["main"].line
    assert (dict(counts.counts), counts.submitted, counts.answered) == ({"doubled": 1}, 1, 1)
    assert await money(pool, "main") == ("0.030000 EUR", None, 0)
    await made.bench.receive(made.backup.id, about(made.backup, id, ReceiptState.UNDELIVERED))
    assert await money(pool, "main") == ("0.030000 EUR", None, 0)
    assert await money(pool, "backup") == ("0.050000 USD", "0.050000 USD", 0)
    row = await pool.fetchrow("SELECT cost, cost_currency FROM messages WHERE id = $1", id)
    assert tuple(row) == (50_000, "USD")


async def test_what_only_a_receipt_showed_to_be_taken_has_the_cost_of_its_attempt(pool: Pool) -> None:
    made = await asked(pool, grace=0.0)
    made.bench.connectors[made.main.id].script = lambda _: Outcome(Verdict.UNKNOWN, doubtful=(1,))
    await message(pool, await organization(pool))
    await made.bench.round()
    await made.bench.receive(made.main.id, receipt("S77", state=ReceiptState.UNDELIVERED))
    await made.bench.later(seconds=120)
    await made.bench.round()
    assert await money(pool, "main") == ("0.030000 EUR", "0.030000 EUR", 0)
    # A response that arrives after all changes nothing.
    (sent,) = made.bench.connectors[made.main.id].submitted
    made.bench.answer(sent, accepted("S77"))
    await made.bench.settle()
    found = (await report(pool))["main"].line
    assert dict(found.counts) == {"accepted": 1, "undelivered": 1}


async def test_what_an_operator_says_to_be_lost_is_due_back(pool: Pool) -> None:
    made = await asked(pool)
    made.bench.connectors[made.main.id].script = lambda _: UNKNOWN
    id = await message(pool, await organization(pool))
    await made.bench.round()
    by = Principal("operator", name="Ines")
    async with pool.acquire() as conn:
        await intervening.decide(conn, by, id=id, status="undelivered", reason="their ticket 4711")
    assert await money(pool, "main") == ("0.030000 EUR", "0.030000 EUR", 0)


MARGINS = "SELECT s.name, messages, cost FROM margin_deltas LEFT JOIN suppliers s ON s.id = supplier_id"


TRAFFIC = """
SELECT status, s.name, sum(count)::int FROM traffic_deltas LEFT JOIN suppliers s ON s.id = supplier_id
 GROUP BY 1, 2 HAVING sum(count) <> 0 ORDER BY 1, 2
"""


@pytest.mark.parametrize("how", ["an operator says so", "a receipt matched by hand", "a late answer and its receipt"])
async def test_what_arrives_after_an_end_without_an_answer_is_charged_by_who_had_it(pool: Pool, how: str) -> None:
    made = await asked(pool)
    main = made.bench.connectors[made.main.id]
    main.script = lambda _: UNKNOWN
    id = await message(pool, await organization(pool), guarantee="at_most_once")
    await made.bench.round()
    await made.bench.later(seconds=91)
    await made.bench.round()
    assert await status_of(pool, id) == "unknown"
    if how == "an operator says so":
        async with pool.acquire() as conn:
            await intervening.decide(
                conn, Principal("operator", name="Ines"), id=id, status="delivered", reason="ticket 4711"
            )
    elif how == "a receipt matched by hand":
        await made.bench.receive(made.main.id, receipt("rewritten", state=ReceiptState.DELIVERED))
        async with pool.acquire() as conn:
            (one,) = await unmatched.listed(conn)
            assert await unmatched.match_by_hand(conn, one.place, message_id=id, reason="the bill says so")
    else:
        made.bench.answer(main.submitted[0], accepted("S77"))
        await made.bench.settle()
        assert await money(pool, "main") == ("0.030000 EUR", None, 0)
        await made.bench.receive(made.main.id, receipt("S77", state=ReceiptState.DELIVERED))
    row = await pool.fetchrow("SELECT status, supplier_id, cost, cost_currency FROM messages")
    assert tuple(row) == ("delivered", made.main.id, 30_000, "EUR")
    assert tuple(await pool.fetchrow("SELECT state, cost FROM attempts")) == ("accepted", 30_000)
    assert [tuple(row) for row in await pool.fetch(MARGINS)] == [("main", 1, 30_000)]
    found = (await report(pool))["main"].line
    assert {name: count for name, count in found.counts.items() if count} == {"accepted": 1, "delivered": 1}
    assert await money(pool, "main") == ("0.030000 EUR", None, 0)
    # The test stored the message without counting it.
    assert [tuple(row) for row in await pool.fetch(TRAFFIC)] == [("accepted", None, -1), ("delivered", "main", 1)]
    # What comes after it changes nothing.
    made.bench.answer(main.submitted[0], accepted("S77"))
    await made.bench.settle()
    assert await money(pool, "main") == ("0.030000 EUR", None, 0)


# The figures stored with messages and attempts, with which sums are compared.
EXPECTED = """
SELECT s.name, a.cost, a.cost_currency, a.cost_due, m.status
  FROM attempts a JOIN messages m ON m.organization_id = a.organization_id AND m.id = a.message_id
       JOIN suppliers s ON s.id = a.target_id
 WHERE a.state = 'accepted' AND m.supplier_id = a.target_id
"""


async def test_sums_are_those_of_the_attempts_and_outlive_them(pool: Pool) -> None:
    chance = random.Random(SEED)
    made = await asked(pool)
    actor = await organization(pool)
    to: dict[UUID, str] = {}
    refusing: dict[UUID, set[str]] = {}
    rows = {row.id: row for row in (made.main, made.backup, made.free)}

    def answer(row: Supplier, one: Submission) -> Outcome:
        return ELSEWHERE if row.name in refusing[one.message_id] else accepted(f"{row.id}-{one.message_id}")

    for id, row in rows.items():
        made.bench.connectors[id].script = lambda one, row=row: answer(row, one)  # type: ignore[misc]
    for step in range(2):
        for number in (TO, OTHER) * 15:
            id = await message(pool, actor, to=number)
            to[id] = number
            refusing[id] = set(chance.choice([(), (), ("main",), ("main",), ("main", "backup")]))
        if step:
            await in_euros(pool, made)
        await made.bench.round(4)
    took = {
        row["id"]: rows[row["supplier_id"]]
        for row in await pool.fetch("SELECT id, supplier_id FROM messages WHERE status = 'sent'")
    }
    assert len(took) > 30
    assert {row.name for row in took.values()} >= {"main", "backup"}

    async def check() -> dict[str, reports.Reconciled]:
        charged: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        due_back: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        unpriced: dict[str, int] = defaultdict(int)
        for name, cost, currency, due, status in await pool.fetch(EXPECTED):
            is_lost = status not in ("sent", "delivered")
            if cost is None:
                unpriced[name] += is_lost
            elif due == "submit" or status == "delivered":
                charged[name][currency] += cost
                if is_lost:
                    due_back[name][currency] += cost
        found = await report(pool)
        assert {name: one.line.charged for name, one in found.items()} == {name: charged[name] for name in found}
        assert {name: one.line.due_back for name, one in found.items()} == {name: due_back[name] for name in found}
        assert {name: one.line.owed_unpriced for name, one in found.items()} == {n: unpriced[n] for n in found}
        assert all(one.line.waiting >= 0 for one in found.values())
        return found

    states = [None, *(one for one in ReceiptState if one is not ReceiptState.UNKNOWN)]
    before = await check()
    for _ in range(2):
        for id in chance.sample(sorted(took), len(took)):
            state = chance.choice(states)
            if state is not None:
                await made.bench.receive(took[id].id, about(took[id], id, state, to[id]))
        await check()
    await give_up(pool)
    await check()
    for id in chance.sample(sorted(took), len(took) // 2):
        await made.bench.receive(took[id].id, about(took[id], id, ReceiptState.DELIVERED, to[id]))
    after = await check()
    assert after != before
    assert after["backup"].line.due_back.keys() == {"EUR", "USD"}
    # Retention removed what it was computed from.
    await pool.execute("DELETE FROM attempts")
    await pool.execute("DELETE FROM messages")
    assert await report(pool) == after
