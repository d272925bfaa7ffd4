"""Operators' control of waiting work: hold, release, withdraw."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import quota
from heliograph.base.actor import Actor
from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool
from heliograph.base.ids import time_of, uuid7, uuid7_floor
from heliograph.campaigns import pausing
from heliograph.overview.installation import queued_work
from heliograph.queue import holds, leases
from heliograph.queue.backlog import claim_once
from heliograph.queue.holds import OUTGOING, AlreadyAttempted, Selection, Withdrawn
from heliograph.sms import refunds, timeline
from heliograph.sms.accepting import withdrawal
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.dispatch import routing, suppliers
from heliograph.suppliers.contract import Outcome, Verdict
from heliograph.whatsapp.accepting import withdrawal as whatsapp_withdrawal
from tests.rules import factories, whatsapp_factories
from tests.rules.dispatching import Bench, queued
from tests.rules.factories import check_ledger, message, organization, send, status_of, supplier

ALL = Selection()
SMS = Selection(kinds=("sms",))
LINE = UUID(int=77)
KEY = derive_key("a secret key of a test installation", "suppliers")
SMPP = {"host": "127.0.0.1", "port": 2775, "system_id": "acme", "tls": False}


async def fill(
    pool: Pool, organization_id: UUID, *, kind: str = "sms", line: UUID = LINE, count: int = 1
) -> list[UUID]:
    ids = [uuid7() for _ in range(count)]
    await pool.executemany(
        "INSERT INTO queue (kind, line, organization_id, due_at, id) VALUES ($1, $2, $3, now(), $4)",
        [(kind, line, organization_id, id) for id in ids],
    )
    return ids


async def accepted(pool: Pool, actor: Actor) -> UUID:
    """A message accepted in the regular way, and paid for."""
    answer = await Acceptor(pool).accept(send(actor))
    return UUID(msgspec.json.decode(answer.body)["message"]["id"])


async def claimed(pool: Pool, kind: str = "sms", *lines: UUID) -> set[UUID]:
    """The rows that may be claimed now; they are returned at once."""
    async with pool.acquire() as conn:
        found = await claim_once(conn, kind, dict.fromkeys(lines or (LINE,), 100), seconds=60)
        await conn.execute("UPDATE queue SET lease_until = NULL, lease_token = NULL")
    return {lease.id for lease in found}


async def hold(pool: Pool, which: Selection) -> int:
    async with pool.acquire() as conn:
        _, leased = await holds.hold(conn, which, reason="restored")
        return leased


async def release(pool: Pool, which: Selection, id: UUID | None = None) -> int:
    async with pool.acquire() as conn:
        return len(await holds.release(conn, which, id=id))


@pytest.mark.parametrize("kind", OUTGOING)
async def test_a_hold_on_everything_holds_what_is_there_and_what_comes(pool: Pool, kind: str) -> None:
    actor = await organization(pool)
    (early,) = await fill(pool, actor.organization_id, kind=kind)
    assert await hold(pool, ALL) == 0
    (late,) = await fill(pool, actor.organization_id, kind=kind)
    inward = await fill(pool, actor.organization_id, kind="whatsapp_in", line=UUID(int=5))
    assert await claimed(pool, kind) == set()
    assert await claimed(pool, "whatsapp_in", UUID(int=5)) == set(inward), "what comes in is not held"
    assert await release(pool, ALL) == 3
    assert await claimed(pool, kind) == {early, late}


async def test_a_hold_takes_what_it_names_and_nothing_else(pool: Pool) -> None:
    acme, beta = (await organization(pool)).organization_id, (await organization(pool)).organization_id
    other = UUID(int=78)
    one, two = await fill(pool, acme), await fill(pool, beta)
    three = await fill(pool, acme, line=other)
    hook = await fill(pool, acme, kind="webhook", line=UUID(int=79))
    await hold(pool, Selection(kinds=("sms",), organization_id=acme))
    assert await claimed(pool, "sms", LINE, other) == set(two)
    assert await claimed(pool, "webhook", UUID(int=79)) == set(hook)
    await release(pool, ALL)
    await hold(pool, Selection(kinds=("sms",), line=other))
    assert await claimed(pool, "sms", LINE, other) == {*one, *two}
    await release(pool, ALL)
    await hold(pool, Selection(kinds=("sms",), line=other, organization_id=beta))
    assert await claimed(pool, "sms", LINE, other) == {*one, *two, *three}


async def test_a_hold_by_age_lets_what_is_newer_pass(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        before, hour_ago = await holds.ago(conn, timedelta(minutes=1)), await holds.ago(conn, timedelta(hours=1))
    old = [UUID(int=uuid7_floor(hour_ago).int + number) for number in range(5)]
    await pool.executemany(
        "INSERT INTO queue (kind, line, organization_id, due_at, id) VALUES ('sms', $1, $2, now(), $3)",
        [(LINE, actor.organization_id, id) for id in old],
    )
    new = await fill(pool, actor.organization_id, count=3)
    await hold(pool, Selection(kinds=("sms",), before=before))
    assert await claimed(pool) == set(new)
    await release(pool, ALL)
    assert await claimed(pool) == {*old, *new}


async def test_holding_twice_is_holding_once_and_holds_end_one_by_one(pool: Pool) -> None:
    acme = (await organization(pool)).organization_id
    for _ in range(2):
        await hold(pool, ALL)
        await hold(pool, Selection(kinds=("sms",), organization_id=acme))
    async with pool.acquire() as conn:
        listed = await holds.list_all(conn)
    assert [one.kind for one in listed] == [*OUTGOING, "sms"]
    assert await release(pool, ALL, listed[0].id) == 1
    assert await release(pool, ALL, listed[0].id) == 0
    assert await release(pool, Selection(kinds=OUTGOING, organization_id=acme)) == 1
    assert await release(pool, ALL) == 2


async def test_who_has_work_in_hand_is_counted(pool: Pool) -> None:
    actor = await organization(pool)
    await fill(pool, actor.organization_id, count=3)
    async with pool.acquire() as conn:
        await claim_once(conn, "sms", {LINE: 2}, seconds=60)
    assert await hold(pool, SMS) == 2
    async with pool.acquire() as conn:
        (line,) = (await queued_work.backlog(conn, ALL, limit=10)).waiting
    assert (line.kind, line.rows, line.leased, line.held, line.later) == ("sms", 3, 2, 3, 0)


async def test_nothing_is_routed_to_a_supplier_that_is_held(pool: Pool) -> None:
    bench = Bench(pool)
    actor = await organization(pool)
    id = await message(pool, actor)
    account = bench.accounts[bench.only_id]
    account.supplier = msgspec.structs.replace(account.supplier, held=True)
    await bench.round(2)
    assert (bench.only.submitted, await status_of(pool, id)) == ([], "accepted")
    account.supplier = msgspec.structs.replace(account.supplier, held=False)
    await bench.round(2)
    assert [one.message_id for one in bench.only.submitted] == [id]


@pytest.mark.parametrize("what", ["organization", "age"])
async def test_some_of_what_a_supplier_carries_may_be_held_before_it_is_routed(pool: Pool, what: str) -> None:
    acme, beta = await organization(pool), await organization(pool)
    async with pool.acquire() as conn:
        line = await suppliers.add(conn, KEY, name="main", kind="smpp", settings=SMPP, secret="s")
        held = await message(pool, acme)
        free = await message(pool, beta)
        if what == "organization":
            which = Selection(kinds=("sms",), line=line, organization_id=acme.organization_id)
        else:
            which = Selection(kinds=("sms",), line=line, before=time_of(free))
        await holds.hold(conn, which, reason="")
        # Both may have been made within one millisecond.
        await conn.execute("UPDATE queue_holds SET before_id = $1 WHERE before_id IS NOT NULL", free)
        (row,) = await routing.load(conn)
    assert not row.held, "others may go there"
    bench = Bench(pool, row)
    await bench.round(2)
    assert [one.message_id for one in bench.only.submitted] == [free]
    await bench.later(seconds=5)
    bench.restart()
    await bench.round(2)
    assert len(bench.only.submitted) == 1
    assert await status_of(pool, held) == "accepted"

    await release(pool, ALL)
    async with pool.acquire() as conn:
        (bench.accounts[line].supplier,) = await routing.load(conn)
    await bench.later(seconds=5)
    bench.restart()
    await bench.round(2)
    assert [one.message_id for one in bench.only.submitted] == [free, held]


async def test_what_waits_for_a_paused_campaign_is_not_hurried(pool: Pool) -> None:
    """It was tried before, and was deferred with the others of its campaign."""
    actor = await organization(pool)
    again, paused = await fill(pool, actor.organization_id, count=2)
    await pool.execute("UPDATE queue SET tries = 1, due_at = now() + interval '1 hour'")
    async with pool.acquire() as conn:
        await leases.shift(conn, "sms", [paused], by=pausing.AWAY)
        assert [await holds.hurry(conn, id=id) for id in (again, paused)] == [True, False]
    assert await pool.fetchval("SELECT id FROM queue WHERE due_at <= now()") == again


# -- taken out ---------------------------------------------------------------------------------------------------------


async def test_messages_that_were_never_tried_are_canceled_and_cost_nothing(pool: Pool) -> None:
    actor = await organization(pool, quota=10)
    bench = Bench(pool)
    async with pool.acquire() as conn:
        before = (await quota.get(conn, actor.organization_id)).remaining
    ids = [await accepted(pool, actor) for _ in range(3)]
    tried = await accepted(pool, actor)
    await factories.tried(pool, tried)
    async with pool.acquire() as conn:
        rows = await holds.free(conn, "sms", SMS, limit=10)
        async with conn.transaction():
            done = await withdrawal.withdraw_rows(conn, rows, tried=False)
    assert done == Withdrawn(canceled=3, ended=0, left=1)
    assert {await status_of(pool, id) for id in ids} == {"canceled"}
    assert (await status_of(pool, tried), await queued(pool, tried)) == ("sending", True)
    async with pool.acquire() as conn:
        assert (await quota.get(conn, actor.organization_id)).remaining == before - 1
        rows = await holds.free(conn, "sms", SMS, limit=10)
        async with conn.transaction():
            assert await withdrawal.withdraw_rows(conn, rows, tried=True) == Withdrawn(ended=1)
    row = await pool.fetchrow("SELECT status, failure_code, failed_at FROM messages WHERE id = $1", tried)
    assert tuple(row or ()) == ("unknown", "outcome_unknown", None)
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'sms'") == 0
    await bench.round()
    assert bench.only.submitted == []
    await check_ledger(pool, [actor.organization_id])


@pytest.mark.parametrize("refunded", [False, True])
async def test_what_may_have_been_sent_is_refunded_as_the_installation_says(pool: Pool, refunded: bool) -> None:
    actor = await organization(pool, quota=10)
    id = await accepted(pool, actor)
    await factories.tried(pool, id)
    async with pool.acquire() as conn:
        await refunds.change_policy(conn, {"unknown": refunded})
        before = (await quota.get(conn, actor.organization_id)).remaining
        rows = await holds.free(conn, "sms", SMS, limit=10)
        async with conn.transaction():
            assert await withdrawal.withdraw_rows(conn, rows, tried=True) == Withdrawn(ended=1)
        assert (await quota.get(conn, actor.organization_id)).remaining == before + refunded
    await check_ledger(pool, [actor.organization_id])


async def test_what_every_supplier_put_off_is_canceled_and_costs_nothing(pool: Pool) -> None:
    """No supplier has it: the unknown outcome is the other one's."""
    actor = await organization(pool, quota=10)
    bench = Bench(pool)
    put_off, lost = await accepted(pool, actor), await accepted(pool, actor)
    bench.only.script = lambda submission: Outcome(
        Verdict.BUSY if submission.message_id == put_off else Verdict.UNKNOWN
    )
    await bench.round()
    async with pool.acquire() as conn:
        before = (await quota.get(conn, actor.organization_id)).remaining
        rows = await holds.free(conn, "sms", SMS, limit=10)
        assert {row.id for row in rows} == {put_off, lost}
        async with conn.transaction():
            assert await withdrawal.withdraw_rows(conn, rows, tried=True) == Withdrawn(canceled=1, ended=1)
        assert (await quota.get(conn, actor.organization_id)).remaining == before + 1
    assert [await status_of(pool, id) for id in (put_off, lost)] == ["canceled", "unknown"]
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'sms'") == 0
    await check_ledger(pool, [actor.organization_id])


async def test_what_a_worker_has_in_hand_is_left_to_it(pool: Pool) -> None:
    actor = await organization(pool)
    id = await accepted(pool, actor)
    async with pool.acquire() as conn:
        rows = await holds.free(conn, "sms", SMS, limit=10)
        await claim_once(conn, "sms", {leases.UNROUTED: 10}, seconds=60)
        async with conn.transaction():
            assert await withdrawal.withdraw_rows(conn, rows, tried=True) == Withdrawn(left=1)
        assert await holds.free(conn, "sms", SMS, limit=10) == []
    assert await status_of(pool, id) == "accepted"


async def test_one_that_a_supplier_took_in_between_undoes_the_batch(pool: Pool) -> None:
    actor = await organization(pool)
    id, other = await accepted(pool, actor), await accepted(pool, actor)
    unsent = [withdrawal.Unsent(actor.organization_id, one, 1) for one in (id, other)]
    await pool.execute("UPDATE messages SET status = 'sent' WHERE id = $1", other)
    async with pool.acquire() as conn:
        at = await conn.fetchval("SELECT now()")
        with pytest.raises(AlreadyAttempted):
            async with conn.transaction():
                await withdrawal.withdraw(conn, unsent, at=at, reason="x")
    assert [await status_of(pool, one) for one in (id, other)] == ["accepted", "sent"]
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'sms'") == 2


async def test_whatsapp_messages_are_canceled_or_end_as_unknown_and_their_money_comes_back(pool: Pool) -> None:
    who = await whatsapp_factories.made(pool)
    fresh, tried = await whatsapp_factories.message(pool, who), await whatsapp_factories.message(pool, who)
    await pool.execute(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
        " SELECT $1, $2, 1, number_id, 'unknown', now(), now() FROM whatsapp_messages WHERE id = $2",
        who.organization_id,
        tried,
    )
    which = Selection(kinds=("whatsapp",))
    async with pool.acquire() as conn:
        rows = await holds.free(conn, "whatsapp", which, limit=10)
        async with conn.transaction():
            assert await whatsapp_withdrawal.withdraw_rows(conn, rows, tried=False) == Withdrawn(canceled=1, left=1)
        rows = await holds.free(conn, "whatsapp", which, limit=10)
        async with conn.transaction():
            assert await whatsapp_withdrawal.withdraw_rows(conn, rows, tried=True) == Withdrawn(ended=1)
    moved = await pool.fetch("SELECT id, status, failure_code FROM whatsapp_messages")
    found = {row["id"]: (row["status"], row["failure_code"]) for row in moved}
    assert found == {fresh: ("canceled", None), tried: ("failed", "unknown")}
    await whatsapp_factories.check_wallets(pool, [who.organization_id])


async def test_one_that_meta_accepted_late_does_not_keep_the_others_from_being_withdrawn(pool: Pool) -> None:
    """Its answer came after its attempt had been given up, and Meta has not reported on it yet: it cannot be withdrawn
    any more, and the whole batch was undone because of it, at each try."""
    who = await whatsapp_factories.made(pool)
    fresh, late = await whatsapp_factories.message(pool, who), await whatsapp_factories.message(pool, who)
    await pool.execute(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
        " SELECT $1, $2, n, number_id, CASE n WHEN 2 THEN 'accepted' ELSE 'unknown' END, now(), now()"
        " FROM whatsapp_messages, generate_series(1, 3) AS n WHERE id = $2",
        who.organization_id,
        late,
    )
    async with pool.acquire() as conn:
        found = await queued_work.withdraw(conn, Selection(kinds=("whatsapp",)), tried=True)
    assert found == {"whatsapp": Withdrawn(canceled=1, left=1)}
    moved = await pool.fetch("SELECT id, status FROM whatsapp_messages")
    assert {row["id"]: row["status"] for row in moved} == {fresh: "canceled", late: "accepted"}
    await whatsapp_factories.check_wallets(pool, [who.organization_id])


async def test_webhook_deliveries_are_dropped_for_the_endpoint_that_is_meant(pool: Pool) -> None:
    acme = (await organization(pool)).organization_id
    (id,) = await fill(pool, acme, kind="webhook")
    await pool.execute(
        "INSERT INTO queue (kind, line, organization_id, due_at, id) VALUES ('webhook', $1, $2, now(), $3)",
        UUID(int=78), acme, id,
    )  # fmt: skip
    which = Selection(kinds=("webhook",), line=LINE)
    async with pool.acquire() as conn:
        rows = await holds.free(conn, "webhook", which, limit=10)
        assert await holds.drop(conn, "webhook", rows) == Withdrawn(canceled=1)
    assert await claimed(pool, "webhook", LINE, UUID(int=78)) == {id}
    assert await pool.fetchval("SELECT line FROM queue WHERE id = $1", id) == UUID(int=78)


# -- what went out twice -----------------------------------------------------------------------------------------------


async def test_a_message_that_two_workers_sent_says_so(pool: Pool) -> None:
    """The first worker was stopped for longer than its lease and the grace period; both suppliers' responses are on
    record."""
    row = supplier()
    stopped, other = Bench(pool, row), Bench(pool, row)
    stopped.only.script = lambda submission: None
    actor = await organization(pool)
    id, once = await message(pool, actor), await message(pool, actor)
    await stopped.round()
    held = {one.message_id: one for one in stopped.only.submitted}
    stopped.answer(held[once], factories.accepted("ONCE"))
    await stopped.settle()
    await stopped.later(seconds=61)
    await other.round()
    await other.later(seconds=91)
    await other.round()
    assert [one.attempt for one in other.only.submitted] == [2]
    stopped.answer(held[id], factories.accepted("FIRST"))
    await stopped.settle()
    async with pool.acquire() as conn:
        twice = [one for one in (await timeline.of_message(conn, id=id)).entries if one.what == "sent twice"]
        clean = [one.what for one in (await timeline.of_message(conn, id=once)).entries]
    assert [one.detail for one in twice] == [{"part": "1/1", "attempts": [2, 1]}]
    assert "sent twice" not in clean
