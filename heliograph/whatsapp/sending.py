"""A worker's part that sends WhatsApp messages: its lines, its dispatcher and its recorder, put together.

The rule nobody may break: when it stops, no more is claimed, open answers get their time, and what came is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from heliograph.base.db import Connection, Pool
from heliograph.base.settings import Settings
from heliograph.queue import leases
from heliograph.suppliers.whatsapp_cloud.contract import CloudOutcome, CloudSubmission, OnCloudOutcome
from heliograph.suppliers.whatsapp_cloud.credential import Credential
from heliograph.webhooks.handover import Handover
from heliograph.whatsapp import accounts, apps, expiry, test_mode
from heliograph.whatsapp.accounts import SendingNumber
from heliograph.whatsapp.dispatch import Dispatcher
from heliograph.whatsapp.number_pool import CloudFactory, NumberPool, PooledConnector
from heliograph.whatsapp.rates import RateBook
from heliograph.whatsapp.recorder import Recorder

#: Statuses of test messages brought at once.
TEST_BATCH = 500


class Sending:
    """`round` and `test_statuses` are the worker's loops, the rest its timers."""

    def __init__(
        self, pool: Pool, settings: Settings, *, handover: Callable[[], Handover | None] = lambda: None
    ) -> None:
        """`handover`: as for `Recorder`."""
        self._pool = pool
        self._settings = settings
        key = apps.seal_key(settings)
        grace = settings.whatsapp_uncertain_grace_seconds
        self._recorder = Recorder(pool, grace=grace, handover=handover)
        self._factory: CloudFactory | None = None
        self._lines = NumberPool(
            pool,
            factory=self._connect,
            unseal=lambda line: accounts.credential_of(key, line),
            on_outcome=self._outcome,
            on_early=lambda message_id: self._dispatcher.early(message_id),
        )
        self._dispatcher = Dispatcher(
            pool,
            self._lines.slots,
            self._recorder,
            claim_limit=settings.claim_limit,
            lease_seconds=settings.lease_seconds,
            grace=grace,
        )
        self._rates = RateBook(pool)
        #: Set when there may be something to send; when statuses of test messages may be due; when webhook deliveries
        #: were queued.
        self.wake = self._dispatcher.wake
        self.wake_tests = asyncio.Event()
        #: Set when a number may have been stopped, or may go on, since the last `refresh`.
        self.standing = asyncio.Event()
        self.deliveries = self._recorder.deliveries

    async def start(self) -> None:
        """Open the line of test keys; `refresh` opens the others."""
        await self._lines.start()

    async def round(self) -> int:
        """Send what is due; returns how many messages were looked at."""
        return await self._dispatcher.round()

    async def test_statuses(self) -> int:
        """Bring the statuses of test messages."""
        async with self._pool.acquire() as conn:
            claimed = await leases.claim(
                conn, test_mode.KIND, {test_mode.LINE: TEST_BATCH}, seconds=self._settings.lease_seconds
            )
            if not claimed:
                return 0
            moves = await test_mode.due(conn, [(lease.organization_id, lease.id) for lease in claimed])
        await self._recorder.moves(moves)
        async with self._pool.acquire() as conn:
            await leases.finish(conn, claimed)
        return len(claimed)

    async def refresh(self) -> int:
        """Follow the tables: numbers, tokens, holds, rates. Returns 0: there is nothing more to be done."""
        await self._lines.refresh(grace=self._settings.drain_seconds)
        self.wake.set()
        return 0

    async def renew(self) -> None:
        """Hold the leases of what is in flight."""
        await self._dispatcher.renew()

    async def expire(self, conn: Connection) -> None:
        """End what is past its deadline."""
        _, deliveries = await expiry.sweep(conn, self._rates)
        if deliveries:
            self.deliveries.set()

    async def stop(self, *, grace: float) -> None:
        """Close all lines: each gets `grace` seconds for its open answers."""
        await self._lines.stop(grace=grace)
        if self._factory is not None:
            await self._factory.close()

    async def drain(self) -> None:
        """Wait until all answers are recorded."""
        await self._recorder.drain()

    def _outcome(self, number_id: UUID, submission: CloudSubmission, outcome: CloudOutcome) -> None:
        self._dispatcher.answered(submission, outcome)
        if number_id == test_mode.LINE:
            self.wake_tests.set()

    def _connect(self, line: SendingNumber, credential: Credential, on_outcome: OnCloudOutcome) -> PooledConnector:
        if self._factory is None:
            self._factory = CloudFactory()  # its connections belong to the running loop
        return self._factory(line, credential, on_outcome)
