"""A worker's suppliers: a connector for each, kept in sync with the table, and leased sessions.

An account allows a total number of sessions. Each is a slot with a lease; a worker opens as many sessions as it holds
slots, and workers share them evenly. The rule nobody may break: no session without a slot.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.base.database.pool import Connection, Pool
from heliograph.base.sentences import packed
from heliograph.queue import leases
from heliograph.queue.backlog import Backlog
from heliograph.queue.workers import LIVE_WORKERS
from heliograph.routes import rules
from heliograph.routes.lookup import Route
from heliograph.senders import loading
from heliograph.senders.book import Book
from heliograph.sms.circuits import sharing
from heliograph.sms.circuits.breaker import Breaker, Senders
from heliograph.sms.circuits.sharing import SharedCircuit
from heliograph.sms.dispatch import routing, test_mode
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.watched import hours, pdus, sessions
from heliograph.suppliers.absent import Absent
from heliograph.suppliers.contract import (
    Account,
    Connector,
    ConnectorFactory,
    Inbound,
    OnAnswered,
    Receipt,
)
from heliograph.suppliers.slots import SLOT_LEASE, SLOT_LONGEST, SLOT_RENEWED, Leases, renew, renewed

log = structlog.get_logger()

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
TEST_ACCOUNT = Supplier(
    id=test_mode.SUPPLIER,
    name="test",
    kind="test",
    settings={},
    secret=b"",
    state="active",
    prefixes=(),
    priority=0,
    weight=1,
    sessions=1,
    parts="all",
    simulated=False,
    created_at=EPOCH,
    changed_at=EPOCH,
)

SLOTS = """
SELECT supplier_id, slot, worker_id = $1 AS mine, extract(epoch FROM lease_until - now())::float8 AS left, worker_id,
       ready, moves
  FROM supplier_sessions ORDER BY slot
"""
LOOK = f"SELECT ({LIVE_WORKERS}) AS workers, {pdus.WATCHED} AS watched"
TAKE = """
INSERT INTO supplier_sessions AS slot (supplier_id, slot, worker_id, lease_until)
SELECT supplier_id, slot, $1, now() + make_interval(secs => $2)
  FROM unnest($3::uuid[], $4::smallint[]) AS wanted (supplier_id, slot)
 ORDER BY supplier_id, slot
ON CONFLICT (supplier_id, slot) DO UPDATE SET worker_id = excluded.worker_id, lease_until = excluded.lease_until
 WHERE slot.worker_id = excluded.worker_id OR slot.lease_until < now()
    OR slot.lease_until > now() + make_interval(secs => $5)
RETURNING supplier_id
"""
GIVE_BACK = """
DELETE FROM supplier_sessions USING unnest($2::uuid[], $3::smallint[]) AS extra (supplier_id, slot)
 WHERE supplier_sessions.supplier_id = extra.supplier_id AND supplier_sessions.slot = extra.slot
   AND supplier_sessions.worker_id = $1
"""
REPORT = """
UPDATE supplier_sessions
   SET bound = slot.n <= report.sessions, ready = slot.n <= report.sessions AND report.closed, detail = report.detail,
       receives = slot.n <= report.receiving OR slot.n > report.sessions, moves = report.moves,
       in_flight = CASE WHEN slot.n = 1 THEN report.in_flight ELSE 0 END,
       rate = CASE WHEN slot.n = 1 THEN report.rate ELSE 0 END,
       wire = coalesce((report.wires::jsonb -> (slot.n - 1)::int)::text, ''),
       bound_at = CASE WHEN slot.n <= report.sessions THEN CASE WHEN bound THEN bound_at ELSE now() END END
  FROM unnest($2::uuid[], $3::integer[], $4::text[], $5::boolean[], $6::boolean[], $7::integer[],
              $8::float8[], $9::text[], $10::integer[])
           AS report (supplier_id, sessions, detail, closed, moves, in_flight, rate, wires, receiving),
       LATERAL (SELECT slot, row_number() OVER (ORDER BY slot) AS n FROM supplier_sessions
                 WHERE supplier_id = report.supplier_id AND worker_id = $1) slot
 WHERE supplier_sessions.supplier_id = report.supplier_id AND supplier_sessions.slot = slot.slot
   AND (bound, ready, receives, supplier_sessions.detail, supplier_sessions.moves, supplier_sessions.in_flight,
        supplier_sessions.rate, wire)
       IS DISTINCT FROM (slot.n <= report.sessions, slot.n <= report.sessions AND report.closed,
                         slot.n <= report.receiving OR slot.n > report.sessions, report.detail,
                         report.moves, CASE WHEN slot.n = 1 THEN report.in_flight ELSE 0 END,
                         CASE WHEN slot.n = 1 THEN report.rate ELSE 0 END,
                         coalesce((report.wires::jsonb -> (slot.n - 1)::int)::text, ''))
"""

# Work for suppliers that no longer exist is routed again.
ORPHANED = """
UPDATE queue SET line = $2, due_at = greatest(due_at, now()), since = coalesce(since, due_at) WHERE (id, line) IN (
    SELECT id, line FROM queue WHERE kind = 'sms' AND line = ANY ($1)
       AND (lease_until IS NULL OR lease_until < now()) LIMIT 5000 FOR UPDATE SKIP LOCKED)
"""


class PooledSupplier(msgspec.Struct):
    """A supplier as used by this worker."""

    supplier: Supplier
    connector: Connector
    breaker: Breaker
    senders: Senders = msgspec.field(default_factory=lambda: Senders(time.monotonic))
    #: How many segments may still be handed over in this round.
    room: int = 0
    #: Another worker has a session bound and uses it.
    elsewhere: bool = False
    #: Some other worker has no session, and may leave messages in the supplier's line.
    fed: bool = False
    #: The circuit is open, and this round may send one probe.
    probe: bool = False
    #: Another worker's messages are accepted or refused there.
    moves_elsewhere: bool = False
    told: SharedCircuit = msgspec.field(default_factory=SharedCircuit)


class SupplierPool:
    """All accounts of one worker."""

    def __init__(
        self,
        pool: Pool,
        worker_id: UUID,
        *,
        factories: Mapping[str, ConnectorFactory],
        account: Callable[[Supplier], Account],
        on_outcome: Callable[[UUID, Any, Any], None],
        on_receipts: Callable[[UUID, Sequence[Receipt]], Any],
        on_inbound: Callable[[UUID, Sequence[Inbound]], Any],
        backlog: Backlog | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`factories`: by the kind of supplier. `account`: builds a connector's account, with its secret opened.
        `backlog`: the worker's; None: a separate one."""
        self._pool = pool
        self._worker_id = worker_id
        self._leases = Leases(monotonic)
        self._backlog = backlog or Backlog(cycle=0.0)
        #: True if the backlog is a separate one, so that nothing else refreshes it.
        self._looks = backlog is None
        self._factories = factories
        self._account = account
        self._on_outcome = on_outcome
        self._on_receipts = on_receipts
        self._on_inbound = on_inbound
        self._accounts: dict[UUID, PooledSupplier] = {}
        self._routes: tuple[Route, ...] = ()
        self._routes_version = ""
        #: Rules for senders and numbers.
        self._book = Book()
        self._book_version = 0
        #: The last reported state of the sessions, with their slots.
        self._told: tuple[Any, ...] | None = None
        self._rates = sessions.Rates()
        #: Observations of each account, taken every second; the worker stores them.
        self.hours = hours.Hours()
        #: Connectors being closed, by supplier.
        self._leaving: dict[asyncio.Task[None], UUID] = {}
        self._is_stopping = False

    async def start(self) -> None:
        """Create the account of test keys."""

        async def receipts(received: Sequence[Receipt]) -> None:
            await self._on_receipts(test_mode.SUPPLIER, received)

        connector = test_mode.Connector(lambda s, o: self._on_outcome(test_mode.SUPPLIER, s, o), receipts)
        self._accounts[test_mode.SUPPLIER] = PooledSupplier(TEST_ACCOUNT, connector, Breaker(time.monotonic))

    def accounts(self) -> Mapping[UUID, PooledSupplier]:
        """Active and paused suppliers by id, and that of test keys."""
        return self._accounts

    def routes(self) -> tuple[Route, ...]:
        """The active routes: the same object until one changes."""
        return self._routes

    def book(self) -> Book:
        """The rules for senders and numbers: the same object until one changes."""
        return self._book

    def policies(self) -> dict[UUID, str]:
        """Which parts' receipts decide the status of a message with several parts, by supplier."""
        return {id: account.supplier.parts for id, account in self._accounts.items()}

    async def refresh(self, *, grace: float) -> None:
        """Sync with the table: open new suppliers, close removed and reopen changed ones; then distribute sessions."""
        async with self._pool.acquire() as conn:
            async with conn.transaction():  # one commit a second
                wanted = {supplier.id: supplier for supplier in await routing.load(conn)}
                (looked,) = await conn.fetch(LOOK)
                heard = await sharing.read(conn)
                await renew(conn, self._worker_id)
                slots = await conn.fetch(SLOTS, self._worker_id)
                if (version := await rules.version(conn)) != self._routes_version:
                    self._routes, self._routes_version = await rules.active(conn), version
                if (known := await loading.version(conn)) != self._book_version:
                    self._book, self._book_version = await loading.load(conn), known
            for id in [id for id in self._accounts if id != test_mode.SUPPLIER]:
                supplier = wanted.get(id)
                before = self._accounts[id].supplier
                if supplier is None:
                    self._leave(id, self._accounts.pop(id).connector, grace)
                elif self._needs_reconnect(before, supplier):
                    self._leave(id, self._accounts[id].connector, grace)
                    self._absent(supplier, "")
                elif supplier != before:
                    if supplier.changed_at != before.changed_at:
                        # As for all workers (`sharing.READ`): earlier findings no longer apply.
                        self._accounts[id].breaker.close()
                    self._accounts[id].supplier = supplier
            for id, supplier in wanted.items():
                # The old connector's sessions count until they are closed.
                is_open = id in self._accounts and not self._is_absent(id)
                if not (is_open or id in self._leaving.values() or self._is_stopping):
                    await self._open(supplier)
            for id in wanted.keys() - self._accounts.keys():
                self._absent(wanted[id], "")
            live = {id: one for id, one in self._accounts.items() if id != test_mode.SUPPLIER}
            await sharing.exchange(conn, self._worker_id, live, heard)
            await pdus.exchange(conn, {id: one.connector for id, one in live.items()}, looked["watched"])
            await self._share(conn, max(1, looked["workers"]), slots)
            await self._reroute(conn, wanted.keys())

    async def stop(self, *, grace: float) -> None:
        """Close all connectors: each gets `grace` seconds for outstanding answers."""
        self._is_stopping = True
        async with renewed(self._pool, self._worker_id):
            for id, account in self._accounts.items():
                self._leave(id, account.connector, grace)
            await asyncio.gather(*self._leaving, return_exceptions=True)

    async def give_back(self) -> None:
        """Release this worker's slots at once, rather than when their leases expire."""
        await self._pool.execute("DELETE FROM supplier_sessions WHERE worker_id = $1", self._worker_id)

    async def _open(self, supplier: Supplier) -> None:
        async def receipts(received: Sequence[Receipt]) -> None:
            await self._on_receipts(supplier.id, received)

        async def inbound(received: Sequence[Inbound]) -> OnAnswered | None:
            answered: OnAnswered | None = await self._on_inbound(supplier.id, received)
            return answered

        try:
            connector = self._factories[supplier.kind](
                self._account(supplier),
                lambda submission, outcome: self._on_outcome(supplier.id, submission, outcome),
                receipts,
                inbound,
            )
            await connector.start()
        except Exception as error:
            # One account with a broken configuration must not stop the others. It is retried at every refresh, but
            # logged once.
            known = self._accounts.get(supplier.id)
            if known is None or known.connector.health().last_error != str(error):
                log.error("supplier cannot be opened", supplier=supplier.name, error=str(error))
            self._absent(supplier, str(error))
            return
        self._accounts[supplier.id] = PooledSupplier(supplier, connector, Breaker(time.monotonic))
        if self._is_stopping:  # `stop` did not find it
            self._leave(supplier.id, connector, 0.0)

    def _needs_reconnect(self, old: Supplier, new: Supplier) -> bool:
        """Not if its secret was only sealed again, under another key."""
        if (old.kind, old.settings, old.secret) == (new.kind, new.settings, new.secret):
            return False
        try:
            return (old.kind, self._account(old)) != (new.kind, self._account(new))
        except Exception:  # `_open` logs it
            return True

    def _absent(self, supplier: Supplier, error: str) -> None:
        self._accounts[supplier.id] = PooledSupplier(supplier, Absent(error), Breaker(time.monotonic))

    def _is_absent(self, id: UUID) -> bool:
        return isinstance(self._accounts[id].connector, Absent)

    def _leave(self, id: UUID, connector: Connector, grace: float) -> None:
        task = asyncio.create_task(connector.stop(grace=grace))
        self._leaving[task] = id
        task.add_done_callback(self._leaving.pop)

    async def _reroute(self, conn: Connection, wanted: Set[UUID]) -> None:
        """Move work out of the lines of removed suppliers, whichever worker put it there."""
        if self._looks:
            await self._backlog.look(conn, "sms")
        lines = self._backlog.lines("sms")
        gone = [line for line in lines if line not in wanted and line not in (leases.UNROUTED, test_mode.SUPPLIER)]
        if gone:
            await conn.execute(ORPHANED, gone, leases.UNROUTED)

    async def _share(self, conn: Connection, workers: int, slots: Sequence[asyncpg.Record]) -> None:
        """Hold an even share of every account's sessions."""
        mine: dict[UUID, list[int]] = {}
        #: Slots whose leases last until after the next check.
        fresh: set[tuple[UUID, int]] = set()
        others: dict[UUID, set[int]] = {}
        ready: dict[UUID, set[UUID]] = {}
        moving: set[UUID] = set()
        held_by_others = self._leases.held_by_others(slots)
        for supplier_id, slot, is_mine, left, worker_id, is_ready, moves in slots:
            if is_mine:
                mine.setdefault(supplier_id, []).append(slot)
                if SLOT_RENEWED < left <= SLOT_LONGEST:
                    fresh.add((supplier_id, slot))
            elif (supplier_id, slot) in held_by_others:
                others.setdefault(supplier_id, set()).add(slot)
                if moves:
                    moving.add(supplier_id)
                if is_ready:
                    ready.setdefault(supplier_id, set()).add(worker_id)
        for id, account in self._accounts.items():
            account.elsewhere = id in ready
            account.moves_elsewhere = id in moving
            account.fed = len(ready.get(id, ())) < workers - 1
        take: list[tuple[UUID, int]] = []
        extra: list[tuple[UUID, int]] = []
        for id, account in self._accounts.items():
            if id == test_mode.SUPPLIER:
                continue
            # A draining supplier still gets answers and receipts.
            active = account.supplier.state != "paused" and not self._is_absent(id)
            allowed = account.supplier.sessions if active else 0
            held = mine.get(id, [])
            if id in self._leaving.values():
                take += [(id, slot) for slot in held]  # until the old connector has closed them
                continue
            share = -(-allowed // workers)
            keep = [slot for slot in held if slot < allowed][:share]
            open_slots = [slot for slot in range(allowed) if slot not in others.get(id, ()) and slot not in held]
            # Two workers that start together should not fight for the same slot.
            random.shuffle(open_slots)
            take += [(id, slot) for slot in keep + open_slots[: share - len(keep)]]
            extra += [(id, slot) for slot in held if slot not in keep]
        if fresh.issuperset(take):
            held_now = Counter(id for id, _ in take)
        else:
            columns = [id for id, _ in take], [slot for _, slot in take]
            taken = await conn.fetch(TAKE, self._worker_id, SLOT_LEASE, *columns, SLOT_LONGEST)
            held_now = Counter(row["supplier_id"] for row in taken)
        for id, account in self._accounts.items():
            if id != test_mode.SUPPLIER:
                account.connector.set_sessions(held_now[id])
        # A slot is released only once its session is closed: until then the supplier counts it.
        closed = [(id, slot) for id, slot in extra if self._accounts[id].connector.health().sessions <= held_now[id]]
        if closed:
            await conn.execute(GIVE_BACK, self._worker_id, [id for id, _ in closed], [slot for _, slot in closed])
        await self._report(conn, (take, mine))

    async def _report(self, conn: Connection, slots: object) -> None:
        """Tell other workers, and pages, how this worker's sessions are. `slots`: those that it holds; one that was
        taken over may still contain another worker's report."""
        at = asyncio.get_running_loop().time()
        self._rates.keep(list(self._accounts))
        reports = []
        for id, account in self._accounts.items():
            connector, breaker, health = account.connector, account.breaker, account.connector.health()
            if id != test_mode.SUPPLIER:
                self.hours.look(id, connector, health)
            reports.append(
                (
                    id,
                    health.sessions,
                    packed(health.last_error.short()),
                    not breaker.open,
                    breaker.moves(),
                    health.in_flight,
                    self._rates.rate(id, health.submitted, at),
                    sessions.written(connector),
                    health.sessions if health.receiving is None else health.receiving,
                )
            )
        if (told := (reports, slots)) != self._told:
            await conn.execute(REPORT, self._worker_id, *(list(column) for column in zip(*reports, strict=True)))
            self._told = told
