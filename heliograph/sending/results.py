"""The one batch writer of a channel: how attempts ended, and what is reported of messages, in one transaction a batch.

Answers come before reports within a batch, so that a report which follows its answer at once finds it there.
The rule nobody may break: nothing is told to anybody before its commit, and what only this process knows (an answer) is
kept until the database takes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog

from heliograph.base.database.batching import Batcher
from heliograph.base.database.pool import Connection, Pool, despite_deadlocks, is_down
from heliograph.base.process.crash import crash_point
from heliograph.queue import leases
from heliograph.queue.leases import Postponed
from heliograph.sending import attempts
from heliograph.sending.attempts import Attempt, Ended
from heliograph.webhooks.recording.handover import Deliveries, Handover

log = structlog.get_logger()

#: Pause before a batch is tried again while the database is away, seconds.
RETRY = 0.5

Report = TypeVar("Report")
Report_contra = TypeVar("Report_contra", contravariant=True)


class Answered(msgspec.Struct, frozen=True, gc=False):
    """One attempt, and what the connector says of its end."""

    attempt: Attempt[Any]
    #: The channel's own; it has a `verdict`.
    outcome: Any


class Settled(msgspec.Struct, frozen=True, gc=False):
    """What an answer comes to. Without `postponed`, the work is done."""

    ended: Ended
    move: Any = None
    postponed: Postponed | None = None


async def settle(conn: Connection, settled: Sequence[Settled]) -> list[Any]:
    """Record the ends of attempts and what becomes of their queue rows. Returns the moves that follow, which are the
    caller's to make in the same transaction.

    Queue rows come before attempts, as dispatch locks them.
    """
    done = [one.ended.attempt.lease for one in settled if one.postponed is None]
    back = [one.postponed for one in settled if one.postponed is not None]
    if done:
        await leases.finish(conn, done)
    if back:
        await leases.postpone(conn, back)
    taken = await attempts.end(conn, [one.ended for one in settled])
    over = [one.lease for one in back if (one.lease.id, one.lease.attempt + 1) in taken]
    if over:
        await leases.withdraw(conn, over[0].kind, [lease.id for lease in over], only="all")
    return [
        one.move
        for one in settled
        if one.move is not None and (one.ended.attempt.lease.id, one.ended.attempt.number) not in taken
    ]


class Writer(Protocol[Report_contra]):
    """What a channel makes of a batch."""

    #: Its name in the queue, in logs and in crash points.
    kind: str

    async def prepare(self, answered: Sequence[Answered], reports: Sequence[Report_contra]) -> Any:
        """What `write` wants to know and nobody may change in between: asked for before the transaction."""

    async def write(
        self,
        conn: Connection,
        answered: Sequence[Answered],
        reports: Sequence[Report_contra],
        prepared: Any,
        handover: Handover | None,
    ) -> int:
        """Record all of it in the caller's transaction. Returns the webhook deliveries that were queued, besides those
        that `handover` took."""


class Results(Generic[Report]):
    """Batches what comes back. A report is what a supplier tells later: a list of receipts, of statuses."""

    def __init__(
        self, pool: Pool, writer: Writer[Report], deliveries: Deliveries | None = None, *, limit: int = 1000
    ) -> None:
        """`deliveries`: who delivers the events that this raises; None: other workers."""
        self._pool = pool
        self._deliveries = deliveries
        self._writer = writer
        #: Told of answers that are recorded, or never will be: then with the reason.
        self.landed: Callable[[Sequence[Any], BaseException | None], object] = lambda answered, error: None
        self._batcher: Batcher[Answered | Sequence[Report], None] = Batcher(
            self._commit, limit=limit, indivisible=is_down, settled=lambda items, error: self.landed(items, error)
        )
        #: Held while a batch is written; see `Flights.renew`.
        self.writing = asyncio.Lock()

    @property
    def waiting(self) -> int:
        """What is not yet in a batch."""
        return self._batcher.waiting

    def answer(self, answered: Answered) -> None:
        """Record the end of an attempt; `landed` is told once it is committed."""
        self._batcher.add(answered)

    async def report(self, reports: Sequence[Report]) -> None:
        """Record what is said of messages; returns once that is committed. Raises when one of them is not."""
        if not reports:
            return
        try:
            await self._batcher.put(reports)
        except Exception as error:
            if is_down(error) or len(reports) == 1:
                raise
            await asyncio.gather(*[self._batcher.put([one]) for one in reports])

    def queued(self) -> None:
        """Webhook deliveries were queued."""
        if self._deliveries is not None:
            self._deliveries.queued()

    async def drain(self) -> None:
        """Wait until all is committed."""
        await self._batcher.drain()

    async def _commit(self, items: list[Answered | Sequence[Report]]) -> list[None]:
        answered = [item for item in items if isinstance(item, Answered)]
        reports = [one for item in items if not isinstance(item, Answered) for one in item]
        while True:
            try:
                await despite_deadlocks(partial(self._write, answered, reports))
                return [None] * len(items)
            except Exception as error:
                # Reports alone go back to whoever brought them, and come again. Answers exist only here.
                if not is_down(error) or not answered:
                    raise
                log.warning(
                    "outcomes waiting for the database",
                    channel=self._writer.kind,
                    count=len(answered),
                    error=type(error).__name__,
                )
                await asyncio.sleep(RETRY)

    async def _write(self, answered: list[Answered], reports: list[Report]) -> None:
        prepared = await self._writer.prepare(answered, reports)
        # What is rolled back is forgotten with its handover.
        handover = self._deliveries.handover() if self._deliveries is not None else None
        crash_point(f"{self._writer.kind}.record.before_commit")
        async with self.writing, self._pool.acquire() as conn, conn.transaction():
            queued = await self._writer.write(conn, answered, reports, prepared, handover)
        crash_point(f"{self._writer.kind}.record.after_commit")
        if handover is not None:
            handover.deliver()
        if queued:
            self.queued()
