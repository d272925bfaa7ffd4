"""WhatsApp dispatch on a real database, with numbers that follow a script: from the queue to Meta."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.queue.leases import BULK
from heliograph.sending import attempts as sending
from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud.contract import OWN_PACE, CloudOutcome, CloudSubmission
from heliograph.suppliers.whatsapp_cloud.errors import classify
from heliograph.suppliers.whatsapp_cloud.pacing import PairGate
from heliograph.whatsapp import messages
from heliograph.whatsapp.dispatch import claimed, holds
from heliograph.whatsapp.mirror import accounts
from heliograph.whatsapp.status import Move, move_many
from tests.meanwhile import before
from tests.rules.dispatching import moment
from tests.rules.dispatching_whatsapp import (
    UNKNOWN,
    UNREACHABLE,
    Bench,
    accept_all,
    attempts,
    fault,
    pause_of,
    queued,
    row_of,
    status_item,
    status_of,
    tries_of,
    waits,
    wamid,
)
from tests.rules.factories import TO, blocked, endpoint, events_of
from tests.rules.whatsapp_factories import (
    KEY,
    Made,
    account,
    campaign,
    check_wallets,
    conversation,
    made,
    message,
    number,
)

BACK = ("queued", None, "reserved")
#: What one user was sent uses up Meta's limit for some minutes.
MINUTES_AHEAD = (
    "UPDATE whatsapp_conversations SET pair_paid_until = now() + interval '8 minutes' RETURNING pair_paid_until"
)
#: Whether a user's pace is used up, by the columns of their conversations.
AHEAD = "coalesce(bool_or(pair_paid_until > now() + interval '1 minute'), false)"
#: The answer of a connector whose own gate is shut.
PACED = CloudOutcome(Verdict.BUSY, fault=classify(131056), code=OWN_PACE, retry_after=7.0)


def _paid(messages: int) -> timedelta:
    return timedelta(seconds=6 * messages)


async def bench_of(pool: Pool, **values: float) -> tuple[Made, Bench]:
    who = await made(pool)
    return who, await Bench(pool, **values).start()  # type: ignore[arg-type]


async def test_a_template_goes_out_once_with_our_id_and_is_queued(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    assert await bench.round(3) == 1
    (submission,) = bench.only.submitted
    body = msgspec.json.decode(submission.body)
    assert (submission.message_id, submission.attempt, submission.recipient) == (id, 1, TO)
    assert body["biz_opaque_callback_data"] == str(id)
    assert body["template"]["name"] == "order_shipped"
    assert [one["text"] for one in body["template"]["components"][0]["parameters"]] == ["Ana", "7"]
    assert await status_of(pool, id) == ("queued", None, "reserved")
    assert await attempts(pool, id) == [(1, "accepted")]
    assert not await queued(pool, id)
    assert bench.dispatcher.in_flight == 0
    assert await pool.fetchval("SELECT message_id FROM whatsapp_wamids WHERE wamid = $1", wamid(id)) == id
    assert await pool.fetchval("SELECT last_outbound_at FROM whatsapp_conversations") is not None


async def test_a_code_goes_out_twice_in_one_body_and_a_reply_as_text(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    await message(pool, who, to="+258841111111", template_id=who.code_id, category="authentication", parameters=("42",))
    await conversation(pool, who)
    await message(pool, who, type="text", text="olá")
    await bench.round()
    bodies = {one.recipient: msgspec.json.decode(one.body) for one in bench.only.submitted}
    assert len(bodies["+258841111111"]["template"]["components"]) == 2
    assert bodies[TO]["text"] == {"body": "olá", "preview_url": False}


async def test_the_attempt_is_committed_before_meta_sees_it(pool: Pool, database_url: str) -> None:
    who, bench = await bench_of(pool)
    seen: list[asyncio.Task[object]] = []

    async def look(id: UUID) -> object:
        other = await asyncpg.connect(database_url)
        try:
            return tuple(await other.fetchrow("SELECT attempt, begun_at IS NOT NULL FROM queue WHERE id = $1", id))
        finally:
            await other.close()

    def script(submission: CloudSubmission) -> CloudOutcome | None:
        seen.append(asyncio.create_task(look(submission.message_id)))
        return None

    bench.only.script = script
    await message(pool, who)
    await bench.round()
    assert [await one for one in seen] == [(1, True)]


async def test_single_sends_go_before_a_campaign(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.room = 5
    for n in range(40):
        await message(pool, who, to=f"+2588400000{n:02}", lane=1)
    single = await message(pool, who)
    await bench.round()
    assert len(bench.only.submitted) == 5
    assert bench.only.submitted[0].message_id == single


async def test_a_held_number_delays_no_other(pool: Pool) -> None:
    who, other = await made(pool), await made(pool)
    bench = await Bench(pool).start()
    mine, theirs = await message(pool, who), await message(pool, other)
    bench.connectors[who.number_id].hold(60.0)
    await bench.round(2)
    assert [one.message_id for one in bench.connectors[other.number_id].submitted] == [theirs]
    assert bench.connectors[who.number_id].submitted == []
    assert await pool.fetchval("SELECT claims FROM queue WHERE id = $1", mine) == 0


# -- what is checked again ---------------------------------------------------------------------------------------------


async def ended(pool: Pool, who: Made, id: UUID, code: str) -> None:
    assert await status_of(pool, id) == ("failed", code, "released")
    assert await events_of(pool, id) == ["message.failed"]
    assert not await queued(pool, id)
    await check_wallets(pool, [who.organization_id])


async def test_a_window_that_closed_meanwhile_fails_a_reply_and_gives_the_money_back(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    await conversation(pool, who)
    id = await message(pool, who, type="text")
    await bench.later(hours=25)
    await bench.round()
    await ended(pool, who, id, "window_closed")
    assert bench.only.submitted == []


async def test_who_opted_out_meanwhile_gets_nothing(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    await pool.execute(
        "INSERT INTO opt_outs (organization_id, recipient, since, source) VALUES ($1, $2, now(), 'operator')",
        who.organization_id,
        TO,
    )
    await bench.round()
    await ended(pool, who, id, "opted_out")


@pytest.mark.parametrize(
    "change",
    [
        "status = 'disabled'",
        "status = 'rejected'",
        "disabled_locally = true",
        "category = 'marketing'",
        "components = '[]'",
    ],
)
async def test_a_template_that_cannot_be_used_any_more_fails_its_messages(pool: Pool, change: str) -> None:
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    await pool.execute(f"UPDATE whatsapp_templates SET {change}")
    await bench.round()
    await ended(pool, who, id, "template_unavailable")


async def test_what_is_past_its_time_is_not_sent(pool: Pool) -> None:
    """The time after its validity is for Meta's statuses."""
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    await bench.later(days=30, minutes=1)
    await bench.round()
    await ended(pool, who, id, "expired")


async def test_a_suspended_organization_s_messages_wait(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    await pool.execute("UPDATE organizations SET state = 'suspended'")
    await bench.round()
    assert await status_of(pool, id) == ("accepted", None, "reserved")
    assert 50 < await pause_of(pool, id) <= 60
    await pool.execute("UPDATE organizations SET state = 'active'")
    await bench.later(seconds=61)
    await bench.round()
    assert len(bench.only.submitted) == 1


async def test_what_ended_meanwhile_does_not_go_out(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    async with pool.acquire() as conn, conn.transaction():
        at = await conn.fetchval("SELECT now()")
        await move_many(conn, [Move(who.organization_id, id, "canceled", at)], rates=None)
    await bench.round()
    assert bench.only.submitted == []
    assert not await queued(pool, id)


@pytest.mark.parametrize("removed", ["numbers", "accounts"])
async def test_a_removed_number_s_messages_fail_and_a_paused_account_s_wait(pool: Pool, removed: str) -> None:
    gone, paused = await made(pool), await made(pool)
    first, second = await message(pool, gone), await message(pool, paused)
    await endpoint(pool, gone.actor, "message.failed")
    await pool.execute(
        f"UPDATE whatsapp_{removed} SET state = 'removed' WHERE organization_id = $1", gone.organization_id
    )
    await pool.execute("UPDATE whatsapp_accounts SET state = 'paused' WHERE id = $1", paused.account_id)
    bench = await Bench(pool).start()
    await bench.round()
    await ended(pool, gone, first, "phone_number_unavailable")
    assert await events_of(pool, first) == ["message.failed"]
    assert await status_of(pool, second) == ("accepted", None, "reserved")
    assert await queued(pool, second)


async def test_a_number_that_this_worker_has_not_read_yet_is_left_to_those_who_have(pool: Pool) -> None:
    """A message may come before the worker's next reading of the table, and then it must not wait for a minute."""
    bench = await Bench(pool).start()
    who = await made(pool)
    id = await message(pool, who)
    assert await bench.round() == 0
    assert await pause_of(pool, id) <= 0
    await bench.refresh()
    await bench.round()
    assert [one.message_id for one in bench.only.submitted] == [id]


# -- templates that pause ----------------------------------------------------------------------------------------------


async def test_a_template_paused_in_a_campaign_holds_its_messages_and_fails_codes(pool: Pool) -> None:
    """132015: messages that use the template go back without using up a try; after the pause they are sent."""
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: fault(132015)
    ids = [await message(pool, who, to=f"+2588400000{n:02}", lane=1) for n in range(4)]
    code = await message(pool, who, template_id=who.code_id, category="authentication", parameters=("42",))
    bench.only.room = 2
    await bench.round()
    assert await status_of(pool, code) == ("failed", "template_unavailable", "released")
    await bench.round(3)
    template = await pool.fetchrow("SELECT status, held_until FROM whatsapp_templates WHERE id = $1", who.template_id)
    assert template["status"] == "paused"
    submitted = len(bench.only.submitted)
    for id in ids:
        assert (await status_of(pool, id))[2] == "reserved"
        assert await queued(pool, id)
        assert await tries_of(pool, id) == 0
    # Meta ends the pause, and the mirror has read that: waiting messages are due at once.
    await pool.execute("UPDATE whatsapp_templates SET status = 'approved', held_until = NULL")
    bench.only.script, bench.only.room = accept_all, 100
    bench.restart()
    await bench.round(2)
    assert {one.message_id for one in bench.only.submitted[submitted:]} == set(ids)
    await check_wallets(pool, [who.organization_id])


async def test_a_template_that_a_listing_lacks_holds_messages_and_sends_codes(pool: Pool) -> None:
    """The listing may be incomplete. A code cannot wait until that is known, and Meta's response to it will tell."""
    who, bench = await bench_of(pool)
    await pool.execute("UPDATE whatsapp_templates SET missing_at = now()")
    ids = {await message(pool, who, to=f"+25884000000{n}") for n in range(3)}
    code = await message(pool, who, template_id=who.code_id, category="authentication", parameters=("42",))
    await bench.round()
    assert [one.message_id for one in bench.only.submitted] == [code]
    # They delay nothing else, and no worker polls them.
    lines = await pool.fetch("SELECT line, due_at > now() AS later FROM queue WHERE kind = 'whatsapp'")
    assert [tuple(row) for row in lines] == [(who.template_id, True)] * 3
    bench.restart()
    assert await bench.round() == 0
    await pool.execute("UPDATE whatsapp_templates SET missing_at = NULL")
    bench.restart()
    await bench.round()
    assert {one.message_id for one in bench.only.submitted[1:]} == ids
    assert all([len(await attempts(pool, id)) == 1 for id in ids])


async def test_a_template_that_a_send_is_refused_for_holds_messages_until_meta_was_asked(pool: Pool) -> None:
    """132001: it may have come under review a moment ago, or one of Meta's servers may not know it yet."""
    who, bench = await bench_of(pool)
    await pool.execute("UPDATE whatsapp_accounts SET mirror_at = now() + interval '10 minutes'")
    bench.only.script = lambda submission: fault(132001)
    ids = {await message(pool, who, to=f"+25884000000{n}") for n in range(3)}
    code = await message(pool, who, template_id=who.code_id, category="authentication", parameters=("42",))
    reread = "SELECT reread_at > now() FROM whatsapp_templates WHERE missing_at IS NOT NULL AND id = $1"
    for tries in (1, 2, 3):
        await bench.round(3)
        assert len(bench.only.submitted) == 1 + 3 * tries, "once until Meta was asked"
        assert {await tries_of(pool, id) for id in ids} == {tries}
        assert await pool.fetchval(reread, who.template_id)
        await pool.execute("UPDATE whatsapp_templates SET missing_at = NULL, reread_at = NULL")
        bench.restart()
    assert await pool.fetchval("SELECT mirror_at < now() + interval '2 minutes' FROM whatsapp_accounts")
    assert await status_of(pool, code) == ("failed", "template_unavailable", "released")
    await bench.round(3)
    for id in ids:
        await ended(pool, who, id, "template_unavailable")


@pytest.mark.parametrize("is_parked", [False, True])
async def test_a_template_recategorized_in_a_campaign_holds_its_messages_and_fails_single_ones(
    pool: Pool, is_parked: bool
) -> None:
    """Marketing is not sent here; but the campaign pauses, and Meta may change its mind."""
    who, bench = await bench_of(pool)
    ids = [await message(pool, who, to=f"+2588400000{n:02}", lane=1) for n in range(3)]
    single = await message(pool, who, to="+258840000099")
    if is_parked:  # by a pause before that
        await pool.execute("UPDATE whatsapp_templates SET status = 'paused'")
        await bench.round()
    await pool.execute("UPDATE whatsapp_templates SET status = 'approved', category = 'marketing'")
    bench.restart()
    await bench.round()
    await ended(pool, who, single, "template_unavailable")
    lines = await pool.fetch("SELECT line, due_at > now() AS later FROM queue WHERE kind = 'whatsapp'")
    assert [tuple(row) for row in lines] == [(who.template_id, True)] * 3
    bench.restart()
    assert await bench.round() == 0
    await pool.execute("UPDATE whatsapp_templates SET category = 'utility'")
    bench.restart()
    await bench.round()
    assert {one.message_id for one in bench.only.submitted} == set(ids)
    await check_wallets(pool, [who.organization_id])


@pytest.mark.parametrize("end", ["status = 'removed'", "disabled_locally = true"])
async def test_what_waits_for_a_template_that_is_gone_fails_at_once(pool: Pool, end: str) -> None:
    who, bench = await bench_of(pool)
    await pool.execute("UPDATE whatsapp_templates SET status = 'paused'")
    id = await message(pool, who)
    await bench.round()
    await pool.execute(f"UPDATE whatsapp_templates SET {end}")
    bench.restart()
    await bench.round()
    await ended(pool, who, id, "template_unavailable")


async def test_what_waits_for_a_template_ends_with_its_lifetime_and_with_its_number(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    await pool.execute("UPDATE whatsapp_templates SET status = 'paused'")
    late, orphan = await message(pool, who, deadline=timedelta(hours=25)), await message(pool, who)
    await bench.round()
    await bench.later(hours=2)
    bench.restart()
    await bench.round()
    await ended(pool, who, late, "expired")
    await pool.execute("UPDATE whatsapp_numbers SET state = 'removed'")
    await bench.refresh()
    await bench.later(minutes=6)
    bench.restart()
    await bench.round()
    assert (await status_of(pool, orphan))[:2] == ("failed", "phone_number_unavailable")


async def test_what_lost_its_answer_before_its_number_was_removed_says_no_more_than_that(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    bench.only.script = lambda submission: UNKNOWN
    await bench.round()
    await pool.execute("UPDATE whatsapp_numbers SET state = 'removed'")
    await bench.refresh()
    await bench.later(minutes=6)
    bench.restart()
    await bench.round()
    await ended(pool, who, id, "unknown")


async def test_what_waits_for_a_paused_account_is_due_when_it_is_resumed(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    scope = {"organization_id": who.organization_id, "account_id": who.account_id}
    async with pool.acquire() as conn:
        await accounts.set_state(conn, **scope, state="paused")
    await bench.refresh()
    id = await message(pool, who)
    await bench.round()
    assert await pause_of(pool, id) > 50
    async with pool.acquire() as conn:
        await accounts.set_state(conn, **scope, state="active")
    await bench.refresh()
    await bench.round()
    assert [one.message_id for one in bench.only.submitted] == [id]


async def paused_bench(pool: Pool) -> tuple[Bench, UUID, Callable[[], Awaitable[None]]]:
    """A worker, a message that waits for a paused account, and what resumes the account."""
    who, bench = await bench_of(pool)
    scope = {"organization_id": who.organization_id, "account_id": who.account_id}

    async def set_state(state: str) -> None:
        async with pool.acquire() as conn:
            await accounts.set_state(conn, **scope, state=state)

    await set_state("paused")
    await bench.refresh()
    return bench, await message(pool, who), partial(set_state, "active")


async def test_a_resumed_account_wins_over_a_worker_that_is_putting_its_messages_back(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, id, resume = await paused_bench(pool)
    fetch = claimed.load

    async def load(*given: Any) -> Any:
        await resume()  # skips what this worker has locked
        return await fetch(*given)

    monkeypatch.setattr(claimed, "load", load)
    since = await moment(pool)
    await bench.round()
    assert await waits(pool, id, 1.0, since=since)


async def test_resuming_an_account_waits_for_a_worker_that_has_found_it_paused(pool: Pool) -> None:
    bench, id, resume = await paused_bench(pool)
    decide, resuming = bench.channel.decide, []
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    async def deciding(*given: Any) -> Any:
        decided = await decide(*given)
        task = asyncio.create_task(resume())
        resuming.append(task)
        while not (task.done() or await pool.fetchval(waits)):  # noqa: ASYNC110 (locks send no events)
            await asyncio.sleep(0.01)
        return decided

    bench.channel.decide = deciding  # type: ignore[method-assign]
    await bench.round()
    await asyncio.gather(*resuming)
    assert await pause_of(pool, id) <= 0


async def test_nobody_but_who_resumes_an_account_waits_for_a_worker_that_has_found_it_paused(pool: Pool) -> None:
    """Whoever holds one has locked wallets, for which that worker may wait next: one of the two was aborted."""
    bench, _, _ = await paused_bench(pool)
    decide, account = bench.channel.decide, await pool.fetchrow("SELECT organization_id, id FROM whatsapp_accounts")
    assert account is not None

    async def deciding(*given: Any) -> Any:
        decided = await decide(*given)
        async with pool.acquire() as conn, conn.transaction():
            await conn.execute("SET LOCAL lock_timeout = '10s'")
            await holds.hold_account(conn, *account, seconds=60.0, reason="unpaid")
        return decided

    bench.channel.decide = deciding  # type: ignore[method-assign]
    await bench.round()
    assert await pool.fetchval("SELECT held_reason FROM whatsapp_accounts") == "unpaid"


async def test_a_refused_token_holds_its_account_unless_another_one_has_replaced_it(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: None  # the answer is late
    held = "SELECT coalesce(held_until > now(), false), credential_status FROM whatsapp_accounts"
    for token, standing in (("EAAnew", (False, "unknown")), (None, (True, "invalid"))):
        await message(pool, who)
        await bench.round()
        late = bench.only.submitted[-1]
        if token is not None:
            async with pool.acquire() as conn:
                scope = {"organization_id": who.organization_id, "account_id": who.account_id}
                await accounts.update(conn, KEY, **scope, token=token)
        bench.only.on_outcome(late, fault(190))
        await bench.settle()
        assert (await status_of(pool, late.message_id))[0] == "queued"
        assert tuple(await pool.fetchrow(held)) == standing
        await bench.refresh()


async def test_a_token_that_cannot_see_its_number_holds_it_unless_another_one_has_replaced_it(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: None  # the answer is late
    held = "SELECT coalesce(held_until > now(), false) FROM whatsapp_numbers"
    for token, standing in (("EAAnew", False), (None, True)):
        await message(pool, who)
        await bench.round()
        if token is not None:
            async with pool.acquire() as conn:
                scope = {"organization_id": who.organization_id, "account_id": who.account_id}
                await accounts.update(conn, KEY, **scope, token=token)
        bench.only.on_outcome(bench.only.submitted[-1], fault(100, 33))
        await bench.settle()
        assert await pool.fetchval(held) is standing
        await bench.refresh()


async def test_the_limit_of_an_app_holds_the_account_whatever_its_token(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: None  # the answer is late
    await message(pool, who)
    await bench.round()
    async with pool.acquire() as conn:
        scope = {"organization_id": who.organization_id, "account_id": who.account_id}
        await accounts.update(conn, KEY, **scope, token="EAAnew")
    bench.only.on_outcome(bench.only.submitted[-1], fault(4))
    await bench.settle()
    held = "SELECT coalesce(held_until > now(), false), credential_status FROM whatsapp_accounts"
    assert tuple(await pool.fetchrow(held)) == (True, "unknown")


async def test_a_template_under_review_holds_messages_and_fails_codes(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    await pool.execute("UPDATE whatsapp_templates SET status = 'in_appeal'")
    id = await message(pool, who)
    code = await message(pool, who, template_id=who.code_id, category="authentication", parameters=("42",))
    await bench.round()
    assert await queued(pool, id)
    await ended(pool, who, code, "template_unavailable")


# -- users and limits --------------------------------------------------------------------------------------------------


async def test_a_user_s_gate_sends_the_message_back_for_just_that_long(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.waits[TO] = 4_000.0
    id, other = await message(pool, who), await message(pool, who, to="+258841111111")
    await bench.round()
    assert [one.message_id for one in bench.only.submitted] == [other]
    assert 3_000 < await pause_of(pool, id) <= 4_000
    assert await attempts(pool, id) == []
    assert await tries_of(pool, id) == 0


async def test_many_messages_to_one_user_leave_a_few_at_a_time(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    ids = {await message(pool, who) for _ in range(12)}
    await bench.round()
    assert len(bench.only.submitted) == 5
    for _ in range(3):
        await bench.later(seconds=1)
        await bench.round()
    assert {one.message_id for one in bench.only.submitted} == ids


async def test_messages_beyond_a_user_s_pace_are_due_one_after_the_other(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    gate = bench.only.gate = PairGate(lambda: bench.seconds)
    gate.learn(TO, 44 * 6.0)
    ids = [await message(pool, who) for _ in range(14)]
    await bench.round()
    assert len(bench.only.submitted) == 1
    left = [id for id in ids if id != bench.only.submitted[0].message_id]
    due = await pool.fetch("SELECT due_at FROM queue WHERE id = ANY ($1) ORDER BY due_at", left)
    pauses = [round((one["due_at"] - due[0]["due_at"]).total_seconds()) for one in due]
    assert pauses == [6 * min(n, 9) for n in range(13)]
    for id in left:
        assert await attempts(pool, id) == []


async def test_messages_that_meta_accepts_count_for_all_workers(pool: Pool) -> None:
    """Each worker's gate knows its own messages; together they would send a user several times what Meta allows."""
    who, bench = await bench_of(pool)
    other = await Bench(pool).start()
    other.only.gate = PairGate(lambda: other.seconds)

    await message(pool, who)
    await bench.round()
    assert await pool.fetchval("SELECT pair_paid_until - last_outbound_at FROM whatsapp_conversations") == _paid(1)
    at = await pool.fetchval(MINUTES_AHEAD)
    for _ in range(3):
        await message(pool, who)
    await bench.round()
    assert await pool.fetchval("SELECT pair_paid_until - $1 FROM whatsapp_conversations", at) == _paid(3)
    late = await message(pool, who)
    await other.round()
    assert other.only.submitted == []
    assert await pause_of(pool, late) > 60
    await other.later(hours=2)
    await other.round()
    assert [one.message_id for one in other.only.submitted] == [late]


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [(fault(131056), 0), (UNREACHABLE, 0), (CloudOutcome(Verdict.ACCEPTED, wamid="wamid.1"), 1), (UNKNOWN, 1)],
)
async def test_near_a_user_s_pace_a_message_counts_before_it_is_sent(
    pool: Pool, outcome: CloudOutcome, counted: int
) -> None:
    """Counted only once it is accepted, it would not keep another worker from sending one at the same moment."""
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    at = await pool.fetchval(MINUTES_AHEAD)
    bench.only.script = lambda submission: None
    await bench.round()
    assert await pool.fetchval("SELECT pair_paid_until - $1 FROM whatsapp_conversations", at) == _paid(1)
    bench.answer(bench.only.submitted[0], outcome)
    await bench.results.drain()
    assert await attempts(pool, id) == [(1, str(outcome.verdict))]
    assert await pool.fetchval("SELECT pair_paid_until - $1 FROM whatsapp_conversations", at) == _paid(counted)


async def test_a_user_who_is_to_get_no_more_gets_no_more_from_any_worker(pool: Pool) -> None:
    """Meta refuses the first message: somebody else has sent this user many. It used to be asked by each worker, and by
    the one that it had answered again a second later, with all that waited."""
    who, bench = await bench_of(pool)
    other = await Bench(pool).start()
    for one in (bench, other):
        one.only.gate = PairGate(lambda: bench.seconds)
    bench.only.script = lambda submission: fault(131056, retry_after=270.0)
    first = await message(pool, who)
    since = await moment(pool)
    await bench.round()
    assert await attempts(pool, first) == [(1, "busy")]
    ids = [await message(pool, who) for _ in range(3)]
    await other.round()
    assert other.only.submitted == []
    due = [row["due_at"] for row in await pool.fetch("SELECT due_at FROM queue WHERE id = ANY ($1) ORDER BY 1", ids)]
    assert due[0] >= since + timedelta(seconds=270)
    assert [round((one - due[0]).total_seconds()) for one in due] == [0, 6, 12]
    assert await attempts(pool, ids[0]) == []


async def test_a_long_pause_outlasts_messages_that_meta_accepts_after_it(pool: Pool) -> None:
    """They were on their way. The second one took the pace further ahead than any is believed to be, so that no pause
    was left at all."""
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: None
    for _ in range(4):
        await message(pool, who)
    await bench.round()
    refused, *accepted = bench.only.submitted
    bench.answer(refused, fault(131056, retry_after=270.0))
    await bench.settle()
    for one in accepted:
        bench.answer(one, accept_all(one))
        await bench.settle()
    assert await pool.fetchval("SELECT pair_paid_until > now() + interval '8 minutes' FROM whatsapp_conversations")


async def test_a_user_of_whom_a_status_says_so_gets_no_more_for_a_while(pool: Pool) -> None:
    """Meta had accepted the message before it counted. What followed was accepted, and failed, too."""
    who, bench = await bench_of(pool)
    bench.only.gate = PairGate(lambda: bench.seconds)
    first = await message(pool, who)
    await bench.round()
    at = await moment(pool) - timedelta(seconds=1)  # not later than this process believes it to be
    await bench.hear(who, status_item(who, first, "failed", code=131056, wamid=wamid(first), at=at))
    # A minute more, so that it is not over before the next message is picked.
    await pool.execute("UPDATE whatsapp_conversations SET pair_paid_until = pair_paid_until + interval '1 minute'")
    id = await message(pool, who)
    await bench.round()
    assert [one.message_id for one in bench.only.submitted] == [first]
    assert await waits(pool, id, 66.0, since=at - timedelta(milliseconds=1))
    # As of when Meta reported it: by then, the pace may be over.
    await pool.execute("UPDATE whatsapp_conversations SET pair_paid_until = NULL")
    another = await message(pool, who, to="+258840000009")
    await bench.round()
    assert bench.only.submitted[-1].message_id == another
    old = clock.now() - timedelta(minutes=10)
    await bench.hear(who, status_item(who, another, "failed", code=131056, wamid=wamid(another), at=old))
    assert not await pool.fetchval(f"SELECT {AHEAD} FROM whatsapp_conversations")


async def test_of_several_statuses_that_say_so_the_latest_counts(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    ids = [await message(pool, who) for _ in range(2)]
    await bench.round()
    at = clock.now()
    said = zip(ids, (at, at - timedelta(minutes=10)), strict=True)
    await bench.hear(who, *(status_item(who, id, "failed", code=131056, wamid=wamid(id), at=one) for id, one in said))
    assert await pool.fetchval(f"SELECT {AHEAD} FROM whatsapp_conversations")


async def test_a_status_concerns_the_conversation_that_its_own_has_become_part_of(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    first = await message(pool, who)
    await message(pool, who, to="+258840000009")
    await bench.round()
    await pool.execute("""
        UPDATE whatsapp_conversations c SET merged_into = other.id FROM whatsapp_conversations other
         WHERE other.recipient = '+258840000009' AND other.id <> c.id
    """)
    await bench.hear(who, status_item(who, first, "failed", code=131056, wamid=wamid(first)))
    assert await pool.fetchval(f"SELECT {AHEAD} FROM whatsapp_conversations WHERE merged_into IS NULL")


async def test_a_pace_that_our_own_gate_keeps_counts_nothing(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: PACED
    id = await message(pool, who)
    await bench.round()
    assert await attempts(pool, id) == [(1, "busy")]
    assert await pool.fetchval("SELECT pair_paid_until FROM whatsapp_conversations") is None


async def test_a_pace_from_before_the_clock_was_set_back_stops_nothing(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.gate = PairGate(lambda: bench.seconds)
    id = await message(pool, who)
    await pool.execute("UPDATE whatsapp_conversations SET pair_paid_until = now() + interval '400 days'")
    await bench.round()
    assert [one.message_id for one in bench.only.submitted] == [id]
    assert await pool.fetchval("SELECT pair_paid_until - last_outbound_at FROM whatsapp_conversations") == _paid(1)


async def test_workers_do_not_wake_for_one_user_at_the_same_moment(pool: Pool) -> None:
    who = await made(pool)
    for n in range(2):
        await pool.execute(
            "INSERT INTO workers (id, name, started_at, seen_at, version) VALUES ($1, $2, now(), now(), '')",
            uuid7(), f"w{n}",
        )  # fmt: skip
    bench = await Bench(pool).start()
    bench.only.waits[TO] = 4.0
    ids = [await message(pool, who) for _ in range(5)]
    await bench.round()
    due = await pool.fetch("SELECT due_at, id FROM queue WHERE id = ANY ($1)", ids)
    times = {one["due_at"] - timedelta(milliseconds=one["id"].int % 1000) for one in due}
    assert len(due) == 5
    assert len(times) == 1


async def test_a_portfolio_at_its_limit_reaches_nobody_new(pool: Pool) -> None:
    who = await made(pool)
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 2")
    bench = await Bench(pool).start()
    ids = [await message(pool, who, to=f"+25884000000{n}") for n in range(3)]
    await bench.round()
    out = {one.message_id for one in bench.only.submitted}
    assert len(out) == 2
    (waits,) = set(ids) - out
    assert await queued(pool, waits)
    assert await attempts(pool, waits) == []
    # Users who were messaged today may be messaged again, and so may those whose window is open.
    known = bench.only.submitted[0].recipient
    await conversation(pool, who, to="+258849999999")
    more = {await message(pool, who, to=known), await message(pool, who, to="+258849999999")}
    await bench.later(seconds=61)
    await bench.round()
    assert {one.message_id for one in bench.only.submitted} == out | more
    # A day later there is room.
    await bench.later(hours=25)
    await bench.round()
    assert waits in {one.message_id for one in bench.only.submitted}


@pytest.mark.parametrize(
    ("first", "then"), [("+5511987654321", "+551187654321"), ("+525512345678", "+5215512345678"), ("MX.7", "MX.7")]
)
async def test_a_user_who_was_reached_counts_once_in_any_spelling(pool: Pool, first: str, then: str) -> None:
    who = await made(pool)
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 1")
    bench = await Bench(pool).start()
    await message(pool, who, to=first)
    await bench.round()
    again = await message(pool, who, to=then)
    other = await message(pool, who, to="+258840000001")
    async with pool.acquire() as conn:
        shown = [await messages.waiting(conn, who.organization_id, id=id) for id in (again, other)]
    assert [one and one.reached_limit for one in shown] == [None, 1]
    await bench.round()
    assert [one.recipient for one in bench.only.submitted] == [first, then]


async def test_a_campaign_beyond_its_portfolio_s_limit_is_examined_less_often(pool: Pool) -> None:
    """It may have a hundred thousand such messages, for days."""
    who = await made(pool)
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 1")
    bench = await Bench(pool).start()
    await message(pool, who, to="+258840000001")
    await bench.round()
    single = await message(pool, who, to="+258840000002")
    bulk = [await message(pool, who, to=f"+25884100000{n}", lane=BULK) for n in range(2)]
    await bench.round()
    assert len(bench.only.submitted) == 1
    assert 30 < await pause_of(pool, single) <= 60
    for id in bulk:
        assert 300 < await pause_of(pool, id) <= 600
    await bench.later(hours=24, seconds=1)
    await bench.round()
    assert len(bench.only.submitted) == 2


async def test_beyond_the_limit_who_was_reached_does_not_wait_behind_those_who_were_not(pool: Pool) -> None:
    """An idle number starts with a few messages: if a large campaign were scanned a few at a time, it would be due
    again before its end is reached."""
    who = await made(pool)
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 1")
    bench = await Bench(pool).start()
    await message(pool, who, to="+258840000001")
    await bench.round()
    for n in range(100):
        await message(pool, who, to=f"+25884100{n:04}", lane=BULK)
    known = [await message(pool, who, to="+258840000001", lane=BULK) for _ in range(3)]
    bench.only.room = 2
    await bench.round()
    await bench.round()
    assert [one.message_id for one in bench.only.submitted[1:]] == known[:2]
    await bench.later(seconds=1)
    await bench.round()
    assert [one.message_id for one in bench.only.submitted[1:]] == known
    assert await pool.fetchval("SELECT users FROM whatsapp_portfolios") == 1


async def test_after_a_hold_one_who_was_reached_is_found_behind_those_beyond_the_limit(pool: Pool) -> None:
    """One message a second was looked at, for which all were due again before the turn of one that could be sent, so
    that the hold did not end."""
    who = await made(pool)
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 1")
    bench = await Bench(pool).start()
    await message(pool, who, to="+258840000001")
    await bench.round()
    await pool.execute("UPDATE whatsapp_accounts SET held_until = now(), held_reason = 'policy'")
    for n in range(30):
        await message(pool, who, to=f"+25884100{n:04}")
    known = [await message(pool, who, to="+258840000001") for _ in range(3)]
    await bench.refresh()
    await bench.round()
    await bench.round()
    assert [one.message_id for one in bench.only.submitted[1:]] == known[:1]
    assert await pool.fetchval("SELECT users FROM whatsapp_portfolios") == 1


async def test_of_users_beyond_a_number_s_room_none_is_counted(pool: Pool) -> None:
    who = await made(pool)
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 1")
    bench = await Bench(pool).start()
    for n in range(30):
        await message(pool, who, to=f"+25884100{n:04}", lane=BULK)
    bench.only.room = 2
    await bench.round()
    await bench.round()
    assert len(bench.only.submitted) == 1
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 20")
    await bench.refresh()
    await bench.later(seconds=601)
    await bench.round()
    assert len(bench.only.submitted) == 3
    assert await pool.fetchval("SELECT users FROM whatsapp_portfolios") == 3


async def test_a_limit_that_is_raised_lets_messages_go_at_once(pool: Pool) -> None:
    who = await made(pool)
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 1")
    bench = await Bench(pool).start()
    await message(pool, who, to="+258840000001")
    await bench.round()
    for n in range(4):
        await message(pool, who, to=f"+25884100000{n}", lane=n % 2)
    await bench.round()
    assert len(bench.only.submitted) == 1
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 4")
    await bench.refresh()
    await bench.round()
    assert len(bench.only.submitted) == 4
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = NULL")
    await bench.refresh()
    await bench.round()
    assert len(bench.only.submitted) == 5


async def test_a_raised_limit_makes_nothing_due_that_waits_for_something_else(pool: Pool) -> None:
    """Messages tried before, and a campaign with a pace of its own."""
    who = await made(pool)
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 1")
    bench = await Bench(pool).start()
    paced = await message(pool, who, to="+258840000001")
    await pool.execute("UPDATE whatsapp_messages SET campaign_id = $1", await campaign(pool, who))
    await pool.execute("UPDATE campaigns SET messages_per_minute = 1")
    tried = await message(pool, who, to="+258840000002")
    await pool.execute("UPDATE queue SET attempt = 1 WHERE id = $1", tried)
    await pool.execute("UPDATE queue SET due_at = now() + interval '5 minutes'")
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 2")
    await bench.refresh()
    for id in (paced, tried):
        assert 200 < await pause_of(pool, id) <= 300


async def test_a_portfolio_s_limit_holds_for_any_number_of_workers(pool: Pool) -> None:
    """Three workers at once, whose rounds overlap in every way that the database allows."""
    who = await made(pool)
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 25")
    workers = [await Bench(pool, claim_limit=10).start() for _ in range(3)]
    for n in range(60):
        await message(pool, who, to=f"+2588400000{n:02}")
    for _ in range(30):
        await asyncio.gather(*(one.round() for one in workers))
        # Messages that found the count taken by another worker come again.
        await pool.execute("UPDATE queue SET due_at = now() WHERE due_at < now() + interval '30 seconds'")
    out = [one.recipient for worker in workers for one in worker.only.submitted]
    assert len(out) == len(set(out)) == 25
    assert await pool.fetchval("SELECT users FROM whatsapp_portfolios") == 25
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE due_at > now() + interval '30 seconds'") == 35


async def test_a_portfolio_s_count_that_another_worker_holds_is_not_waited_for(pool: Pool, database_url: str) -> None:
    who = await made(pool)
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 2")
    bench = await Bench(pool).start()
    known = await message(pool, who)
    await bench.round()
    id, again = await message(pool, who, to="+258841111111"), await message(pool, who)
    other = await asyncpg.connect(database_url)
    try:
        async with other.transaction():
            await other.execute("UPDATE whatsapp_portfolios SET users = users + 1")
            await bench.round()  # would hang if it waited
            assert [one.message_id for one in bench.only.submitted] == [known, again]
            assert await pause_of(pool, id) <= 0.1
    finally:
        await other.close()
    await bench.later(seconds=1)
    await bench.round()
    assert await attempts(pool, id) == []
    assert 50 < await pause_of(pool, id) <= 60


# -- answers that were lost --------------------------------------------------------------------------------------------


async def test_a_lost_answer_and_then_a_status_is_one_user_message_and_one_charge(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: UNKNOWN
    id = await message(pool, who)
    await bench.round()
    assert await attempts(pool, id) == [(1, "unknown")]
    assert 170 < await pause_of(pool, id) <= 180
    await bench.hear(who, status_item(who, id, "sent"))
    assert await attempts(pool, id) == [(1, "accepted")]
    await bench.hear(who, status_item(who, id, "delivered"))
    await bench.later(seconds=200)
    await bench.round(2)
    assert len(bench.only.submitted) == 1
    assert await status_of(pool, id) == ("delivered", None, "consumed")
    assert not await queued(pool, id)
    await check_wallets(pool, [who.organization_id])


async def test_a_status_before_the_lost_answer_is_recorded_ends_the_matter(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: None
    id = await message(pool, who)
    await bench.round()
    await bench.hear(who, status_item(who, id, "delivered"))
    bench.answer(bench.only.submitted[0], UNKNOWN)
    await bench.settle()
    assert await attempts(pool, id) == [(1, "accepted")]
    assert not await queued(pool, id)


async def heard_of(pool: Pool) -> None:
    """A callback of the app came just now."""
    await pool.execute("UPDATE whatsapp_apps SET last_callback_at = now()")


async def test_without_a_status_a_utility_message_is_sent_again_and_a_code_is_not(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: UNKNOWN
    id = await message(pool, who)
    code = await message(pool, who, template_id=who.code_id, category="authentication", parameters=("42",))
    await bench.round()
    await bench.later(seconds=200)
    await heard_of(pool)
    bench.only.script = accept_all
    await bench.round()
    assert await attempts(pool, id) == [(1, "unknown"), (2, "accepted")]
    await ended(pool, who, code, "unknown")
    # Statuses of either attempt count.
    await bench.hear(who, status_item(who, None, "read", wamid=wamid(id, 2)))
    assert (await status_of(pool, id))[0] == "read"


async def test_a_status_that_is_being_applied_is_heard_before_a_code_is_given_up(pool: Pool, database_url: str) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: UNKNOWN
    id = await message(pool, who, template_id=who.code_id, category="authentication", parameters=("42",))
    await bench.round()
    await bench.later(seconds=200)
    other = await asyncpg.connect(database_url)
    try:
        async with other.transaction():
            await other.execute("UPDATE attempts SET state = 'accepted' WHERE message_id = $1", id)
            await other.execute("UPDATE whatsapp_messages SET status = 'sent', sent_at = now() WHERE id = $1", id)
            deciding = asyncio.create_task(bench.round())
            await blocked(pool)
        await deciding
    finally:
        await other.close()
    assert await status_of(pool, id) == ("sent", None, "reserved")
    assert await events_of(pool, id) == []
    assert not await queued(pool, id)


async def test_nothing_is_sent_again_while_callbacks_may_still_tell(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: UNKNOWN
    id = await message(pool, who)
    await bench.round()
    await pool.execute("UPDATE whatsapp_apps SET verified_at = NULL")
    await bench.later(seconds=200)
    await bench.round()
    assert len(await attempts(pool, id)) == 1
    await heard_of(pool)
    await pool.execute(
        "INSERT INTO whatsapp_callbacks (id, app, body, received_at) VALUES ($1, $2, '', now())", uuid7(), who.app
    )
    await bench.later(seconds=31)
    await bench.round()
    assert len(await attempts(pool, id)) == 1
    await pool.execute("DELETE FROM whatsapp_callbacks")
    await bench.later(seconds=31)
    await bench.round()
    assert len(await attempts(pool, id)) == 2


async def test_silence_is_an_answer_only_once_something_was_heard_or_after_long(pool: Pool) -> None:
    """An outage of our own keeps both responses and callbacks from us."""
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: UNKNOWN
    await heard_of(pool)
    id = await message(pool, who)
    await bench.round()
    await pool.execute("UPDATE whatsapp_apps SET last_callback_at = last_callback_at - interval '200 seconds'")
    await bench.later(seconds=200)
    await bench.round()
    assert len(await attempts(pool, id)) == 1
    assert await pause_of(pool, id) <= 30
    # From before the clock was set back: nothing says that a callback has come since.
    await pool.execute("UPDATE whatsapp_apps SET last_callback_at = now() + interval '1 day'")
    await bench.later(seconds=31)
    await bench.round()
    assert len(await attempts(pool, id)) == 1
    await bench.later(seconds=5 * 180)
    await bench.round()
    assert len(await attempts(pool, id)) == 2


async def test_it_is_given_up_after_three_tries_that_nobody_heard_of(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: UNKNOWN
    id = await message(pool, who)
    for _ in range(5):
        await bench.round()
        await bench.later(seconds=200)
        await heard_of(pool)
    assert len(bench.only.submitted) == 3
    await ended(pool, who, id, "unknown")


async def test_what_a_dead_worker_had_out_waits_for_a_status_too(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: None
    id = await message(pool, who)
    await bench.round()
    bench.restart()
    await bench.later(seconds=61)
    await bench.round()
    assert await attempts(pool, id) == [(1, "unknown")]
    assert 100 < await pause_of(pool, id) <= 120
    await bench.later(seconds=121)
    await heard_of(pool)
    bench.only.script = accept_all
    await bench.round()
    assert await attempts(pool, id) == [(1, "unknown"), (2, "accepted")]


async def test_an_answer_that_the_recorder_still_holds_is_not_sent_again(pool: Pool) -> None:
    """The database was down for longer than lease and grace period, and dispatch is back before the recorder."""
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    async with bench.results.writing:
        await bench.dispatcher.round()
        await asyncio.sleep(0)  # the response arrives, and waits to be stored
        for _ in range(3):
            await bench.later(seconds=200)
            await heard_of(pool)
            await bench.dispatcher.round()
        assert len(bench.only.submitted) == 1
    await bench.settle()
    assert await attempts(pool, id) == [(1, "accepted")]


async def two_attempts(pool: Pool) -> tuple[UUID, Bench, Bench]:
    """A message that a worker had in its hands for so long that another one has sent it again; neither is answered."""
    who, slow = await bench_of(pool)
    other = await Bench(pool).start()
    slow.only.script = other.only.script = lambda submission: None
    id = await message(pool, who)
    await slow.round()
    await slow.later(seconds=200)
    await other.round()
    await slow.later(seconds=200)
    await heard_of(pool)
    await other.round()
    assert await attempts(pool, id) == [(1, "unknown"), (2, "open")]
    return id, slow, other


async def test_what_an_earlier_attempt_brought_to_meta_is_not_sent_again_because_the_later_one_was_deferred(
    pool: Pool,
) -> None:
    id, slow, other = await two_attempts(pool)
    slow.answer(slow.only.submitted[0], accept_all(slow.only.submitted[0]))
    await slow.settle()
    other.answer(other.only.submitted[0], UNREACHABLE)
    await other.settle()
    other.only.script = accept_all
    await other.later(seconds=60)
    await other.round()
    assert await attempts(pool, id) == [(1, "accepted"), (2, "unreachable")]
    assert len(other.only.submitted) == 1
    assert not await queued(pool, id)


async def test_an_answer_that_is_recorded_while_it_is_decided_to_send_again_comes_first(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    who, slow = await bench_of(pool)
    other = await Bench(pool).start()
    slow.only.script = lambda submission: None
    id = await message(pool, who)
    await slow.round()
    await slow.later(seconds=200)
    await other.round()

    async def answered() -> None:
        slow.answer(slow.only.submitted[0], accept_all(slow.only.submitted[0]))
        await slow.settle()

    before(monkeypatch, sending, "still_unsent", answered)
    await other.later(seconds=200)
    await heard_of(pool)
    await other.round()
    assert await attempts(pool, id) == [(1, "accepted")]
    assert other.only.submitted == []
    assert not await queued(pool, id)


async def test_dispatch_passes_over_a_message_that_is_being_answered(pool: Pool) -> None:
    """Recording a response, however late, locks its queue row first, as dispatch does."""
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: None
    id = await message(pool, who)
    await bench.round()
    bench.restart()
    await bench.later(seconds=61)
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM queue WHERE id = $1 FOR UPDATE", id)
        await asyncio.wait_for(bench.round(), 120)
    assert await attempts(pool, id) == [(1, "open")]
    assert len(bench.only.submitted) == 1


# -- lines -------------------------------------------------------------------------------------------------------------


async def test_lines_follow_the_table(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    first = bench.only
    assert first.rate == 80
    await pool.execute("INSERT INTO workers (id, name, started_at, seen_at) SELECT gen_random_uuid(), n::text, now(),"
                       " now() FROM generate_series(1, 2) n")  # fmt: skip
    await pool.execute("UPDATE whatsapp_accounts SET token = 'anew'::bytea")
    account_id, _ = await account(pool, who.organization_id, who.app)
    second, _, _ = await number(pool, who.organization_id, account_id, throughput_per_second=1000)
    await bench.refresh()
    assert (first.rate, bench.connectors[second].rate) == (40, 500)
    assert first.token == b"anew".hex()
    await pool.execute("UPDATE whatsapp_numbers SET held_until = now() + interval '1 hour' WHERE id = $1", second)
    await bench.refresh()
    assert bench.connectors[second].held
    await pool.execute("UPDATE whatsapp_numbers SET held_until = NULL")
    await bench.refresh()
    assert not bench.connectors[second].held
    await pool.execute("UPDATE whatsapp_accounts SET state = 'removed' WHERE id = $1", account_id)
    await bench.refresh()
    await asyncio.sleep(0)
    assert second not in bench.lines.slots()
    assert bench.connectors[second].stopped


async def test_a_worker_that_ends_unheard_has_its_message_taken_over_once(pool: Pool) -> None:
    """Two dispatchers on one queue: each message has one attempt."""
    who, bench = await bench_of(pool)
    twin = Bench(pool)
    await twin.start()
    ids = {await message(pool, who, to=f"+2588400000{n:02}") for n in range(30)}
    await asyncio.gather(bench.round(), twin.round())
    out = [one.message_id for one in bench.only.submitted + twin.only.submitted]
    assert len(out) == len(set(out))
    await bench.round()
    await twin.round()
    assert {one.message_id for one in bench.only.submitted + twin.only.submitted} == ids
    assert (await row_of(pool, next(iter(ids))))["shown"] == "queued"


async def test_attempts_end_before_their_numbers_do_and_stop_nobody_else(pool: Pool) -> None:
    """A credential may stay invalid for weeks, and one message tries each minute."""
    who, bench = await bench_of(pool)
    id, other = await message(pool, who), await message(pool, who, to="+258840000001")
    await pool.execute(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
        " VALUES ($1, $2, 32767, $3, 'busy', now(), now())",
        who.organization_id, id, who.number_id,
    )  # fmt: skip
    await pool.execute("UPDATE queue SET attempt = 32767 WHERE id = $1", id)
    await bench.round()
    await ended(pool, who, id, "unknown")
    assert [one.message_id for one in bench.only.submitted] == [other]


async def test_what_waits_for_a_paused_account_ends_with_its_lifetime(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    await pool.execute("UPDATE whatsapp_accounts SET state = 'paused'")
    await bench.refresh()
    id = await message(pool, who, deadline=timedelta(hours=24))  # a day of it is for Meta's statuses
    await bench.round()
    await ended(pool, who, id, "expired")
