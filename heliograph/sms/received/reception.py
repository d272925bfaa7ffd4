"""Messages from handsets within a worker: taking them from suppliers, processing the inbox, accepting replies.

The rule nobody may break: `receive` returns only after the commit, because the supplier is then answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from time import monotonic
from uuid import UUID

import asyncpg
import structlog

from heliograph.base.database.batching import Batcher
from heliograph.base.database.pool import BRIEFLY, ROW_LOCKED, Connection, Pool, is_down
from heliograph.base.process import measures
from heliograph.base.process.logs import Sparse
from heliograph.queue.backlog import Backlog
from heliograph.sending.dispatch import may_be_of_one
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.received import inbound, inbox, replies
from heliograph.sms.received.assembly import Row
from heliograph.sms.received.inbox import BatchResult
from heliograph.suppliers.contract import Inbound, OnAnswered

log = structlog.get_logger()

_locked = Sparse("inbound messages wait for a locked row")


#: Wait of a message that makes its batch fail: often enough for the alert about failing steps, as in dispatch.
SET_ASIDE = timedelta(minutes=1)
#: Seconds for which rounds wait for locks only briefly after a batch has reached its time limit, probably waiting for a
#: row that somebody keeps locked; and how many locks one round may meet: ten tell one message from 500 others. The rest
#: has its turn in the next round, and what a sender has written when it has been left for so many seconds.
LOCKS_FOR, MOST_LOCKS, LEFT_FOR = 300.0, 40, 30.0

#: Messages in a batch.
BATCH = 500

ASIDE = "UPDATE inbound_messages SET due_at = now() + $2 WHERE id = $1"
# Who wrote what a batch is to take and somebody else keeps locked.
HELD_UP = """
WITH due AS MATERIALIZED (
    SELECT id, sender FROM inbound_messages WHERE due_at <= now() AND sender <> ALL ($2) ORDER BY due_at, id LIMIT $1
), free AS MATERIALIZED (
    SELECT id FROM inbound_messages WHERE id = ANY (ARRAY(SELECT id FROM due)) FOR UPDATE SKIP LOCKED
)
SELECT DISTINCT sender FROM due WHERE id NOT IN (SELECT id FROM free)
"""


class Reception:
    """One per worker."""

    def __init__(
        self,
        pool: Pool,
        *,
        lease_seconds: float,
        on_deliveries: Callable[[], None],
        on_messages: Callable[[], None],
        backlog: Backlog | None = None,
    ) -> None:
        """`on_deliveries`, `on_messages`: called after webhook deliveries, or messages, have been queued. `backlog`:
        the worker's; None: a separate one."""
        self._pool = pool
        self._lease_seconds = lease_seconds
        self._backlog = backlog or Backlog(cycle=0.0)
        self._on_deliveries = on_deliveries
        self._on_messages = on_messages
        self._acceptor = Acceptor(pool)
        self._answered: Batcher[Sequence[UUID], None] = Batcher(self._record_answered, indivisible=is_down)
        #: The last round failed, perhaps because of one of its messages.
        self._is_wary = False
        #: Until then, rounds wait for locks only briefly; monotonic seconds.
        self._locks_until = 0.0
        #: Senders whose messages wait for locked rows, and until when they are left.
        self._left: dict[str, float] = {}
        #: Held while replies are accepted.
        self._replying = asyncio.Lock()
        self._is_stopping = False
        #: Set when something has arrived, and when a reply is wanted.
        self.wake, self.wake_replies = asyncio.Event(), asyncio.Event()

    async def receive(self, supplier_id: UUID, received: Sequence[Inbound]) -> OnAnswered:
        """Store messages that a supplier delivered."""
        async with self._pool.acquire() as conn:
            ids = await inbound.store(conn, supplier_id, received)
        self.wake.set()
        return lambda places: self._was_answered([ids[place] for place in places])

    async def round(self) -> int:
        """Process a batch of the inbox; returns the number of rows."""
        halving, now = _Halving(), monotonic()
        briefly = now < self._locks_until
        if self._left:
            self._left = {sender: until for sender, until in self._left.items() if now < until}
        try:
            async with self._pool.acquire() as conn, conn.transaction() if briefly else contextlib.nullcontext():
                if briefly:
                    await conn.execute(BRIEFLY)
                processed = halving.process if briefly or self._is_wary else None
                done = await inbox.process_due(conn, limit=BATCH, processed=processed, besides=self._left)
        except Exception as error:
            self._is_wary = may_be_of_one(error)
            if isinstance(error, ROW_LOCKED):
                self._locks_until = monotonic() + LOCKS_FOR
            # The inbox's own rows may be what is locked.
            if not (briefly and isinstance(error, asyncpg.LockNotAvailableError) and await self._leave_held_up()):
                raise
            return 1
        if halving.locked:
            self._locks_until = monotonic() + LOCKS_FOR
            # The more there are, the longer it takes to tell them from the others.
            self._left |= dict.fromkeys(halving.locked, monotonic() + LEFT_FOR + len(self._left))
            _locked.warn(log, "", senders=len(self._left))
        if done.rows:
            self._is_wary = False
        if done.deliveries:
            self._on_deliveries()
        if done.replies:
            self.wake_replies.set()
        return done.rows + halving.unseen

    async def _leave_held_up(self) -> bool:
        """Leave what was written by senders of whom a message is locked in the inbox; False: there are none."""
        async with self._pool.acquire() as conn:
            rows = await conn.fetch(HELD_UP, BATCH, list(self._left))
        self._left |= dict.fromkeys((row["sender"] for row in rows), monotonic() + LEFT_FOR)
        if rows:
            _locked.warn(log, "", senders=len(self._left))
        return bool(rows)

    async def reply(self) -> int:
        """Accept wanted replies; returns how many were examined."""
        async with self._replying:
            if self._is_stopping:
                return 0
            done = await replies.send(self._pool, self._acceptor, self._backlog, seconds=self._lease_seconds)
        if done:
            self._on_messages()
        return done

    async def stop(self, *, grace: float) -> None:
        """Accept no more replies, and wait up to `grace` seconds for those that have been claimed: cancelled meanwhile,
        they would wait until their leases end."""
        self._is_stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace), self._replying:
                return

    async def drain(self) -> None:
        """Wait until all answers are recorded."""
        await self._answered.drain()

    def _was_answered(self, ids: Sequence[UUID]) -> None:
        if ids:
            # Nothing waits for it: at worst, a lost mark makes an identical message within ten minutes count as a
            # repetition.
            self._answered.put(ids)

    async def _record_answered(self, answered: list[Sequence[UUID]]) -> list[None]:
        try:
            async with self._pool.acquire() as conn:
                await inbound.acknowledged(conn, [id for ids in answered for id in ids])
        except Exception as error:
            log.warning("responses to suppliers not recorded", error=type(error).__name__)
        return [None] * len(answered)


class _Halving:
    """Processes rows, and if that fails, each half of them in turn, down to a single row, so that nobody's STOP waits
    for it: it is set aside, or, if it waits for a row that somebody keeps locked, left with all that its sender wrote
    later. Otherwise a START could be processed after the STOP that followed it. After MOST_LOCKS, the rest is left to
    the next round."""

    def __init__(self) -> None:
        #: The senders whose messages are left.
        self.locked: set[str] = set()
        #: How many messages are left to the next round.
        self.unseen = 0
        self._locks = 0

    async def process(self, conn: Connection, due: Sequence[Row], at: datetime) -> BatchResult:
        due = [one for one in due if one.sender not in self.locked]
        if not due:
            return BatchResult()
        if self._locks >= MOST_LOCKS and self.locked:
            self.unseen += len(due)
            return BatchResult()
        try:
            async with conn.transaction():
                return await inbox.process(conn, due, at)
        except Exception as error:
            is_locked = isinstance(error, asyncpg.LockNotAvailableError)
            self._locks += is_locked
            if not is_locked and not may_be_of_one(error):
                raise
            if len(due) == 1:
                if is_locked:
                    self.locked.add(due[0].sender)
                    return BatchResult()
                log.exception("inbound message set aside", message_id=str(due[0].id))
                measures.FAILURES.add("inbox")
                await conn.execute(ASIDE, due[0].id, SET_ASIDE)
                return BatchResult(1)
        middle = len(due) // 2
        first, second = [await self.process(conn, half, at) for half in (due[:middle], due[middle:])]
        return BatchResult(
            first.rows + second.rows, first.deliveries + second.deliveries, first.replies + second.replies
        )
