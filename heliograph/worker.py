"""The worker process: everything behind the 202. Any number of them share one database.

THE table of its work is `Worker.run`: loops (kind of work, function) and timers (name, function, how often; those
marked `shared` are run by one worker at a time).

The rule nobody may break: a worker may end at any instant. On SIGTERM it stops claiming, lets open work finish for
`drain_seconds`, records every answer that came, gives back its sessions and ends; after kill -9 others take over
when its leases end.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from uuid import UUID

import structlog

from heliograph import retention
from heliograph.accounts import plans
from heliograph.base import clock, crash, pulse
from heliograph.base.db import Connection, Pool, is_down, open_pool
from heliograph.base.ids import uuid7
from heliograph.base.settings import Settings
from heliograph.campaigns import audience, counting
from heliograph.campaigns.staging import Stager
from heliograph.http.client import HttpClient
from heliograph.queue import leases, timers
from heliograph.queue.runner import announce, every, listen, loop, once
from heliograph.sms import diagnosis, inbox, receipts, suppliers, test_mode
from heliograph.sms.dispatch import Dispatcher
from heliograph.sms.receipts import ReceivedReceipt
from heliograph.sms.reception import Reception
from heliograph.sms.recorder import Recorder
from heliograph.sms.supplier_pool import SupplierPool
from heliograph.suppliers.contract import Outcome, Receipt, Submission
from heliograph.suppliers.smpp import connector as smpp
from heliograph.webhooks import endpoints, replays
from heliograph.webhooks.delivery import Deliverer
from heliograph.webhooks.handover import Handover
from heliograph.whatsapp import apps, expiry
from heliograph.whatsapp.inbound import Inbox
from heliograph.whatsapp.mirror import Mirror
from heliograph.whatsapp.rates import RateBook
from heliograph.whatsapp.sending import Sending

log = structlog.get_logger()

#: Test receipts brought at once.
TEST_BATCH = 500

BEAT = """
INSERT INTO workers (id, name, started_at, seen_at, clock_ahead) VALUES ($1, $2, now(), now(), $3)
ON CONFLICT (id) DO UPDATE SET seen_at = now(), clock_ahead = excluded.clock_ahead
"""


class Worker:
    """One worker process's parts, and their life."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._settings = settings
        self._pool = pool
        self._id = uuid7()
        self._stopping = asyncio.Event()
        key = suppliers.seal_key(settings)
        self._recorder = Recorder(pool, grace=settings.uncertain_grace_seconds, handover=self._handover)
        self._reception = Reception(
            pool,
            lease_seconds=settings.lease_seconds,
            on_deliveries=lambda: self._deliverer.wake.set(),
            on_messages=lambda: self._dispatcher.wake.set(),
        )
        self._fleet = SupplierPool(
            pool,
            self._id,
            factories={"smpp": partial(smpp.connect, late=settings.uncertain_grace_seconds)},
            unseal=lambda supplier: suppliers.open_secret(key, supplier),
            on_outcome=self._outcome,
            on_receipts=self._receipts,
            on_inbound=self._reception.receive,
        )
        self._dispatcher = Dispatcher(
            pool,
            self._fleet.accounts,
            self._recorder,
            claim_limit=settings.claim_limit,
            lease_seconds=settings.lease_seconds,
            grace=settings.uncertain_grace_seconds,
            patience=settings.supplier_patience_seconds,
        )
        self._whatsapp = Sending(pool, settings, handover=self._handover)
        self._mirror = Mirror(pool, key=apps.seal_key(settings), on_deliveries=lambda: self._deliverer.wake.set())
        self._callbacks = Inbox(
            pool,
            apps.seal_key(settings),
            RateBook(pool),
            on_deliveries=lambda: self._deliverer.wake.set(),
            on_standing=self._whatsapp.standing.set,
            handover=self._handover,
        )
        self._outbound = HttpClient(settings)
        self._deliverer = Deliverer(pool, self._outbound, settings, seal_key=endpoints.seal_key(settings))
        self._words, self._adviser = diagnosis.Words(), diagnosis.Adviser()
        self._test_wake = asyncio.Event()
        wakes = {"sms": self._dispatcher.wake, "whatsapp": self._whatsapp.wake}
        self._stager = Stager(pool, on_staged=lambda channel: wakes[channel].set())
        self._campaign_wake = asyncio.Event()

    async def run(self, *, on_ready: Callable[[], None] = lambda: None) -> None:
        """Work until `stop`; returns after the orderly end."""
        settings = self._settings
        await self._fleet.start()
        await self._whatsapp.start()
        # The database may go away again before anything is under way.
        await once("start", self._begin, stopping=self._stopping)
        tasks = [
            self._loop("dispatch", self._dispatcher.round, self._dispatcher.wake),
            self._loop("webhooks", self._deliverer.round, self._deliverer.wake),
            self._loop("test receipts", self._test_receipts, self._test_wake),
            self._loop("inbox", self._reception.round, self._reception.wake),
            self._loop("replies", self._reception.reply, self._reception.wake_replies),
            self._loop("whatsapp", self._whatsapp.round, self._whatsapp.wake),
            self._loop("whatsapp tests", self._whatsapp.test_statuses, self._whatsapp.wake_tests),
            self._loop("callbacks", self._callbacks.round, self._callbacks.wake),
            self._loop("campaigns", self._stager.round, self._campaign_wake),
            self._every("beat", self._beat, 5.0),
            self._every("suppliers", self._refresh, 1.0),
            self._loop("whatsapp numbers", self._whatsapp.refresh, self._whatsapp.standing, poll=1.0),
            self._every("whatsapp mirror", self._mirror.step, 1.0),
            self._every("renew", self._renew, settings.lease_seconds / 3),
            self._every("receipts", self._shared("receipts", 1.0, self._sweep_receipts), 0.5),
            self._every(expiry.TIMER, self._shared(expiry.TIMER, 1.0, self._whatsapp.expire), 0.5),
            self._every("receipt words", self._store_words, 5.0),
            self._every("receipt ids", self._shared("receipt ids", 20.0, self._adviser.look), 10.0),
            self._every("quiet", self._shared("quiet", 60.0, receipts.close_quiet), 15.0),
            self._every("silent", self._shared("silent", 60.0, self._close_silent), 15.0),
            self._every("keys", self._shared("keys", 600.0, self._forget_keys, in_steps=True), 60.0),
            self._every("replays", self._shared("replays", 1.0, self._replay, in_steps=True), 0.5),
            self._every("campaigns", self._shared("campaigns", 1.0, self._count_campaigns), 0.5),
            self._every("forget", self._shared("forget", 3600.0, self._forget, in_steps=True), 60.0),
            self._every("plans", self._shared("plans", 30.0, self._renew_plans, in_steps=True), 10.0),
            asyncio.create_task(listen(settings.database_url, self._wake)),
            asyncio.create_task(announce(self._pool, self._dispatcher.passed_on)),
            asyncio.create_task(self._pass_on(self._recorder.deliveries, self._deliverer.wake)),
            asyncio.create_task(self._pass_on(self._whatsapp.deliveries, self._deliverer.wake)),
        ]
        # Long-lived objects are not worth looking at in every collection: 9–15 % of the time under load.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        clock.running()
        on_ready()
        await self._stopping.wait()
        await self._end(tasks)

    def stop(self) -> None:
        """Begin the orderly end; the second call ends the process at once."""
        if self._stopping.is_set():
            os._exit(1)
        self._stopping.set()
        reception = self._reception
        for event in (
            self._dispatcher.wake,
            self._deliverer.wake,
            self._test_wake,
            self._campaign_wake,
            self._callbacks.wake,
            self._whatsapp.wake,
            self._whatsapp.wake_tests,
            self._whatsapp.standing,
            reception.wake,
            reception.wake_replies,
        ):
            event.set()

    async def _begin(self) -> None:
        async with self._pool.acquire() as conn:
            for name in (
                "receipts",
                "receipt ids",
                "quiet",
                "silent",
                "keys",
                "forget",
                "plans",
                "replays",
                "campaigns",
                inbox.TIMER,
                expiry.TIMER,
            ):
                await timers.ensure(conn, name)
        await self._beat()
        await self._refresh()
        await self._whatsapp.refresh()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        grace = self._settings.drain_seconds
        await asyncio.gather(
            self._fleet.stop(grace=grace),
            self._whatsapp.stop(grace=grace),
            self._deliverer.drain(grace),
            return_exceptions=True,
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await asyncio.wait_for(self._recorder.drain(), grace)
            await asyncio.wait_for(self._whatsapp.drain(), grace)
            await asyncio.wait_for(self._reception.drain(), grace)
            await self._deliverer.drain(0.0)  # what was handed over since
            await self._fleet.give_back()
            await self._pool.execute("DELETE FROM workers WHERE id = $1", self._id)
        except Exception as error:
            log.warning("ended without the database", error=type(error).__name__)
        await self._mirror.close()
        await self._outbound.close()

    def _loop(
        self, name: str, step: Callable[[], Awaitable[int]], wake: asyncio.Event, *, poll: float | None = None
    ) -> asyncio.Task[None]:
        seconds = self._settings.poll_seconds if poll is None else poll
        return asyncio.create_task(loop(name, step, wake=wake, poll=seconds, stopping=self._stopping))

    def _every(self, name: str, step: Callable[[], Awaitable[object]], seconds: float) -> asyncio.Task[None]:
        return asyncio.create_task(every(name, step, seconds=seconds, stopping=self._stopping))

    def _shared(
        self, name: str, seconds: float, step: Callable[[Connection], Awaitable[object]], *, in_steps: bool = False
    ) -> Callable[[], Awaitable[None]]:
        """Run by whichever worker moves the timer. Taking it is a commit of its own: a step that fails waits.

        `in_steps`: it commits by itself, since what it locks must not stay locked until its end.
        """

        async def once() -> None:
            async with self._pool.acquire() as conn:
                if not await timers.take(conn, name, every=seconds):
                    return
                if in_steps:
                    await step(conn)
                    return
                async with conn.transaction():
                    await step(conn)

        return once

    async def _pass_on(self, source: asyncio.Event, target: asyncio.Event) -> None:
        while True:
            await source.wait()
            source.clear()
            target.set()

    def _wake(self) -> None:
        self._dispatcher.wake.set()
        self._deliverer.wake.set()
        self._whatsapp.wake.set()
        self._callbacks.wake.set()

    def _handover(self) -> Handover:
        return self._deliverer.handover()

    def _outcome(self, supplier_id: UUID, submission: Submission, outcome: Outcome) -> None:
        self._dispatcher.answered(supplier_id, submission, outcome)
        if supplier_id == test_mode.SUPPLIER:
            self._test_wake.set()

    async def _receipts(self, supplier_id: UUID, received: Sequence[Receipt]) -> None:
        await self._recorder.receipts([ReceivedReceipt(supplier_id, receipt) for receipt in received])
        for receipt in received:
            if receipt.unknown_word:
                self._words.add(supplier_id, receipt.unknown_word)

    async def _test_receipts(self) -> int:
        async with self._pool.acquire() as conn:
            claimed = await leases.claim(
                conn, "test", {test_mode.SUPPLIER: TEST_BATCH}, seconds=self._settings.lease_seconds
            )
            if not claimed:
                return 0
            due = await test_mode.due_receipts(conn, [(lease.organization_id, lease.id) for lease in claimed])
        await self._receipts(test_mode.SUPPLIER, due)
        async with self._pool.acquire() as conn:
            await leases.finish(conn, claimed)
        return len(claimed)

    async def _beat(self) -> None:
        name = f"{socket.gethostname()}:{os.getpid()}"
        await self._pool.execute(BEAT, self._id, name, clock.ahead())

    async def _refresh(self) -> None:
        await self._fleet.refresh(grace=self._settings.drain_seconds)
        self._recorder.policies = self._fleet.policies()
        self._dispatcher.wake.set()

    async def _renew(self) -> None:
        await self._dispatcher.renew()
        await self._whatsapp.renew()
        await self._deliverer.renew()

    async def _sweep_receipts(self, conn: Connection) -> None:
        applied, orphans = await receipts.sweep(conn, policies=self._recorder.policies)
        if applied.deliveries:
            self._deliverer.wake.set()
        if orphans:
            log.warning("orphaned receipts", count=orphans)

    async def _store_words(self) -> None:
        async with self._pool.acquire() as conn:
            await self._words.store(conn)

    async def _close_silent(self, conn: Connection) -> None:
        deadline = timedelta(hours=self._settings.receipt_deadline_hours)
        await receipts.close_silent(conn, deadline=deadline, span=timedelta(hours=1))

    async def _replay(self, conn: Connection) -> None:
        if await replays.advance(conn):
            self._deliverer.wake.set()

    async def _renew_plans(self, conn: Connection) -> None:
        await plans.renew(conn)

    async def _count_campaigns(self, conn: Connection) -> None:
        await counting.count_due(conn)

    async def _forget_keys(self, conn: Connection) -> None:
        await retention.forget_keys(conn, self._settings)

    async def _forget(self, conn: Connection) -> None:
        step = retention.Step("recipients of campaigns", _forget_recipients)
        if not await retention.forget(conn, self._settings, also=[step]):
            await timers.hasten(conn, "forget")


async def _forget_recipients(conn: Connection) -> bool:
    return await audience.forget(conn) < audience.MOST_FORGOTTEN


async def work(settings: Settings, *, stop: asyncio.Event, on_ready: Callable[[], None] = lambda: None) -> None:
    """Run a worker until `stop` is set. Waits for the database at the start, and lives through its absences.

    Raises ClockDiffers at the start.
    """
    crash.arm(settings.crash_at)
    clock.arm(settings.clock_shift)
    pool = await open_pool(settings.database_url, size=settings.database_pool, wait=60.0)
    beating = asyncio.create_task(pulse.watch(pool))
    try:
        clock.demand()
        worker = Worker(settings, pool)

        async def watch() -> None:
            await stop.wait()
            worker.stop()

        watcher = asyncio.create_task(watch())
        try:
            await worker.run(on_ready=on_ready)
        finally:
            watcher.cancel()
    finally:
        beating.cancel()
        try:
            await asyncio.wait_for(pool.close(), 5.0)
        except Exception as error:
            if not is_down(error):
                raise
            pool.terminate()
