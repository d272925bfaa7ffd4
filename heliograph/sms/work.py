"""A worker's tasks for SMS: suppliers' sessions, dispatch, answers, receipts, messages from handsets, test keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from uuid import UUID

import structlog

from heliograph.base.database.pool import Connection, Pool
from heliograph.base.process import measures
from heliograph.base.process.measures import Gauge
from heliograph.base.process.settings import Settings
from heliograph.guard import sharing
from heliograph.networks import asked
from heliograph.networks.learned import Notes
from heliograph.prices import margins
from heliograph.queue import stalled
from heliograph.queue.backlog import Backlog
from heliograph.queue.runner import announce
from heliograph.queue.work import Loop, SharedTimer, Timer, Work
from heliograph.sending import test_reports
from heliograph.sending.dispatch import Dispatcher
from heliograph.sending.results import Results
from heliograph.sms.arrivals import FAILURES
from heliograph.sms.callbacks import addresses, intake
from heliograph.sms.callbacks.processing import CallbackProcessing
from heliograph.sms.charges import Charges
from heliograph.sms.dispatch import adapting, held, suppliers, test_mode
from heliograph.sms.dispatch.channel import SmsChannel
from heliograph.sms.dispatch.supplier_pool import SupplierPool
from heliograph.sms.lookups.asking import Lookups
from heliograph.sms.received import inbox, replies
from heliograph.sms.received.reception import Reception
from heliograph.sms.reports import diagnosis, parts, silence, waiting
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.sms.reports.words import Words
from heliograph.sms.watched.last_receipts import LastReceipts
from heliograph.suppliers import kinds
from heliograph.suppliers.contract import Account, Outcome, PartlyStored, Receipt, Submission, Verdict
from heliograph.webhooks.recording.handover import Deliveries

log = structlog.get_logger()

#: Looked up once: accessing a member of an enumeration is slow enough to matter per message.
_ACCEPTED = Verdict.ACCEPTED

WAITING = "Answers and reports that are not committed yet"


class SmsWork(Work):
    """SMS within one worker."""

    def __init__(
        self, pool: Pool, settings: Settings, worker_id: UUID, deliveries: Deliveries, backlog: Backlog
    ) -> None:
        """`deliveries`: delivers the events raised here."""
        self._pool = pool
        self._backlog = backlog
        self._settings = settings
        self._deliveries = deliveries
        measures.LOST.expect(("sms", code) for code in FAILURES)
        key = suppliers.seal_key(settings)
        grace = settings.uncertain_grace_seconds
        self._reception = Reception(
            pool,
            lease_seconds=settings.lease_seconds,
            on_deliveries=deliveries.queued,
            on_messages=lambda: self.wake.set(),
            backlog=backlog,
        )
        self._suppliers = SupplierPool(
            pool,
            worker_id,
            factories=kinds.factories(late=grace, lost_until=lambda: self._dispatcher.flights.lost_until()),
            account=lambda supplier: Account(
                supplier.id,
                supplier.settings,
                suppliers.open_secret(key, supplier),
                addresses.address(settings, supplier.id),
            ),
            on_outcome=self._answered,
            on_receipts=self._received,
            on_inbound=self._reception.receive,
            backlog=backlog,
        )
        self._charges = Charges()
        self._lookups = Lookups(pool, key, self._charges.directory)
        self._channel = SmsChannel(
            pool,
            self._suppliers.accounts,
            grace=grace,
            patience=settings.supplier_patience_seconds,
            backlog=backlog,
            routes=self._suppliers.routes,
            charges=self._charges,
            book=self._suppliers.book,
            lookups=self._lookups,
        )
        self._callbacks = CallbackProcessing(
            pool,
            key,
            lambda id: self._suppliers.accounts().get(id),
            on_receipts=self._received,
            on_inbound=self._reception.wake.set,
            backlog=backlog,
        )
        self._results: Results[ReceivedReceipt] = Results(pool, self._channel, deliveries)
        self._dispatcher = Dispatcher(
            pool,
            self._channel,
            self._results,
            claim_limit=settings.claim_limit,
            lease_seconds=settings.lease_seconds,
            backlog=backlog,
        )
        self.wake = self._channel.wake
        self._words, self._adviser, self._last_receipts = Words(), diagnosis.Adviser(), LastReceipts()
        self._networks = Notes()
        self._wake_tests = asyncio.Event()
        backlog.on_work("sms", self.wake.set)
        backlog.on_work("test", self._wake_tests.set)
        backlog.on_work(intake.KIND, self._callbacks.wake.set)
        backlog.on_work(replies.KIND, self._reception.wake_replies.set)

    def loops(self) -> Sequence[Loop]:
        reception = self._reception
        return (
            Loop("dispatch", self._dispatcher.round, self.wake),
            Loop("test receipts", self._test_receipts, self._wake_tests),
            Loop("supplier callbacks", self._callbacks.round, self._callbacks.wake),
            Loop("inbox", reception.round, reception.wake, when=inbox.ANY_DUE),
            Loop("look-ups", self._lookups.round, self._lookups.wake, when=asked.ANY, least=0.2),
            Loop("replies", reception.reply, reception.wake_replies),
        )

    def timers(self) -> Sequence[Timer | SharedTimer]:
        return (
            Timer("suppliers", self._refresh, 1.0),
            Timer("notes", self._store_notes, 5.0),
            Timer("charges", self._keep_up, 5.0),
            Timer("supplier hours", self._keep_hours, 60.0),
            Timer("guard", self._share, sharing.EVERY),
            SharedTimer("shares", adapting.step, adapting.EVERY, when=adapting.ANY),
            SharedTimer("margins", margins.fold, 10.0, when=margins.ANY, in_steps=True),
            SharedTimer("receipts", self._sweep_receipts, 1.0, when=waiting.ANY_DUE, in_steps=True),
            SharedTimer("receipt ids", self._adviser.look, 20.0),
            SharedTimer("held", self._expiring(held.expire), 5.0, when=held.ANY, in_steps=True),
            SharedTimer(
                held.TIMER, self._expiring(held.expire_stalled), stalled.EVERY, when=stalled.ANY, in_steps=True
            ),
            SharedTimer(parts.TIMER, parts.close_quiet, 60.0, in_steps=True),
            SharedTimer(silence.TIMER, self._close_silent, 60.0, in_steps=True),
        )

    def gauges(self) -> Iterable[Gauge]:
        yield Gauge("heliograph_results_waiting", WAITING, self._results.waiting, {"channel": "sms"})
        for id, account in list(self._suppliers.accounts().items()):
            if id == test_mode.SUPPLIER:
                continue
            supplier, health = {"supplier": account.supplier.name}, account.connector.health()
            # A paused supplier has none, but is not down.
            if account.supplier.state != "paused":
                yield Gauge("heliograph_supplier_sessions", "Sessions bound by this worker", health.sessions, supplier)
            yield Gauge("heliograph_supplier_in_flight", "Segments without an answer", health.in_flight, supplier)
            yield Gauge(
                "heliograph_supplier_window", "Maximum number of segments without an answer", health.window, supplier
            )
            yield Gauge(
                "heliograph_supplier_circuit_open",
                "Whether its circuit is open, so that it is avoided",
                account.breaker.open,
                supplier,
            )

    def background(self) -> Sequence[Awaitable[None]]:
        return (announce(self._pool, self._channel.passed_on),)

    def queued(self) -> None:
        self.wake.set()

    async def start(self) -> None:
        await self._suppliers.start()

    async def begin(self) -> None:
        await self._refresh()
        await self._networks_of_routes()
        await self._charges.refresh(self._pool)

    async def stop(self, *, grace: float) -> None:
        await asyncio.gather(
            self._dispatcher.stop(grace=grace),
            self._suppliers.stop(grace=grace),
            self._lookups.stop(grace=grace),
            self._reception.stop(grace=grace),
        )

    async def drain(self) -> None:
        await self._dispatcher.drain()
        await self._reception.drain()
        await self._suppliers.give_back()
        await self._store_notes()
        await self._keep_hours()

    async def close(self) -> None:
        await self._lookups.close()

    async def linger(self) -> None:
        await self._dispatcher.linger()

    async def renew(self) -> None:
        await self._dispatcher.renew()

    def _answered(self, supplier_id: UUID, submission: Submission, outcome: Outcome) -> None:
        self._dispatcher.answered((submission.message_id, submission.attempt), outcome)
        if outcome.verdict is not _ACCEPTED:
            self._words.answer(supplier_id, outcome)
        if supplier_id == test_mode.SUPPLIER:
            self._wake_tests.set()

    async def _received(self, supplier_id: UUID, received: Sequence[Receipt]) -> None:
        failed: PartlyStored | None = None
        try:
            await self._results.report([ReceivedReceipt(supplier_id, receipt) for receipt in received])
        except PartlyStored as error:
            failed = error
            received = [receipt for place, receipt in enumerate(received) if place not in error.errors]
        if received:
            self._last_receipts.note(supplier_id)
        for receipt in received:
            if receipt.unknown_word or receipt.error:
                self._words.add(supplier_id, receipt)
            if receipt.network:
                self._networks.add(receipt.recipient, receipt.network)
        if failed is not None:
            raise failed

    async def _test_receipts(self) -> int:
        """Deliver the receipts of test messages."""
        return await test_reports.bring(
            self._pool,
            self._backlog,
            "test",
            test_mode.SUPPLIER,
            made=test_mode.due_receipts,
            record=partial(self._received, test_mode.SUPPLIER),
            seconds=self._settings.lease_seconds,
        )

    async def _refresh(self) -> None:
        await self._suppliers.refresh(grace=self._settings.drain_seconds)
        self._channel.policies = self._suppliers.policies()
        if self._backlog.waits("sms"):
            self.wake.set()

    def _expiring(self, expire: Callable[[Connection], Awaitable[int]]) -> Callable[[Connection], Awaitable[None]]:
        """The step of a timer that announces the webhook deliveries which `expire` queued."""

        async def step(conn: Connection) -> None:
            if await expire(conn):
                self._deliveries.queued()

        return step

    async def _sweep_receipts(self, conn: Connection) -> None:
        applied, orphans = await waiting.sweep(conn, policies=self._channel.policies)
        if applied.deliveries:
            self._deliveries.queued()
        if orphans:
            log.warning("orphaned receipts", count=orphans)

    async def _keep_up(self) -> None:
        """Refresh look-ups, suppliers' charges and their measured quality."""
        await self._networks_of_routes()
        await self._charges.refresh(self._pool)
        await self._channel.measure(self._pool)

    async def _store_notes(self) -> None:
        """Store notes from receipts and answers. Each by itself: a row of one kind may be locked for hours."""
        failed: Exception | None = None
        async with self._pool.acquire() as conn:
            for notes in (self._words, self._last_receipts, self._networks):
                try:
                    await notes.store(conn)
                except Exception as error:
                    failed = error
        if failed is not None:
            raise failed

    async def _keep_hours(self) -> None:
        async with self._pool.acquire() as conn:
            await self._suppliers.hours.store(conn)

    async def _networks_of_routes(self) -> None:
        """Apply routes to look-ups: networks of numbers matter only if routes name networks."""
        routes = self._suppliers.routes()
        self._charges.routes_by_network = any(route.network is not None or route.apart for route in routes)
        await self._lookups.refresh(self._pool, routes)

    async def _share(self) -> None:
        await self._channel.share(self._pool)

    async def _close_silent(self, conn: Connection) -> None:
        deadline = timedelta(hours=self._settings.receipt_deadline_hours)
        await silence.close_silent(conn, deadline=deadline, span=timedelta(hours=1))
