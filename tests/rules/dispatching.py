"""A worker's dispatcher and recorder, with suppliers that follow a script."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from heliograph.base.database.pool import Pool
from heliograph.routes.lookup import Route
from heliograph.senders.book import Book
from heliograph.sending.attempts import OF_MESSAGE
from heliograph.sending.dispatch import Dispatcher
from heliograph.sending.results import Results
from heliograph.sms.charges import Charges
from heliograph.sms.circuits.breaker import Breaker, Senders
from heliograph.sms.dispatch import test_mode
from heliograph.sms.dispatch.channel import SmsChannel
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.dispatch.supplier_pool import TEST_ACCOUNT, PooledSupplier
from heliograph.sms.lookups.asking import Lookups
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.suppliers.contract import Outcome, Receipt, Submission
from tests.rules.factories import Scripted, supplier


class Rounds:
    """A dispatcher of either channel, one round at a time."""

    pool: Pool
    channel: Any
    results: Results[Any]
    dispatcher: Dispatcher[Any, Any]
    _claim_limit: int
    lease_seconds: float

    def _dispatcher(self) -> Dispatcher[Any, Any]:
        return Dispatcher(
            self.pool,
            self.channel,
            self.results,
            claim_limit=self._claim_limit,
            lease_seconds=self.lease_seconds,
        )

    async def round(self, times: int = 1) -> int:
        """Dispatch `times` rounds and record the outcomes; returns the number of rows claimed."""
        claimed = 0
        for _ in range(times):
            claimed += await self.dispatcher.round()
            await self.settle()
        return claimed

    async def settle(self) -> None:
        await self.pool.fetchval("SELECT 1")  # lets outcomes arrive, which are reported by the event loop
        await self.results.drain()


class Bench(Rounds):
    """One worker. `connectors`: by supplier id; `round` dispatches and records the outcomes."""

    def __init__(
        self,
        pool: Pool,
        *suppliers: Supplier,
        grace: float = 90.0,
        patience: float = 15.0,
        claim_limit: int = 500,
        lease_seconds: float = 60.0,
        routes: Sequence[Route] = (),
        charges: Charges | None = None,
        lookups: Lookups | None = None,
    ) -> None:
        self.pool = pool
        #: The time, for the circuit breakers.
        self.now = 1000.0
        self.accounts: dict[UUID, PooledSupplier] = {}
        self.connectors: dict[UUID, Scripted] = {}
        self.charges = charges or Charges()
        self.book = Book()
        self._make = lambda: SmsChannel(
            pool,
            lambda: self.accounts,
            grace=grace,
            patience=patience,
            routes=lambda: routes,
            charges=self.charges,
            book=lambda: self.book,
            lookups=lookups,
        )
        self._claim_limit, self.lease_seconds = claim_limit, lease_seconds
        self.channel = self._make()
        self.results: Results[ReceivedReceipt] = Results(pool, self.channel)
        self.dispatcher = self._dispatcher()
        self.add(TEST_ACCOUNT)
        for row in suppliers or (supplier(),):
            self.add(row)

    def add(self, row: Supplier) -> Scripted:
        connector = Scripted()
        connector.on_outcome = self.answer
        self.connectors[row.id] = connector
        self.accounts[row.id] = PooledSupplier(row, connector, Breaker(lambda: self.now), Senders(lambda: self.now))
        self.channel.policies[row.id] = row.parts
        return connector

    def restart(self) -> None:
        """Replace the dispatcher by a new one with the same suppliers."""
        policies = self.channel.policies
        self.channel = self._make()
        self.channel.policies = policies
        self.dispatcher = self._dispatcher()

    def answer(self, submission: Submission, outcome: Outcome) -> None:
        """Have a connector report the outcome of a submission."""
        self.dispatcher.answered((submission.message_id, submission.attempt), outcome)

    @property
    def only(self) -> Scripted:
        """The connector of the only supplier."""
        (connector,) = (one for id, one in self.connectors.items() if id != test_mode.SUPPLIER)
        return connector

    @property
    def only_id(self) -> UUID:
        (id,) = (id for id in self.connectors if id != test_mode.SUPPLIER)
        return id

    async def receive(self, supplier_id: UUID, *receipts: Receipt) -> None:
        await self.results.report([ReceivedReceipt(supplier_id, one) for one in receipts])

    async def later(self, **by: float) -> None:
        """Move leases, pauses, attempts and messages into the past by this time."""
        await self.pool.execute(
            "UPDATE queue SET due_at = due_at - $1::interval, since = since - $1::interval,"
            " lease_until = lease_until - $1::interval,"
            " begun_at = begun_at - $1::interval",
            timedelta(**by),
        )
        await self.pool.execute("UPDATE attempts SET started_at = started_at - $1::interval", timedelta(**by))
        await self.pool.execute("UPDATE messages SET accepted_at = accepted_at - $1::interval", timedelta(**by))


async def attempts(pool: Pool, id: UUID) -> list[tuple[int, str]]:
    """(attempt, state) of each attempt at a message, in order; "open": in progress."""
    organization_id = await pool.fetchval(
        "SELECT organization_id FROM attempts WHERE message_id = $1 UNION"
        " SELECT organization_id FROM queue WHERE id = $1",
        id,
    )
    rows = await pool.fetch(f"{OF_MESSAGE} ORDER BY attempt", organization_id, id)
    return [(row["attempt"], row["state"]) for row in rows]


async def queued(pool: Pool, id: UUID, *, kind: str = "sms") -> bool:
    """Whether the message still has a row in the queue."""
    return bool(await pool.fetchval("SELECT EXISTS (SELECT FROM queue WHERE kind = $2 AND id = $1)", id, kind))


async def pause_of(pool: Pool, id: UUID, *, kind: str = "sms") -> float:
    """Seconds until the message is due."""
    pause: float = await pool.fetchval(
        "SELECT extract(epoch FROM due_at - now())::float8 FROM queue WHERE kind = $2 AND id = $1", id, kind
    )
    return pause


async def moment(pool: Pool) -> datetime:
    """The database's time."""
    at: datetime = await pool.fetchval("SELECT clock_timestamp()")
    return at


async def waits(pool: Pool, id: UUID, seconds: float, *, since: datetime, kind: str = "sms") -> bool:
    """Whether the message was put off, at some time since then, for exactly this long."""
    return bool(
        await pool.fetchval(
            "SELECT due_at - make_interval(secs => $3) BETWEEN $4 AND clock_timestamp() FROM queue"
            " WHERE kind = $2 AND id = $1",
            id,
            kind,
            seconds,
            since,
        )
    )
