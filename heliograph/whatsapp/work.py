"""A worker's tasks for WhatsApp: numbers, dispatch, answers, callbacks, the mirror of Meta's tables, test keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from heliograph.base.database.pool import Connection, Pool
from heliograph.base.process import measures
from heliograph.base.process.settings import Settings
from heliograph.queue import stalled
from heliograph.queue.backlog import Backlog
from heliograph.queue.work import Loop, SharedTimer, Timer, Work
from heliograph.sending import test_reports
from heliograph.sending.dispatch import Dispatcher
from heliograph.sending.results import Results
from heliograph.suppliers.whatsapp_cloud.contract import CloudOutcome, CloudSubmission, OnCloudOutcome
from heliograph.suppliers.whatsapp_cloud.credential import Credential
from heliograph.webhooks.recording.handover import Deliveries
from heliograph.whatsapp.callbacks import dead_letters, expiry, intake
from heliograph.whatsapp.callbacks.processing import retries
from heliograph.whatsapp.callbacks.processing.inbox import Inbox
from heliograph.whatsapp.dispatch import held, parking, test_mode
from heliograph.whatsapp.dispatch.channel import WhatsAppChannel
from heliograph.whatsapp.dispatch.number_pool import CloudFactory, NumberPool, PooledConnector
from heliograph.whatsapp.mirror import accounts, apps, reading
from heliograph.whatsapp.mirror.accounts import SendingNumber
from heliograph.whatsapp.mirror.reading import Mirror
from heliograph.whatsapp.money.rates import RateBook
from heliograph.whatsapp.status import FAILURES, Move


class WhatsAppWork(Work):
    """WhatsApp within one worker."""

    def __init__(
        self, pool: Pool, settings: Settings, worker_id: UUID, deliveries: Deliveries, backlog: Backlog
    ) -> None:
        """`deliveries`: delivers the events raised here."""
        self._pool = pool
        self._backlog = backlog
        self._settings = settings
        self._deliveries = deliveries
        measures.LOST.expect(("whatsapp", code) for code in FAILURES)
        key = self._key = apps.seal_key(settings)
        self._factory: CloudFactory | None = None
        self._numbers = NumberPool(
            pool,
            factory=self._connect,
            unseal=lambda number: accounts.credential_of(key, number),
            on_outcome=self._answered,
            on_early=self._early,
        )
        self._channel = WhatsAppChannel(
            pool, self._numbers.slots, grace=settings.whatsapp_uncertain_grace_seconds, backlog=backlog
        )
        self._results: Results[Move] = Results(pool, self._channel, deliveries)
        self._results.committed = self._channel.remember
        self._dispatcher = Dispatcher(
            pool,
            self._channel,
            self._results,
            claim_limit=settings.claim_limit,
            lease_seconds=settings.lease_seconds,
            backlog=backlog,
        )
        self.wake = self._channel.wake
        self._rates = RateBook(pool)
        #: The id below which dead letters are retried next.
        self._retried_to = dead_letters.NEWEST
        self._wake_tests = asyncio.Event()
        #: Set when a number may have been stopped or resumed since the tables were last read.
        self._standing = asyncio.Event()
        self._callbacks = Inbox(
            pool,
            key,
            RateBook(pool),
            on_deliveries=deliveries.queued,
            on_standing=self._standing.set,
            handover=deliveries.handover,
            backlog=backlog,
            named=self._channel.named,
        )
        backlog.on_work("whatsapp", self.wake.set)
        backlog.on_work(test_mode.KIND, self._wake_tests.set)
        backlog.on_work(intake.KIND, self._callbacks.wake.set)
        self._mirror = Mirror(pool, key=key, on_deliveries=deliveries.queued)

    def loops(self) -> Sequence[Loop]:
        return (
            # Messages parked for their template are not due, but may be sent as soon as the template is back.
            Loop("whatsapp", self._dispatcher.round, self.wake, when=parking.ANY),
            Loop("whatsapp tests", self._test_statuses, self._wake_tests),
            Loop("callbacks", self._callbacks.round, self._callbacks.wake),
            Loop("whatsapp numbers", self._refresh, self._standing, when=accounts.ANY_NUMBER, least=1.0),
            Loop("whatsapp mirror", self._mirror.step, asyncio.Event(), when=reading.ANY_DUE),
        )

    def timers(self) -> Sequence[Timer | SharedTimer]:
        return (
            SharedTimer(expiry.TIMER, self._expire, 1.0, when=expiry.ANY_DUE, in_steps=True),
            SharedTimer(dead_letters.TIMER, self._retry, dead_letters.EVERY, when=dead_letters.ANY_AWAITED),
            SharedTimer(held.TIMER, self._expire_stalled, stalled.EVERY, when=stalled.ANY, in_steps=True),
        )

    def queued(self) -> None:
        self.wake.set()
        self._callbacks.wake.set()

    async def start(self) -> None:
        await self._numbers.start()

    async def begin(self) -> None:
        await self._refresh()

    async def stop(self, *, grace: float) -> None:
        await asyncio.gather(self._dispatcher.stop(grace=grace), self._numbers.stop(grace=grace))
        if self._factory is not None:
            await self._factory.close()

    async def drain(self) -> None:
        await self._dispatcher.drain()

    async def linger(self) -> None:
        await self._dispatcher.linger()

    async def renew(self) -> None:
        await self._dispatcher.renew()

    async def close(self) -> None:
        await self._mirror.close()

    def _answered(self, number_id: UUID, submission: CloudSubmission, outcome: CloudOutcome) -> None:
        self._dispatcher.answered((submission.message_id, submission.attempt), outcome)
        if number_id == test_mode.LINE:
            self._wake_tests.set()

    async def _early(self, message_id: UUID) -> None:
        """Report the statuses of a test message before its answer."""
        for attempt in self._dispatcher.flights.of(message_id):
            lease = attempt.lease
            await self._results.report(test_mode.statuses(lease.organization_id, lease.id, attempt.message.recipient))

    async def _test_statuses(self) -> int:
        """Deliver the statuses of test messages."""
        return await test_reports.bring(
            self._pool,
            self._backlog,
            test_mode.KIND,
            test_mode.LINE,
            made=test_mode.due,
            record=self._results.report,
            seconds=self._settings.lease_seconds,
        )

    async def _refresh(self) -> int:
        """Sync with the tables: numbers, tokens, holds, rates. Returns 0: nothing more to do."""
        await self._numbers.refresh(grace=self._settings.drain_seconds)
        if self._backlog.waits("whatsapp"):
            self.wake.set()
        return 0

    async def _expire(self, conn: Connection) -> None:
        """Expire messages past their deadline."""
        _, deliveries = await expiry.sweep(conn, self._rates)
        if deliveries:
            self._deliveries.queued()

    async def _retry(self, conn: Connection) -> None:
        """Apply users' messages to numbers that were not known yet when they arrived."""
        deliveries, self._retried_to = await retries.retry_awaited(conn, self._key, self._rates, below=self._retried_to)
        if deliveries:
            self._deliveries.queued()

    async def _expire_stalled(self, conn: Connection) -> None:
        if await held.expire(conn):
            self._deliveries.queued()

    def _connect(self, number: SendingNumber, credential: Credential, on_outcome: OnCloudOutcome) -> PooledConnector:
        if self._factory is None:
            self._factory = CloudFactory(self._dispatcher.flights.lost_until)  # connections belong to the running loop
        return self._factory(number, credential, on_outcome)
