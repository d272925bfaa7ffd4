"""Messages from a supplier over real SMPP: whether the first one was acknowledged decides how a repeated one is
treated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.queue import timers
from heliograph.simulators.smsc.simulator import Smsc, SmscOptions
from heliograph.sms.received import inbox
from heliograph.sms.received.reception import Reception
from heliograph.suppliers.contract import Inbound, OnAnswered, Outcome, Receipt, Submission
from heliograph.suppliers.smpp.connector import SmppConnector
from heliograph.suppliers.smpp.settings import settings_from
from tests.rules.factories import TO, organization, sender, until

NUMBER = "258800001234"
ONE = UUID(int=101)


class ScriptedLine:
    """A supplier, our connector to it, and a worker's reception."""

    def __init__(self, pool: Pool, smsc: Smsc) -> None:
        self.smsc = smsc
        self.deliveries = 0
        #: Cut the connection after the next message is stored, and before it is acknowledged.
        self.cut = False
        self.reception = Reception(pool, lease_seconds=60, on_deliveries=self._delivers, on_messages=lambda: None)
        values = {"host": "127.0.0.1", "port": smsc.port, "system_id": "esme", "tls": False, "reconnect_seconds": 0.02}
        self.connector = SmppConnector(
            settings_from(values), "secret", self._outcome, self._receipts, self._take, sessions=1
        )

    def _delivers(self) -> None:
        self.deliveries += 1

    def _outcome(self, submission: Submission, outcome: Outcome) -> None:
        raise AssertionError("nothing was submitted")

    async def _receipts(self, received: Sequence[Receipt]) -> None:
        raise AssertionError("there are no receipts")

    async def _take(self, received: Sequence[Inbound]) -> OnAnswered:
        answered = await self.reception.receive(ONE, received)
        if self.cut:
            self.cut = False
            self.smsc.drop()
            await until(lambda: not self.connector.health().sessions)
        return answered


@pytest.fixture
async def acme(pool: Pool) -> Actor:
    actor = await organization(pool)
    await sender(pool, actor, NUMBER)
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)
    return actor


@pytest.fixture
async def line(pool: Pool, acme: Actor) -> AsyncIterator[ScriptedLine]:
    smsc = Smsc(SmscOptions(port=0, systems={"esme": "secret"}, redeliver_after=0.05))
    await smsc.start()
    made = ScriptedLine(pool, smsc)
    await made.connector.start()
    await until(lambda: made.connector.health().sessions == 1)
    yield made
    await made.connector.stop(grace=1)
    await made.reception.drain()
    await smsc.stop()


async def states(pool: Pool) -> list[tuple[str, bool]]:
    rows = await pool.fetch("SELECT state, acknowledged FROM inbound_messages ORDER BY id")
    return [tuple(row) for row in rows]


async def work(line: ScriptedLine, rows: int) -> None:
    """Process this many."""
    async with asyncio.timeout(120):
        while rows:
            line.reception.wake.clear()
            done = await line.reception.round()
            rows -= done
            if not done:
                await line.reception.wake.wait()


async def test_the_same_again_after_an_answer_that_left_is_another_message(pool: Pool, line: ScriptedLine) -> None:
    for count in (1, 2):
        line.smsc.send_inbound(TO, NUMBER, "YES")
        await until(lambda count=count: line.smsc.counters.inbound_acked == count)
        await line.reception.drain()
        await work(line, 1)
    assert await states(pool) == [("received", True)] * 2


async def test_the_same_again_after_an_answer_that_was_lost_is_the_same_message(pool: Pool, line: ScriptedLine) -> None:
    line.cut = True
    line.smsc.send_inbound(TO, NUMBER, "YES")
    await work(line, 2)
    await until(lambda: line.smsc.counters.inbound_acked == 1)
    await line.reception.drain()
    assert await states(pool) == [("received", False), ("duplicate", True)]


async def test_whoever_waits_for_deliveries_and_replies_is_woken(pool: Pool, acme: Actor, line: ScriptedLine) -> None:
    await pool.execute(
        "INSERT INTO webhook_endpoints (organization_id, id, url, subscribed_events, secret, created_at)"
        " VALUES ($1, gen_random_uuid(), 'https://example.com/', '{message.received}', '', now())",
        acme.organization_id,
    )
    line.smsc.send_inbound(TO, NUMBER, "HELP")
    await work(line, 1)
    assert line.deliveries == 1
    assert line.reception.wake_replies.is_set()
    assert await line.reception.reply() == 1
    assert await line.reception.reply() == 0
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1
