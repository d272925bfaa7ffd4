"""Test keys: every magic number has its outcome, all the way through accept, dispatch, receipts and events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec
import pytest

from heliograph.base.database.pool import Pool
from heliograph.queue import leases
from heliograph.queue.backlog import Backlog, claim_once
from heliograph.sending import test_reports
from heliograph.sending.dispatch import Dispatcher
from heliograph.sending.results import Results
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.circuits.breaker import Breaker
from heliograph.sms.dispatch import test_mode
from heliograph.sms.dispatch.channel import SmsChannel
from heliograph.sms.dispatch.supplier_pool import TEST_ACCOUNT, PooledSupplier
from heliograph.sms.reports import silence
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.suppliers.contract import Outcome, Receipt, Submission, Verdict
from tests.rules.factories import endpoint, events_of, organization, send, status_of, until
from tests.rules.test_locked_rows import LOCKED, hasty, locking

__all__ = ["hasty"]


class Desk:
    """A worker with no supplier but that of test keys."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.connector = test_mode.Connector(
            lambda submission, outcome: self.dispatcher.answered((submission.message_id, submission.attempt), outcome),
            self.received,
        )
        account = PooledSupplier(TEST_ACCOUNT, self.connector, Breaker(lambda: 0.0))
        channel = SmsChannel(pool, lambda: {test_mode.SUPPLIER: account}, grace=90)
        self.results: Results[ReceivedReceipt] = Results(pool, channel)
        self.dispatcher = Dispatcher(pool, channel, self.results, claim_limit=500, lease_seconds=60)

    async def received(self, some: Sequence[Receipt]) -> None:
        await self.results.report([ReceivedReceipt(test_mode.SUPPLIER, one) for one in some])

    async def work(self) -> None:
        """Dispatch, then deliver the receipts that are due."""
        await self.dispatcher.round()
        await until(lambda: self.connector.health().in_flight == 0 and self.dispatcher.in_flight == 0)
        async with self.pool.acquire() as conn:
            claimed = await claim_once(conn, "test", {test_mode.SUPPLIER: 100}, seconds=60)
            due = await test_mode.due_receipts(conn, [(lease.organization_id, lease.id) for lease in claimed])
            await self.received(due)
            await leases.finish(conn, claimed)


async def post(pool: Pool, to: str, text: str = "hi") -> UUID:
    actor = await organization(pool, quota=0, mode="test")
    await endpoint(pool, actor, "message.delivered", "message.failed")
    answer = await Acceptor(pool).accept(send(actor, text, to=to))
    return UUID(msgspec.json.decode(answer.body)["message"]["id"])


@pytest.mark.parametrize("text", ["hi", "ж" * 200])
@pytest.mark.parametrize(
    ("digits", "status", "events"),
    [
        ("0000", "delivered", ["message.delivered"]),
        ("0001", "undelivered", ["message.failed"]),
        ("0002", "failed", ["message.failed"]),
        ("0003", "expired", ["message.failed"]),
        ("0004", "sent", []),
        ("0005", "sent", []),
        ("0006", "delivered", ["message.delivered"]),
        ("0007", "delivered", ["message.delivered"]),
        ("4567", "delivered", ["message.delivered"]),
    ],
)
async def test_the_last_four_digits_choose_the_outcome(
    pool: Pool, digits: str, status: str, events: list[str], text: str
) -> None:
    id = await post(pool, f"+25884123{digits}", text)
    await Desk(pool).work()
    assert await status_of(pool, id) == status
    assert await events_of(pool, id) == events
    # The webhook is real.
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'webhook'") == len(events)
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'sms'") == 0
    stored = await pool.fetchval("SELECT (SELECT count(*) FROM receipts) + (SELECT count(receipt) FROM messages)")
    parts = 1 if text == "hi" else 3
    assert stored == {"0004": 0, "0005": 0, "0006": 2 * parts}.get(digits, parts)
    assert await pool.fetchval("SELECT count(*) FROM usage_entries WHERE type = 'usage'") == 0


async def test_a_delayed_one_comes_after_a_minute_also_from_another_worker(pool: Pool) -> None:
    id = await post(pool, "+258841230005")
    await Desk(pool).work()
    due = await pool.fetchval("SELECT extract(epoch FROM due_at - now())::float8 FROM queue WHERE kind = 'test'")
    assert 55 < due <= 60
    await pool.execute("UPDATE queue SET due_at = now() WHERE kind = 'test'")
    await Desk(pool).work()
    assert await status_of(pool, id) == "delivered"


async def test_one_without_a_receipt_ends_as_unknown(pool: Pool) -> None:
    id = await post(pool, "+258841230004")
    await Desk(pool).work()
    await pool.execute("UPDATE attempts SET ended_at = ended_at - interval '73 hours'")
    await pool.execute("INSERT INTO timers VALUES ('silent', now(), now() - interval '74 hours')")
    async with pool.acquire() as conn, conn.transaction():
        await silence.close_silent(conn, deadline=timedelta(hours=72), span=timedelta(hours=2))
    assert await status_of(pool, id) == "unknown"
    assert await events_of(pool, id) == []


async def test_a_submission_has_an_outcome_even_if_its_early_receipt_cannot_be_stored() -> None:
    outcomes: list[Outcome] = []

    async def gone(some: object) -> None:
        raise OSError

    connector = test_mode.Connector(lambda submission, outcome: outcomes.append(outcome), gone)
    connector.submit(Submission(UUID(int=9), 1, "258841230007", "X", "hi", "gsm7", 1))
    await until(lambda: bool(outcomes))
    assert outcomes[0].verdict is Verdict.UNREACHABLE
    await asyncio.wait_for(connector.stop(grace=1), 120)


async def test_a_submission_has_an_outcome_even_if_its_text_cannot_be_encoded() -> None:
    """It used to have none, and asking for its number of parts raised."""
    outcomes: list[Outcome] = []

    async def nothing(some: object) -> None:
        raise AssertionError

    connector = test_mode.Connector(lambda submission, outcome: outcomes.append(outcome), nothing)
    one = Submission(UUID(int=9), 1, "258841230000", "X", "ж", "gsm7", 1)
    assert (connector.parts(one), connector.billed(one)) == (1, 1)
    connector.submit(one)
    await until(lambda: bool(outcomes))
    assert (outcomes[0].verdict, len(outcomes[0].parts)) == (Verdict.ACCEPTED, 1)


async def test_what_is_open_at_the_end_is_unknown_and_what_comes_after_it_is_not_taken() -> None:
    outcomes: list[Outcome] = []

    async def hangs(some: object) -> None:
        await asyncio.Event().wait()

    connector = test_mode.Connector(lambda submission, outcome: outcomes.append(outcome), hangs)
    one = Submission(UUID(int=9), 1, "258841230007", "X", "hi", "gsm7", 1)
    connector.submit(one)
    await asyncio.wait_for(connector.stop(grace=0), 120)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.UNKNOWN]
    assert (connector.ready(), connector.capacity(), connector.health().in_flight) == (False, 0, 0)
    connector.submit(one)
    assert len(outcomes) == 1, "never from within"
    await until(lambda: len(outcomes) == 2)
    assert outcomes[1].verdict is Verdict.UNREACHABLE


async def test_receipts_of_others_arrive_while_a_message_stays_locked(pool: Pool, hasty: Pool) -> None:
    """The step failed, with a traceback, each time that it met the lock. What is locked has its turn later."""
    desk = Desk(hasty)
    ids = [await post(pool, f"+25884000{n}0000") for n in range(3)]
    await desk.dispatcher.round()
    await until(lambda: desk.connector.health().in_flight == 0 and desk.dispatcher.in_flight == 0)

    async def bring() -> int:
        await pool.execute("UPDATE queue SET due_at = now(), lease_until = now() - interval '1 second'")
        return await test_reports.bring(
            hasty,
            Backlog(cycle=0.0),
            "test",
            test_mode.SUPPLIER,
            made=test_mode.due_receipts,
            record=desk.received,
            seconds=60,
        )

    async with locking(pool) as open_session:
        await open_session.execute(LOCKED, [ids[1]])
        assert await bring() == 3
        assert [await status_of(pool, id) for id in ids] == ["delivered", "sent", "delivered"]
    assert await bring() == 3
    assert await status_of(pool, ids[1]) == "delivered"
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'test'") == 0
