"""The one committer of a worker's WhatsApp answers: they go into the database in batches, in one transaction each.

The rule nobody may break: nothing is told to anybody before its commit, and what only this process knows (an answer)
is kept until the database takes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from heliograph.base.batching import Batcher
from heliograph.base.crash import crash_point
from heliograph.base.db import Pool, despite_deadlocks, is_down
from heliograph.webhooks.events import Subscriptions
from heliograph.webhooks.handover import Handover
from heliograph.whatsapp import outcomes
from heliograph.whatsapp.outcomes import Answered
from heliograph.whatsapp.rates import RateBook
from heliograph.whatsapp.status import Move, move_many

log = structlog.get_logger()

#: Pause before a batch is tried again while the database is gone, seconds.
RETRY = 0.5


class Recorder:
    """Batches ends of attempts, and statuses that this worker makes up itself (of test keys)."""

    def __init__(
        self,
        pool: Pool,
        *,
        grace: float,
        limit: int = 1000,
        handover: Callable[[], Handover | None] = lambda: None,
    ) -> None:
        """`grace`: seconds that an unknown outcome waits for a status. `handover`: for each batch, of the Deliverer of
        this worker."""
        self._handover = handover
        self._pool = pool
        self._grace = grace
        self._batcher: Batcher[Answered | Sequence[Move], None] = Batcher(
            self._commit, limit=limit, indivisible=is_down
        )
        self._subscriptions = Subscriptions(pool)
        self._rates = RateBook(pool)
        #: Held while a batch is written; leases are renewed outside of it (see sms: a renewed row is another version).
        self.writing = asyncio.Lock()
        #: Set when webhook deliveries were queued.
        self.deliveries = asyncio.Event()

    @property
    def waiting(self) -> int:
        """What is not yet in a batch."""
        return self._batcher.waiting

    def outcome(self, answered: Answered) -> asyncio.Future[None]:
        """Record the end of an attempt; the future resolves once it is committed."""
        return self._batcher.put(answered)

    async def moves(self, moves: Sequence[Move]) -> None:
        """Move messages; returns once that is committed."""
        if moves:
            await self._batcher.put(moves)

    async def drain(self) -> None:
        """Wait until all is committed."""
        await self._batcher.drain()

    async def _commit(self, items: list[Answered | Sequence[Move]]) -> list[None]:
        answered = [item for item in items if isinstance(item, Answered)]
        moves = [move for item in items if not isinstance(item, Answered) for move in item]
        while True:
            try:
                await despite_deadlocks(partial(self._write, answered, moves))
                return [None] * len(items)
            except Exception as error:
                # Statuses of test keys come again from the queue. Answers exist only here.
                if not is_down(error) or not answered:
                    raise
                log.warning("answers wait for the database", count=len(answered), error=type(error).__name__)
                await asyncio.sleep(RETRY)

    async def _write(self, answered: list[Answered], moves: list[Move]) -> None:
        organizations = [one.lease.organization_id for one in answered] + [one.organization_id for one in moves]
        announce = {
            kind: await self._subscriptions.wanting(organizations, kind) for kind in ("message.sent", "message.read")
        }
        handover = self._handover()
        crash_point("whatsapp_record.before_commit")
        async with self.writing, self._pool.acquire() as conn, conn.transaction():
            follow = await outcomes.record(conn, answered, grace=self._grace) if answered else []
            # Answers first: a status that follows its answer at once is not to be early.
            _, deliveries = await move_many(
                conn, [*follow, *moves], rates=self._rates, announce=announce, handover=handover
            )
            if answered:
                deliveries += await outcomes.follow(conn, answered)
        crash_point("whatsapp_record.after_commit")
        if handover is not None:
            handover.deliver()
        if deliveries:
            self.deliveries.set()
