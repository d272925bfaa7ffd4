"""Reports on test messages: they are queued work, so that they arrive even if the worker that sent the message dies.

The rule nobody may break: a row is finished only after its report has been recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

import asyncpg
import structlog

from heliograph.base.database.pool import Connection, Pool
from heliograph.base.process.logs import Sparse
from heliograph.queue import leases
from heliograph.queue.backlog import Backlog
from heliograph.suppliers.contract import PartlyStored, demand

log = structlog.get_logger()

_locked = Sparse("reports on test messages wait for a locked row")

Report = TypeVar("Report")

#: Messages whose reports are delivered in one batch.
BATCH = 500


async def bring(
    pool: Pool,
    backlog: Backlog,
    kind: str,
    line: UUID,
    *,
    made: Callable[[Connection, Sequence[tuple[UUID, UUID]]], Awaitable[Sequence[Report]]],
    record: Callable[[Sequence[Report]], Awaitable[None]],
    seconds: float,
) -> int:
    """Deliver the due reports of `kind`, under leases of `seconds`; returns the number of messages.

    `made`: creates the reports of messages, given as (organization, message). `record` returns once they are committed.
    If a row of one stays locked, as in an open session, the batch is delivered again when its leases end.
    """
    async with pool.acquire() as conn:
        await backlog.look(conn, kind)
        claimed = await backlog.claim(conn, kind, {line: BATCH}, seconds=seconds)
        if not claimed:
            return 0
        reports = await made(conn, [(lease.organization_id, lease.id) for lease in claimed])
    try:
        await record(reports)
    except (asyncpg.LockNotAvailableError, PartlyStored) as error:
        demand(error, asyncpg.LockNotAvailableError)
        _locked.warn(log, kind, queue=kind)
        return len(claimed)
    async with pool.acquire() as conn:
        await leases.finish(conn, claimed)
    return len(claimed)
