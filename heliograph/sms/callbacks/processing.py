"""Processing of suppliers' callbacks by a worker: the supplier's own module parses them, and their receipts and
messages from handsets take the same path as those of every supplier.

A batch contains callbacks of one account; it is locked while it is processed and deleted in the commit that stores the
messages from handsets. Receipts are committed before that, by the batch writer of answers and receipts: processing one
again changes nothing. A worker that is killed leaves the callbacks as they were. A callback that cannot be read gets a
row of its own, so that the others in its row can be finished; so does one that waits for a row that somebody locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.base.crypto import Key
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.process.crash import crash_point
from heliograph.base.process.logs import Sparse
from heliograph.base.process.settings import SettingsError
from heliograph.queue.backlog import Backlog
from heliograph.sms.callbacks import addresses, intake
from heliograph.sms.callbacks.intake import Content
from heliograph.sms.dispatch.supplier_pool import PooledSupplier
from heliograph.sms.received import inbound
from heliograph.suppliers import kinds
from heliograph.suppliers.contract import Inbound, PartlyStored, Receipt, demand
from heliograph.suppliers.http import references
from heliograph.suppliers.http.kind import HttpKind
from heliograph.suppliers.settings import checked

log = structlog.get_logger()

_locked = Sparse("supplier's callbacks wait for a locked row")

#: Rows per batch; each may hold `intake.MOST` callbacks, and each of those a hundred receipts.
ROWS = 32
#: Receipts and messages after which a batch takes no further row, and how many are stored at once.
ENOUGH, AT_ONCE = 5_000, 1_000
#: Seconds until a callback that this worker cannot open is tried again, and one that waits for a locked row.
LATER_SECONDS, LOCKED_SECONDS = 60.0, 15.0

TAKE = """
SELECT c.id, c.body FROM unnest($1::uuid[]) AS due (id) CROSS JOIN LATERAL (
       SELECT id, body FROM supplier_callbacks WHERE id = due.id LIMIT 1) c ORDER BY c.id
"""
DONE = """
WITH gone AS (DELETE FROM supplier_callbacks WHERE id = ANY ($1))
DELETE FROM queue WHERE id = ANY ($1) AND line IS NOT DISTINCT FROM $2
"""
# Of a supplier that this worker does not know yet, or no longer: what it posted before it was removed was answered.
ACCOUNT = "SELECT kind, settings::text FROM suppliers WHERE id = $1"
LATER = """
UPDATE queue SET due_at = now() + make_interval(secs => $3) WHERE id = ANY ($1) AND line IS NOT DISTINCT FROM $2
"""


class _Origin(msgspec.Struct, frozen=True):
    """Where receipts come from: a callback, its row, and whether it is the only one there."""

    id: UUID
    content: Content
    is_alone: bool


_Told = tuple[Receipt, _Origin]


class CallbackProcessing:
    """One per worker."""

    def __init__(
        self,
        pool: Pool,
        key: Key,
        account: Callable[[UUID], PooledSupplier | None],
        *,
        on_receipts: Callable[[UUID, Sequence[Receipt]], Awaitable[None]],
        on_inbound: Callable[[], None],
        backlog: Backlog,
    ) -> None:
        """`key`: from `suppliers.seal_key`. `account`: looks up this worker's instance of a supplier. `on_receipts`
        returns once they are committed; `on_inbound` is called after messages from handsets have been stored."""
        self._pool = pool
        self._key = key
        self._account = account
        self._on_receipts = on_receipts
        self._on_inbound = on_inbound
        self._backlog = backlog
        #: Set when callbacks were stored.
        self.wake = asyncio.Event()

    async def round(self) -> int:
        """Process one batch of each account that has any; returns the number of rows."""
        async with self._pool.acquire() as conn:
            await self._backlog.look(conn, intake.KIND)
            done = 0
            for supplier_id in self._backlog.lines(intake.KIND):
                try:
                    done += await self._batch(conn, supplier_id)
                except Exception as error:
                    if is_down(error):
                        raise
                    # The other suppliers' callbacks continue.
                    log.exception("supplier's callbacks failed", supplier_id=str(supplier_id))
        return done

    async def _batch(self, conn: Connection, supplier_id: UUID) -> int:
        async with self._backlog.transaction(conn):
            picked = await self._backlog.pick(conn, intake.KIND, {supplier_id: ROWS})
            taken = await conn.fetch(TAKE, [one.id for one in picked]) if picked else []
            if not taken:
                return 0
            kind, settings = await self._kind(conn, supplier_id)
            # In a thread: a megabyte of the smallest receipts takes a second.
            found = await asyncio.to_thread(self._read, supplier_id, kind, settings, taken)
            read, receipts, messages, left, closed = found
            locked: list[_Origin] = []
            for start in range(0, len(receipts), AT_ONCE):
                waiting = await self._record(supplier_id, receipts[start : start + AT_ONCE])
                locked += [one for one in waiting if one not in locked[-1:]]  # one with very many is in two parts
            crash_point("supplier_callbacks.before_commit")
            for start in range(0, len(messages), AT_ONCE):
                await inbound.store(conn, supplier_id, messages[start : start + AT_ONCE])
            if left:
                rows = [(supplier_id, [one]) for one in left]
                await intake.store(conn, self._key, rows, pause=LATER_SECONDS)
            if closed:
                await conn.execute(LATER, closed, supplier_id, LATER_SECONDS)
            if locked:
                _locked.warn(log, str(supplier_id), supplier_id=str(supplier_id))
                rows = [(supplier_id, [one.content]) for one in locked if not one.is_alone]
                await intake.store(conn, self._key, rows, pause=LOCKED_SECONDS)
                closed += (alone := [one.id for one in locked if one.is_alone])
                await conn.execute(LATER, alone, supplier_id, LOCKED_SECONDS)
            await conn.execute(DONE, [id for id in read if id not in closed], supplier_id)
        crash_point("supplier_callbacks.after_commit")
        if messages:
            self._on_inbound()
        return len(read)

    async def _record(self, supplier_id: UUID, told: Sequence[_Told]) -> list[_Origin]:
        """Record receipts; returns the callbacks of which some wait for a row that somebody keeps locked."""
        try:
            await self._on_receipts(supplier_id, [one for one, _ in told])
        except (asyncpg.LockNotAvailableError, PartlyStored) as error:
            demand(error, asyncpg.LockNotAvailableError)
            grouped = [(origin, [one for one, _ in some]) for origin, some in groupby(told, key=lambda one: one[1])]
            tried = [self._on_receipts(supplier_id, some) for _, some in grouped]
            errors = await asyncio.gather(*tried, return_exceptions=True)
            for each in errors:
                if each is not None:
                    demand(each, asyncpg.LockNotAvailableError)
            return [origin for (origin, _), error in zip(grouped, errors, strict=True) if error is not None]
        return []

    async def _kind(self, conn: Connection, supplier_id: UUID) -> tuple[HttpKind | None, Any]:
        """The kind of an account, and its settings; None: of no kind that calls back, or misconfigured."""
        account = self._account(supplier_id)
        if account is not None:
            name, settings = account.supplier.kind, account.supplier.settings
        elif (row := await conn.fetchrow(ACCOUNT, supplier_id)) is not None:
            name, settings = row["kind"], msgspec.json.decode(row["settings"])
        else:
            return None, None
        kind = kinds.HTTP.get(name)
        try:
            return (None, None) if kind is None else (kind, checked(kind.settings, settings))
        except SettingsError:
            return None, None

    def _read(
        self, supplier_id: UUID, kind: HttpKind | None, settings: Any, rows: Sequence[asyncpg.Record]
    ) -> tuple[list[UUID], list[_Told], list[Inbound], list[Content], list[UUID]]:
        """(ids of the rows read, receipts, messages, callbacks that could not be read, ids of rows that this worker
        cannot open). Rows that follow enough receipts and messages are left for the next batch."""
        receipts: list[_Told] = []
        messages: list[Inbound] = []
        left: list[Content] = []
        closed: list[UUID] = []
        read: list[UUID] = []
        empty = 0
        for id, body in rows:
            if len(receipts) + len(messages) >= ENOUGH:
                break
            read.append(id)
            try:
                if kind is None:
                    raise LookupError("no such supplier, or it is misconfigured")
                contents = intake.opened(self._key, id, body)
            except Exception as error:
                self._not_read(supplier_id, error)
                closed.append(id)
                continue
            for content in contents:
                callback = content.callback
                try:
                    if content.what == addresses.RECEIPTS:
                        found = [
                            kind.blamed(settings, references.completed(one, callback.url))
                            for one in kind.receipts(settings, callback)
                        ]
                        origin = _Origin(id, content, len(contents) == 1)
                        receipts += [(one, origin) for one in found]
                        empty += not found
                    else:
                        heard = kind.inbound(settings, callback)
                        messages += heard
                        empty += not heard
                except Exception as error:
                    self._not_read(supplier_id, error)
                    if len(contents) > 1:
                        left.append(content)
                    else:
                        closed.append(id)
        if empty:
            log.warning("nothing recognized in a supplier's callbacks", supplier_id=str(supplier_id), count=empty)
        return read, receipts, messages, left, closed

    @staticmethod
    def _not_read(supplier_id: UUID, error: Exception) -> None:
        # Never the error's text: it may quote what somebody wrote. The callback stays until retention removes it, so
        # that it can still be read after the module or setting has been fixed.
        log.error("supplier's callback not processed", supplier_id=str(supplier_id), error=type(error).__name__)
