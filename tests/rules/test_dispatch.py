"""Dispatch on a real database with suppliers that follow a script: from the queue to the supplier, and every kind of
outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec
import pytest
from structlog.testing import capture_logs

from heliograph.accounts import organizations
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.retry import SUBMIT
from heliograph.campaigns.channels import sms as sms_channel
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.queue import holds
from heliograph.sending.attempts import Attempt, mark_unknown
from heliograph.sending.dispatch import RECENT_LOSS_WAIT
from heliograph.sms.accepting import withdrawal
from heliograph.sms.arrivals import FAILURES
from heliograph.sms.dispatch.claimed import ClaimedMessage
from heliograph.suppliers.contract import Outcome, Part, ReceiptState, Submission, Verdict
from tests.rules.dispatching import Bench, attempts, moment, pause_of, queued, waits
from tests.rules.factories import (
    SENDER,
    TO,
    accept_all,
    accepted,
    blocked,
    endpoint,
    events_of,
    message,
    organization,
    receipt,
    status_of,
    supplier,
)

REFUSED = Outcome(Verdict.REFUSED, code="0x0000000B", detail="invalid destination")
ELSEWHERE = Outcome(Verdict.REFUSED, code="0x0000000A", failover=True)
OPTED_OUT = Outcome(Verdict.REFUSED, code="21610", opted_out=True)
BUSY = Outcome(Verdict.BUSY, code="0x00000008")
THROTTLED = Outcome(Verdict.BUSY, code="0x00000058", counts=False)
UNREACHABLE = Outcome(Verdict.UNREACHABLE)
UNKNOWN = Outcome(Verdict.UNKNOWN)


def answering(outcome: Outcome | None) -> object:
    return lambda submission: outcome


# -- out ---------------------------------------------------------------------------------------------------------------


async def test_an_accepted_message_goes_out_once_and_is_sent(pool: Pool) -> None:
    bench = Bench(pool)
    id = await message(pool, await organization(pool), text="olá €")
    assert await bench.round(3) == 1
    (submission,) = bench.only.submitted
    assert (submission.message_id, submission.attempt) == (id, 1)
    assert (submission.to, submission.sender) == (TO[1:], SENDER)
    assert submission.validity_seconds is None
    assert await status_of(pool, id) == "sent"
    assert await attempts(pool, id) == [(1, "accepted")]
    assert not await queued(pool, id)
    assert bench.dispatcher.in_flight == 0
    attempt = await pool.fetchrow("SELECT * FROM attempts WHERE message_id = $1", id)
    assert attempt is not None
    assert (attempt["supplier_message_id"], attempt["recipient_suffix"]) == (f"{id}-1", TO[-8:])
    assert await pool.fetchval("SELECT count(*) FROM sms_parts") == 0


async def test_the_attempt_is_committed_before_the_supplier_sees_it(pool: Pool, database_url: str) -> None:
    """Queried over another connection, from within the submit itself."""
    bench = Bench(pool)
    seen: list[asyncio.Task[object]] = []

    async def look(id: UUID) -> object:
        other = await asyncpg.connect(database_url)
        try:
            query = "SELECT begun_at IS NOT NULL, attempt, target_id FROM queue WHERE id = $1"
            return tuple(await other.fetchrow(query, id))
        finally:
            await other.close()

    def submit(submission: Submission) -> None:
        seen.append(asyncio.create_task(look(submission.message_id)))

    bench.only.script = submit
    await message(pool, await organization(pool))
    await bench.round()
    assert [await one for one in seen] == [(True, 1, bench.only_id)]


async def test_a_long_message_goes_out_in_its_segments_with_one_reference_each(pool: Pool) -> None:
    bench = Bench(pool)
    actor = await organization(pool)
    ids = [await message(pool, actor, text="x" * 200, segments=2) for _ in range(2)]
    await bench.round()
    first, second = bench.only.submitted
    assert [len(one.segments) for one in (first, second)] == [2, 2]
    # To one handset, one after the other: their parts must not be mistaken for each other's.
    assert first.reference & 0xFF != second.reference & 0xFF
    rows = await pool.fetch("SELECT part, parts FROM sms_parts WHERE message_id = $1 ORDER BY part", ids[0])
    assert [tuple(row) for row in rows] == [(1, 2), (2, 2)]


async def test_the_remaining_validity_goes_along(pool: Pool) -> None:
    bench = Bench(pool)
    await message(pool, await organization(pool), expires_at=clock.now() + timedelta(seconds=600))
    await bench.round()
    validity = bench.only.submitted[0].validity_seconds
    assert validity is not None
    assert 590 < validity <= 600


async def test_no_more_is_claimed_than_suppliers_can_take(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.room = 3
    actor = await organization(pool)
    for _ in range(8):
        await message(pool, actor)
    await bench.round()
    assert len(bench.only.submitted) == 3
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE lease_until IS NULL") == 5
    await bench.round(4)
    assert len({one.message_id for one in bench.only.submitted}) == len(bench.only.submitted) == 8


async def test_singles_go_before_a_campaign_that_waits_in_a_suppliers_line(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.room = 5
    actor = await organization(pool)
    for _ in range(40):
        await message(pool, actor, lane=1, line=bench.only_id)
    single = await message(pool, await organization(pool))
    await bench.round()
    assert single in {one.message_id for one in bench.only.submitted}
    assert len(bench.only.submitted) == 5


# -- what is decided before --------------------------------------------------------------------------------------------


async def ended(pool: Pool, id: UUID, status: str, code: str | None) -> None:
    row = await pool.fetchrow("SELECT status, failure_code, failed_at FROM messages WHERE id = $1", id)
    assert row is not None
    assert (row["status"], row["failure_code"]) == (status, code)
    assert code is None or code in FAILURES
    failed = code is not None and status != "unknown"
    assert (row["failed_at"] is not None) == failed
    assert await events_of(pool, id) == (["message.failed"] if failed else [])
    assert not await queued(pool, id)


async def test_an_expired_message_is_not_sent(pool: Pool) -> None:
    bench = Bench(pool)
    actor = await organization(pool)
    over = await message(pool, actor, expires_at=clock.now() - timedelta(seconds=1))
    old = await message(pool, actor, age=timedelta(hours=25))
    erased = await message(pool, actor, text=None)
    fresh = await message(pool, actor, age=timedelta(hours=23))
    await bench.round()
    for id in (over, old, erased):
        await ended(pool, id, "expired", "expired")
    assert [one.message_id for one in bench.only.submitted] == [fresh]


async def test_what_changed_since_accept_is_looked_at_again(pool: Pool) -> None:
    bench = Bench(pool)
    opted_out, revoked = await organization(pool), await organization(pool)
    await pool.execute("INSERT INTO opt_outs VALUES ($1, $2, now(), 'test')", opted_out.organization_id, TO)
    await pool.execute(
        "UPDATE sender_ids SET status = 'suspended', is_default = false WHERE organization_id = $1",
        revoked.organization_id,
    )
    one, two = await message(pool, opted_out), await message(pool, revoked)
    await bench.round()
    await ended(pool, one, "rejected", "opted_out")
    await ended(pool, two, "rejected", "sender_not_approved")
    assert bench.only.submitted == []


async def test_a_suspended_organizations_messages_wait(pool: Pool) -> None:
    bench = Bench(pool)
    id = await message(pool, await organization(pool, state="suspended"))
    await bench.round(2)
    assert await status_of(pool, id) == "accepted"
    assert 50 < await pause_of(pool, id) <= 60
    await pool.execute("UPDATE organizations SET state = 'active'")
    await bench.later(seconds=60)
    await bench.round()
    assert await status_of(pool, id) == "sent"


async def test_what_waited_for_its_suspended_organization_goes_out_once_it_is_resumed(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization(pool)
    spec = SmsCampaignSpec(name="Sale", message_template="Hi", recipients=[TO], messages_per_minute=60)
    async with pool.acquire() as conn, conn.transaction():
        campaign = await sms_channel.create(conn, actor, spec=spec, request_id="req")
        await organizations.set_state(conn, id=actor.organization_id, state="suspended")
    plain = [await message(pool, actor) for _ in range(2)]
    paced = await message(pool, actor)
    await pool.execute("UPDATE messages SET campaign_id = $2 WHERE id = $1", paced, campaign.id)
    await bench.round(2)
    later = await message(pool, actor)
    for table in ("messages SET send_at", "queue SET due_at"):
        await pool.execute(f"UPDATE {table} = now() + interval '50 seconds' WHERE id = $1", later)
    due = "SELECT id, due_at FROM queue"
    before = {row["id"]: row["due_at"] for row in await pool.fetch(due)}
    async with pool.acquire() as conn:
        await organizations.resume(conn, id=actor.organization_id)
    after = {row["id"]: row["due_at"] for row in await pool.fetch(due)}
    # A campaign keeps its pace, and what is scheduled its time.
    assert {id for id in before if before[id] == after[id]} == {paced, later}
    assert [await pause_of(pool, id) <= 0 for id in plain] == [True, True]
    places = {row["id"]: row["since"] for row in await pool.fetch("SELECT id, since FROM queue")}
    assert [places[id] for id in plain] == [before[id] - timedelta(minutes=1) for id in plain]
    await bench.round()
    assert {one.message_id for one in bench.only.submitted} == set(plain)


async def test_a_resume_wins_over_a_worker_that_is_putting_messages_back(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization(pool, state="suspended")
    id = await message(pool, actor)
    async with pool.acquire() as conn, conn.transaction():
        await organizations.resume(conn, id=actor.organization_id)
        await bench.round()  # sees it suspended
    assert await pause_of(pool, id) <= 1


async def test_a_resume_waits_for_a_worker_that_has_found_the_organization_suspended(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization(pool, state="suspended")
    id = await message(pool, actor)
    decide, resuming = bench.channel.decide, []
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    async def resume() -> None:
        async with pool.acquire() as conn:
            await organizations.resume(conn, id=actor.organization_id)

    async def deciding(*given: object) -> object:
        task = asyncio.create_task(resume())
        resuming.append(task)
        while not (task.done() or await pool.fetchval(waits)):  # noqa: ASYNC110 (locks send no events)
            await asyncio.sleep(0.01)
        return await decide(*given)

    bench.channel.decide = deciding
    await bench.round()
    await asyncio.gather(*resuming)
    assert await pause_of(pool, id) <= 0


async def test_a_message_that_was_canceled_or_is_sent_leaves_the_queue(pool: Pool) -> None:
    bench = Bench(pool)
    actor = await organization(pool)
    ids = [await message(pool, actor, status=status) for status in ("canceled", "sent", "delivered")]
    await bench.round()
    assert bench.only.submitted == []
    assert await pool.fetchval("SELECT count(*) FROM queue") == 0
    assert [await status_of(pool, id) for id in ids] == ["canceled", "sent", "delivered"]


async def test_a_message_that_is_canceled_at_this_moment_does_not_go_out(pool: Pool) -> None:
    """Its queue row is removed first, and no claim waits for it."""
    bench = Bench(pool)
    actor = await organization(pool)
    id = await message(pool, actor)
    async with pool.acquire() as conn, conn.transaction():
        unsent = [withdrawal.Unsent(actor.organization_id, id, 1)]
        assert await withdrawal.withdraw(conn, unsent, at=clock.now(), reason="canceled") == {id}
        assert await asyncio.wait_for(bench.round(), 120) == 0
    await bench.round()
    assert bench.only.submitted == []
    assert await attempts(pool, id) == []
    assert not await queued(pool, id)
    assert await status_of(pool, id) == "canceled"


async def test_a_supplier_that_goes_while_its_attempts_are_committed_answers_for_them(pool: Pool) -> None:
    bench = Bench(pool)
    ids = {await message(pool, await organization(pool)) for _ in range(3)}
    connector, id = bench.only, bench.only_id

    async def removed(conn: Connection, attempts: Sequence[Attempt[ClaimedMessage]]) -> None:
        del bench.accounts[id]

    bench.channel.begun = removed  # type: ignore[method-assign]
    await bench.dispatcher.round()
    assert {one.message_id for one in connector.submitted} == ids
    await bench.settle()
    assert bench.dispatcher.in_flight == 0


# -- routing -----------------------------------------------------------------------------------------------------------


async def test_a_destination_that_nobody_covers_fails(pool: Pool) -> None:
    bench = Bench(pool, supplier(prefixes=("351",)))
    id = await message(pool, await organization(pool))
    await bench.round()
    await ended(pool, id, "failed", "destination_unreachable")


async def test_without_any_supplier_messages_wait_and_expire_in_time(pool: Pool) -> None:
    bench = Bench(pool)
    del bench.accounts[bench.only_id]
    id = await message(pool, await organization(pool))
    await bench.round(2)
    assert await status_of(pool, id) == "accepted"
    assert await queued(pool, id)
    await bench.later(hours=25)
    bench = Bench(pool)
    del bench.accounts[bench.only_id]
    await bench.round()
    await ended(pool, id, "expired", "expired")


async def test_messages_expire_in_time_also_while_no_supplier_can_be_used(pool: Pool) -> None:
    paused = supplier(state="paused")
    actor = await organization(pool)
    ids = [await message(pool, actor, age=timedelta(hours=25)), await message(pool, actor, line=paused.id)]
    await pool.execute("UPDATE messages SET accepted_at = now() - interval '25 hours'")
    await Bench(pool, paused).round()
    for id in ids:
        await ended(pool, id, "expired", "expired")


@pytest.mark.parametrize("state", ["paused", "draining"])
async def test_a_paused_supplier_keeps_what_only_it_can_carry_out_of_the_others_way(pool: Pool, state: str) -> None:
    paused, other = supplier("paused", state=state, prefixes=("258",)), supplier("other", prefixes=("351",))
    bench = Bench(pool, paused, other)
    actor = await organization(pool)
    stays = [await message(pool, actor) for _ in range(30)]
    await bench.round()
    assert bench.connectors[other.id].submitted == []
    lines = await pool.fetch("SELECT DISTINCT line FROM queue WHERE id = ANY ($1)", stays)
    assert [row["line"] for row in lines] == [paused.id]
    goes = await message(pool, actor, to="+351912345678")
    await bench.round()
    assert await status_of(pool, goes) == "sent"
    # Looked at again and again, they are known to have waited all the time.
    await pool.execute("UPDATE queue SET due_at = now() - interval '1 hour'")
    await bench.later(seconds=2)
    bench.restart()
    await bench.round(2)
    async with pool.acquire() as conn:
        assert await holds.late(conn, "sms", without=()) >= 3_600
    # It is back. A dispatcher polls all lines each second, and at its start.
    bench.accounts[paused.id].supplier = msgspec.structs.replace(paused, state="active")
    await bench.later(seconds=2)
    bench.restart()
    await bench.round(2)
    assert len(bench.connectors[paused.id].submitted) == 30


async def test_what_waits_for_a_supplier_that_is_gone_goes_to_another(pool: Pool) -> None:
    first, second = supplier("first", priority=1), supplier("second", priority=2)
    bench = Bench(pool, first, second)
    bench.connectors[first.id].room = 0
    ids = [await message(pool, await organization(pool)) for _ in range(3)]
    await bench.round()
    assert [row[0] for row in await pool.fetch("SELECT DISTINCT line FROM queue")] == [first.id]
    assert bench.connectors[second.id].submitted == []
    bench.connectors[first.id].sessions = 0
    await bench.round()
    assert {one.message_id for one in bench.connectors[second.id].submitted} == set(ids)


async def test_full_suppliers_delay_nobody_else(pool: Pool) -> None:
    full, free = supplier("full", prefixes=("258",)), supplier("free", prefixes=("351",))
    bench = Bench(pool, full, free)
    bench.connectors[full.id].room = 0
    bench.connectors[free.id].room = 10
    actor = await organization(pool)
    for _ in range(200):
        await message(pool, actor)
    there = [await message(pool, actor, to="+351912345678") for _ in range(5)]
    for _ in range(40):
        await bench.round()
        if len(bench.connectors[free.id].submitted) == 5:
            break
    assert {one.message_id for one in bench.connectors[free.id].submitted} == set(there)
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE line = $1", full.id) > 0


async def test_an_open_circuit_is_probed_with_one_message(pool: Pool) -> None:
    bench = Bench(pool)
    breaker = bench.accounts[bench.only_id].breaker
    actor = await organization(pool)
    bench.only.script = answering(UNREACHABLE)
    for _ in range(20):
        await message(pool, actor)
    await bench.round()
    assert breaker.open
    bench.only.submitted.clear()
    await bench.later(seconds=120)
    await bench.round(2)
    assert bench.only.submitted == []
    bench.now += 15
    bench.restart()
    bench.only.script = lambda submission: accepted("id")
    await bench.round()
    assert len(bench.only.submitted) == 1
    assert not breaker.open
    await bench.round(3)
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE status = 'sent'") == 20


async def test_late_answers_of_a_connector_that_was_replaced_say_nothing_about_the_new_one(pool: Pool) -> None:
    """As when a supplier's wrong password has been corrected."""
    row = supplier()
    bench = Bench(pool, row)
    bench.only.script = lambda submission: None
    actor = await organization(pool)
    for _ in range(20):
        await message(pool, actor)
    await bench.round()
    late = bench.only.submitted
    bench.add(row)
    for one in late:
        bench.answer(one, UNREACHABLE)
    await bench.settle()
    assert not bench.accounts[row.id].breaker.open
    # The messages go to the new one.
    bench.only.script = lambda submission: accepted("id")
    await bench.later(seconds=120)
    await bench.round()
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE status = 'sent'") == 20


# -- answers -----------------------------------------------------------------------------------------------------------


async def test_a_refusal_for_good_ends_it(pool: Pool) -> None:
    first, second = supplier("first", priority=1), supplier("second", priority=2)
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = answering(REFUSED)
    id = await message(pool, await organization(pool))
    await bench.round(2)
    await ended(pool, id, "rejected", "rejected")
    assert await attempts(pool, id) == [(1, "refused")]
    row = await pool.fetchrow("SELECT code, detail FROM attempts")
    assert row is not None
    assert tuple(row) == ("0x0000000B", "invalid destination")
    assert bench.connectors[second.id].submitted == []


async def test_whoever_told_a_supplier_stop_is_opted_out(pool: Pool) -> None:
    first, second = supplier("first", priority=1), supplier("second", priority=2)
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = answering(OPTED_OUT)
    ours, theirs = await organization(pool), await organization(pool)
    id, later, other = await message(pool, ours), await message(pool, ours), await message(pool, theirs)
    await pool.execute("UPDATE queue SET due_at = now() + interval '1 hour' WHERE id = ANY ($1)", [later, other])
    await bench.round(2)
    await ended(pool, id, "rejected", "opted_out")
    assert bench.connectors[second.id].submitted == []
    rows = await pool.fetch("SELECT organization_id, recipient, source, keyword FROM opt_outs")
    assert [tuple(row) for row in rows] == [(ours.organization_id, TO, "supplier", None)]
    (event,) = await pool.fetch("SELECT organization_id, data FROM events WHERE kind = 'contact.opted_out'")
    assert (event["organization_id"], '"source":"supplier"' in event["data"]) == (ours.organization_id, True)
    # Other messages for the same person are no longer sent; somebody else's are.
    bench.connectors[first.id].script = accept_all
    await pool.execute("UPDATE queue SET due_at = now() WHERE id = ANY ($1)", [later, other])
    await bench.round(2)
    await ended(pool, later, "rejected", "opted_out")
    assert await pool.fetchval("SELECT status FROM messages WHERE id = $1", other) == "sent"


async def test_a_refusal_may_be_tried_elsewhere_once(pool: Pool) -> None:
    suppliers = [supplier(str(n), priority=n) for n in (1, 2, 3)]
    bench = Bench(pool, *suppliers)
    for one in suppliers:
        bench.connectors[one.id].script = answering(ELSEWHERE)
    id = await message(pool, await organization(pool))
    await bench.round(4)
    await ended(pool, id, "rejected", "rejected")
    assert [len(bench.connectors[one.id].submitted) for one in suppliers] == [1, 1, 0]
    assert await attempts(pool, id) == [(1, "refused"), (2, "refused")]


async def test_whoever_refused_it_is_not_asked_twice(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = answering(ELSEWHERE)
    id = await message(pool, await organization(pool))
    await bench.round(3)
    await ended(pool, id, "rejected", "rejected")
    assert len(bench.only.submitted) == 1


async def test_what_was_refused_waits_for_another_supplier_that_is_down(pool: Pool) -> None:
    first, second = supplier("first", priority=1), supplier("second", priority=2)
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = answering(ELSEWHERE)
    bench.connectors[second.id].sessions = 0
    id = await message(pool, await organization(pool))
    await bench.round(3)
    assert await queued(pool, id)
    assert len(bench.connectors[first.id].submitted) == 1
    bench.connectors[second.id].sessions = 1
    bench.restart()
    await bench.later(seconds=2)
    await bench.round()
    assert await status_of(pool, id) == "sent"


async def test_later_follows_the_schedule_until_the_validity_ends(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = answering(BUSY)
    id = await message(pool, await organization(pool), expires_at=clock.now() + timedelta(minutes=12))
    for pause in SUBMIT.pauses[:3]:
        since = await moment(pool)
        await bench.round()
        assert await waits(pool, id, pause, since=since)
        assert await status_of(pool, id) == "sending"
        await bench.later(seconds=pause)
    await pool.execute("UPDATE messages SET expires_at = now() + interval '9 minutes'")
    await bench.round()
    await ended(pool, id, "expired", "expired")
    assert [state for _, state in await attempts(pool, id)] == ["busy"] * 4


async def test_a_supplier_may_say_when(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = answering(msgspec.structs.replace(BUSY, retry_after=47.0))
    id = await message(pool, await organization(pool))
    await bench.round()
    assert 40 < await pause_of(pool, id) <= 47


@pytest.mark.parametrize("outcome", [BUSY, THROTTLED])
async def test_no_pause_that_a_supplier_asks_for_ends_a_message(pool: Pool, outcome: Outcome) -> None:
    """A page saying "under maintenance, come back tomorrow" expired every message valid for less than a day, while
    another supplier was ready."""
    first, second = supplier("first", priority=1), supplier("second", priority=2)
    bench, actor = Bench(pool, first, second), await organization(pool)
    bench.connectors[first.id].script = answering(msgspec.structs.replace(outcome, retry_after=999_999_999.0))
    long, short = [await message(pool, actor, expires_at=clock.now() + timedelta(seconds=left)) for left in (3600, 50)]
    await bench.round()
    assert {await status_of(pool, id) for id in (long, short)} == {"sending"}
    assert 50 < await pause_of(pool, long) <= 60
    assert await pause_of(pool, short) <= 5


async def test_throttling_costs_no_try_and_stays_with_the_supplier(pool: Pool) -> None:
    first, second = supplier("first", priority=1), supplier("second", priority=2)
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = answering(THROTTLED)
    id = await message(pool, await organization(pool))
    for _ in range(3):
        await bench.round()
        assert await pool.fetchval("SELECT tries FROM queue WHERE id = $1", id) == 0
        await bench.later(seconds=5)
    assert bench.connectors[second.id].submitted == []
    assert not bench.accounts[first.id].breaker.open


async def test_after_two_tries_another_supplier_is_asked(pool: Pool) -> None:
    first, second = supplier("first", priority=1), supplier("second", priority=2)
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = answering(BUSY)
    id = await message(pool, await organization(pool))
    for pause in (*SUBMIT.pauses[:2], 0):
        await bench.round()
        await bench.later(seconds=pause)
    assert len(bench.connectors[first.id].submitted) == 2
    assert await status_of(pool, id) == "sent"


async def test_what_never_left_goes_elsewhere_at_once(pool: Pool) -> None:
    first, second = supplier("first", priority=1), supplier("second", priority=2)
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = answering(UNREACHABLE)
    id = await message(pool, await organization(pool))
    await bench.round()
    assert await pause_of(pool, id) <= 1
    await bench.later(seconds=1)
    await bench.round()
    assert await status_of(pool, id) == "sent"
    assert await attempts(pool, id) == [(1, "unreachable"), (2, "accepted")]


async def test_ids_of_parts_that_were_taken_before_a_refusal_are_kept(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = answering(Outcome(Verdict.REFUSED, (Part(1, "A1"),)))
    id = await message(pool, await organization(pool), text="x" * 200, segments=2)
    await bench.round()
    await ended(pool, id, "rejected", "rejected")
    await bench.receive(bench.only_id, receipt("A1"))
    assert await pool.fetchval("SELECT message_id FROM receipts") == id
    assert await status_of(pool, id) == "rejected"


async def test_a_suppliers_words_never_keep_its_answer_from_being_stored(pool: Pool) -> None:
    bench = Bench(pool)
    outcome = Outcome(Verdict.ACCEPTED, (Part(1, "id\0" + "x" * 5000),), code="\0", detail="so\0" + "y" * 5000)
    bench.only.script = answering(outcome)
    id = await message(pool, await organization(pool))
    await bench.round()
    assert await status_of(pool, id) == "sent"
    await bench.receive(bench.only_id, receipt("id\0" + "x" * 5000, error="\0"))
    assert await status_of(pool, id) == "delivered"


async def test_an_answer_that_cannot_be_stored_is_logged_with_its_ids_and_becomes_unknown(pool: Pool) -> None:
    """The others are stored."""
    bench = Bench(pool)
    actor = await organization(pool)
    fine, odd = await message(pool, actor), await message(pool, actor)
    # No message has that many segments.
    broken = Outcome(Verdict.UNKNOWN, total=1, doubtful=(99_999,))
    good = Outcome(Verdict.ACCEPTED, (Part(1, "id"),))
    bench.only.script = lambda submission: broken if submission.message_id == odd else good
    with capture_logs() as logged:
        assert await bench.round() == 2
    (said,) = [entry for entry in logged if entry["event"] == "outcome not recorded"]
    request = await pool.fetchval("SELECT request_id FROM messages WHERE id = $1", odd)
    assert request
    assert (said["message_id"], said["request_id"], said["channel"]) == (str(odd), request, "sms")
    assert (await status_of(pool, fine), await status_of(pool, odd)) == ("sent", "sending")
    assert bench.dispatcher.in_flight == 0
    await pool.execute("UPDATE queue SET lease_until = now() - interval '1 second'")
    await bench.round()
    assert await attempts(pool, odd) == [(1, "unknown")]


async def test_message_sent_is_an_event_for_those_who_want_it(pool: Pool) -> None:
    wants, does_not = await organization(pool), await organization(pool)
    place = await endpoint(pool, wants, "message.sent")
    await endpoint(pool, does_not, "message.delivered")
    one, two = await message(pool, wants), await message(pool, does_not)
    await Bench(pool).round()
    assert await events_of(pool, one) == ["message.sent"]
    assert await events_of(pool, two) == []
    rows = await pool.fetch("SELECT line FROM queue WHERE kind = 'webhook'")
    assert [row["line"] for row in rows] == [place]


# -- answers that were lost --------------------------------------------------------------------------------------------


async def lost(pool: Pool, actor: Actor | None = None, **values: object) -> tuple[Bench, UUID]:
    """A message that a worker submitted before it died, and whose lease has ended; returns it with the next worker.
    `actor`: its organization; None: a new one."""
    row = supplier()
    dead = Bench(pool, row)
    dead.only.script = answering(None)
    id = await message(pool, actor or await organization(pool), **values)
    await dead.round()
    assert len(dead.only.submitted) == 1
    await dead.later(seconds=61)
    return Bench(pool, row), id


async def test_a_lost_answer_is_waited_for_before_anything_is_sent_again(pool: Pool) -> None:
    bench, id = await lost(pool)
    await bench.round(2)
    assert bench.only.submitted == []
    assert await attempts(pool, id) == [(1, "unknown")]
    assert 20 < await pause_of(pool, id) < 30  # of 90 s, some 61 are over
    assert await status_of(pool, id) == "sending"
    await bench.later(seconds=30)
    await bench.round()
    assert [one.attempt for one in bench.only.submitted] == [2]
    assert await status_of(pool, id) == "sent"
    assert await attempts(pool, id) == [(1, "unknown"), (2, "accepted")]


async def test_at_most_once_ends_as_unknown_without_an_event(pool: Pool) -> None:
    bench, id = await lost(pool, guarantee="at_most_once")
    await bench.round()
    await bench.later(seconds=30)
    await bench.round(2)
    assert bench.only.submitted == []
    await ended(pool, id, "unknown", "outcome_unknown")


@pytest.mark.parametrize("segments", [1, 2])
async def test_a_supplier_whose_answers_are_never_read_does_not_get_copies_all_day(pool: Pool, segments: int) -> None:
    bench = Bench(pool, supplier())
    bench.only.script = answering(UNKNOWN)
    id = await message(pool, await organization(pool), text="x" * (100 + 60 * segments), segments=segments)
    after: list[int] = []
    for grace in range(24):
        await bench.round()
        after += [grace] * (len(await attempts(pool, id)) - len(after))
        await bench.later(seconds=95)
    # In grace periods: of a message with two segments, the second attempt may have lost the response to the other one.
    assert after == {1: [0, 1, 3, 7, 15], 2: [0, 1, 2, 4, 8, 16]}[segments]
    # It expires before the next one.
    await bench.later(days=1)
    await bench.round()
    assert len(await attempts(pool, id)) == len(after)
    await ended(pool, id, "unknown", "outcome_unknown")


async def test_an_uncertain_message_that_is_not_sent_again_is_unknown(pool: Pool) -> None:
    """Nobody knows that it was not delivered, so nobody may claim so."""
    bench, id = await lost(pool, expires_at=clock.now() + timedelta(seconds=100))
    await pool.execute("UPDATE messages SET expires_at = now()")
    await bench.round()
    await bench.later(seconds=30)
    await bench.round()
    await ended(pool, id, "unknown", "outcome_unknown")


async def test_a_receipt_stands_for_the_answer_that_was_lost(pool: Pool) -> None:
    bench, id = await lost(pool)
    await bench.receive(bench.only_id, receipt("S77"))
    await bench.round()
    assert bench.only.submitted == []
    assert await status_of(pool, id) == "delivered"
    assert await events_of(pool, id) == ["message.delivered"]
    assert not await queued(pool, id)
    assert await pool.fetchval("SELECT supplier_message_id FROM attempts WHERE message_id = $1", id) == "s77".upper()


async def test_a_receipt_in_place_of_the_answer_says_that_it_was_sent(pool: Pool) -> None:
    """A customer who counts messages by `message.sent` counts this one, too, and once."""
    actor = await organization(pool)
    await endpoint(pool, actor, "message.sent", "message.delivered")
    bench, id = await lost(pool, actor)
    await bench.receive(bench.only_id, receipt("S77"))
    await bench.round()
    await bench.receive(bench.only_id, receipt("S77"))
    assert await events_of(pool, id) == ["message.sent", "message.delivered"]


@pytest.mark.parametrize(
    "other",
    [
        {"to": "+258849999999"},  # somebody else's
        {"reference": -1},  # another message's
        {},  # another supplier's
    ],
)
async def test_only_a_receipt_that_fits_does(pool: Pool, other: dict[str, object]) -> None:
    bench, id = await lost(pool)
    if "reference" in other:
        other = {"reference": (id.int + 1) & 0xFFFF}
    await bench.receive(bench.only_id if other else supplier().id, receipt("S77", **other))
    await bench.round()
    assert await status_of(pool, id) == "sending"
    assert await attempts(pool, id) == [(1, "unknown")]


async def test_a_receipt_of_before_the_attempt_is_of_another_message(pool: Pool) -> None:
    row = supplier()
    early = Bench(pool, row)
    await early.receive(row.id, receipt("S1"))
    await pool.execute("UPDATE receipts SET received_at = received_at - interval '10 minutes'")
    dead = Bench(pool, row)
    dead.only.script = answering(UNKNOWN)
    id = await message(pool, await organization(pool))
    await dead.round()
    await dead.later(seconds=95)
    await dead.round()
    assert [attempt for attempt, _ in await attempts(pool, id)] == [1, 2]


async def test_a_receipt_that_fits_two_lost_answers_stands_for_neither_until_both_have_one(pool: Pool) -> None:
    """The supplier may have only one of the messages: the other would be mistaken for sent, and never arrive."""
    row = supplier()
    dead = Bench(pool, row)
    dead.only.script = answering(None)
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(2)]
    await dead.round()
    await dead.later(seconds=61)
    bench = Bench(pool, row)
    await bench.receive(row.id, receipt("S77", state=ReceiptState.UNDELIVERED))
    await bench.round()
    assert [await status_of(pool, id) for id in ids] == ["sending", "sending"]
    await bench.receive(row.id, receipt("S78"))
    await bench.later(seconds=35)
    await bench.round()
    assert Counter([await status_of(pool, id) for id in ids]) == {"undelivered": 1, "delivered": 1}
    assert len(bench.only.submitted) == 0


async def test_unknown_from_the_connector_waits_as_well(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = answering(UNKNOWN)
    id = await message(pool, await organization(pool))
    await bench.round()
    assert await attempts(pool, id) == [(1, "unknown")]
    assert 80 < await pause_of(pool, id) <= 90
    bench.only.script = lambda submission: accepted("S2")
    await bench.later(seconds=91)
    await bench.round()
    assert [one.attempt for one in bench.only.submitted] == [1, 2]
    assert await status_of(pool, id) == "sent"


@pytest.mark.parametrize("echoed", [True, False])
async def test_a_receipt_that_names_the_attempt_counts_as_soon_as_the_answer_is_given_up(
    pool: Pool, echoed: bool
) -> None:
    """Its message used to be reported as delivered a minute and a half late. A receipt without our reference may be for
    another message to this number, whose response is still to come."""
    bench = Bench(pool)
    bench.only.script = answering(None)
    id = await message(pool, await organization(pool))
    await bench.round()
    (submission,) = bench.only.submitted
    await bench.receive(bench.only_id, receipt("S77", reference=submission.reference if echoed else None))
    bench.answer(submission, Outcome(Verdict.UNKNOWN, total=1, doubtful=(1,)))
    await bench.settle()
    assert await attempts(pool, id) == [(1, "unknown")]
    assert (await pause_of(pool, id) <= 0) is echoed
    await bench.round()
    assert await status_of(pool, id) == ("delivered" if echoed else "sending")
    assert await events_of(pool, id) == (["message.delivered"] if echoed else [])
    # A late answer changes nothing.
    bench.answer(submission, accepted("S77"))
    await bench.settle()
    if echoed:
        assert await attempts(pool, id) == [(1, "accepted")]
        assert not await queued(pool, id)
    assert len(bench.only.submitted) == 1


@pytest.mark.parametrize("recorded", [True, False], ids=["after the timeout was recorded", "with it"])
async def test_a_late_answer_counts(pool: Pool, recorded: bool) -> None:
    bench = Bench(pool)
    bench.only.script = answering(UNKNOWN)
    id = await message(pool, await organization(pool))
    if recorded:
        await bench.round()
        assert await attempts(pool, id) == [(1, "unknown")]
        bench.answer(bench.only.submitted[0], accepted("LATE"))
    else:
        async with bench.results.writing:
            await bench.dispatcher.round()
            await asyncio.sleep(0)
            bench.answer(bench.only.submitted[0], accepted("LATE"))
    await bench.settle()
    assert await attempts(pool, id) == [(1, "accepted")]
    assert await status_of(pool, id) == "sent"
    await bench.later(seconds=91)
    await bench.round()
    assert len(bench.only.submitted) == 1
    assert not await queued(pool, id)
    await bench.receive(bench.only_id, receipt("LATE"))
    assert await status_of(pool, id) == "delivered"


async def test_a_late_refusal_counts_too(pool: Pool) -> None:
    first, second = supplier("first", priority=1), supplier("second", priority=2)
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = answering(UNKNOWN)
    id = await message(pool, await organization(pool), guarantee="at_most_once")
    await bench.round()
    bench.answer(bench.connectors[first.id].submitted[0], ELSEWHERE)
    await bench.settle()
    await bench.later(seconds=91)
    await bench.round()
    assert await attempts(pool, id) == [(1, "refused"), (2, "accepted")]


async def test_an_answer_that_comes_after_the_lease_is_still_a_fact(pool: Pool) -> None:
    row = supplier()
    slow, other = Bench(pool, row), Bench(pool, row)
    slow.only.script = answering(None)
    id = await message(pool, await organization(pool))
    await slow.round()
    await slow.later(seconds=61)
    await other.round()
    assert await attempts(pool, id) == [(1, "unknown")]
    slow.answer(slow.only.submitted[0], accepted("LATE"))
    await slow.settle()
    assert await attempts(pool, id) == [(1, "accepted")]
    assert await status_of(pool, id) == "sent"
    await other.later(seconds=31)
    await other.round()
    assert other.only.submitted == []
    assert not await queued(pool, id)


@pytest.mark.parametrize("is_held", [False, True])
async def test_an_attempt_that_is_known_delays_no_answer_that_is_recorded_with_its_own(
    pool: Pool, is_held: bool
) -> None:
    bench = Bench(pool)
    bench.only.script = answering(None)
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(3)]
    await bench.round()
    known = ids[1]
    lease = bench.dispatcher.flights.of(known)[0].lease
    begun = msgspec.structs.replace(lease, attempt=1, begun_at=datetime.now(UTC), target_id=bench.only_id)
    async with pool.acquire() as conn:
        await mark_unknown(conn, [begun])
        if not is_held:  # as the worker that takes it over does
            await conn.execute("UPDATE queue SET lease_token = gen_random_uuid() WHERE id = $1", known)
    for submission in bench.only.submitted:
        bench.answer(submission, accepted(submission.message_id.hex))
    await bench.settle()
    for id in ids:
        assert await attempts(pool, id) == [(1, "accepted")]
        assert await status_of(pool, id) == "sent"
        assert await queued(pool, id) is (id == known and not is_held)


async def test_a_refused_second_attempt_does_not_undo_the_first_that_was_taken(pool: Pool) -> None:
    row = supplier()
    slow, other = Bench(pool, row), Bench(pool, row)
    slow.only.script = answering(None)
    other.only.script = answering(None)
    id = await message(pool, await organization(pool))
    await slow.round()
    await slow.later(seconds=95)
    await other.round()
    await slow.later(seconds=RECENT_LOSS_WAIT)
    await other.round()
    assert [one.attempt for one in other.only.submitted] == [2]
    slow.answer(slow.only.submitted[0], accepted("A"))
    await slow.settle()
    other.answer(other.only.submitted[0], REFUSED)
    await other.settle()
    assert await status_of(pool, id) == "sent"
    await other.receive(row.id, receipt("A"))
    assert await events_of(pool, id) == ["message.delivered"]


async def test_a_refusal_that_comes_after_a_later_attempt_began_leaves_the_end_to_that_one(pool: Pool) -> None:
    row = supplier()
    slow, other = Bench(pool, row), Bench(pool, row)
    slow.only.script = other.only.script = answering(None)
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(3)]
    await slow.round()
    await slow.later(seconds=95)
    await other.round()
    await slow.later(seconds=RECENT_LOSS_WAIT)
    await other.round()
    again = {one.message_id: one for one in other.only.submitted}
    assert [again[id].attempt for id in ids] == [2, 2, 2]
    other.answer(again[ids[2]], Outcome(Verdict.UNKNOWN))
    await other.settle()
    for submission in slow.only.submitted:
        slow.answer(submission, REFUSED)
    await slow.settle()
    for id, state in zip(ids, ("open", "open", "unknown"), strict=True):
        assert await attempts(pool, id) == [(1, "refused"), (2, state)]
        assert await status_of(pool, id) in ("sending", "accepted")
    other.answer(again[ids[0]], accepted("A"))
    other.answer(again[ids[1]], REFUSED)
    await other.settle()
    await other.receive(row.id, receipt("B"))
    await other.later(seconds=200)
    await other.round()
    assert [await status_of(pool, id) for id in ids] == ["sent", "unknown", "delivered"]


async def test_messages_in_flight_keep_their_leases(pool: Pool) -> None:
    bench = Bench(pool, lease_seconds=600.0)
    bench.only.script = answering(None)
    await message(pool, await organization(pool))
    await bench.round()
    until = await pool.fetchval("SELECT lease_until FROM queue")
    await bench.dispatcher.renew()
    assert await pool.fetchval("SELECT lease_until FROM queue") == until  # it is young
    flights = bench.dispatcher.flights._open
    for key, flight in flights.items():
        flights[key] = msgspec.structs.replace(flight, since=flight.since - 300.0)  # as if that much time had passed
    await bench.dispatcher.renew()
    assert await pool.fetchval("SELECT lease_until FROM queue") > until


# -- several workers ---------------------------------------------------------------------------------------------------


async def test_two_dispatchers_never_submit_the_same_message(pool: Pool) -> None:
    row = supplier()
    benches = [Bench(pool, row) for _ in range(2)]
    for bench in benches:
        bench.only.room = 7
    actors = [await organization(pool) for _ in range(3)]
    ids = {await message(pool, actors[n % 3]) for n in range(60)}

    async def work(bench: Bench) -> None:
        while await bench.round():
            pass

    for bench in benches:
        await bench.round()  # in turn, so that both surely have a share; from here on they race
    assert [len(bench.only.submitted) for bench in benches] == [7, 7]
    await asyncio.gather(*(work(bench) for bench in benches))
    submitted = Counter(one.message_id for bench in benches for one in bench.only.submitted)
    assert submitted == dict.fromkeys(ids, 1)
    assert await pool.fetchval("SELECT count(*) FROM queue") == 0


async def test_a_worker_without_a_session_leaves_messages_to_one_that_has_it(pool: Pool) -> None:
    row = supplier()
    idle, bound = Bench(pool, row), Bench(pool, row)
    idle.only.sessions = 0
    actor = await organization(pool)
    ids = {await message(pool, actor), await message(pool, actor, line=row.id)}
    assert await idle.round() == 2, "it looks now and then, for what has expired"
    assert await idle.round() == 0
    await bound.round()
    assert {one.message_id for one in bound.only.submitted} == ids


async def test_a_message_waits_for_the_better_supplier_that_another_worker_has(pool: Pool) -> None:
    """The cheap account allows one session, which the first worker holds. Both have a session with the expensive
    one."""
    cheap, dear = supplier("cheap", priority=1), supplier("dear", priority=2)
    has, has_not = Bench(pool, cheap, dear), Bench(pool, cheap, dear)
    has_not.connectors[cheap.id].sessions = 0
    has_not.accounts[cheap.id].elsewhere = True
    has.accounts[cheap.id].fed = True
    actors = [await organization(pool) for _ in range(3)]
    ids = {await message(pool, actors[n % 3], lane=n % 2) for n in range(90)}
    assert await has_not.round(4) > 0
    assert has_not.channel.passed_on.is_set(), "the others are told"
    assert await has.round(2) > 0, "and look without being asked twice"
    while await has.round() + await has_not.round():
        pass
    assert {one.message_id for one in has.connectors[cheap.id].submitted} == ids
    assert [bench.connectors[dear.id].submitted for bench in (has, has_not)] == [[], []]
    # The other worker has lost it, or does not use it: what waits continues.
    has_not.accounts[cheap.id].elsewhere = False
    has_not.restart()
    id = await message(pool, actors[0], line=cheap.id)
    await has_not.round()
    assert [one.message_id for one in has_not.connectors[dear.id].submitted] == [id]


async def test_what_is_left_to_another_worker_stays_with_it(pool: Pool) -> None:
    cheap, dear = supplier("cheap", priority=1), supplier("dear", priority=2)
    bench = Bench(pool, cheap, dear)
    bench.connectors[cheap.id].sessions = 0
    bench.accounts[cheap.id].elsewhere = True
    id = await message(pool, await organization(pool))
    assert await bench.round() == 1
    bench.restart()
    assert await bench.round(2) == 0, "its line is none of this worker's business"
    assert await pool.fetchval("SELECT line FROM queue WHERE id = $1", id) == cheap.id


async def test_a_simulator_serves_only_while_there_is_no_other_supplier(pool: Pool) -> None:
    pretends, real = supplier("simulator", priority=1, simulated=True), supplier("real", priority=9)
    bench = Bench(pool, pretends)
    actor = await organization(pool)
    id = await message(pool, actor)
    await bench.round()
    assert await status_of(pool, id) == "sent"
    waits = await message(pool, actor, line=pretends.id)
    bench.add(real)
    bench.restart()
    fresh = await message(pool, actor)
    await bench.round(2)
    assert {one.message_id for one in bench.connectors[real.id].submitted} == {waits, fresh}
    # Nor while the real supplier is down, paused, covers another country, or has refused the message.
    bench.connectors[real.id].sessions = 0
    for row in (real, msgspec.structs.replace(real, state="paused")):
        bench.accounts[real.id].supplier = row
        id = await message(pool, actor)
        bench.restart()
        await bench.round(2)
        assert await queued(pool, id)
    bench.connectors[real.id].sessions = 1
    bench.accounts[real.id].supplier = msgspec.structs.replace(real, prefixes=("351",))
    await pool.execute("DELETE FROM queue")
    id = await message(pool, actor)
    await bench.round()
    await ended(pool, id, "failed", "destination_unreachable")
    bench.accounts[real.id].supplier = real
    bench.connectors[real.id].script = answering(ELSEWHERE)
    id = await message(pool, actor)
    await bench.round(2)
    await ended(pool, id, "rejected", "rejected")
    assert len(bench.connectors[pretends.id].submitted) == 1


async def test_test_messages_never_reach_a_supplier(pool: Pool) -> None:
    bench = Bench(pool)
    id = await message(pool, await organization(pool), mode="test")
    await pool.execute("UPDATE queue SET line = $1", UUID(int=1))
    await bench.round()
    assert bench.only.submitted == []
    assert await status_of(pool, id) == "sent"


async def test_an_answer_that_the_recorder_still_holds_is_not_sent_again(pool: Pool) -> None:
    """The database was down for longer than lease and grace period, and dispatch is back before the recorder."""
    bench = Bench(pool)
    id = await message(pool, await organization(pool))
    async with bench.results.writing:
        await bench.dispatcher.round()
        await asyncio.sleep(0)  # the response arrives, and waits to be stored
        await bench.later(seconds=200)
        await bench.dispatcher.round()
        await bench.later(seconds=2 * RECENT_LOSS_WAIT)
        await bench.dispatcher.round()
        assert len(bench.only.submitted) == 1
    await bench.settle()
    assert await attempts(pool, id) == [(1, "accepted")]
    assert await status_of(pool, id) == "sent"
    await bench.later(seconds=2 * RECENT_LOSS_WAIT)
    await bench.round()
    assert len(bench.only.submitted) == 1
    assert not await queued(pool, id)


async def test_another_worker_gives_a_lost_answer_the_time_to_be_recorded(pool: Pool) -> None:
    row = supplier()
    held, other = Bench(pool, row), Bench(pool, row)
    id = await message(pool, await organization(pool))
    async with held.results.writing:
        await held.dispatcher.round()
        await held.later(seconds=200)
        await other.round(2)
        assert other.only.submitted == []
    await held.settle()
    assert await attempts(pool, id) == [(1, "accepted")]
    await held.later(seconds=RECENT_LOSS_WAIT)
    await other.round(2)
    assert other.only.submitted == []
    assert await status_of(pool, id) == "sent"


async def test_room_is_filled_before_the_answers_that_made_it_are_recorded(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.room = 2
    bench.only.script = lambda submission: None
    actor = await organization(pool)
    for _ in range(4):
        await message(pool, actor)
    await bench.dispatcher.round()
    async with bench.results.writing:
        bench.dispatcher.wake.clear()
        for submission in bench.only.submitted[:2]:
            bench.answer(submission, accepted(f"S{submission.message_id}"))
        assert bench.dispatcher.wake.is_set()
        await bench.dispatcher.round()
        assert len(bench.only.submitted) == 4
    await bench.settle()


# -- who waits for whom ------------------------------------------------------------------------------------------------


async def test_dispatch_passes_over_a_message_that_is_being_answered(pool: Pool) -> None:
    """Recording a response, however late, locks its queue row first, as dispatch does."""
    bench, id = await lost(pool)
    await bench.later(seconds=60)
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM queue WHERE id = $1 FOR UPDATE", id)
        await asyncio.wait_for(bench.round(), 120)
    assert bench.only.submitted == []
    assert await attempts(pool, id) == [(1, "open")]
    since = await moment(pool)
    await bench.round()
    assert await attempts(pool, id) == [(1, "unknown")]
    assert await waits(pool, id, RECENT_LOSS_WAIT, since=since)


async def test_the_recorder_holds_no_attempt_while_it_waits_for_the_queue(pool: Pool) -> None:
    bench = Bench(pool)
    id = await message(pool, await organization(pool))
    async with pool.acquire() as conn, conn.transaction():
        async with bench.results.writing:
            await bench.dispatcher.round()
            await conn.execute("SELECT FROM queue WHERE id = $1 FOR UPDATE", id)
        await blocked(pool)
        assert await conn.fetchval("SELECT count(*) FROM attempts WHERE message_id = $1", id) == 0
        await conn.execute("SELECT FROM messages WHERE id = $1 FOR UPDATE NOWAIT", id)
    await bench.settle()
    assert await status_of(pool, id) == "sent"


#: The first change of a table fails like the victim of a deadlock. A sequence keeps its value when that is rolled back.
VICTIM = """
CREATE SEQUENCE victims;
GRANT ALL ON SEQUENCE victims TO PUBLIC;
CREATE FUNCTION end_the_first() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('victims') = 1 THEN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = 'deadlock_detected'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER ends BEFORE {what} FOR EACH ROW EXECUTE FUNCTION end_the_first();
"""


@pytest.mark.parametrize("what", ["UPDATE ON queue", "INSERT ON attempts"])
async def test_what_postgresql_ends_is_run_again(
    pool: Pool, what: str, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    """The dispatcher is the first to update the queue, and responses are the first to be written to attempts."""
    bench = Bench(pool)
    id = await message(pool, await organization(pool))
    await as_owner(VICTIM.format(what=what))
    await bench.round(2)
    assert await pool.fetchval("SELECT last_value FROM victims") > 1
    assert len(bench.only.submitted) == 1
    assert await status_of(pool, id) == "sent"
    assert not await queued(pool, id)
