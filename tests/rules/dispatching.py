"""A worker's dispatcher and recorder over suppliers that follow a script."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from heliograph.base.db import Pool
from heliograph.sms import test_mode
from heliograph.sms.dispatch import Dispatcher, PooledSupplier
from heliograph.sms.receipts import ReceivedReceipt
from heliograph.sms.recorder import Recorder
from heliograph.sms.routing import Breaker, Senders, Supplier
from heliograph.sms.supplier_pool import TEST_ACCOUNT
from heliograph.suppliers.contract import Receipt
from tests.rules.factories import Scripted, supplier


class Bench:
    """One worker: `connectors` by the id of their supplier; `round` dispatches and records whatever was answered."""

    def __init__(
        self,
        pool: Pool,
        *suppliers: Supplier,
        grace: float = 90.0,
        patience: float = 15.0,
        claim_limit: int = 500,
        lease_seconds: float = 60.0,
    ) -> None:
        self.pool = pool
        #: What the circuit breakers take for the time.
        self.now = 1000.0
        self.recorder = Recorder(pool, grace=grace)
        self.accounts: dict[UUID, PooledSupplier] = {}
        self.connectors: dict[UUID, Scripted] = {}
        self._make = lambda: Dispatcher(
            pool,
            lambda: self.accounts,
            self.recorder,
            claim_limit=claim_limit,
            lease_seconds=lease_seconds,
            grace=grace,
            patience=patience,
        )
        self.dispatcher = self._make()
        self.add(TEST_ACCOUNT)
        for row in suppliers or (supplier(),):
            self.add(row)

    def add(self, row: Supplier) -> Scripted:
        connector = Scripted()
        connector.on_outcome = lambda submission, outcome: self.dispatcher.answered(row.id, submission, outcome)
        self.connectors[row.id] = connector
        self.accounts[row.id] = PooledSupplier(row, connector, Breaker(lambda: self.now), Senders(lambda: self.now))
        self.recorder.policies[row.id] = row.parts
        return connector

    def restart(self) -> None:
        """A dispatcher that knows nothing, over the same suppliers."""
        self.dispatcher = self._make()

    @property
    def only(self) -> Scripted:
        """The connector of the one supplier."""
        (connector,) = (one for id, one in self.connectors.items() if id != test_mode.SUPPLIER)
        return connector

    @property
    def only_id(self) -> UUID:
        (id,) = (id for id in self.connectors if id != test_mode.SUPPLIER)
        return id

    async def round(self, times: int = 1) -> int:
        """Dispatch `times`, each time until what was answered is recorded; returns the rows claimed."""
        claimed = 0
        for _ in range(times):
            claimed += await self.dispatcher.round()
            await self.settle()
        return claimed

    async def settle(self) -> None:
        await self.pool.fetchval("SELECT 1")  # lets answers arrive, which come from the event loop
        await self.recorder.drain()

    async def receive(self, supplier_id: UUID, *receipts: Receipt) -> None:
        await self.recorder.receipts([ReceivedReceipt(supplier_id, one) for one in receipts])

    async def later(self, **by: float) -> None:
        """Let time pass for leases, pauses, attempts and messages."""
        await self.pool.execute(
            "UPDATE queue SET due_at = due_at - $1::interval, lease_until = lease_until - $1::interval", timedelta(**by)
        )
        await self.pool.execute("UPDATE sms_attempts SET started_at = started_at - $1::interval", timedelta(**by))
        await self.pool.execute("UPDATE messages SET accepted_at = accepted_at - $1::interval", timedelta(**by))


async def attempts(pool: Pool, id: UUID, *, table: str = "sms_attempts") -> list[tuple[int, str]]:
    """(attempt, state) of a message, in order."""
    rows = await pool.fetch(f"SELECT attempt, state FROM {table} WHERE message_id = $1 ORDER BY attempt", id)
    return [(row[0], row[1]) for row in rows]


async def queued(pool: Pool, id: UUID, *, kind: str = "sms") -> bool:
    """True while there is work left for the message."""
    return bool(await pool.fetchval("SELECT EXISTS (SELECT FROM queue WHERE kind = $2 AND id = $1)", id, kind))


async def pause_of(pool: Pool, id: UUID, *, kind: str = "sms") -> float:
    """Seconds until the message is due."""
    pause: float = await pool.fetchval(
        "SELECT extract(epoch FROM due_at - now())::float8 FROM queue WHERE kind = $2 AND id = $1", id, kind
    )
    return pause
