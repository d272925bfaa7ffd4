"""What test keys hear of their messages: reports that are work in the queue, so that they come even if the worker that
sent the message does not live on.

The rule nobody may break: a row is finished only after what it brings is recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from heliograph.base.database.pool import Connection, Pool
from heliograph.queue import leases
from heliograph.queue.backlog import Backlog

Report = TypeVar("Report")

#: Messages whose reports are brought at once.
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
    """Bring what is due of `kind`, under leases of `seconds`; returns of how many messages.

    `made`: the reports of messages, as (organization, message). `record` returns once they are committed.
    """
    async with pool.acquire() as conn:
        await backlog.look(conn, kind)
        claimed = await backlog.claim(conn, kind, {line: BATCH}, seconds=seconds)
        if not claimed:
            return 0
        reports = await made(conn, [(lease.organization_id, lease.id) for lease in claimed])
    await record(reports)
    async with pool.acquire() as conn:
        await leases.finish(conn, claimed)
    return len(claimed)
