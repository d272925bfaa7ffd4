"""A worker that is told to stop exits in time, whatever it is waiting for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool, open_pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.queue import timers, workers
from heliograph.queue.backlog import Backlog, claim_once
from heliograph.queue.work import Work
from heliograph.sending import results
from heliograph.sending.results import AnsweredAttempt
from heliograph.sms.accepting.accept import Acceptor, Send
from heliograph.sms.received import replies
from heliograph.sms.received.replies import KeywordReply
from heliograph.sms.work import SmsWork
from heliograph.suppliers.contract import Outcome, Part, Verdict
from heliograph.webhooks.delivery.attempts import Attempt, Ended
from heliograph.webhooks.delivery.work import WebhookWork
from heliograph.worker import Worker
from tests import hooks
from tests.rules.dispatching import Bench
from tests.rules.factories import message, organization, receipt, sender, status_of

#: Shorter than the time limit of a statement.
LONG = 20.0
#: Longer than anything takes that waits for no statement.
AMPLE = 120.0


async def test_a_stop_waits_no_longer_for_the_database_than_for_work_in_progress(pool: Pool, database_url: str) -> None:
    worker = Worker(Settings(database_url=database_url, drain_seconds=0.1), pool, channels={})
    is_ready = asyncio.Event()
    running = asyncio.create_task(worker.run(on_ready=is_ready.set))
    async with asyncio.timeout(AMPLE):
        await is_ready.wait()
    async with pool.acquire() as conn, conn.transaction():
        assert await conn.fetch("SELECT FROM workers WHERE id = $1 FOR UPDATE", worker.id)
        worker.stop()
        async with asyncio.timeout(LONG):
            await running


class _Draining(Work):
    """A part whose end is noted, and may fail."""

    def __init__(self, error: Exception | None) -> None:
        self.is_drained = False
        self._error = error

    async def drain(self) -> None:
        if self._error is not None:
            raise self._error
        self.is_drained = True


async def stop_when_ready(worker: Worker) -> None:
    """Run a worker, and stop it once it has started."""
    is_ready = asyncio.Event()
    running = asyncio.create_task(worker.run(on_ready=is_ready.set))
    async with asyncio.timeout(AMPLE):
        await is_ready.wait()
        worker.stop()
        await running


@pytest.mark.parametrize("error", [ConnectionResetError(), ValueError("a mistake")])
async def test_a_part_that_fails_at_the_end_costs_no_other_its_answers(
    pool: Pool, database_url: str, error: Exception
) -> None:
    failing, other = _Draining(error), _Draining(None)
    worker = Worker(
        Settings(database_url=database_url, drain_seconds=AMPLE),
        pool,
        channels={"failing": lambda *_: failing, "other": lambda *_: other},
    )
    with capture_logs() as logged:
        await stop_when_ready(worker)
    assert other.is_drained
    assert not await pool.fetchval("SELECT EXISTS (SELECT FROM workers WHERE id = $1)", worker.id)
    assert [one["log_level"] for one in logged if one.get("part") == "_Draining"] == [
        "error" if isinstance(error, ValueError) else "warning"
    ]


class _Stuck(Work):
    """A part that waits for a row that somebody keeps locked."""

    async def drain(self) -> None:
        await asyncio.Event().wait()


async def test_a_part_that_waits_at_the_end_costs_no_other_its_answers(pool: Pool, database_url: str) -> None:
    other = _Draining(None)
    worker = Worker(
        Settings(database_url=database_url, drain_seconds=0.1),
        pool,
        channels={"stuck": lambda *_: _Stuck(), "other": lambda *_: other},
    )
    await stop_when_ready(worker)
    assert other.is_drained


async def stop_between(worker: Worker, reached: asyncio.Event, goes_on: asyncio.Event) -> None:
    """Run a worker, and stop it once it has reached a point from which it then goes on."""
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(AMPLE):
        await reached.wait()
        worker.stop()
        await asyncio.sleep(0.1)
        goes_on.set()
        await running


async def test_a_round_that_commits_during_a_stop_is_handed_over(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled right after its commit, it would leave an attempt that nobody has: in doubt for minutes."""
    committed, goes_on = asyncio.Event(), asyncio.Event()
    original: Any = Backlog.transaction

    @contextlib.asynccontextmanager
    async def slow(self: Backlog, conn: Connection) -> AsyncIterator[None]:
        async with original(self, conn):
            yield
        if await pool.fetchval("SELECT count(*) FROM queue WHERE begun_at IS NOT NULL"):
            committed.set()
            await goes_on.wait()

    monkeypatch.setattr(Backlog, "transaction", slow)
    sent = await message(pool, await organization(pool), mode="test")
    worker = Worker(Settings(database_url=database_url, drain_seconds=AMPLE), pool, channels={"sms": SmsWork})
    await stop_between(worker, committed, goes_on)
    assert await pool.fetchval("SELECT begun_at FROM queue WHERE id = $1", sent) is None
    assert await pool.fetchval("SELECT state FROM attempts WHERE message_id = $1", sent) == "unreachable"


async def test_replies_that_are_accepted_during_a_stop_are_finished(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled meanwhile, they would wait until their leases end."""
    claimed, goes_on = asyncio.Event(), asyncio.Event()
    original: Any = Acceptor.accept_many

    async def slow(self: Acceptor, sends: Sequence[Send]) -> Any:
        claimed.set()
        await goes_on.wait()
        return await original(self, sends)

    monkeypatch.setattr(Acceptor, "accept_many", slow)
    actor = await organization(pool)
    number = await sender(pool, actor, "+258840000001")
    async with pool.acquire() as conn, conn.transaction():
        wanted = KeywordReply(actor.organization_id, "+258841234567", "stop", number, clock.now())
        assert await replies.want(conn, [wanted]) == 1
    worker = Worker(Settings(database_url=database_url, drain_seconds=AMPLE), pool, channels={"sms": SmsWork})
    await stop_between(worker, claimed, goes_on)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1
    assert not await pool.fetchval("SELECT EXISTS (SELECT FROM queue WHERE kind = 'reply')")


@pytest.mark.parametrize("is_released", [False, True])
async def test_a_row_that_somebody_keeps_locked_holds_up_nothing_else_at_the_end(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch, is_released: bool
) -> None:
    """The worker still counted as running, its sessions were taken, and what it had noted was lost."""
    monkeypatch.setattr(results, "ASIDE_RETRY", 0.01)
    tight = await open_pool(database_url, size=6, statement=1.0)
    settings = Settings(database_url=database_url, drain_seconds=AMPLE if is_released else 10.0)
    worker = Worker(settings, tight, channels={"sms": SmsWork})
    (work,) = [part for part in worker._parts if isinstance(part, SmsWork)]
    (webhooks,) = [part for part in worker._parts if isinstance(part, WebhookWork)]
    actor = await organization(pool)
    line, _ = await hooks.endpoint(pool, actor, "http://127.0.0.1:9/")
    await hooks.record(pool, actor, 1)
    async with pool.acquire() as conn:
        (delivery,) = await claim_once(conn, "webhook", {line: 1}, seconds=600.0)
    id = await message(pool, actor)
    bench, ended = Bench(pool), asyncio.Event()
    bench.only.script = lambda submission: None
    await bench.round()
    (attempt,) = bench.dispatcher.flights.of(id)
    running = asyncio.create_task(worker.run())
    end: Any = workers.end

    async def noted(*given: Any) -> None:
        await end(*given)
        ended.set()

    async def is_aside() -> bool:
        return bool(work._results.aside) and webhooks._deliverer._record.is_aside(line)

    monkeypatch.setattr(workers, "end", noted)
    async with asyncio.timeout(AMPLE):
        async with pool.acquire() as conn, conn.transaction():
            await conn.execute("SELECT FROM messages WHERE id = $1 FOR UPDATE", id)
            await conn.execute("SELECT FROM webhook_endpoints WHERE id = $1 FOR UPDATE", line)
            await work._received(uuid7(), [receipt("1", network="64303")])
            work._results.answer(AnsweredAttempt(attempt, Outcome(Verdict.ACCEPTED, (Part(1, "1"),))))
            webhooks._deliverer._record.put(Ended(delivery, None, Attempt(clock.now(), 0.1, 500, "status", "")))
            await hooks.until(is_aside, within=AMPLE)
            worker.stop()
            await ended.wait()
            assert await pool.fetchval("SELECT network FROM number_networks") == "643-03"
            assert not await pool.fetchval("SELECT EXISTS (SELECT FROM workers WHERE id = $1)", worker.id)
            if not is_released:
                await running
        await running
    tight.terminate()
    assert await status_of(pool, id) == ("sent" if is_released else "sending")
    assert len(await hooks.attempts(pool)) == is_released


async def test_a_timer_whose_work_is_cut_off_is_due_again_within_a_minute(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention, for example, would otherwise wait for an hour."""
    began = asyncio.Event()

    async def endless(self: Worker, conn: Connection) -> None:
        began.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Worker, "_forget", endless)
    await pool.execute("UPDATE timers SET next_at = now() WHERE name = $1", timers.FORGET)
    worker = Worker(Settings(database_url=database_url, drain_seconds=AMPLE), pool)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(AMPLE):
        await began.wait()
        assert await pool.fetchval(LEFT, timers.FORGET) > 3000
        worker.stop()
        await running
    assert await pool.fetchval(LEFT, timers.FORGET) <= timers.AFTER_FAILURE


#: Seconds until a timer is due.
LEFT = "SELECT extract(epoch FROM next_at - now())::float8 FROM timers WHERE name = $1"


async def test_what_was_noted_of_receipts_is_stored_by_a_stop(pool: Pool, database_url: str) -> None:
    worker = Worker(Settings(database_url=database_url, drain_seconds=AMPLE), pool, channels={"sms": SmsWork})
    (work,) = [part for part in worker._parts if isinstance(part, SmsWork)]
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(AMPLE):
        await work._received(uuid7(), [receipt("1", network="64303")])
        worker.stop()
        await running
    assert await pool.fetchval("SELECT network FROM number_networks") == "643-03"
