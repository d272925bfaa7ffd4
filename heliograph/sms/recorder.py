"""The one committer of a worker: outcomes and receipts go into the database in batches, in one transaction each.

Answers come before receipts within a batch, so that a receipt that follows its answer at once finds its id there.
The rule nobody may break: `receipts` and `inbound` return only after the commit, since the supplier is then told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from uuid import UUID

import structlog

from heliograph.base.batching import Batcher
from heliograph.base.crash import crash_point
from heliograph.base.db import Pool, despite_deadlocks, is_down
from heliograph.sms import outcomes, receipts
from heliograph.sms.outcomes import Answered
from heliograph.sms.receipts import ReceivedReceipt
from heliograph.sms.status import Move, move_many
from heliograph.suppliers.contract import Verdict
from heliograph.webhooks.events import Subscriptions
from heliograph.webhooks.handover import Handover

log = structlog.get_logger()

#: Pause before a batch is tried again while the database is gone. Outcomes cannot be given back, so they are kept.
RETRY = 0.5


class Recorder:
    """Batches what suppliers say."""

    def __init__(
        self,
        pool: Pool,
        *,
        grace: float,
        limit: int = 1000,
        handover: Callable[[], Handover | None] = lambda: None,
    ) -> None:
        """`grace`: seconds that an unknown outcome waits for its receipt. `handover`: for each batch, of the Deliverer
        of this worker."""
        self._handover = handover
        self._pool = pool
        self._grace = grace
        self._batcher: Batcher[Answered | Sequence[ReceivedReceipt], None] = Batcher(
            self._commit, limit=limit, indivisible=is_down
        )
        self._subscriptions = Subscriptions(pool)
        #: Whose receipts decide a message of several parts, by supplier; kept up to date by the dispatcher.
        self.policies: dict[UUID, str] = {}
        #: Held while a batch is written. Leases are renewed outside of it: a row that is renewed while it is being
        #: finished would be another version of itself by then, and stay until its lease ends.
        self.writing = asyncio.Lock()
        #: Set when webhook deliveries were queued.
        self.deliveries = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Answers and receipts not yet in a batch."""
        return self._batcher.waiting

    def outcome(self, answered: Answered) -> asyncio.Future[None]:
        """Record the end of an attempt; the future resolves once it is committed."""
        return self._batcher.put(answered)

    async def receipts(self, received: Sequence[ReceivedReceipt]) -> None:
        """Store and apply receipts; returns once they are committed. Raises when one of them is not."""
        try:
            await self._batcher.put(received)
        except Exception as error:
            if is_down(error) or len(received) == 1:
                raise
            await asyncio.gather(*[self._batcher.put([one]) for one in received])

    async def drain(self) -> None:
        """Wait until all is committed."""
        await self._batcher.drain()

    async def _commit(self, items: list[Answered | Sequence[ReceivedReceipt]]) -> list[None]:
        answered: list[Answered] = []
        received: list[ReceivedReceipt] = []
        for item in items:
            if isinstance(item, Answered):
                answered.append(item)
            else:
                received += item
        while True:
            try:
                await despite_deadlocks(partial(self._write, answered, received))
                return [None] * len(items)
            except Exception as error:
                # Receipts alone go back to the supplier, which sends them again. Answers exist only here.
                if not is_down(error) or not answered:
                    raise
                log.warning("answers wait for the database", count=len(answered), error=type(error).__name__)
                await asyncio.sleep(RETRY)

    async def _write(self, answered: list[Answered], received: list[ReceivedReceipt]) -> None:
        accepted = [one.lease.organization_id for one in answered if one.outcome.verdict is Verdict.ACCEPTED]
        announce = await self._subscriptions.wanting(accepted, "message.sent")
        policies: Mapping[UUID, str] = self.policies
        handover = self._handover()
        crash_point("record.before_commit")
        async with self.writing, self._pool.acquire() as conn, conn.transaction():
            moves: list[Move] = []
            if answered:
                moves += await outcomes.record(conn, answered, grace=self._grace, policies=policies)
            if received:
                moves += (await receipts.match(conn, received, policies=policies))[0]
            _, deliveries = await move_many(conn, moves, announce_sent=announce, handover=handover)
        crash_point("record.after_commit")
        if handover is not None:
            handover.deliver()
        if deliveries:
            self.deliveries.set()
