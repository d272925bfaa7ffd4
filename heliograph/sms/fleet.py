"""The suppliers as this worker uses them: a connector each, kept in step with the table, and leased sessions.

An account allows so many sessions in all. Each is a slot with a lease; a worker opens as many sessions as it holds
slots, and the workers share them evenly. The rule nobody may break: no session without its slot.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import structlog

from heliograph.base.db import Connection, Pool
from heliograph.sms import routing, test_mode
from heliograph.sms.dispatch import Account
from heliograph.sms.routing import Breaker, Supplier
from heliograph.suppliers.contract import Connector, ConnectorFactory, Inbound, Receipt

log = structlog.get_logger()

#: A slot returns to the others after this without renewal, seconds; renewed each second.
SLOT_LEASE = 5.0
#: A worker that was not seen for this long does not count when slots are shared out, seconds.
WORKER_ALIVE = 15.0
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
    created_at=EPOCH,
    changed_at=EPOCH,
)

SLOTS = """
SELECT supplier_id, slot, worker_id = $1 AS mine, lease_until < now() AS free FROM supplier_sessions ORDER BY slot
"""
WORKERS = "SELECT count(*) FROM workers WHERE seen_at > now() - make_interval(secs => $1)"
TAKE = """
INSERT INTO supplier_sessions AS slot (supplier_id, slot, worker_id, lease_until)
SELECT supplier_id, slot, $1, now() + make_interval(secs => $2)
  FROM unnest($3::uuid[], $4::smallint[]) AS wanted (supplier_id, slot)
 ORDER BY supplier_id, slot
ON CONFLICT (supplier_id, slot) DO UPDATE SET worker_id = excluded.worker_id, lease_until = excluded.lease_until
 WHERE slot.worker_id = excluded.worker_id OR slot.lease_until < now()
RETURNING supplier_id
"""
GIVE_BACK = """
DELETE FROM supplier_sessions USING unnest($2::uuid[], $3::smallint[]) AS extra (supplier_id, slot)
 WHERE supplier_sessions.supplier_id = extra.supplier_id AND supplier_sessions.slot = extra.slot
   AND supplier_sessions.worker_id = $1
"""
REPORT = """
UPDATE supplier_sessions SET bound = slot.n <= report.sessions, detail = report.detail
  FROM unnest($2::uuid[], $3::integer[], $4::text[]) AS report (supplier_id, sessions, detail),
       LATERAL (SELECT slot, row_number() OVER (ORDER BY slot) AS n FROM supplier_sessions
                 WHERE supplier_id = report.supplier_id AND worker_id = $1) slot
 WHERE supplier_sessions.supplier_id = report.supplier_id AND supplier_sessions.slot = slot.slot
   AND (bound, supplier_sessions.detail) IS DISTINCT FROM (slot.n <= report.sessions, report.detail)
"""


class Fleet:
    """All accounts of one worker."""

    def __init__(
        self,
        pool: Pool,
        worker_id: UUID,
        *,
        factories: Mapping[str, ConnectorFactory],
        unseal: Callable[[Supplier], str],
        on_outcome: Callable[[UUID, Any, Any], None],
        on_receipts: Callable[[UUID, Sequence[Receipt]], Any],
        on_inbound: Callable[[UUID, Sequence[Inbound]], Any],
    ) -> None:
        """`factories` by the kind of supplier; `unseal` opens a supplier's secret."""
        self._pool = pool
        self._worker_id = worker_id
        self._factories = factories
        self._unseal = unseal
        self._on_outcome = on_outcome
        self._on_receipts = on_receipts
        self._on_inbound = on_inbound
        self._accounts: dict[UUID, Account] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Make the account of test keys."""

        async def receipts(received: Sequence[Receipt]) -> None:
            await self._on_receipts(test_mode.SUPPLIER, received)

        connector = test_mode.Connector(lambda s, o: self._on_outcome(test_mode.SUPPLIER, s, o), receipts)
        self._accounts[test_mode.SUPPLIER] = Account(TEST_ACCOUNT, connector, Breaker(time.monotonic))

    def accounts(self) -> Mapping[UUID, Account]:
        """Active and paused suppliers by id, and the one of test keys."""
        return self._accounts

    def policies(self) -> dict[UUID, str]:
        """Whose receipts decide a message of several parts, by supplier."""
        return {id: account.supplier.parts for id, account in self._accounts.items()}

    async def refresh(self, *, grace: float) -> None:
        """Follow the table: open what is new, close what went, open anew what changed; then share out sessions."""
        async with self._pool.acquire() as conn:
            wanted = {supplier.id: supplier for supplier in await routing.load(conn)}
            for id in [id for id in self._accounts if id != test_mode.SUPPLIER]:
                supplier = wanted.get(id)
                known = self._accounts[id].supplier
                if supplier is None or _opens_anew(known, supplier):
                    self._leave(self._accounts.pop(id).connector, grace)
                elif supplier != known:
                    self._accounts[id].supplier = supplier
            for id, supplier in wanted.items():
                if id not in self._accounts:
                    await self._open(supplier)
            await self._share(conn)

    async def stop(self, *, grace: float) -> None:
        """Close all connectors: each gets `grace` seconds for its open answers."""
        for account in self._accounts.values():
            self._leave(account.connector, grace)
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def give_back(self) -> None:
        """Release this worker's slots at once, rather than when their leases end."""
        await self._pool.execute("DELETE FROM supplier_sessions WHERE worker_id = $1", self._worker_id)

    async def _open(self, supplier: Supplier) -> None:
        async def receipts(received: Sequence[Receipt]) -> None:
            await self._on_receipts(supplier.id, received)

        async def inbound(received: Sequence[Inbound]) -> None:
            await self._on_inbound(supplier.id, received)

        try:
            connector = self._factories[supplier.kind](
                supplier.settings,
                self._unseal(supplier),
                lambda submission, outcome: self._on_outcome(supplier.id, submission, outcome),
                receipts,
                inbound,
            )
            await connector.start()
        except Exception as error:
            # One account with a broken configuration must not keep the others from working.
            log.error("supplier cannot be opened", supplier=supplier.name, error=str(error))
            return
        self._accounts[supplier.id] = Account(supplier, connector, Breaker(time.monotonic))

    def _leave(self, connector: Connector, grace: float) -> None:
        task = asyncio.create_task(connector.stop(grace=grace))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _share(self, conn: Connection) -> None:
        """Hold an even share of every account's sessions."""
        workers = max(1, await conn.fetchval(WORKERS, WORKER_ALIVE))
        mine: dict[UUID, list[int]] = {}
        others: dict[UUID, set[int]] = {}
        for supplier_id, slot, is_mine, free in await conn.fetch(SLOTS, self._worker_id):
            if is_mine:
                mine.setdefault(supplier_id, []).append(slot)
            elif not free:
                others.setdefault(supplier_id, set()).add(slot)
        take: list[tuple[UUID, int]] = []
        extra: list[tuple[UUID, int]] = []
        for id, account in self._accounts.items():
            if id == test_mode.SUPPLIER:
                continue
            sessions = account.supplier.sessions if account.supplier.state == "active" else 0
            share = -(-sessions // workers)
            held = mine.get(id, [])
            keep = [slot for slot in held if slot < sessions][:share]
            open_slots = [slot for slot in range(sessions) if slot not in others.get(id, ()) and slot not in held]
            # Two workers that start together should not fight for the same slot.
            random.shuffle(open_slots)
            take += [(id, slot) for slot in keep + open_slots[: share - len(keep)]]
            extra += [(id, slot) for slot in held if slot not in keep]
        held_now: dict[UUID, int] = {}
        if take:
            columns = [id for id, _ in take], [slot for _, slot in take]
            for row in await conn.fetch(TAKE, self._worker_id, SLOT_LEASE, *columns):
                held_now[row["supplier_id"]] = held_now.get(row["supplier_id"], 0) + 1
        for id, account in self._accounts.items():
            if id != test_mode.SUPPLIER:
                account.connector.set_sessions(held_now.get(id, 0))
        if extra:
            await conn.execute(GIVE_BACK, self._worker_id, [id for id, _ in extra], [slot for _, slot in extra])
        health = {id: account.connector.health() for id, account in self._accounts.items()}
        await conn.execute(
            REPORT,
            self._worker_id,
            list(health),
            [one.sessions for one in health.values()],
            [one.last_error[:200] for one in health.values()],
        )


def _opens_anew(old: Supplier, new: Supplier) -> bool:
    return (old.kind, old.settings, old.secret) != (new.kind, new.settings, new.secret)
