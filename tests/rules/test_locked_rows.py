"""A row that somebody keeps locked, as in an open session of an operator, holds up its own organization's work only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from heliograph.accounts import plans
from heliograph.accounts.plans import Terms
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool, open_pool
from heliograph.campaigns import counting, plan
from heliograph.campaigns.channels.table import CHANNELS
from heliograph.campaigns.staging import Stager
from heliograph.campaigns.work import CampaignWork
from heliograph.queue import timers
from heliograph.sending import dispatch, results
from heliograph.sending.dispatch import LOCKED_PAUSE
from heliograph.simulators.receiver import Options, Receiver
from heliograph.sms.received import inbox
from heliograph.sms.received.reception import Reception
from heliograph.suppliers.contract import Outcome, Part, PartlyStored, ReceiptState, Verdict
from heliograph.webhooks.recording import results as deliveries
from tests import hooks
from tests.hooks import until
from tests.rules import whatsapp_factories
from tests.rules.callback_factories import Meta, status, wamid
from tests.rules.dispatching import Bench, attempts, pause_of, queued
from tests.rules.factories import TO, message, organization, receipt, sender, status_of
from tests.rules.test_campaigns import create, end, number, run
from tests.rules.test_inbound import NUMBER, handset_message, opted_out, receive

LOCKED = "SELECT FROM messages WHERE id = ANY ($1) FOR UPDATE"


@pytest.fixture
async def hasty(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pool]:
    """A worker's pool whose statements end sooner, so that less has to be waited for."""
    for one in (results, deliveries):
        monkeypatch.setattr(one, "ASIDE_RETRY", 0.01)
    opened = await open_pool(database_url, size=6, statement=2.0)
    try:
        yield opened
    finally:
        opened.terminate()


@contextlib.asynccontextmanager
async def locking(pool: Pool) -> AsyncIterator[Connection]:
    """Somebody's session, in a transaction that nothing ends."""
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield conn


async def is_sent(pool: Pool, id: UUID) -> bool:
    return await status_of(pool, id) == "sent"


async def test_answers_of_other_organizations_are_recorded(pool: Pool, hasty: Pool) -> None:
    """They waited, and with them all dispatch, for as long as the session was open."""
    bench = Bench(hasty)
    other, actor = await organization(pool), await organization(pool)
    locked = [await message(pool, actor) for _ in range(3)]
    first, second = await message(pool, other), await message(pool, other)
    taken = bench.only.script
    bench.only.script = lambda submission: None if submission.message_id == second else taken(submission)

    async def is_aside() -> bool:
        return set(bench.results.aside) == {actor.organization_id}

    async with locking(pool) as open_session:
        await open_session.execute(LOCKED, locked[:1])
        assert await bench.dispatcher.round() == 5
        await until(lambda: is_sent(pool, first), within=60)
        await until(is_aside)
        # No more is sent whose answer cannot be recorded: otherwise nobody's messages would be, at some time.
        late = await message(pool, actor)
        await bench.dispatcher.round()
        assert late not in [one.message_id for one in bench.only.submitted]
        assert 0 < await pause_of(pool, late) <= LOCKED_PAUSE
        (submission,) = (one for one in bench.only.submitted if one.message_id == second)
        bench.answer(submission, Outcome(Verdict.ACCEPTED, (Part(1, "second"),)))
        await until(lambda: is_sent(pool, second), within=60)
        # A report waits for the answers that came before it, and not for those that are set aside.
        await bench.receive(bench.only_id, receipt("second"))
        assert await status_of(pool, second) == "delivered"
        assert [await status_of(pool, id) for id in (*locked, late)] == ["sending"] * 3 + ["accepted"]
        assert bench.dispatcher.in_flight == 3, "their leases are renewed"
        await bench.dispatcher.renew()
    await bench.results.drain()
    await bench.later(seconds=LOCKED_PAUSE)
    await bench.round()
    assert [await status_of(pool, id) for id in (*locked, late)] == ["sent"] * 4
    assert bench.dispatcher.in_flight == 0
    assert not any([await queued(pool, id) for id in (*locked, late, first, second)])
    assert not bench.results.aside


async def test_answers_that_are_set_aside_leave_room_for_others(pool: Pool, hasty: Pool) -> None:
    """An organization that was the only one to send when a row of it was locked stopped all dispatch."""
    bench = Bench(hasty, claim_limit=2)
    other, actor = await organization(pool), await organization(pool)
    ids = [await message(pool, actor) for _ in range(4)]

    async def is_aside() -> bool:
        return bool(bench.results.aside)

    async with locking(pool) as open_session:
        await open_session.execute(LOCKED, ids)
        for _ in range(2):
            await bench.dispatcher.round()
        assert len(bench.only.submitted) == 4
        await until(is_aside, within=60)
        sent = await message(pool, other)
        await until(lambda: _is_sent_after(bench, sent), within=60)
        assert bench.dispatcher.in_flight == 4
    await bench.results.drain()
    assert [await status_of(pool, id) for id in ids] == ["sent"] * 4
    assert (bench.dispatcher.in_flight, bench.results.held_up) == (0, 0)


async def _is_sent_after(bench: Bench, id: UUID) -> bool:
    await bench.dispatcher.round()
    return await is_sent(bench.pool, id)


async def test_an_answer_whose_commit_held_its_own_lock_is_counted_once(
    pool: Pool, hasty: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that hung was taken for somebody's lock, and what it had recorded was recorded again once it ended. What
    was answered meanwhile, and never tried, was taken for recorded as well."""
    bench = Bench(hasty)
    bench.only.script = lambda submission: None
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(2)]
    await bench.round()
    first, second = bench.only.submitted
    write, hanging, ends = bench.results._write, asyncio.Event(), asyncio.Event()

    async def hangs(*given: Any, **named: Any) -> None:
        """Its first commit ends once that is set, and nobody learns of it."""
        monkeypatch.setattr(bench.results, "_write", write)
        answered = given[0]

        async def commit() -> None:
            async with pool.acquire() as conn, conn.transaction():
                prepared = await bench.channel.prepare(answered, [])
                await bench.channel.write(conn, answered, [], prepared, None, alone=False)
                hanging.set()
                await ends.wait()

        committing.append(asyncio.create_task(commit()))
        await hanging.wait()
        raise TimeoutError

    committing: list[asyncio.Task[None]] = []
    monkeypatch.setattr(bench.results, "_write", hangs)
    bench.answer(first, Outcome(Verdict.REFUSED))
    await hanging.wait()
    bench.answer(second, Outcome(Verdict.REFUSED))

    async def is_aside() -> bool:
        return bool(bench.results.aside)

    await until(is_aside, within=60)
    ends.set()
    await committing[0]
    await bench.results.drain()
    assert [await attempts(pool, id) for id in ids] == [[(1, "refused")]] * 2
    assert await pool.fetchval("SELECT sum(count)::int FROM reconciliation_deltas WHERE what = 'refused'") == 2
    assert bench.dispatcher.in_flight == 0


async def test_a_late_answer_without_outcome_does_not_show_that_others_are_recorded(pool: Pool, hasty: Pool) -> None:
    """A second segment's answer was still missing, as it was when the attempt was given up: whatever came in one batch
    with it was taken for recorded once it had been set aside."""
    bench = Bench(hasty)
    bench.only.script = lambda submission: None
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(2)]
    await bench.round()
    first, second = bench.only.submitted
    bench.answer(first, Outcome(Verdict.UNKNOWN, detail="no answer in time"))
    await bench.results.drain()

    async def is_aside() -> bool:
        return bool(bench.results.aside)

    async with locking(pool) as open_session:
        await open_session.execute(LOCKED, ids)
        bench.answer(first, Outcome(Verdict.UNKNOWN, (Part(1, "1"),), detail="no answer in time"))
        bench.answer(second, Outcome(Verdict.REFUSED))
        await until(is_aside, within=60)
    await bench.results.drain()
    assert [await attempts(pool, id) for id in (first.message_id, second.message_id)] == [
        [(1, "unknown")],
        [(1, "refused")],
    ]


async def test_a_fifth_organization_is_set_aside_once_another_one_is_released(
    pool: Pool, hasty: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held up everybody for as long as its own lock lasted."""
    monkeypatch.setattr(results, "MOST_ASIDE", 1)
    bench = Bench(hasty)
    actors = [await organization(pool) for _ in range(3)]
    ids = [await message(pool, one) for one in actors]
    paused, pause = asyncio.Event(), bench.results._pause

    async def pausing(*given: Any, **also: Any) -> bool:
        paused.set()
        return await pause(*given, **also)

    monkeypatch.setattr(bench.results, "_pause", pausing)
    order = sorted(range(3), key=lambda n: actors[n].organization_id)
    first, second, free = (ids[n] for n in order)
    async with locking(pool) as lasting:
        await lasting.execute(LOCKED, [second])
        async with locking(pool) as open_session:
            await open_session.execute(LOCKED, [first])
            await bench.dispatcher.round()
            await asyncio.wait_for(paused.wait(), 60)
        await until(lambda: is_sent(pool, free), within=60)
        await until(lambda: is_sent(pool, first), within=60)
    await bench.results.drain()
    assert await is_sent(pool, second)


async def test_what_waits_for_a_whole_table_is_not_tried_in_small_parts_for_ever(
    pool: Pool, hasty: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lease could be renewed meanwhile."""
    bench = Bench(hasty)
    ids = [await message(pool, await organization(pool)) for _ in range(results.MOST_ASIDE + 3)]
    paused, pause = asyncio.Event(), bench.results._pause

    async def pausing(*given: Any, **also: Any) -> bool:
        paused.set()
        return await pause(*given, **also)

    monkeypatch.setattr(bench.results, "_pause", pausing)
    async with locking(pool) as open_session:
        await open_session.execute("LOCK TABLE attempts IN SHARE MODE")
        assert await bench.dispatcher.round() == len(ids)
        await asyncio.wait_for(paused.wait(), 60)
    await bench.results.drain()
    assert [await status_of(pool, id) for id in ids] == ["sent"] * len(ids)
    assert bench.dispatcher.in_flight == 0


async def test_reports_about_other_messages_are_recorded(pool: Pool, hasty: Pool) -> None:
    """All that were in one batch failed, and their suppliers were told to deliver them later, again and again."""
    bench = Bench(hasty)
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(5)]
    keys = iter("abcde")
    bench.only.script = lambda submission: Outcome(Verdict.ACCEPTED, (Part(1, next(keys)),))
    assert await bench.round() == 5
    of = {one.message_id: key for one, key in zip(bench.only.submitted, "abcde", strict=True)}
    received = [receipt(of[id], state=ReceiptState.DELIVERED) for id in ids]
    async with locking(pool) as open_session:
        await open_session.execute(LOCKED, [ids[2]])
        with pytest.raises(PartlyStored) as failed:
            await bench.receive(bench.only_id, *received)
        assert failed.value.errors.keys() == {2}
        expected = ["delivered", "delivered", "sent", "delivered", "delivered"]
        assert [await status_of(pool, id) for id in ids] == expected
    await bench.receive(bench.only_id, received[2])
    assert await status_of(pool, ids[2]) == "delivered"


async def test_reports_are_returned_at_once_when_it_is_no_lock_that_takes_so_long(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that hung after a lock was taken for another one: each half of a batch waited for its time limit."""
    bench = Bench(pool)
    bench.results._locks_until = float("inf")
    tried = 0

    async def hangs(*given: Any, **named: Any) -> None:
        nonlocal tried
        tried += 1
        raise asyncpg.QueryCanceledError

    monkeypatch.setattr(bench.results, "_write", hangs)
    several = [bench.receive(bench.only_id, receipt(key)) for key in "abcdefgh"]
    errors = await asyncio.gather(*several, return_exceptions=True)
    assert [type(one) for one in errors] == [asyncpg.QueryCanceledError] * 8
    assert tried == 1


@pytest.mark.parametrize("is_under_way", [False, True])
async def test_messages_of_others_are_sent(pool: Pool, hasty: Pool, is_under_way: bool) -> None:
    """A locked message that was tried before stopped all dispatch, for as long as the session was open."""
    bench = Bench(hasty)
    other, actor = await organization(pool), await organization(pool)
    locked = await message(pool, actor)
    taken = bench.only.script
    bench.only.script = lambda submission: None if is_under_way else Outcome(Verdict.BUSY)
    await bench.round()
    bench.restart()
    await bench.later(minutes=10)
    bench.only.script = taken
    ids = [await message(pool, one) for one in (other, actor, other, actor, other)]
    async with locking(pool) as open_session:
        if is_under_way:  # somebody is about to record its answer
            row = await pool.fetchrow("SELECT * FROM queue WHERE id = $1", locked)
            assert row is not None
            await open_session.execute(
                "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at,"
                " continues, parts, code, detail) VALUES ($1, $2, 1, $3, 'accepted', now(), now(), 1, 1, '', '')",
                actor.organization_id,
                locked,
                row["target_id"],
            )
        else:
            await open_session.execute(LOCKED, [locked])
        with pytest.raises(asyncpg.QueryCanceledError):
            await bench.round()
        await bench.round()
        assert [await status_of(pool, id) for id in ids] == ["sent"] * 5
        assert await queued(pool, locked)
        assert len(await attempts(pool, locked)) == 1


async def test_messages_of_others_are_sent_however_many_organizations_wait(
    pool: Pool, hasty: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first ones of them left of a round's time was nothing, each time, as they were due again by then."""
    monkeypatch.setattr(dispatch, "MOST_LOCKS", 6)  # four tell one message from 11 others
    monkeypatch.setattr(dispatch, "LOCKED_PAUSE", 0.0)
    bench = Bench(hasty)
    actors = sorted([await organization(pool) for _ in range(6)], key=lambda one: one.organization_id)
    locked = [await message(pool, one) for one in actors]
    await pool.execute("UPDATE queue SET attempt = 1")  # they were tried before
    ids = [await message(pool, one) for one in actors]
    async with locking(pool) as open_session:
        await open_session.execute(LOCKED, locked)
        with pytest.raises(asyncpg.QueryCanceledError):
            await bench.round()
        await bench.round(6)
        assert [await status_of(pool, id) for id in ids] == ["sent"] * 6


@pytest.mark.parametrize("status", [200, 500])
async def test_events_of_other_endpoints_are_delivered(
    pool: Pool, hasty: Pool, receiver: Receiver, status: int
) -> None:
    """Their results waited with those of the locked one, and no further event was posted to anybody."""
    actor, other = await hooks.organization(pool), await hooks.organization(pool)
    locked, _ = await hooks.endpoint(pool, actor, receiver.url)
    await hooks.endpoint(pool, other, receiver.url)

    async def left(of: UUID) -> int:
        return int(await pool.fetchval("SELECT count(*) FROM queue WHERE organization_id = $1", of))

    async def is_done(of: UUID) -> bool:
        return await left(of) == 0

    async def is_recorded() -> bool:
        return len(await hooks.attempts(pool)) == 20 and await hooks.leased(pool) == 0

    async with hooks.delivering(hasty, hooks.settings(webhook_schedule="0,3600")) as deliverer:
        async with locking(pool) as open_session:
            await open_session.execute("SELECT FROM webhook_endpoints WHERE id = $1 FOR UPDATE", locked)
            receiver.options = Options(status=status)
            await hooks.record(pool, actor, 3)
            await receiver.wait_for(lambda it: it.counters.requests == 3)
            receiver.options = Options()
            for _ in range(3):
                await hooks.record(pool, other, 5)
                await until(lambda: is_done(other.organization_id), within=60)
            assert deliverer._record.is_aside(locked)
            await hooks.record(pool, actor, 2)
            assert await left(actor.organization_id) == 5
        await until(is_recorded)
    assert receiver.counters.requests == 3 + 15 + 2
    assert await left(actor.organization_id) == (0 if status == 200 else 3)
    assert not deliverer._record.is_aside(locked)


async def test_results_that_are_set_aside_leave_room_for_other_endpoints(
    pool: Pool, hasty: Pool, receiver: Receiver
) -> None:
    """An endpoint that was the only one to get events when it was locked stopped those of all others."""
    actor, other = await hooks.organization(pool), await hooks.organization(pool)
    locked, _ = await hooks.endpoint(pool, actor, receiver.url)
    await hooks.endpoint(pool, other, receiver.url)

    async def is_aside() -> bool:
        return deliverer._record.is_aside(locked)

    async def is_done() -> bool:
        return not await pool.fetchval("SELECT EXISTS (SELECT FROM queue WHERE organization_id = $1)", of)

    async with hooks.delivering(hasty, hooks.settings(claim_limit=2, webhook_schedule="0,3600")) as deliverer:
        async with locking(pool) as open_session:
            await open_session.execute("SELECT FROM webhook_endpoints WHERE id = $1 FOR UPDATE", locked)
            receiver.options = Options(status=500)
            await hooks.record(pool, actor, 12)
            await receiver.wait_for(lambda it: it.counters.requests >= 8)
            await until(is_aside, within=60)
            receiver.options, of = Options(), other.organization_id
            await hooks.record(pool, other, 1)
            await until(is_done, within=60)

        async def is_recorded() -> bool:
            return len(await hooks.attempts(pool)) == 13 and await hooks.leased(pool) == 0

        await until(is_recorded, within=60)
        assert (deliverer._held.claimed, deliverer._held.handed) == (0, 0)


@pytest.mark.parametrize("is_own_app", [False, True])
async def test_callbacks_about_others_are_processed(pool: Pool, hasty: Pool, is_own_app: bool) -> None:
    """A locked wallet stopped the callbacks of all organizations, and with the others' statuses their messages."""
    first = await whatsapp_factories.made(pool)
    other = await whatsapp_factories.made(pool, app=None if is_own_app else first.app)
    ids = [await whatsapp_factories.message(pool, who) for who in (first, other, first, other, other)]
    meta = Meta(hasty)
    async with locking(pool) as open_session:
        await open_session.execute("SELECT FROM wallets WHERE organization_id = $1 FOR UPDATE", first.organization_id)
        for id, who in zip(ids, (first, other, first, other, other), strict=True):
            told = status(who, wamid(), "delivered", biz_opaque_callback_data=str(id))
            await meta.post(who, told)
        await meta.work()
        found = await pool.fetch("SELECT id, status FROM whatsapp_messages ORDER BY id")
        assert [row["status"] for row in found] == ["accepted", "delivered", "accepted", "delivered", "delivered"]
        assert await pool.fetchval("SELECT count(*) FROM whatsapp_callbacks") == 2
        assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'whatsapp_in' AND due_at > now()") == 2
    await pool.execute("UPDATE queue SET due_at = now() WHERE kind = 'whatsapp_in'")
    await meta.work()
    assert {row["status"] for row in await pool.fetch("SELECT status FROM whatsapp_messages")} == {"delivered"}
    await whatsapp_factories.check_wallets(pool, [first.organization_id, other.organization_id])


async def receiving(pool: Pool, hasty: Pool) -> tuple[Actor, Reception]:
    """An organization that receives at NUMBER, and what processes its messages."""
    actor = await organization(pool)
    await sender(pool, actor, NUMBER)
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)
    return actor, Reception(hasty, lease_seconds=60, on_deliveries=lambda: None, on_messages=lambda: None)


async def test_messages_of_other_handsets_are_processed_and_those_of_the_locked_one_in_order(
    pool: Pool, hasty: Pool
) -> None:
    """Nobody's STOP had any effect as long as one person's opt-out was locked."""
    actor, reception = await receiving(pool, hasty)
    await receive(pool, handset_message("STOP", by="+258841110001"))
    assert await reception.round() == 1
    first, second = "+258841110001", "+258841110002"
    async with locking(pool) as open_session:
        await open_session.execute("SELECT FROM opt_outs FOR UPDATE")
        some = [("hi", second), ("START", first), ("STOP", second), ("STOP", first), ("later", second)]
        await receive(pool, *[handset_message(text, by=by) for text, by in some])
        with pytest.raises(asyncpg.QueryCanceledError):
            await reception.round()
        assert await reception.round() == 3
        assert await opted_out(pool, actor, second)
        assert await reception.round() == 0
    reception._left.clear()  # a moment later
    assert await reception.round() == 2
    assert await opted_out(pool, actor, first)
    said = await pool.fetch("SELECT said FROM consent_history WHERE recipient = $1 ORDER BY id", first)
    assert [row["said"] for row in said] == ["out", "in", "out"]


async def test_messages_of_other_handsets_are_processed_however_many_wait(
    pool: Pool, hasty: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When those of a few more persons than one round can tell from the others waited, nobody's STOP had an effect."""
    monkeypatch.setattr("heliograph.sms.received.reception.MOST_LOCKS", 4)
    actor, reception = await receiving(pool, hasty)
    locked = [f"+25884111000{n}" for n in range(5)]
    await receive(pool, *[handset_message("STOP", by=by) for by in locked])
    assert await reception.round() == 5
    free = "+258841110009"
    async with locking(pool) as open_session:
        await open_session.execute("SELECT FROM opt_outs FOR UPDATE")
        await receive(pool, *[handset_message("START", by=by) for by in locked])
        await receive(pool, handset_message("STOP", by=free), *[handset_message("STOP", by=by) for by in locked])
        with pytest.raises(asyncpg.QueryCanceledError):
            await reception.round()
        while await reception.round():
            pass
        assert await opted_out(pool, actor, free)
        assert await pool.fetchval("SELECT count(*) FROM inbound_messages WHERE due_at IS NOT NULL") == 10
    reception._left.clear()  # a moment later
    assert await reception.round() == 10
    said = await pool.fetch(
        "SELECT said FROM consent_history WHERE recipient = ANY ($1) ORDER BY recipient, id", locked
    )
    assert [row["said"] for row in said] == ["out", "in", "out"] * 5


async def test_messages_of_other_handsets_are_processed_while_one_is_locked_in_the_inbox(
    pool: Pool, hasty: Pool
) -> None:
    """A message that an operator was putting back kept everybody's STOP waiting."""
    actor, reception = await receiving(pool, hasty)
    first, second = "+258841110001", "+258841110002"
    (locked,) = await receive(pool, handset_message("STOP", by=first))
    await receive(pool, handset_message("STOP", by=second), handset_message("START", by=first))
    async with locking(pool) as open_session:
        await open_session.execute("SELECT FROM inbound_messages WHERE id = $1 FOR UPDATE", locked)
        with pytest.raises(asyncpg.QueryCanceledError):
            await reception.round()
        while await reception.round():
            pass
        assert await opted_out(pool, actor, second)
        assert await pool.fetchval("SELECT count(*) FROM inbound_messages WHERE due_at IS NOT NULL") == 2
    reception._left.clear()  # a moment later
    assert await reception.round() == 2
    said = await pool.fetch("SELECT said FROM consent_history WHERE recipient = $1 ORDER BY id", first)
    assert [row["said"] for row in said] == ["out", "in"]


async def test_plans_of_other_organizations_are_renewed(
    pool: Pool, hasty: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None was, so that at the beginning of a month, nobody could send. Nor does it wait for as long as a statement
    may, with others' quotas locked."""
    monkeypatch.setattr(plans, "ROW_LOCKED", asyncpg.LockNotAvailableError)
    ids = [(await organization(pool)).organization_id for _ in range(3)]
    async with pool.acquire() as conn:
        for id in ids:
            await plans.subscribe(conn, id, Terms("business", 100), now=clock.now() - timedelta(days=40))
    began = "SELECT id FROM organizations WHERE period_end > now()"
    async with locking(pool) as open_session, hasty.acquire() as conn:
        await open_session.execute("SELECT FROM quotas WHERE organization_id = $1 FOR UPDATE", ids[1])
        assert await plans.renew(conn) == 2
        assert {row["id"] for row in await pool.fetch(began)} == {ids[0], ids[2]}
    async with pool.acquire() as conn:
        assert await plans.renew(conn) == 1
        assert await plans.renew(conn) == 0


@pytest.mark.parametrize("table", ["campaigns", "campaign_chunks"])
async def test_campaigns_of_others_are_counted(pool: Pool, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    """None was completed. The chunks of a locked one do not take up each batch. Nor are others locked for as long as a
    statement may take, when nobody can pause them."""
    monkeypatch.setattr(counting, "ROW_LOCKED", asyncpg.LockNotAvailableError)
    monkeypatch.setattr(counting, "CHUNKS", 1)
    monkeypatch.setattr(counting, "SECONDS", 3600.0)
    locked, other = [await create(pool, await organization(pool), recipients=[to]) for to in ("+258841110001", TO)]
    await run(pool)
    await end(pool, "delivered")
    for n, campaign in enumerate((locked, other)):
        await pool.execute(
            "UPDATE campaign_chunks SET count_at = now() + make_interval(secs => $2) - interval '1 minute'"
            " WHERE campaign_id = $1",
            campaign.id,
            float(n),
        )
    delivered = "SELECT array_agg(delivered ORDER BY id) FROM campaigns"
    async with locking(pool) as open_session, pool.acquire() as conn:
        column = "id" if table == "campaigns" else "campaign_id"
        await open_session.execute(f"SELECT FROM {table} WHERE {column} = $1 FOR UPDATE", locked.id)
        assert await counting.count_all_due(conn) == (2 if table == "campaigns" else 1)
        assert await pool.fetchval(delivered) == [0, 1]
    await pool.execute("UPDATE campaign_chunks SET count_at = now() WHERE campaign_id = $1", locked.id)
    async with pool.acquire() as conn:
        await counting.count_all_due(conn)
    assert await pool.fetchval(delivered) == [1, 1]


async def test_a_locked_chunk_is_waited_for_once_and_not_each_second(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' campaigns could not be paused, nor staged, for two of every three seconds."""
    locked, other = [await create(pool, await organization(pool), recipients=[to]) for to in ("+258841110001", TO)]
    await run(pool)
    await end(pool, "delivered")
    await pool.execute("UPDATE campaign_chunks SET count_at = now()")
    waited = 0

    async def count_due(conn: Connection) -> int:
        nonlocal waited
        waited += 1
        return await count_due_once(conn)

    count_due_once = counting.count_due
    monkeypatch.setattr(counting, "count_due", count_due)
    work = CampaignWork(pool, dict.fromkeys(CHANNELS, lambda: None))
    count = next(one for one in work.timers() if one.name == "campaigns")
    async with locking(pool) as open_session, pool.acquire() as conn:
        await open_session.execute("SELECT FROM campaign_chunks WHERE campaign_id = $1 FOR UPDATE", locked.id)
        for _ in range(3):
            await pool.execute("UPDATE campaign_chunks SET count_at = now() WHERE campaign_id = $1", other.id)
            await count.step(conn)
    assert waited == 1
    assert await pool.fetchval("SELECT array_agg(delivered ORDER BY id) FROM campaigns") == [0, 1]
    work = CampaignWork(pool, dict.fromkeys(CHANNELS, lambda: None))
    async with pool.acquire() as conn:
        await next(one for one in work.timers() if one.name == "campaigns").step(conn)
    assert await pool.fetchval("SELECT array_agg(delivered ORDER BY id) FROM campaigns") == [1, 1]


async def test_a_campaign_whose_balance_is_locked_is_not_tried_at_each_turn(pool: Pool) -> None:
    """Each step of the others waited for it."""
    actor = await organization(pool)
    campaign = await create(pool, actor, recipients=[TO])
    stager = Stager(pool)
    async with locking(pool) as open_session:
        await open_session.execute("SELECT FROM quotas WHERE organization_id = $1 FOR UPDATE", actor.organization_id)
        turns = 0
        while await stager.round():
            turns += 1
        assert turns <= 4
    assert await pool.fetchval("SELECT step_at > now() FROM campaigns WHERE id = $1", campaign.id)
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await run(pool)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1


@pytest.mark.parametrize("then", ["pause", "resume", "cancel"])
async def test_a_campaign_of_which_a_message_is_locked_does_not_hold_up_others(pool: Pool, then: str) -> None:
    """To pause, resume or cancel it waited for half a minute at each of its turns, and others for theirs."""
    actor, other = await organization(pool), await organization(pool)
    campaign = await create(pool, actor, recipients=[TO])
    for step in ["pause", "resume"] if then == "resume" else [then]:
        await run(pool)
        async with pool.acquire() as conn, conn.transaction():
            await getattr(plan, step)(conn, actor, id=campaign.id)
    stager = Stager(pool)
    async with locking(pool) as open_session:
        await open_session.execute("SELECT FROM queue WHERE organization_id = $1 FOR UPDATE", actor.organization_id)
        await create(pool, other, recipients=[TO])
        while await stager.round():
            pass
        assert await pool.fetchval("SELECT count(*) FROM messages WHERE organization_id = $1", other.organization_id)
        step = "SELECT step_at > now() FROM campaigns WHERE id = $1"
        assert await pool.fetchval(step, campaign.id)
    await pool.execute("UPDATE campaigns SET step_at = now() WHERE id = $1", campaign.id)
    await run(pool)
    put_off = await pool.fetchval(
        "SELECT due_at > now() + interval '1 year' FROM queue WHERE organization_id = $1", actor.organization_id
    )
    assert put_off is {"pause": True, "resume": False, "cancel": None}[then]


@pytest.mark.parametrize("then", ["pause", "cancel"])
async def test_one_locked_message_keeps_no_others_of_a_campaign_from_being_stopped(pool: Pool, then: str) -> None:
    """They were sent, although somebody had paused or canceled it."""
    actor = await organization(pool)
    campaign = await create(pool, actor, recipients=[number(n) for n in range(4)])
    await run(pool, chunk=1)
    async with pool.acquire() as conn, conn.transaction():
        await getattr(plan, then)(conn, actor, id=campaign.id)
    (last,) = await pool.fetch("SELECT id FROM queue ORDER BY id DESC LIMIT 1")
    waiting = "SELECT id FROM queue WHERE due_at < now() + interval '1 year'"
    async with locking(pool) as open_session:
        await open_session.execute("SELECT FROM queue WHERE id = $1 FOR UPDATE", last["id"])
        await run(pool)
        assert await pool.fetch(waiting) == [last]
    await pool.execute("UPDATE campaigns SET step_at = now() WHERE id = $1", campaign.id)
    await run(pool)
    assert await pool.fetch(waiting) == []


@pytest.mark.parametrize("then", ["pause", "cancel"])
async def test_one_locked_message_keeps_none_that_workers_put_back_from_being_stopped(pool: Pool, then: str) -> None:
    """They were sent, although somebody had paused or canceled the campaign."""
    actor = await organization(pool)
    campaign = await create(pool, actor, recipients=[number(n) for n in range(3)])
    await run(pool, chunk=1)
    async with pool.acquire() as conn, conn.transaction():
        await getattr(plan, then)(conn, actor, id=campaign.id)
    with_worker, _, last = [row["id"] for row in await pool.fetch("SELECT id FROM queue ORDER BY id")]
    leased = "UPDATE queue SET lease_token = id, lease_until = now() + $2::interval WHERE id = $1"
    await pool.execute(leased, with_worker, timedelta(minutes=1))
    waiting = "SELECT array_agg(id ORDER BY id) FROM queue WHERE due_at < now() + interval '1 year'"
    async with locking(pool) as open_session:
        await open_session.execute("SELECT FROM queue WHERE id = $1 FOR UPDATE", last)
        await run(pool)
        assert await pool.fetchval(waiting) == [with_worker, last]
        await pool.execute(leased, with_worker, None)
        await pool.execute("UPDATE campaigns SET step_at = now() WHERE id = $1", campaign.id)
        await run(pool)
        assert await pool.fetchval(waiting) == [last]
    await pool.execute("UPDATE campaigns SET step_at = now() WHERE id = $1", campaign.id)
    await run(pool)
    assert await pool.fetchval(waiting) is None
