"""Reconciliation with suppliers: every response and receipt is counted once, where it belongs, and a line adds up."""

from __future__ import annotations

import asyncio
import contextlib
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.overview import intervening
from heliograph.queue import timers
from heliograph.sending import results
from heliograph.sending.results import AnsweredAttempt
from heliograph.sms import retention
from heliograph.sms.reports import reconciliation as reports
from heliograph.sms.reports import silence, waiting
from heliograph.suppliers.contract import Outcome, Part, ReceiptState, Submission, Verdict
from heliograph.traffic import reconciliation
from heliograph.traffic.reconciliation import Counted, Query, add, hour_of
from tests.processes import until_true
from tests.rules.dispatching import Bench
from tests.rules.factories import accept_all, accepted, message, organization, receipt, supplier

#: Whether a statement waits for another transaction.
BLOCKED = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')"


async def lines(pool: Pool, *by: str, ago: timedelta = timedelta(hours=2), **values: Any) -> list[reports.Reconciled]:
    at = clock.now()
    query = Query(date_from=at - ago, date_to=at + timedelta(hours=2), by=by, **values)
    async with pool.acquire() as conn:
        return await reports.report(conn, query)


async def counts(pool: Pool) -> dict[str, int]:
    """The totals, which folding does not change."""
    (one,) = await lines(pool)
    async with pool.acquire() as conn:
        await reconciliation.fold(conn)
    assert await lines(pool) == [one]
    return dict(one.line.counts)


async def row(pool: Pool) -> dict[str, Any]:
    (one,) = await lines(pool)
    return one.row()


async def test_a_line_adds_up(pool: Pool) -> None:
    bench = Bench(pool, supplier("main"))
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(4)]
    refused, busy, nothing = [await message(pool, actor) for _ in range(3)]
    verdicts = {refused: Verdict.REFUSED, busy: Verdict.BUSY, nothing: Verdict.UNREACHABLE}
    bench.only.script = lambda one: (
        Outcome(verdicts[one.message_id]) if one.message_id in verdicts else accepted(str(one.message_id))
    )
    await bench.round()
    states = [ReceiptState.DELIVERED, ReceiptState.UNDELIVERED, ReceiptState.EXPIRED]
    for id, state in zip(ids, states, strict=False):
        await bench.receive(bench.only_id, receipt(str(id), state=state))
        await bench.receive(bench.only_id, receipt(str(id), state=state))  # again
        await bench.receive(bench.only_id, receipt(str(id), state=ReceiptState.PENDING))
    assert await counts(pool) == {
        "accepted": 4,
        "refused": 1,
        "busy": 1,
        "unreachable": 1,
        "delivered": 1,
        "undelivered": 1,
        "expired": 1,
    }
    found = await row(pool)
    assert (found["submitted"], found["answered"], found["matched"], found["waiting"]) == (6, 6, 3, 1)
    assert (found["owed"], found["owed_segments"], found["delivered_share"]) == (2, 2, 0.3333)
    assert 0 < found["p50"] <= found["p99"]
    # A late receipt for an outcome that was only assumed.
    await bench.receive(bench.only_id, receipt(str(ids[2])))
    assert (await row(pool))["delivered"] == 2
    assert (await row(pool))["expired"] == 0


async def test_what_is_the_recipients_own_affair_is_counted_by_network(pool: Pool) -> None:
    bench = Bench(pool, supplier("main"))
    actor = await organization(pool)
    for _ in range(3):
        await message(pool, actor)
    bench.only.script = lambda one: accepted(str(one.message_id))
    await bench.round()
    first, second, third = [str(one.message_id) for one in bench.only.submitted]
    lost = receipt(first, state=ReceiptState.UNDELIVERED)
    await bench.receive(bench.only_id, msgspec.structs.replace(lost, error="001", recipients=True))
    await bench.receive(bench.only_id, receipt(second, state=ReceiptState.UNDELIVERED))
    await bench.receive(bench.only_id, receipt(third))
    assert await counts(pool) == {"accepted": 3, "undelivered": 2, "recipient": 1, "delivered": 1}
    # In the report, as a share of the undelivered.
    found = await row(pool)
    assert (found["matched"], found["owed"], found["recipient"]) == (3, 2, 1)
    networks = await pool.fetch("SELECT DISTINCT network FROM reconciliation")
    known = await pool.fetch("SELECT DISTINCT coalesce(network, '') AS network FROM messages")
    assert [one["network"] for one in networks] == [one["network"] for one in known]


async def test_a_receipt_that_came_early_keeps_whose_affair_it_is(pool: Pool) -> None:
    bench = Bench(pool, supplier("main"))
    await message(pool, await organization(pool))
    bench.only.script = lambda one: None
    await bench.round()
    (sent,) = bench.only.submitted
    early = receipt("a", state=ReceiptState.UNDELIVERED)
    await bench.receive(bench.only_id, msgspec.structs.replace(early, error="001", recipients=True))
    bench.answer(sent, accepted("a"))
    await bench.settle()
    assert await counts(pool) == {"accepted": 1, "undelivered": 1, "recipient": 1}


@pytest.mark.parametrize("recorded", [True, False], ids=["after the timeout was recorded", "before"])
async def test_an_answer_that_comes_late_counts_once(pool: Pool, recorded: bool) -> None:
    bench = Bench(pool, supplier("main"))
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(2)]
    bench.only.script = lambda one: Outcome(Verdict.UNKNOWN, doubtful=(1,))
    async with contextlib.AsyncExitStack() as database_away:
        if recorded:
            await bench.round()
            assert await counts(pool) == {"unknown": 2}
            assert (await row(pool))["answered"] == 0
        else:
            await database_away.enter_async_context(bench.results.writing)
            await bench.dispatcher.round()
            await asyncio.sleep(0)
        bench.answer(bench.only.submitted[0], accepted("a"))
        bench.answer(bench.only.submitted[1], Outcome(Verdict.REFUSED))
    await bench.settle()
    assert await counts(pool) == {"accepted": 1, "refused": 1}
    assert len(ids) == 2


async def test_an_answer_that_comes_late_counts_once_however_long_the_database_was_away(pool: Pool) -> None:
    """After the grace period it was taken for the first answer to its attempt."""
    bench = Bench(pool, supplier("main"), grace=0.0)
    await message(pool, await organization(pool))
    bench.only.script = lambda one: Outcome(Verdict.UNKNOWN, doubtful=(1,))
    async with bench.results.writing:
        await bench.dispatcher.round()
        for _ in range(10):  # until the batch with the first answer waits for the database
            await asyncio.sleep(0)
        assert bench.results.waiting == 0
        await bench.dispatcher.renew()
        bench.answer(bench.only.submitted[0], accepted("a"))
    await bench.settle()
    assert await counts(pool) == {"accepted": 1}


async def test_late_answers_for_two_segments_of_a_message_count_once(pool: Pool) -> None:
    """After the first of them, there is still no answer for the other."""
    bench = Bench(pool, supplier("main"))
    await message(pool, await organization(pool), segments=2)
    bench.only.script = lambda one: Outcome(Verdict.UNKNOWN, doubtful=(1, 2), total=2)
    await bench.round()
    assert await counts(pool) == {"unknown": 1}
    (sent,) = bench.only.submitted
    # Both are recorded together.
    bench.answer(sent, Outcome(Verdict.UNKNOWN, (Part(1, "a"),), doubtful=(2,), total=2))
    bench.answer(sent, Outcome(Verdict.ACCEPTED, (Part(1, "a"), Part(2, "b")), total=2))
    await bench.settle()
    assert await counts(pool) == {"accepted": 1}


async def test_a_receipt_that_shows_what_an_answer_did_not_say_counts_as_one(pool: Pool) -> None:
    bench = Bench(pool, supplier("main"), grace=0.0)
    id = await message(pool, await organization(pool))
    bench.only.script = lambda one: Outcome(Verdict.UNKNOWN, doubtful=(1,))
    await bench.round()
    await bench.receive(bench.only_id, receipt("a"))
    await bench.later(seconds=120)
    await bench.round()
    assert await pool.fetchval("SELECT status FROM messages WHERE id = $1", id) == "delivered"
    assert await counts(pool) == {"accepted": 1, "delivered": 1}


async def test_a_receipt_for_an_answer_that_died_with_its_worker_takes_nothing_away(pool: Pool) -> None:
    """The supplier is not to blame for what another worker found without an answer, so that was never counted. Should
    the first worker still live and give its attempt up, the receipt has settled that as well."""
    row = supplier("main")
    frozen, bench = Bench(pool, row, grace=0.0), Bench(pool, row, grace=0.0)
    frozen.only.script = lambda one: None
    await message(pool, await organization(pool))
    await frozen.round()
    await bench.receive(bench.only_id, receipt("a"))
    await bench.later(seconds=120)
    await bench.round()
    await bench.later(seconds=120)
    await bench.round()
    assert await counts(pool) == {"accepted": 1, "delivered": 1}
    frozen.answer(frozen.only.submitted[0], Outcome(Verdict.UNKNOWN, doubtful=(1,)))
    await frozen.settle()
    assert await counts(pool) == {"accepted": 1, "delivered": 1}


async def test_a_receipt_settles_the_lack_of_an_answer_that_is_being_recorded(pool: Pool) -> None:
    row = supplier("main")
    frozen, bench = Bench(pool, row, grace=0.0), Bench(pool, row, grace=0.0)
    frozen.only.script = lambda one: None
    await message(pool, await organization(pool))
    await frozen.round()
    await bench.later(seconds=120)
    await bench.round()
    await bench.receive(bench.only_id, receipt("a"))
    await bench.later(seconds=120)
    write, rounds = frozen.channel.write, []
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    async def writing(*given: object, **named: object) -> object:
        queued = await write(*given, **named)
        rounds.append(asyncio.create_task(bench.round()))
        while not (rounds[0].done() or await pool.fetchval(waits)):  # noqa: ASYNC110 (locks send no events)
            await asyncio.sleep(0.01)
        return queued

    frozen.channel.write = writing
    frozen.answer(frozen.only.submitted[0], Outcome(Verdict.UNKNOWN, doubtful=(1,)))
    await frozen.settle()
    await asyncio.gather(*rounds)
    assert await counts(pool) == {"accepted": 1, "delivered": 1}


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
async def test_an_operator_settles_the_lack_of_an_answer_that_is_being_recorded(pool: Pool, guarantee: str) -> None:
    """At most once, the message has ended as unknown by then."""
    row = supplier("main")
    frozen, bench = Bench(pool, row, grace=0.0), Bench(pool, row, grace=0.0)
    frozen.only.script = lambda one: None
    id = await message(pool, await organization(pool), guarantee=guarantee)
    await frozen.round()
    for _ in range(1 if guarantee == "at_least_once" else 2):
        await bench.later(seconds=120)
        await bench.round()
    write, decisions = frozen.channel.write, []
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    async def decide() -> None:
        async with pool.acquire() as conn:
            await intervening.decide(conn, Principal("operator"), id=id, status="delivered", reason="they have it")

    async def writing(*given: object, **named: object) -> object:
        queued = await write(*given, **named)
        decisions.append(asyncio.create_task(decide()))
        while not (decisions[0].done() or await pool.fetchval(waits)):  # noqa: ASYNC110 (locks send no events)
            await asyncio.sleep(0.01)
        return queued

    frozen.channel.write = writing
    frozen.answer(frozen.only.submitted[0], Outcome(Verdict.UNKNOWN, doubtful=(1,)))
    await frozen.settle()
    await asyncio.gather(*decisions)
    assert await counts(pool) == {"accepted": 1, "delivered": 1}


async def overtaken(pool: Pool) -> Bench:
    """A worker without an answer to its message, which another one has sent again meanwhile."""
    row = supplier("main")
    frozen, bench = Bench(pool, row, grace=0.0), Bench(pool, row, grace=0.0)
    frozen.only.script = lambda one: None
    await message(pool, await organization(pool))
    await frozen.round()
    for _ in range(2):
        await bench.later(seconds=120)
        await bench.round()
    return frozen


async def test_a_late_answer_beside_the_lack_of_one_counts_as_a_second_acceptance(pool: Pool) -> None:
    frozen = await overtaken(pool)
    assert await counts(pool) == {"accepted": 1}
    # Both are recorded together.
    frozen.answer(frozen.only.submitted[0], Outcome(Verdict.UNKNOWN, doubtful=(1,)))
    frozen.answer(frozen.only.submitted[0], accepted("late"))
    await frozen.settle()
    assert await counts(pool) == {"accepted": 1, "doubled": 1}


async def test_a_second_acceptance_whose_commit_seems_to_fail_counts_once(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was recorded again, and nothing but acceptances showed that it had been."""
    monkeypatch.setattr(results, "RETRY", 0.0)
    frozen = await overtaken(pool)
    write, tries = frozen.results._write, 0

    async def loses_its_answer(*given: Any, **named: Any) -> None:
        nonlocal tries
        tries += 1
        await write(*given, **named)
        if tries == 1:
            raise ConnectionResetError

    monkeypatch.setattr(frozen.results, "_write", loses_its_answer)
    frozen.answer(frozen.only.submitted[0], msgspec.structs.replace(accepted("late"), code="0x00000000"))
    await frozen.settle()
    assert tries == 2
    assert await counts(pool) == {"accepted": 1, "doubled": 1}


@pytest.mark.parametrize("has_ended", [True, False])
async def test_what_an_operator_says_about_an_answer_that_died_with_its_worker_takes_nothing_away(
    pool: Pool, has_ended: bool
) -> None:
    """Whether its message waits for a receipt, or has ended without one."""
    row = supplier("main")
    killed, bench = Bench(pool, row), Bench(pool, row)
    killed.only.script = lambda one: None
    id = await message(pool, await organization(pool), guarantee="at_most_once")
    await killed.round()
    for _ in range(2 if has_ended else 1):
        await bench.later(seconds=61)
        await bench.round()
    assert await pool.fetchval("SELECT status FROM messages") == ("unknown" if has_ended else "accepted")
    async with pool.acquire() as conn:
        await intervening.decide(conn, Principal("operator"), id=id, status="delivered", reason="they have it")
    assert await counts(pool) == {"accepted": 1, "delivered": 1}


@pytest.mark.parametrize("was_counted", [True, False], ids=["after a timeout", "of a worker that stood still"])
async def test_a_late_answer_to_what_had_ended_counts_once_although_its_receipt_was_there_before(
    pool: Pool, was_counted: bool
) -> None:
    """They are recorded together. One, with its charge, was taken from the messages that the supplier accepted in
    addition, although none had been counted there."""
    row = supplier("main")
    slow, bench = Bench(pool, row, grace=0.0), Bench(pool, row)
    slow.only.script = lambda one: Outcome(Verdict.UNKNOWN, doubtful=(1,)) if was_counted else None
    await message(pool, await organization(pool), guarantee="at_most_once")
    await slow.round()
    for _ in range(2):
        await bench.later(seconds=61)
        await bench.round()
    assert await pool.fetchval("SELECT status FROM messages") == "unknown"
    await bench.receive(bench.only_id, receipt("a"))
    assert await pool.fetchval("SELECT status FROM messages") == "unknown"
    slow.answer(slow.only.submitted[0], accepted("a"))
    await slow.settle()
    assert await pool.fetchval("SELECT status FROM messages") == "delivered"
    assert await counts(pool) == {"accepted": 1, "delivered": 1}


async def test_an_answer_that_is_being_recorded_while_its_receipt_is_adopted_counts_once(pool: Pool) -> None:
    """It takes the lost answer from the count; so did the worker that adopted the receipt meanwhile."""
    bench = Bench(pool, supplier("main"), grace=0.0)
    bench.only.script = lambda one: Outcome(Verdict.UNKNOWN, doubtful=(1,))
    await message(pool, await organization(pool))
    await bench.round()
    await bench.receive(bench.only_id, receipt("a"))
    (sent,) = bench.only.submitted
    late = bench.dispatcher.flights.find_late((sent.message_id, sent.attempt))
    assert late is not None
    await bench.later(seconds=120)
    async with pool.acquire() as conn:
        async with conn.transaction():
            answered = [AnsweredAttempt(late, accepted("a"), is_late=True)]
            await bench.channel.write(conn, answered, [], frozenset(), None, alone=False)
            round = asyncio.create_task(bench.round())
            await until_true(lambda: pool.fetchval(BLOCKED))
        await round
    assert await counts(pool) == {"accepted": 1, "delivered": 1}


async def test_a_late_refusal_of_what_a_receipt_showed_to_be_accepted_counts_nothing(pool: Pool) -> None:
    """It takes nothing away from attempts that are still without a response."""
    bench = Bench(pool, supplier("main"), grace=0.0)
    actor = await organization(pool)
    await message(pool, actor)
    bench.only.script = lambda one: Outcome(Verdict.UNKNOWN, doubtful=(1,))
    await bench.round()
    await bench.receive(bench.only_id, receipt("a"))
    await bench.later(seconds=120)
    await bench.round()
    await message(pool, actor, to="+258841111111", guarantee="at_most_once")
    await bench.round()
    assert await counts(pool) == {"accepted": 1, "delivered": 1, "unknown": 1}
    bench.answer(bench.only.submitted[0], Outcome(Verdict.REFUSED))
    await bench.settle()
    assert await counts(pool) == {"accepted": 1, "delivered": 1, "unknown": 1}
    bench.answer(bench.only.submitted[1], Outcome(Verdict.REFUSED))
    await bench.settle()
    assert await counts(pool) == {"accepted": 1, "delivered": 1, "refused": 1}


async def test_never_and_late(pool: Pool) -> None:
    bench = Bench(pool, supplier("main"))
    id = await message(pool, await organization(pool))
    await bench.round()
    (sent,) = bench.only.submitted
    await pool.execute("UPDATE messages SET sent_at = sent_at - interval '73 hours'")
    await pool.execute("UPDATE attempts SET ended_at = ended_at - interval '73 hours'")
    await pool.execute("UPDATE reconciliation_deltas SET hour = hour - interval '73 hours'")
    async with pool.acquire() as conn, conn.transaction():
        await timers.ensure(conn, "silent")
        await silence.close_silent(conn, deadline=timedelta(hours=72), span=timedelta(hours=1))
    ago = timedelta(hours=80)
    (one,) = await lines(pool, ago=ago)
    assert dict(one.line.counts) == {"accepted": 1, "never": 1}
    assert (one.line.waiting, one.line.undelivered) == (0, (1, 1))
    await bench.receive(bench.only_id, receipt(_id(sent)))
    assert await pool.fetchval("SELECT status FROM messages WHERE id = $1", id) == "delivered"
    (one,) = await lines(pool, ago=ago)
    assert dict(one.line.counts) == {"accepted": 1, "delivered": 1, "late": 1}
    middle = one.line.seconds(0.5)
    assert middle is not None
    assert middle > 36 * 3600


def _id(one: Submission) -> str:
    part = accept_all(one).parts[0].supplier_message_id
    assert part is not None
    return part


async def test_receipts_that_fit_nothing_are_counted_by_country_once_they_are_given_up(pool: Pool) -> None:
    bench = Bench(pool, supplier("main"))
    for number, to in enumerate(("+258841234567", "+351912345678", "0841234567")):
        await bench.receive(bench.only_id, receipt(f"lost-{number}", to=to))
    for _ in range(12):
        await pool.execute("UPDATE receipts SET next_try_at = now() WHERE next_try_at IS NOT NULL")
        async with pool.acquire() as conn, conn.transaction():
            await waiting.sweep(conn, policies={})
    found = {one.line.country: one.line["orphaned"] for one in await lines(pool, "country")}
    assert found == {"MZ": 1, "PT": 1, "": 1}


async def test_segments_count_and_what_is_a_test_does_not(pool: Pool) -> None:
    bench = Bench(pool, supplier("main"))
    actor = await organization(pool)
    await message(pool, actor, segments=3)
    await message(pool, actor, mode="test")
    await bench.round()
    (one,) = await lines(pool)
    assert (dict(one.line.counts), dict(one.line.segments)) == ({"accepted": 1}, {"accepted": 3})


async def test_a_day_stands_beside_the_same_of_a_week_before(pool: Pool) -> None:
    bench = Bench(pool, supplier("main"))
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(2)]
    bench.only.script = lambda one: accepted(str(one.message_id))
    await bench.round()
    for id in ids:
        await bench.receive(bench.only_id, receipt(str(id)))
    await pool.execute("UPDATE reconciliation_deltas SET hour = hour - interval '7 days'")
    (one,) = [await message(pool, actor)]
    await bench.round()
    await bench.receive(bench.only_id, receipt(str(one), state=ReceiptState.REJECTED))
    # The hour may have turned between the two.
    await pool.execute(
        "UPDATE reconciliation_deltas SET hour = date_trunc('hour', $1::timestamptz, 'UTC')"
        " - CASE WHEN hour < $1 - interval '3 days' THEN interval '7 days' ELSE interval '0' END",
        clock.now(),
    )
    for by in ((), ("day",), ("month",), ("hour", "country")):
        (found,) = await lines(pool, *by)
        shown = found.row()
        assert (shown["delivered_share"], shown["week_before_delivered_share"]) == (0.0, 1.0)
        assert shown["week_before_accepted"] == 2
    head, line, *rest = reports.as_csv([found]).splitlines()
    assert head.split(",")[:3] == ["supplier", "at", "country"]
    assert len(line.split(",")) == len(reports.COLUMNS)
    assert rest == []
    assert await lines(pool, country="PT") == []


async def test_days_are_the_sums_of_their_hours(pool: Pool) -> None:
    """By whatever columns lines are split or filtered, and whether or not they are folded."""
    chance = random.Random(20261123)
    suppliers = [uuid7(), uuid7()]
    start = datetime(2026, 10, 30, tzinfo=UTC)

    async def count(number: int) -> None:
        async with pool.acquire() as conn:
            for _ in range(number):
                at = start + timedelta(minutes=chance.randrange(4 * 24 * 60))
                sums: reconciliation.Sums = {}
                for what in ("accepted", "delivered", "never"):
                    key = Counted(chance.choice(suppliers), hour_of(at), chance.choice(["MZ", "PT"]), what, "643-01")
                    one = add(sums, key, chance.randint(1, 5), chance.randint(1, 9))
                    one.to_receipt = [chance.randint(0, 3) for _ in range(chance.randint(1, 4))]
                await reconciliation.append(conn, sums)

    async def compare() -> None:
        first, last = start + timedelta(days=1), start + timedelta(days=3)
        for by in ((), ("day",), ("day", "country"), ("country",), ("month",), ("month", "country")):
            for supplier_id, country in ((None, None), (suppliers[0], None), (None, "PT")):
                wanted = (first, last, list(by), supplier_id, country, 1000, False, 0.0)
                hours = [tuple(row) for row in await pool.fetch(reconciliation.READ, *wanted)]
                assert hours
                assert hours == [tuple(row) for row in await pool.fetch(reconciliation.READ_DAYS, *wanted)]

    await count(60)
    async with pool.acquire() as conn:
        await reconciliation.fold(conn)
    await count(40)
    await compare()
    async with pool.acquire() as conn:
        await reconciliation.fold(conn)
    await compare()
    async with pool.acquire() as conn:
        await conn.execute(retention.DELETE_DAYS, start + timedelta(days=3, hours=5), 1000)
    days = await pool.fetch("SELECT DISTINCT day FROM reconciliation_days ORDER BY 1")
    assert [row["day"] for row in days] == [(start + timedelta(days=3)).date()]
