"""Effects of responses on messages, numbers, accounts and templates: every class of error, on a real database."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.consent import people
from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud.callbacks.items import Pricing
from heliograph.suppliers.whatsapp_cloud.callbacks.webhooks import parse
from heliograph.suppliers.whatsapp_cloud.contract import CloudOutcome, CloudSubmission
from heliograph.suppliers.whatsapp_cloud.errors import FAULTS
from heliograph.suppliers.whatsapp_cloud.graph import outcome_of
from heliograph.whatsapp.accepting.lifetimes import lifetime
from heliograph.whatsapp.callbacks import conversations, expiry
from heliograph.whatsapp.callbacks.conversations import User
from heliograph.whatsapp.callbacks.matching import NamedUsers, WiderFailure
from heliograph.whatsapp.dispatch import holds, outcomes
from heliograph.whatsapp.status import FAILURES
from tests.meanwhile import begun
from tests.rules.dispatching import moment
from tests.rules.dispatching_whatsapp import (
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
from tests.rules.whatsapp_factories import Made, check_wallets, conversation, made, message

REGULAR = Pricing(type="regular", category="utility")


async def bench_of(pool: Pool) -> tuple[Made, Bench]:
    who = await made(pool)
    return who, await Bench(pool).start()


async def one(pool: Pool, outcome: CloudOutcome, **values: Any) -> Any:
    """One message that got this response: (organization, bench, message id)."""
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: outcome
    id = await message(pool, who, **values)
    await bench.round()
    return who, bench, id


@pytest.mark.parametrize("code", sorted(code for code, known in FAULTS.items() if not known.waits))
async def test_a_no_fails_the_message_in_words_of_ours(pool: Pool, code: int) -> None:
    who, _, id = await one(pool, fault(code))
    status, failure, charge = await status_of(pool, id)
    assert (status, charge) == ("failed", "released")
    assert failure in FAILURES
    assert "Meta" not in str(await pool.fetchval("SELECT data FROM events WHERE message_id = $1", id))
    assert await attempts(pool, id) == [(1, "refused")]
    assert not await queued(pool, id)
    await check_wallets(pool, [who.organization_id])


@pytest.mark.parametrize("code", sorted(code for code, known in FAULTS.items() if known.tries is None))
async def test_what_is_another_s_trouble_costs_the_message_nothing(pool: Pool, code: int) -> None:
    who, bench, id = await one(pool, fault(code))
    assert await status_of(pool, id) == ("queued", None, "reserved")
    assert await queued(pool, id)
    assert await tries_of(pool, id) == 0
    assert await events_of(pool, id) == []
    await check_wallets(pool, [who.organization_id])
    # Nor is Meta asked again at once.
    await bench.refresh()
    await bench.round(2)
    assert len(bench.only.submitted) == 1


async def test_own_trouble_is_tried_three_times_with_growing_pauses(pool: Pool) -> None:
    who, bench, id = await one(pool, fault(131000))
    pauses = []
    while await queued(pool, id):
        pauses.append(await pause_of(pool, id))
        await bench.later(seconds=60)
        await bench.round()
    assert len(pauses) == 3
    assert pauses == sorted(pauses)
    assert await status_of(pool, id) == ("failed", "unknown", "released")
    assert [state for _, state in await attempts(pool, id)] == ["busy"] * 4
    assert await events_of(pool, id) == ["message.failed"]
    await check_wallets(pool, [who.organization_id])


async def test_a_token_that_expires_in_a_campaign_stops_the_account_and_nothing_fails(pool: Pool) -> None:
    """190: everything waits, one message probes when the hold is over, and with a new token all are sent."""
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: fault(190)
    ids = [await message(pool, who, to=f"+2588400000{n:02}", lane=1) for n in range(8)]
    bench.only.room = 3
    await bench.round(3)
    assert len(bench.only.submitted) == 3
    account = await pool.fetchrow("SELECT * FROM whatsapp_accounts")
    assert account["credential_status"] == "invalid"
    assert account["held_reason"]
    await bench.refresh()
    for id in ids:
        assert (await status_of(pool, id))[1:] == (None, "reserved")
        assert await queued(pool, id)
    # The hold is over, and the token is still invalid: one message probes.
    await bench.later(seconds=61)
    await bench.refresh()
    await bench.round(2)
    assert len(bench.only.submitted) == 4
    # A new token: the first success clears the hold for all.
    await bench.later(seconds=61)
    await bench.refresh()
    bench.only.script = accept_all
    await bench.round()
    account = await pool.fetchrow("SELECT * FROM whatsapp_accounts")
    assert (account["credential_status"], account["held_until"]) == ("ok", None)
    await bench.refresh()
    await bench.round(5)
    assert all([not await queued(pool, id) for id in ids])
    assert {id for id in ids if (await attempts(pool, id))[-1][1] == "accepted"} == set(ids)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE status = 'failed'") == 0
    await check_wallets(pool, [who.organization_id])


async def test_trouble_of_a_number_holds_that_number_alone(pool: Pool) -> None:
    who, _, id = await one(pool, fault(131045))
    assert await pool.fetchval("SELECT held_until > now() FROM whatsapp_numbers WHERE id = $1", who.number_id)
    assert await pool.fetchval("SELECT held_until FROM whatsapp_accounts") is None
    assert await queued(pool, id)


@pytest.mark.parametrize("code", [(33, None), (100, 33)])
async def test_a_number_that_is_gone_has_its_account_read_at_once(pool: Pool, code: tuple[int, int | None]) -> None:
    """It may have moved to another account; until that has been read, nobody can send from it. A token that may not see
    it gets the same answer to each probe, and Meta counts readings."""
    wait = "SELECT extract(epoch FROM numbers_at - now())::int FROM whatsapp_accounts"
    regular = "UPDATE whatsapp_accounts SET numbers_at = now() + interval '10 minutes'"
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: fault(*code)
    id = await message(pool, who)
    for tries in (1, 2):
        await pool.execute(regular)
        await bench.round()
        assert len(bench.only.submitted) == tries
        seconds = await pool.fetchval(wait)
        assert (seconds <= 0) == (tries == 1)
        assert seconds <= 300
        await bench.later(seconds=601)
        await bench.refresh()
    assert await queued(pool, id)


async def test_too_fast_for_the_number_is_no_hold_that_others_see(pool: Pool) -> None:
    since = await moment(pool)
    _, _, id = await one(pool, fault(130429, retry_after=7.0))
    assert await pool.fetchval("SELECT held_until FROM whatsapp_numbers") is None
    assert await waits(pool, id, 7.0, since=since)


async def test_too_fast_for_the_number_slows_every_worker_when_a_status_says_so(pool: Pool) -> None:
    """Meta may accept a message and report only afterwards that it was one too many. A late report says nothing about
    now."""
    who, bench = await bench_of(pool)
    other = await Bench(pool).start()
    ids = [await message(pool, who, to=f"+25884000000{n}") for n in range(4)]
    await bench.round()

    async def slowed(id: UUID, at: datetime) -> list[int]:
        await bench.hear(who, status_item(who, id, "failed", code=130429, wamid=wamid(id), at=at))
        for one in (bench, other):
            await one.lines.refresh(grace=1.0)
        return [bench.only.slowed, other.only.slowed]

    assert await slowed(ids[0], clock.now()) == [1, 1]
    assert await slowed(ids[1], clock.now() - timedelta(minutes=5)) == [1, 1]
    await pool.execute("UPDATE whatsapp_numbers SET slowed_at = NULL")
    assert await slowed(ids[2], clock.now()) == [2, 2]
    # From before the clock was set back.
    await pool.execute("UPDATE whatsapp_numbers SET slowed_at = now() + interval '1 day'")
    for one in (bench, other):
        await one.lines.refresh(grace=1.0)
    before = [bench.only.slowed, other.only.slowed]
    assert await slowed(ids[3], clock.now()) == [count + 1 for count in before]
    assert await pool.fetchval("SELECT held_until FROM whatsapp_numbers") is None


async def test_a_code_does_not_wait_for_what_outlives_it(pool: Pool) -> None:
    """131048 lasts hours."""
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: fault(131048)
    code = await message(pool, who, template_id=who.code_id, category="authentication", parameters=("42",))
    await bench.round()
    assert await status_of(pool, code) == ("failed", "spam_limited", "released")


async def test_a_code_that_meets_a_hold_waits_like_those_behind_it(pool: Pool) -> None:
    """133010: its number is not registered. Somebody may register it within the code's lifetime."""
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: fault(133010)
    values = {"template_id": who.code_id, "category": "authentication", "parameters": ("42",)}
    values["deadline"] = lifetime("authentication", None)
    codes = [await message(pool, who, to=f"+25884000000{n}", **values) for n in range(2)]
    bench.only.room = 1
    await bench.round(3)
    assert len(bench.only.submitted) == 1
    assert [(await status_of(pool, id))[0] for id in codes] == ["queued", "accepted"]
    async with pool.acquire() as conn:
        await holds.release_number(conn, who.organization_id, who.number_id)
    bench.only.script, bench.only.room = accept_all, 100
    await bench.refresh()
    await bench.round(3)
    assert [await attempts(pool, id) for id in codes] == [[(1, "busy"), (2, "accepted")], [(1, "accepted")]]


async def test_who_waits_until_the_end_learns_what_for(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: fault(131056, retry_after=200.0)
    code = await message(
        pool,
        who,
        template_id=who.code_id,
        category="authentication",
        parameters=("42",),
        deadline=timedelta(minutes=18),
    )
    await bench.round()
    assert await status_of(pool, code) == ("failed", "throttled", "released")


@pytest.mark.parametrize("code", [131056, 130429, 131016])
async def test_what_meta_refuses_after_accepting_it_is_not_sent_again(pool: Pool, code: int) -> None:
    """It may still be delivered: a second send would have an id of its own."""
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    await bench.round()
    await bench.hear(who, status_item(who, id, "failed", code=code, wamid=wamid(id)))
    status, failure, charge = await status_of(pool, id)
    assert (status, charge, await queued(pool, id)) == ("failed", "released", False)
    assert code != 131056 or failure == "throttled"
    await bench.later(hours=1)
    await bench.round()
    assert await attempts(pool, id) == [(1, "accepted")]
    await bench.hear(who, status_item(who, id, "delivered", wamid=wamid(id)))
    assert await status_of(pool, id) == ("delivered", None, "consumed")
    assert await events_of(pool, id) == ["message.failed", "message.delivered"]
    assert len(bench.only.submitted) == 1


@pytest.mark.parametrize("named", [True, False])
async def test_meta_closes_a_window_that_looked_open(pool: Pool, named: bool) -> None:
    who, bench = await bench_of(pool)
    await conversation(pool, who)
    id = await message(pool, who, type="text")
    await bench.round()
    await bench.hear(who, status_item(who, id if named else None, "failed", code=131047, wamid=wamid(id)))
    assert await status_of(pool, id) == ("failed", "window_closed", "released")
    assert await pool.fetchval("SELECT expires_at <= now() FROM whatsapp_conversations")
    again = await message(pool, who, type="text")
    await bench.round()
    assert (await status_of(pool, again))[1] == "window_closed"
    assert len(bench.only.submitted) == 1


@pytest.mark.parametrize("named", [True, False])
async def test_a_failure_that_comes_later_holds_the_account_too(pool: Pool, named: bool) -> None:
    """131042 mostly comes as a status, which may lack the id that it should echo."""
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    await bench.round()
    await bench.hear(who, status_item(who, id if named else None, "failed", code=131042, wamid=wamid(id)))
    assert await status_of(pool, id) == ("failed", "payment", "released")
    assert await pool.fetchval("SELECT held_until > now() FROM whatsapp_accounts")


async def test_nothing_left_this_machine_is_no_try(pool: Pool) -> None:
    since = await moment(pool)
    _, bench, id = await one(pool, UNREACHABLE)
    assert await attempts(pool, id) == [(1, "unreachable")]
    assert await waits(pool, id, 1.0, since=since)
    bench.only.script = lambda submission: CloudOutcome(Verdict.UNREACHABLE, code="held")
    await bench.later(seconds=2)
    await bench.round()
    assert await pause_of(pool, id) <= 0
    bench.only.script = accept_all
    await bench.round()
    assert (await attempts(pool, id))[-1] == (3, "accepted")


# -- Meta's ids and names ----------------------------------------------------------------------------------------------


async def test_a_status_without_our_id_waits_for_the_answer(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: None
    id = await message(pool, who)
    await bench.round()
    for word in ("read", "sent"):
        await bench.hear(who, status_item(who, None, word, wamid=wamid(id), pricing=REGULAR))
    assert (await row_of(pool, id))["shown"] == "queued"
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_early_statuses") == 2
    bench.answer(bench.only.submitted[0], accept_all(bench.only.submitted[0]))
    await bench.settle()
    row = await row_of(pool, id)
    assert (row["status"], row["charge"], row["pricing"]) == ("read", "consumed", "regular/utility")
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_early_statuses") == 0


@pytest.mark.parametrize("is_early", [False, True])
async def test_a_message_with_an_id_of_any_length_is_sent_once_and_finds_its_status(pool: Pool, is_early: bool) -> None:
    """Its response could not be stored: its outcome was unknown, and it was sent again."""
    long = "wamid." + "".join(hashlib.sha256(b"%d" % n).hexdigest() for n in range(1600))
    answer = outcome_of(200, msgspec.json.encode({"messages": [{"id": long}]}))
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: None
    id = await message(pool, who)
    await bench.round()
    (submission,) = bench.only.submitted
    value = {
        "metadata": {"phone_number_id": who.graph_id},
        "statuses": [{"id": long, "status": "delivered", "recipient_id": TO[1:], "timestamp": "1795162400"}],
    }
    change = {"field": "messages", "value": value}
    body = {"object": "whatsapp_business_account", "entry": [{"id": who.waba_id, "changes": [change]}]}
    statuses: list[Any] = list(parse(msgspec.json.encode(body)))
    if is_early:
        await bench.hear(who, *statuses)
    bench.answer(submission, answer)
    await bench.settle()
    assert await attempts(pool, id) == [(1, "accepted")]
    if not is_early:
        await bench.hear(who, *statuses)
    assert (await row_of(pool, id))["status"] == "delivered"
    await bench.later(minutes=10)
    await bench.round()
    assert bench.only.submitted == [submission]


CLOSED = "SELECT expires_at <= now() FROM whatsapp_conversations"
HELD = "SELECT held_until > now() FROM whatsapp_accounts"
DOUBTED = "SELECT missing_at IS NOT NULL FROM whatsapp_templates WHERE id = $1"


@pytest.mark.parametrize("is_missed", [False, True])
@pytest.mark.parametrize(("code", "failure"), [(131042, "payment"), (131047, "window_closed"), (132001, None)])
async def test_a_failure_before_the_answer_concerns_as_much_as_one_after_it(
    pool: Pool, code: int, failure: str | None, is_missed: bool
) -> None:
    """`is_missed`: it was stored at the same time as the response, and neither saw the other."""
    who, bench = await bench_of(pool)
    bench.only.script = lambda submission: None
    await conversation(pool, who)
    id = await message(pool, who, type="text" if code == 131047 else "template")
    await bench.round()
    (sent,) = bench.only.submitted
    failed = status_item(who, None, "failed", code=code, wamid=wamid(id))
    await bench.hear(who, failed)
    if is_missed:
        kept = await pool.fetch("DELETE FROM whatsapp_early_statuses RETURNING *")
        bench.answer(sent, accept_all(sent))
        await bench.settle()
        await pool.execute("INSERT INTO whatsapp_early_statuses SELECT ($1::whatsapp_early_statuses).*", kept[0])
        async with pool.acquire() as conn, conn.transaction():
            await expiry.sweep(conn, bench.rates)
    else:
        bench.answer(sent, accept_all(sent))
        await bench.settle()
    assert await status_of(pool, id) == ("failed", failure or "template_unavailable", "released")
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_early_statuses") == 0
    assert await pool.fetchval(CLOSED) is (code == 131047)
    assert bool(await pool.fetchval(HELD)) is (code == 131042)
    assert await pool.fetchval(DOUBTED, who.template_id) is (code == 132001)


@pytest.mark.parametrize("word", ["sent", "failed"])
async def test_a_status_of_a_probe_before_its_answer_decides_about_the_hold(pool: Pool, word: str) -> None:
    who, bench = await bench_of(pool)
    await message(pool, who)
    await bench.round()
    await bench.hear(who, status_item(who, bench.only.submitted[0].message_id, "failed", code=131042))
    await bench.later(hours=2)
    await bench.refresh()
    probe = await message(pool, who)
    bench.only.script = lambda submission: None
    await bench.round(2)
    assert await pool.fetchval("SELECT trying_id FROM whatsapp_accounts") == probe
    await bench.hear(who, status_item(who, None, word, wamid=wamid(probe), code=131026 if word == "failed" else None))
    bench.answer(bench.only.submitted[1], accept_all(bench.only.submitted[1]))
    await bench.settle()
    account = await pool.fetchrow("SELECT held_until IS NOT NULL AS held, trying_id FROM whatsapp_accounts")
    # A failure for reasons of its own says nothing: the next message probes.
    assert tuple(account) == (word == "failed", None)


@pytest.mark.parametrize("days", [0, 40])
@pytest.mark.parametrize("named", [True, False])
async def test_a_status_finds_its_message_by_metas_id_however_old_it_is(pool: Pool, days: int, named: bool) -> None:
    who, bench = await bench_of(pool)
    id, old = await message(pool, who), UUID(int=uuid7_floor(clock.now() - timedelta(days=days)).int + 1)
    for table in ("whatsapp_messages", "queue"):
        await pool.execute(f"UPDATE {table} SET id = $2 WHERE id = $1", id, old)
    await pool.execute("UPDATE wallet_movements SET message_id = $2 WHERE message_id = $1", id, old)
    await bench.round()
    await bench.hear(who, status_item(who, old if named else None, "delivered", wamid=wamid(old)))
    assert (await row_of(pool, old))["status"] == "delivered"
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_wamids") == 1


async def test_what_is_echoed_may_be_no_id_of_ours(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    await bench.round()
    for other in (UUID(int=2**128 - 1), UUID(int=0), UUID(int=uuid7_floor(clock.now()).int - 1)):
        await bench.hear(who, status_item(who, other, "sent", wamid="wamid.OTHER"))
        assert (await row_of(pool, id))["status"] == "accepted"
    # Meta's id is enough, whatever id it echoes.
    await bench.hear(who, status_item(who, UUID(int=2**128 - 1), "delivered", wamid=wamid(id)))
    assert (await row_of(pool, id))["status"] == "delivered"


async def test_an_early_status_that_was_missed_is_found_by_the_sweep(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    await endpoint(pool, who.actor, "message.sent", "message.read")
    id = await message(pool, who)
    await bench.round()
    await pool.execute(
        "INSERT INTO whatsapp_early_statuses (number_id, wamid, status, at, received_at)"
        " VALUES ($1, $2, 'read', now(), now())",
        who.number_id,
        wamid(id),
    )
    async with pool.acquire() as conn, conn.transaction():
        await expiry.sweep(conn, bench.rates)
    assert (await status_of(pool, id))[0] == "read"
    assert sorted(await events_of(pool, id)) == ["message.delivered", "message.read", "message.sent"]


async def test_a_status_moves_only_what_it_came_for(pool: Pool) -> None:
    """Another organization's number, or another number of the same one, names our message's id or wamid."""
    who, other = await made(pool), await made(pool)
    bench = await Bench(pool).start()
    id = await message(pool, who)
    await bench.round()
    await bench.hear(other, status_item(other, id, "delivered"), status_item(other, None, "read", wamid=wamid(id)))
    assert (await status_of(pool, id))[0] == "queued"
    async with pool.acquire() as conn, conn.transaction():
        stray = WiderFailure(who.organization_id, other.number_id, id, FAULTS[131042], clock.now())
        assert await outcomes.apply_wider_failures(conn, [stray], {id}) == 0
    assert (await status_of(pool, id))[0] == "queued"
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_accounts WHERE held_until IS NOT NULL") == 0


async def test_windows_that_are_closed_and_users_who_are_counted_are_locked_in_one_order(pool: Pool) -> None:
    """Each had a statement of its own, so that two workers with both of two conversations could wait for each other."""
    who, bench = await bench_of(pool)
    first, second = [await message(pool, who, to=to) for to in (TO, "+258840000009")]
    low, high = sorted([(await row_of(pool, id))["conversation_id"] for id in (first, second)])
    closed = first if (await row_of(pool, first))["conversation_id"] == low else second
    bench.only.script = lambda one: fault(131047) if one.message_id == closed else accept_all(one)
    free = "SELECT FROM whatsapp_conversations WHERE id = $1 FOR UPDATE NOWAIT"

    async def told() -> None:
        failures = [
            WiderFailure(
                who.organization_id, who.number_id, id, FAULTS[131047 if id == closed else 131056], clock.now()
            )
            for id in (first, second)
        ]
        async with pool.acquire() as conn, conn.transaction():
            await outcomes.apply_wider_failures(conn, failures, {first, second})

    for work in (bench.round, told):
        async with pool.acquire() as conn, conn.transaction():
            await conn.execute(free, low)
            done = await begun(pool, work())
            await conn.execute(free, high)
        await done


async def test_meta_s_names_of_a_user_lead_to_the_conversation(pool: Pool) -> None:
    who, bench = await bench_of(pool)

    def script(submission: CloudSubmission) -> CloudOutcome:
        name = wamid(submission.message_id)
        return CloudOutcome(Verdict.ACCEPTED, wamid=name, wa_id="25884000000", user_id="MZ.1")

    bench.only.script = script
    id = await message(pool, who)
    await bench.round()
    thread = (await row_of(pool, id))["conversation_id"]
    async with pool.acquire() as conn:
        for name in (TO, "+25884000000", "MZ.1"):
            user = User(who.organization_id, who.number_id, name[1:] if name[0] == "+" else None, "MZ.1")
            assert await conversations.of_users(conn, [user]) == [thread]


@pytest.mark.parametrize("stored", [True, False])
async def test_a_status_that_repeats_its_answer_s_names_joins_nobody_anew(pool: Pool, stored: bool) -> None:
    """The number is somebody else's by then. `stored`: the answer's names were; its person had not left the number."""
    who, bench = await bench_of(pool)
    moved_to = "+258849999999"

    def script(submission: CloudSubmission) -> CloudOutcome:
        return CloudOutcome(Verdict.ACCEPTED, wamid=wamid(submission.message_id), wa_id=TO[1:], user_id="MZ.1")

    async def leave() -> None:
        async with pool.acquire() as conn, conn.transaction():
            await people.link(conn, [(who.organization_id, TO, moved_to)])
            await people.leave(conn, [people.Departure(who.organization_id, TO, moved_to, clock.now())])

    bench.only.script = script
    id = await message(pool, who)
    if not stored:
        await leave()
    await bench.round()
    if stored:
        await leave()
    async with pool.acquire() as conn, conn.transaction():
        await people.take(conn, who.organization_id, TO, at=clock.now())
    await bench.hear(who, status_item(who, id, "delivered", recipient=TO[1:], user_id="MZ.1"))
    async with pool.acquire() as conn:
        assert await people.names(conn, who.organization_id, TO) == ([TO] if stored else [TO, "MZ.1"])
    # Another name of the same message is news.
    await bench.hear(who, status_item(who, id, "read", recipient=TO[1:], user_id="MZ.2"))
    async with pool.acquire() as conn:
        assert "MZ.2" in await people.names(conn, who.organization_id, TO)


def test_the_names_of_the_newest_answers_are_remembered() -> None:
    named, ids = NamedUsers(10), [uuid7() for _ in range(30)]
    for id in ids:
        named.note(id, f"MZ.{id}")
    said = [named.said(id, TO, TO[1:], f"MZ.{id}") for id in ids]
    assert all(said[-5:])
    assert not any(said[:-10])
    assert named.said(ids[-1], TO, None, f"MZ.{ids[-1]}")
    assert not named.said(ids[-1], TO, "258840000000", f"MZ.{ids[-1]}")
    assert not named.said(ids[-1], TO, TO[1:], "MZ.2")
    assert not named.said(ids[-1], TO, TO[1:], None)
    assert not named.said(uuid7(), TO, TO[1:], None)


async def test_fifty_callbacks_with_the_same_delivery_are_one_charge(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    await bench.round()
    item = status_item(who, id, "delivered", pricing=REGULAR)
    await asyncio.gather(*(bench.hear(who, item, item) for _ in range(25)))
    assert await status_of(pool, id) == ("delivered", None, "consumed")
    assert await events_of(pool, id) == ["message.delivered"]
    assert await pool.fetchval("SELECT consumed FROM wallets") == 10_000
    await check_wallets(pool, [who.organization_id])


async def test_a_time_in_the_future_is_now_and_an_unknown_word_is_nothing(pool: Pool) -> None:
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    await bench.round()
    await bench.hear(
        who, status_item(who, id, "deleted"), status_item(who, id, "sent", at=clock.now() + timedelta(days=1))
    )
    row = await row_of(pool, id)
    assert row["status"] == "sent"
    assert row["sent_at"] <= await pool.fetchval("SELECT now()")


@pytest.mark.parametrize("way", ["status", "answer"])
async def test_names_of_users_are_given_behind_the_wallet(pool: Pool, database_url: str, way: str) -> None:
    """Accepting a message locks the wallet, and then waits for a transaction that is giving its user a name."""
    who, bench = await bench_of(pool)
    id = await message(pool, who)
    named = "258841234599"
    bench.only.script = lambda one: None
    await bench.round()
    (submission,) = bench.only.submitted
    if way == "answer":
        # A status without our id came first, so the response moves money as well.
        await bench.hear(who, status_item(who, None, "delivered", wamid=wamid(id)))
    other = await asyncpg.connect(database_url)
    try:
        async with other.transaction():
            await other.execute("SELECT FROM wallets WHERE organization_id = $1 FOR UPDATE", who.organization_id)
            if way == "status":
                ending = asyncio.create_task(bench.hear(who, status_item(who, id, "delivered", recipient=named)))
            else:
                bench.answer(submission, CloudOutcome(Verdict.ACCEPTED, wamid=wamid(id), wa_id=named, user_id=None))
                ending = asyncio.create_task(bench.results.drain())
            await blocked(pool)
            await other.execute("SET LOCAL lock_timeout = '5s'")
            await other.execute(
                "INSERT INTO whatsapp_aliases VALUES ($1, $2, $3, $4)",
                who.organization_id,
                who.number_id,
                named,
                uuid7(),
            )
        await ending
    finally:
        await other.close()
    assert await status_of(pool, id) == ("delivered", None, "consumed")
    await check_wallets(pool, [who.organization_id])
