"""How long a message waits for a supplier, and who is at fault: throttling, slowness, refusals of senders."""

from __future__ import annotations

import time
from datetime import timedelta

import msgspec
import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.queue.leases import UNROUTED
from heliograph.sms.dispatch.routing import Supplier
from heliograph.suppliers.contract import Outcome, Part, Scope, Submission, Verdict, returned
from heliograph.traffic import reconciliation
from heliograph.traffic.reconciliation import Query
from tests.rules.dispatching import Bench, attempts, queued
from tests.rules.factories import accept_all, message, organization, status_of, supplier

THROTTLED = Outcome(Verdict.BUSY, code="0x00000058", counts=False)
ELSEWHERE = Outcome(Verdict.REFUSED, code="0x0000000B", failover=True, scope=Scope.MESSAGE)
BAD_SENDER = Outcome(Verdict.REFUSED, code="0x0000000A", failover=True, alarm=True, scope=Scope.SENDER)
NO_ROOM = returned("no room in the window")
STOPPED = Outcome(Verdict.UNREACHABLE, detail="stopped", counts=False, scope=Scope.PROCESS)
PATIENCE = 15.0
#: What was deferred for a second does not come back however long a round takes on a loaded machine.
ASIDE = "UPDATE queue SET due_at = now() + interval '1 hour'"


def two() -> tuple[Supplier, Supplier]:
    return supplier("first", priority=1), supplier("second", priority=2)


def after(bench: Bench, *suppliers: Supplier) -> list[int]:
    return [len(bench.connectors[one.id].submitted) for one in suppliers]


# -- throttling and slowness -------------------------------------------------------------------------------------------


async def until_elsewhere(bench: Bench, first: Supplier, second: Supplier, *, most: float) -> float:
    """Seconds until the second supplier has it: at most `most` steps of half a second, plus the time that the rounds
    themselves took."""
    waited, began = 0.0, time.monotonic()
    while not bench.connectors[second.id].submitted:
        assert waited <= most, "nobody else was asked"
        await bench.round()
        await bench.later(seconds=0.5)
        waited += 0.5
    return waited + time.monotonic() - began


async def test_what_a_supplier_throttles_for_too_long_goes_to_the_next(pool: Pool) -> None:
    first, second = two()
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = lambda submission: THROTTLED
    id = await message(pool, await organization(pool))
    waited = await until_elsewhere(bench, first, second, most=2 * PATIENCE)
    assert waited > PATIENCE
    assert await status_of(pool, id) == "sent"
    assert await pool.fetchval("SELECT count(*) FROM queue") == 0
    assert not bench.accounts[first.id].breaker.open


async def test_a_code_waits_only_a_few_seconds(pool: Pool) -> None:
    first, second = two()
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = lambda submission: THROTTLED
    await message(pool, await organization(pool), expires_at=clock.now() + timedelta(minutes=5))
    assert await until_elsewhere(bench, first, second, most=8) > 3


async def test_without_another_supplier_throttling_is_waited_for(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = lambda submission: THROTTLED
    id = await message(pool, await organization(pool))
    for _ in range(10):
        await bench.round()
        await bench.later(seconds=10)
    bench.only.script = accept_all
    await bench.round()
    assert await status_of(pool, id) == "sent"


async def test_a_supplier_that_only_puts_off_or_is_silent_is_left_alone_while_another_one_carries(pool: Pool) -> None:
    for answer in (THROTTLED, None):
        first, second = two()
        bench = Bench(pool, first, second)
        bench.connectors[first.id].script = lambda submission, answer=answer: answer  # type: ignore[misc]
        actor = await organization(pool)
        for _ in range(3):
            await message(pool, actor, lane=1)
            await bench.round()
            await pool.execute(ASIDE)
            bench.now += PATIENCE / 2
        assert not bench.accounts[first.id].breaker.open
        bench.now += PATIENCE
        fresh = await message(pool, actor, lane=1)
        await bench.round()
        assert bench.accounts[first.id].breaker.open
        assert [one.message_id for one in bench.connectors[second.id].submitted] == [fresh]
        # One message probes whether it works again; deferring that one, too, is no reason to come back.
        bench.now += 15
        probe = await message(pool, actor, lane=1)
        await bench.round()
        assert bench.connectors[first.id].submitted[-1].message_id == probe
        assert bench.accounts[first.id].breaker.open
        await pool.execute("DELETE FROM queue")


async def test_a_supplier_that_stalls_is_kept_where_nobody_else_carries_to_the_same_numbers(pool: Pool) -> None:
    first, second = supplier("first", prefixes=("258",)), supplier("second", prefixes=("351",))
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = lambda submission: THROTTLED
    await message(pool, await organization(pool))
    await bench.round()
    bench.now += 2 * PATIENCE
    await bench.round()
    assert not bench.accounts[first.id].breaker.open


async def test_what_waits_too_long_in_the_line_of_a_slow_supplier_goes_to_the_next(pool: Pool) -> None:
    """Single messages only: a campaign waits for the first supplier."""
    first, second = two()
    bench = Bench(pool, first, second)
    bench.connectors[first.id].room = 0
    actor = await organization(pool)
    single, bulk = await message(pool, actor), await message(pool, actor, lane=1)
    await bench.round()
    await bench.later(seconds=PATIENCE + 1)
    bench.restart()
    await bench.round()
    assert after(bench, second) == [0], "one that is merely full is waited for"
    bench.accounts[first.id].breaker.put_off()
    bench.restart()
    await bench.round()
    assert [one.message_id for one in bench.connectors[second.id].submitted] == [single]
    assert await queued(pool, bulk)
    assert await pool.fetchval("SELECT now() - since > interval '15 s' FROM queue WHERE id = $1", bulk)


async def test_a_code_waits_for_no_full_supplier(pool: Pool) -> None:
    first, second = two()
    bench = Bench(pool, first, second)
    bench.connectors[first.id].room = 0
    id = await message(pool, await organization(pool), expires_at=clock.now() + timedelta(minutes=5))
    await bench.round()
    assert after(bench, second) == [0]
    await bench.later(seconds=PATIENCE / 5 + 1)
    bench.restart()
    await bench.round()
    assert await status_of(pool, id) == "sent"
    assert after(bench, first, second) == [0, 1]


async def test_what_is_said_to_be_a_one_time_code_does_not_wait_for_a_full_supplier_either(pool: Pool) -> None:
    first, second = two()
    bench = Bench(pool, first, second)
    bench.connectors[first.id].room = 0
    actor = await organization(pool)
    code, other = await message(pool, actor), await message(pool, actor)
    await pool.execute("UPDATE messages SET class = 'otp' WHERE id = $1", code)
    await bench.round()
    await bench.later(seconds=PATIENCE / 5 + 1)
    bench.restart()
    await bench.round()
    assert [await status_of(pool, id) for id in (code, other)] == ["sent", "accepted"]
    assert after(bench, first, second) == [0, 1]


# -- messages that this process returns --------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [NO_ROOM, STOPPED], ids=["no room", "stopped"])
async def test_what_this_process_returns_says_nothing_about_the_supplier(pool: Pool, outcome: Outcome) -> None:
    """Twenty messages without room in the window used to open the circuit that all workers share."""
    bench = Bench(pool)
    actor = await organization(pool)
    bench.only.script = lambda submission: outcome
    ids = [await message(pool, actor) for _ in range(25)]
    await bench.round()
    breaker = bench.accounts[bench.only_id].breaker
    assert (breaker.open, breaker.is_slow()) == (False, False)
    assert await pool.fetch("SELECT DISTINCT tries, line FROM queue") == [(0, UNROUTED)]
    async with pool.acquire() as conn:
        at = clock.now()
        hour = timedelta(hours=1)
        (counted,) = await reconciliation.read(conn, Query(date_from=at - hour, date_to=at + hour, by=()))
    assert counted.counts == {"unreachable": 25}, "it has not put them off"
    bench.only.script = accept_all
    await bench.later(seconds=1)
    await bench.round()
    assert {await status_of(pool, id) for id in ids} == {"sent"}


async def test_what_finds_no_room_for_too_long_goes_to_the_next(pool: Pool) -> None:
    """Not at once: the supplier is merely full."""
    first, second = two()
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = lambda submission: NO_ROOM
    id = await message(pool, await organization(pool))
    waited = await until_elsewhere(bench, first, second, most=2 * PATIENCE)
    assert waited > PATIENCE
    assert await status_of(pool, id) == "sent"


async def test_a_code_that_finds_no_room_waits_only_a_few_seconds(pool: Pool) -> None:
    first, second = two()
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = lambda submission: NO_ROOM
    await message(pool, await organization(pool), expires_at=clock.now() + timedelta(minutes=5))
    assert await until_elsewhere(bench, first, second, most=8) > 3


async def test_the_rest_of_a_long_message_that_finds_no_room_stays_with_its_supplier(pool: Pool) -> None:
    """If it counted as unreachable, it went elsewhere, complete, and the handset got its first segments twice."""
    first, second = two()
    bench = Bench(pool, first, second)
    connector = bench.connectors[first.id]
    connector.script = lambda submission: Outcome(THROTTLED.verdict, (Part(1, "A1"),), counts=False, total=2)
    id = await message(pool, await organization(pool), text="x" * 200, segments=2)
    await bench.round()
    connector.script = lambda submission: NO_ROOM
    await bench.later(seconds=1)
    await bench.round()
    connector.script = lambda submission: Outcome(Verdict.ACCEPTED, (Part(2, "A2"),), total=2)
    await bench.later(seconds=2)
    await bench.round()
    assert [one.held for one in connector.submitted] == [(), (1,), (1,)]
    assert after(bench, second) == [0]
    assert await status_of(pool, id) == "sent"


# -- refusals ----------------------------------------------------------------------------------------------------------


async def test_who_refused_a_message_is_not_asked_again_by_way_of_a_third(pool: Pool) -> None:
    first, second = two()
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = lambda submission: ELSEWHERE
    bench.connectors[second.id].script = lambda submission: Outcome(Verdict.UNREACHABLE)
    id = await message(pool, await organization(pool))
    for _ in range(5):
        await bench.round()
        await bench.later(seconds=60)
    asked, others = after(bench, first, second)
    assert asked == 1
    assert others > 1
    bench.connectors[second.id].script = accept_all
    await bench.round()
    assert await status_of(pool, id) == "sent"
    assert (await attempts(pool, id))[0] == (1, "refused")


async def test_what_was_refused_ends_while_the_other_supplier_is_paused(pool: Pool) -> None:
    first, second = two()
    bench = Bench(pool, first, msgspec.structs.replace(second, state="paused"))
    bench.connectors[first.id].script = lambda submission: ELSEWHERE
    id = await message(pool, await organization(pool))
    await bench.round(3)
    assert await status_of(pool, id) == "rejected"
    assert not await queued(pool, id)


async def test_a_tenants_bad_senders_never_open_the_circuit_for_others(pool: Pool) -> None:
    bench = Bench(pool)
    bad, good = await organization(pool), await organization(pool)
    mine: set[object] = set()

    def script(submission: Submission) -> Outcome:
        return accept_all(submission) if submission.message_id in mine else BAD_SENDER

    bench.only.script = script
    refused = [await message(pool, bad) for _ in range(60)]
    await bench.round(2)
    assert {await status_of(pool, id) for id in refused} == {"rejected"}
    assert not bench.accounts[bench.only_id].breaker.open
    id = await message(pool, good)
    mine.add(id)
    await bench.round()
    assert await status_of(pool, id) == "sent"


async def test_a_sender_that_a_supplier_always_refuses_goes_to_another_one_first(pool: Pool) -> None:
    first, second = two()
    bench = Bench(pool, first, second)
    bench.connectors[first.id].script = lambda submission: (
        BAD_SENDER if submission.sender == "REFUSED" else accept_all(submission)
    )
    bad, good = await organization(pool), await organization(pool)

    async def send(times: int) -> None:
        for _ in range(times):
            id = await message(pool, bad)
            await pool.execute("UPDATE messages SET sender = 'REFUSED' WHERE id = $1", id)
        await bench.round(2)

    await send(20)
    assert after(bench, first, second) == [20, 20]
    await send(5)
    assert after(bench, first, second) == [20, 25]
    await message(pool, good)
    await bench.round()
    assert after(bench, first, second) == [21, 25]
    bench.now += 15
    await send(5)
    assert after(bench, first, second) == [22, 30], "one message looks whether it is taken by now"


async def test_what_is_said_of_the_account_counts(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = lambda submission: Outcome(Verdict.REFUSED, code="0x0000000E", alarm=True, failover=True)
    actor = await organization(pool)
    for _ in range(20):
        await message(pool, actor)
    await bench.round()
    assert bench.accounts[bench.only_id].breaker.open
