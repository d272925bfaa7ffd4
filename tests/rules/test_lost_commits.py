"""Commits whose answer is lost or late: what a round of dispatch began was never handed over, and is sent again; what
suppliers answered is counted once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

import pytest

from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.guard import rules
from heliograph.queue.backlog import Backlog
from heliograph.queue.leases import GUARDED
from heliograph.sending import dispatch, flights, unsubmitted
from heliograph.suppliers.contract import Outcome, Submission, Verdict
from tests.meanwhile import before
from tests.rules import dispatching_whatsapp, whatsapp_factories
from tests.rules.dispatching import Bench, attempts, queued
from tests.rules.factories import message, organization, status_of
from tests.wire import COMMIT, Wire, wired_pool

#: Longer than anything here takes.
LONG = 60.0


async def lose(line: Wire, bench: Any) -> None:
    """A round whose commit the database hears, while its answer is lost."""
    line.lose_answer(COMMIT)
    with pytest.raises(Exception) as error:
        await bench.dispatcher.round()
    assert is_down(error.value)


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
async def test_an_sms_is_sent_although_the_answer_to_its_commit_was_lost(
    pool: Pool, database_url: str, guarantee: str
) -> None:
    async with wired_pool(database_url) as (line, weak):
        bench = Bench(weak)
        id = await message(pool, await organization(pool), guarantee=guarantee)
        await lose(line, bench)
        assert await attempts(pool, id) == [(1, "open")], "it was committed"
        await bench.round()
        assert await attempts(pool, id) == [(1, "unreachable")]
        assert bench.only.submitted == []
        await bench.later(seconds=60)
        await bench.round(2)
    assert [(one.message_id, one.attempt) for one in bench.only.submitted] == [(id, 2)]
    assert await attempts(pool, id) == [(1, "unreachable"), (2, "accepted")]
    assert (await status_of(pool, id), await queued(pool, id)) == ("sent", False)


async def test_a_whatsapp_message_is_sent_although_the_answer_to_its_commit_was_lost(
    pool: Pool, database_url: str
) -> None:
    who = await whatsapp_factories.made(pool)
    async with wired_pool(database_url) as (line, weak):
        bench = await dispatching_whatsapp.Bench(weak).start()
        id = await whatsapp_factories.message(pool, who)
        await lose(line, bench)
        assert await attempts(pool, id) == [(1, "open")]
        await bench.round(3)
    assert [(one.message_id, one.attempt) for one in bench.only.submitted] == [(id, 2)]
    assert await attempts(pool, id) == [(1, "unreachable"), (2, "accepted")]


async def test_a_commit_that_the_database_never_heard_began_nothing(pool: Pool, database_url: str) -> None:
    async with wired_pool(database_url) as (line, weak):
        bench = Bench(weak)
        id = await message(pool, await organization(pool))
        line.end_at(COMMIT)
        with pytest.raises(Exception) as error:
            await bench.dispatcher.round()
        assert is_down(error.value)
        # The server notices by itself that its client is gone.
        async with asyncio.timeout(LONG):
            while not bench.only.submitted:
                await bench.round()
    assert await attempts(pool, id) == [(1, "accepted")]


async def test_a_commit_under_way_is_awaited_while_other_messages_go_out(pool: Pool, database_url: str) -> None:
    async with wired_pool(database_url) as (line, weak):
        bench = Bench(weak)
        actor = await organization(pool)
        id = await message(pool, actor)
        await lose(line, bench)
        # As the transaction itself does until it ends.
        async with pool.acquire() as conn, conn.transaction():
            await conn.execute("SELECT FROM queue WHERE id = $1 FOR UPDATE", id)
            other = await message(pool, actor)
            await bench.round(2)
            assert [one.message_id for one in bench.only.submitted] == [other]
            assert await attempts(pool, id) == [(1, "open")]
        await bench.round()
    assert await attempts(pool, id) == [(1, "unreachable")]


async def test_another_worker_that_gave_it_up_learns_that_nothing_was_sent(pool: Pool, database_url: str) -> None:
    async with wired_pool(database_url) as (line, weak):
        bench, other = Bench(weak), Bench(pool)
        id = await message(pool, await organization(pool), guarantee="at_most_once")
        await lose(line, bench)
        await pool.execute("UPDATE queue SET lease_until = now() - interval '1 second'")
        assert await other.round() == 1
        assert await attempts(pool, id) == [(1, "unknown")]
        await bench.round()
        assert await attempts(pool, id) == [(1, "unreachable")]
        await other.later(seconds=200)
        await other.round(2)
    assert [(one.message_id, one.attempt) for one in other.only.submitted] == [(id, 2)]
    assert await status_of(pool, id) == "sent"


async def test_an_attempt_of_another_worker_with_the_same_number_is_left_alone(pool: Pool, database_url: str) -> None:
    """The commit failed, and another worker began the attempt."""
    async with wired_pool(database_url) as (line, weak):
        bench, other = Bench(weak), Bench(pool)
        other.only.script = lambda submission: None
        id = await message(pool, await organization(pool))
        line.end_at(COMMIT)
        with pytest.raises(Exception):  # noqa: B017
            await bench.dispatcher.round()
        async with asyncio.timeout(LONG):
            while not other.only.submitted:
                await other.round()
        await bench.round()
        assert await attempts(pool, id) == [(1, "open")]
    assert bench.only.submitted == []


async def test_a_round_that_is_cancelled_after_its_commit_is_settled_by_a_drain(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = asyncio.Event()
    original: Any = Backlog.transaction

    @contextlib.asynccontextmanager
    async def slow(self: Backlog, conn: Connection) -> AsyncIterator[None]:
        async with original(self, conn):
            yield
        committed.set()
        await asyncio.Event().wait()

    bench = Bench(pool)
    id = await message(pool, await organization(pool))
    monkeypatch.setattr(Backlog, "transaction", slow)
    round = asyncio.create_task(bench.dispatcher.round())
    async with asyncio.timeout(LONG):
        await committed.wait()
    round.cancel()
    await asyncio.gather(round, return_exceptions=True)
    await bench.dispatcher.drain()
    assert await attempts(pool, id) == [(1, "unreachable")]
    assert bench.only.submitted == []


async def test_a_drain_settles_such_a_round_although_the_database_is_away_at_first(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_away() -> None:
        raise ConnectionResetError

    async with wired_pool(database_url) as (line, weak):
        bench = Bench(weak)
        id = await message(pool, await organization(pool), guarantee="at_most_once")
        await lose(line, bench)
        before(monkeypatch, unsubmitted, "look", is_away)
        await bench.dispatcher.drain()
    assert await attempts(pool, id) == [(1, "unreachable")]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass at once for dispatchers."""
    ahead = 0.0
    for module in (dispatch, flights):
        monkeypatch.setattr(module, "monotonic", lambda: monotonic() + ahead)

    def pass_(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    return pass_


@pytest.fixture
def stands_still(monkeypatch: pytest.MonkeyPatch, passes: Callable[[float], None]) -> Callable[[Any], None]:
    """Makes a bench stand still for longer than its leases, between the commit of its next round and what follows."""
    original: Any = Backlog.transaction

    def arm(bench: Any) -> None:
        @contextlib.asynccontextmanager
        async def slow(self: Backlog, conn: Connection) -> AsyncIterator[None]:
            async with original(self, conn):
                yield
            monkeypatch.setattr(Backlog, "transaction", original)
            passes(bench.lease_seconds + 1.0)
            await bench.pool.execute("UPDATE queue SET lease_until = now() - interval '1 second'")

        monkeypatch.setattr(Backlog, "transaction", slow)

    return arm


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
async def test_a_round_that_stood_still_after_its_commit_sends_nothing(
    pool: Pool, guarantee: str, stands_still: Callable[[Any], None]
) -> None:
    bench, other = Bench(pool), Bench(pool)
    id = await message(pool, await organization(pool), guarantee=guarantee)
    stands_still(bench)
    await bench.round()
    assert await attempts(pool, id) == [(1, "open")]
    await other.round()
    assert await attempts(pool, id) == [(1, "unknown")], "its worker may have died"
    await bench.round()
    assert await attempts(pool, id) == [(1, "unreachable")]
    await other.later(seconds=200)
    await other.round(2)
    assert bench.only.submitted == []
    assert [(one.message_id, one.attempt) for one in other.only.submitted] == [(id, 2)]
    assert await attempts(pool, id) == [(1, "unreachable"), (2, "accepted")]


async def test_a_round_that_stood_still_leaves_what_another_worker_has_sent_since(
    pool: Pool, stands_still: Callable[[Any], None]
) -> None:
    bench, other = Bench(pool, grace=0.0), Bench(pool, grace=0.0)
    id = await message(pool, await organization(pool))
    stands_still(bench)
    await bench.round()
    await other.round()
    await pool.execute("UPDATE queue SET due_at = now()")  # the wait for news is over
    await other.round()
    assert [(one.message_id, one.attempt) for one in other.only.submitted] == [(id, 2)]
    await bench.round(2)
    assert bench.only.submitted == []
    assert await attempts(pool, id) == [(1, "unreachable"), (2, "accepted")]
    assert (await status_of(pool, id), await queued(pool, id)) == ("sent", False)


async def test_a_round_that_stands_still_while_it_hands_over_leaves_the_rest_to_others(
    pool: Pool, passes: Callable[[float], None]
) -> None:
    bench, other = Bench(pool, grace=0.0), Bench(pool, grace=0.0)
    actor = await organization(pool)
    ids = {await message(pool, actor) for _ in range(3)}

    def stand_still(submission: Submission) -> None:
        passes(bench.lease_seconds + 1.0)

    bench.only.script = stand_still
    await bench.round()
    (handed,) = bench.only.submitted
    await pool.execute("UPDATE queue SET lease_until = now() - interval '1 second'")
    await other.round()
    await pool.execute("UPDATE queue SET due_at = now()")  # the wait for news is over
    await other.round()
    assert {(one.message_id, one.attempt) for one in other.only.submitted} == {(id, 2) for id in ids}
    await bench.round(2)
    assert bench.only.submitted == [handed]
    for id in ids - {handed.message_id}:
        assert await attempts(pool, id) == [(1, "unreachable"), (2, "accepted")]
    assert bench.dispatcher.in_flight == 1, "only what was handed over has no answer yet"


async def test_a_whatsapp_round_that_stood_still_after_its_commit_sends_nothing(
    pool: Pool, stands_still: Callable[[Any], None]
) -> None:
    who = await whatsapp_factories.made(pool)
    bench = await dispatching_whatsapp.Bench(pool).start()
    id = await whatsapp_factories.message(pool, who)
    stands_still(bench)
    await bench.round()
    assert (bench.only.submitted, await attempts(pool, id)) == ([], [(1, "open")])
    await bench.round(3)
    assert [(one.message_id, one.attempt) for one in bench.only.submitted] == [(id, 2)]
    assert await attempts(pool, id) == [(1, "unreachable"), (2, "accepted")]


async def test_messages_are_not_taken_for_lost_before_it_is_recorded_that_they_never_left(
    pool: Pool, stands_still: Callable[[Any], None]
) -> None:
    """Their leases have ended, so that the next round would find them, and wait for news until the grace ends."""
    bench = Bench(pool)
    id = await message(pool, await organization(pool))
    stands_still(bench)
    await bench.round()
    async with bench.results.writing:  # nothing is recorded meanwhile
        round = asyncio.create_task(bench.dispatcher.round())
        assert not (await asyncio.wait([round], timeout=1.0))[0]
    await round
    await bench.later(seconds=60)
    await bench.round()
    assert [(one.message_id, one.attempt) for one in bench.only.submitted] == [(id, 2)]


async def test_a_round_that_took_less_than_half_a_lease_is_sent_and_renewed_in_time(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([100.0, 129.0])
    monkeypatch.setattr(dispatch, "monotonic", lambda: next(times))
    bench = Bench(pool, lease_seconds=60.0)
    bench.only.script = lambda submission: None
    await message(pool, await organization(pool))
    await bench.round()
    assert len(bench.only.submitted) == 1
    monkeypatch.setattr(flights, "monotonic", lambda: 121.0)
    ends = "SELECT lease_until FROM queue"
    before = await pool.fetchval(ends)
    await bench.dispatcher.renew()
    assert await pool.fetchval(ends) > before


@pytest.mark.parametrize("verdict", [Verdict.BUSY, Verdict.REFUSED, Verdict.UNREACHABLE, Verdict.UNKNOWN])
async def test_an_answer_is_counted_once_although_the_answer_to_its_commit_was_lost(
    pool: Pool, database_url: str, verdict: Verdict
) -> None:
    async with wired_pool(database_url) as (line, weak):
        bench = Bench(weak)
        bench.only.script = lambda submission: None
        id = await message(pool, await organization(pool))
        await bench.round()
        (submission,) = bench.only.submitted
        line.lose_answer(COMMIT)
        bench.answer(submission, Outcome(verdict))
        await bench.settle()
    assert await attempts(pool, id) == [(1, verdict)]
    counted = "SELECT sum(count)::int FROM reconciliation_deltas WHERE what = $1"
    assert await pool.fetchval(counted, verdict) == 1


async def test_an_answer_whose_commit_failed_is_written_again(pool: Pool, database_url: str) -> None:
    async with wired_pool(database_url) as (line, weak):
        bench = Bench(weak)
        bench.only.script = lambda submission: None
        id = await message(pool, await organization(pool))
        await bench.round()
        (submission,) = bench.only.submitted
        line.end_at(COMMIT)
        bench.answer(submission, Outcome(Verdict.UNKNOWN))
        await bench.settle()
    assert await attempts(pool, id) == [(1, "unknown")]


async def test_what_the_guard_found_in_a_round_that_was_rolled_back_is_held_in_the_next(
    pool: Pool, database_url: str
) -> None:
    """Its hold does not exist, so that messages that met it would pass."""
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await rules.configure(conn, actor.organization_id, policy="hold", safe=())
    for n in range(12):
        await message(pool, actor, to=f"+25884123{n:04}")
    async with wired_pool(database_url) as (line, weak):
        bench = Bench(weak)
        line.end_at(COMMIT)
        with pytest.raises(Exception) as error:
            await bench.dispatcher.round()
        assert is_down(error.value)
        async with asyncio.timeout(LONG):
            while await pool.fetchval("SELECT EXISTS (SELECT FROM queue WHERE kind = 'sms' AND line <> $1)", GUARDED):
                await bench.round()
    assert bench.only.submitted == []
