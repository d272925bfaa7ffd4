"""Deliveries by the worker that recorded the event, without a claim: none is lost, and none is invented."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings as Settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, open_pool
from heliograph.base.ids import uuid7
from heliograph.http.client import HttpClient, webhook_rules
from heliograph.queue.runner import every, loop
from heliograph.simulators.receiver import Options, Receiver
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery.delivery import Deliverer
from heliograph.webhooks.recording import events
from heliograph.webhooks.recording.events import Event
from heliograph.webhooks.recording.handover import Handover
from tests.hooks import (
    DATA,
    KIND,
    attempts,
    delivering,
    endpoint,
    leased,
    organization,
    queued,
    record,
    settings,
    until,
)
from tests.rules.machines import BOUNDED, Machine, run_machine


class RolledBack(Exception):
    """Ends a transaction."""


async def hand(
    pool: Pool, deliverer: Deliverer, actor: Actor, count: int = 1, *, deliver: bool = True
) -> tuple[list[str], Handover]:
    """Events of one transaction: their ids, and the handover that was delivered or is still pending."""
    made = [Event(actor.organization_id, uuid7(), KIND, "req-1", DATA, clock.now()) for _ in range(count)]
    handover = deliverer.handover()
    async with pool.acquire() as conn, conn.transaction():
        left = await events.record(conn, made, handover=handover)
    if deliver:
        handover.deliver()
        if left:
            deliverer.wake.set()
    return [str(one.id) for one in made], handover


async def handed(pool: Pool, handover: Handover) -> set[str]:
    """The events that were handed over under this lease and are not delivered yet."""
    return {str(row["id"]) for row in await pool.fetch("SELECT id FROM queue WHERE lease_token = $1", handover.token)}


async def acquaint(pool: Pool, actor: Actor, receiver: Receiver, count: int = 1) -> None:
    """Let a running deliverer learn that the endpoint works."""
    before = receiver.counters.received
    await record(pool, actor, count)
    await receiver.wait_for(lambda it: it.counters.received == before + count)
    await until(lambda: _is_empty(pool))


async def test_what_is_handed_over_goes_out_without_a_claim(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, receiver.url)
    async with delivering(pool) as deliverer:
        await acquaint(pool, actor, receiver)
        (event_id,), handover = await hand(pool, deliverer, actor, deliver=False)
        row = await pool.fetchrow("SELECT *, lease_until > now() + interval '50 seconds' AS held FROM queue")
        assert (str(row["id"]), row["line"], row["lease_token"], row["claims"]) == (event_id, id, handover.token, 1)
        assert row["held"]
        assert await deliverer.round() == 0
        assert receiver.counters.received == 1
        handover.deliver()
        await receiver.wait_for(lambda it: it.counters.received == 2)
        await until(lambda: _is_empty(pool))
        handover.deliver()  # there is nothing left of it
    assert [event.id for event in receiver.events][1:] == [event_id]
    assert [one["attempt"] for one in await attempts(pool)] == [1, 1]


async def test_the_body_is_the_one_that_later_attempts_have(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    async with delivering(pool) as deliverer:
        await acquaint(pool, actor, receiver)
        receiver.options = Options(status=500)
        await hand(pool, deliverer, actor)
        await receiver.wait_for(lambda it: it.counters.requests == 2)
        receiver.options = Options()
        await receiver.wait_for(lambda it: it.counters.received == 2)
        await until(lambda: _is_empty(pool))
    assert receiver.events[1].body == receiver.events[2].body
    assert [one["attempt"] for one in await attempts(pool)] == [1, 1, 2]


async def test_what_was_rolled_back_is_nobodys(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    async with delivering(pool) as deliverer:
        await acquaint(pool, actor, receiver)
        handover = deliverer.handover()
        with contextlib.suppress(RolledBack):
            async with pool.acquire() as conn, conn.transaction():
                one = Event(actor.organization_id, uuid7(), KIND, "req-1", DATA, clock.now())
                assert await events.record(conn, [one], handover=handover) == 0
                raise RolledBack
        await acquaint(pool, actor, receiver)
    assert receiver.counters.requests == 2


async def test_what_finds_no_room_is_due_for_everybody(pool: Pool, receiver: Receiver) -> None:
    receiver.options = Options(latency=0.2)
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    async with delivering(pool) as deliverer:
        await acquaint(pool, actor, receiver, 2)
        made, handover = await hand(pool, deliverer, actor, 500, deliver=False)
        ours = await handed(pool, handover)
        assert 0 < len(ours) < 500
        # They are the first ones; a round may have claimed some of the others meanwhile.
        assert ours == set(made[: len(ours)])
        receiver.options = Options()
        handover.deliver()
        deliverer.wake.set()
        await receiver.wait_for(lambda it: it.counters.received == 502)
        await until(lambda: _is_empty(pool))
    assert receiver.counters.duplicates == 0
    assert {event.id for event in receiver.events} >= set(made)


async def test_an_endpoint_that_fails_or_is_unknown_is_handed_nothing(pool: Pool) -> None:
    actor = await organization(pool)
    receiver = Receiver(Options(status=500))
    await receiver.start()
    await endpoint(pool, actor, receiver.url)
    async with delivering(pool, settings(webhook_schedule="0,3600")) as deliverer:
        _, handover = await hand(pool, deliverer, actor, deliver=False)
        assert await handed(pool, handover) == set()
        deliverer.wake.set()
        await until(lambda: _has(pool, 1))
        for number in (2, 3, 4):
            _, handover = await hand(pool, deliverer, actor, deliver=False)
            assert await handed(pool, handover) == set()
            deliverer.wake.set()
            await until(lambda number=number: _has(pool, number))  # type: ignore[misc]
    await receiver.stop()


async def test_nothing_is_handed_over_while_deliveries_are_held_back(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    async with delivering(pool) as deliverer:
        await acquaint(pool, actor, receiver)
        await pool.execute(
            "INSERT INTO queue_holds (id, kind, organization_id) VALUES ($1, 'webhook', $2)",
            uuid7(),
            actor.organization_id,
        )
        await hand(pool, deliverer, actor)
        assert await leased(pool) == 0
        await pool.execute("DELETE FROM queue_holds")
        deliverer.wake.set()
        await receiver.wait_for(lambda it: it.counters.received == 2)
        await until(lambda: _is_empty(pool))


async def test_a_drain_gives_back_what_was_handed_over_also_what_comes_late(pool: Pool) -> None:
    actor = await organization(pool)
    receiver = Receiver()
    await receiver.start()
    await endpoint(pool, actor, receiver.url)
    async with delivering(pool) as deliverer:
        await acquaint(pool, actor, receiver, 5)
        receiver.options = Options(hang=True)
        await hand(pool, deliverer, actor, 20)
        _, late = await hand(pool, deliverer, actor, 2, deliver=False)
        assert await leased(pool) == 22
        await deliverer.drain(0.1)
        assert (await queued(pool), await leased(pool)) == (22, 2)
        late.deliver()
        await deliverer.drain(0.0)
        assert (await queued(pool), await leased(pool)) == (22, 0)
        # It accepts nothing more.
        await hand(pool, deliverer, actor)
        assert (await queued(pool), await leased(pool)) == (23, 0)
    await receiver.stop()


async def test_workers_that_hand_over_share_an_endpoint_without_doubles(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    async with delivering(pool) as one, delivering(pool) as other:
        await acquaint(pool, actor, receiver, 20)
        made: list[str] = []
        for number in range(30):
            made += (await hand(pool, (one, other)[number % 2], actor, 20))[0]
        made += await record(pool, actor, 100)
        await receiver.wait_for(lambda it: it.counters.received == 720)
        await until(lambda: _is_empty(pool))
    assert receiver.counters.duplicates == 0
    assert {event.id for event in receiver.events} >= set(made)
    assert len(await attempts(pool)) == 720


CRASH = """
import asyncio, os, signal, sys
from uuid import UUID
from heliograph.base.process import crash
from heliograph.base.database.pool import open_pool
from heliograph.base.actor import Actor
from tests.hooks import delivering, settings, record, until
from tests.rules.test_webhook_handover import _is_empty, hand

async def main(url, organization, point):
    crash.arm(point)
    pool = await open_pool(url, size=3)
    actor = Actor(UUID(organization), None, "live", frozenset(), "active")
    async with delivering(pool, settings(lease_seconds=1.0)) as deliverer:
        await record(pool, actor)
        await until(lambda: _is_empty(pool))
        _, handover = await hand(pool, deliverer, actor, deliver=False)
        if point == "commit":
            os.kill(os.getpid(), signal.SIGKILL)
        handover.deliver()
        await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("point", "again"),
    [
        ("commit", False),
        ("webhook.before_post:2", False),
        ("webhook.after_post:2", True),
        ("webhook.before_commit:2", True),
        ("webhook.after_commit:2", False),
    ],
)
async def test_a_worker_killed_after_its_commit_loses_nothing(
    pool: Pool, database_url: str, receiver: Receiver, point: str, again: bool
) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CRASH,
        database_url,
        str(actor.organization_id),
        point,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stderr=subprocess.DEVNULL,
    )
    async with asyncio.timeout(120):
        assert await process.wait() == -signal.SIGKILL
    async with delivering(pool, settings(lease_seconds=1.0)):
        await receiver.wait_for(lambda it: it.counters.received + it.counters.duplicates == 2 + again)
        await until(lambda: _is_empty(pool))
    assert len({event.id for event in receiver.events}) == 2
    assert [(row["attempt"], row["result"]) for row in await attempts(pool)] == [(1, "delivered")] * 2


async def test_a_database_that_goes_away_in_the_middle_costs_no_delivery(
    pool: Pool, database_url: str, receiver: Receiver
) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    # The one connection that ends all others.
    own = await open_pool(database_url, size=1)
    async with delivering(pool, settings(lease_seconds=2.0)) as deliverer:
        await acquaint(own, actor, receiver, 10)
        for _ in range(3):
            _, handover = await hand(own, deliverer, actor, 20, deliver=False)
            async with own.acquire() as conn:
                handover.deliver()
                await conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE backend_type = 'client backend' AND datname = current_database()"
                    " AND usename = current_user AND pid <> pg_backend_pid()"
                )
        await receiver.wait_for(lambda it: it.counters.received == 70)
        await until(lambda: _is_empty(own))
    made = await attempts(own)
    own.terminate()
    assert {one["result"] for one in made} == {"delivered"}
    assert len({one["event_id"] for one in made}) == 70


class _Worker:
    """A running deliverer with connections of its own. If killed, it neither records nor returns anything."""

    def __init__(self, pool: Pool, under: Any) -> None:
        self._pool = pool
        self._client = HttpClient(webhook_rules(under))
        self.deliverer = Deliverer(pool, self._client, under, seal_key=endpoints.seal_key(under))
        self._stopping = asyncio.Event()
        step = self.deliverer
        self._tasks = [
            asyncio.create_task(loop("webhooks", step.round, wake=step.wake, poll=0.05, stopping=self._stopping)),
            asyncio.create_task(every("renew", step.renew, seconds=under.lease_seconds / 3, stopping=self._stopping)),
        ]

    async def kill(self) -> None:
        self._pool.suspend()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def drain(self) -> None:
        self._stopping.set()
        self.deliverer.wake.set()
        await asyncio.gather(*self._tasks)
        await self.deliverer.drain(0.05)
        await self._client.close()
        self._pool.terminate()


class Handing(Machine):
    """Two workers that record and deliver are drained or killed, while the receiver works, fails or hangs."""

    tables = ("webhook_attempts", "webhook_successes", "events", "queue")
    url: str

    @initialize()
    def begin(self) -> None:
        self.under = settings(
            lease_seconds=0.4, webhook_timeout_seconds=0.3, webhook_schedule="0" + ",0.05" * 60, webhook_concurrency=16
        )
        self.committed: set[str] = set()
        self.run(self._begin())

    async def _begin(self) -> None:
        self.receiver = Receiver()
        await self.receiver.start()
        self.actor = await organization(self.pool)
        for _ in range(2):
            await endpoint(self.pool, self.actor, self.receiver.url)
        self.workers = [await self._worker() for _ in range(2)]

    async def _worker(self) -> _Worker:
        return _Worker(await open_pool(self.url, size=2), self.under)

    @rule(worker=st.integers(0, 1), counts=st.lists(st.integers(1, 8), min_size=1, max_size=4), keep=st.booleans())
    def hand(self, worker: int, counts: Sequence[int], keep: bool) -> None:
        """Transactions one after the other; the last of them may be rolled back."""

        async def work() -> None:
            deliverer = self.workers[worker].deliverer
            for count in counts:
                made, _ = await hand(self.pool, deliverer, self.actor, count)
                self.committed.update(made)
            if not keep:
                handover = deliverer.handover()
                with contextlib.suppress(RolledBack):
                    async with self.pool.acquire() as conn, conn.transaction():
                        one = Event(self.actor.organization_id, uuid7(), KIND, "r", DATA, clock.now())
                        await events.record(conn, [one], handover=handover)
                        raise RolledBack

        self.run(work())

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1]))
    def go_on(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(
        options=st.sampled_from(
            [Options(), Options(), Options(status=500), Options(hang=True), Options(fail_share=0.3)]
        )
    )
    def behave(self, options: Options) -> None:
        self.receiver.options = options

    @rule(worker=st.integers(0, 1), killed=st.booleans())
    def replace(self, worker: int, killed: bool) -> None:
        async def work() -> None:
            old = self.workers[worker]
            await (old.kill() if killed else old.drain())
            self.workers[worker] = await self._worker()

        self.run(work())

    def teardown(self) -> None:
        if hasattr(self, "workers"):
            self.run(self._end())

    async def _end(self) -> None:
        self.receiver.options = Options()
        await until(lambda: _is_empty(self.pool))
        for worker in self.workers:
            await worker.drain()
        await self.receiver.stop()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # of those that were killed
            task.cancel()
        assert {one.id for one in self.receiver.events if 200 <= one.status < 300} == self.committed
        recorded = await attempts(self.pool)
        for id in self.committed:
            of_it = [one for one in recorded if one["event_id"] == UUID(id)]
            for line in {one["endpoint_id"] for one in of_it}:
                numbers = [one["attempt"] for one in of_it if one["endpoint_id"] == line]
                assert sorted(numbers) == list(range(1, len(numbers) + 1))
            # Each endpoint has answered it with 2xx.
            assert len({one["endpoint_id"] for one in of_it if one["result"] == "delivered"}) == 2


async def test_whatever_becomes_of_workers_every_event_arrives(database_url: str) -> None:
    Handing.url = database_url
    # Each run waits for leases to end.
    few = Settings(BOUNDED, max_examples=max(4, BOUNDED.max_examples // 3), stateful_step_count=15)
    await asyncio.to_thread(run_machine, Handing, database_url, few)


async def _is_empty(pool: Pool) -> bool:
    return await queued(pool) == 0


async def _has(pool: Pool, count: int) -> bool:
    return len(await attempts(pool)) >= count
