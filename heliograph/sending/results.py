"""The single writer of a channel: outcomes of attempts and reports about messages, in one transaction per batch.

Answers and reports are written concurrently, so that neither waits for the other's commit. A report waits for the
answers that arrived before it, so a report that follows its answer immediately finds it recorded.

The rule nobody may break: nothing is acknowledged before it is committed, and what only this process knows (an answer)
is kept until the database accepts it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog

from heliograph.base.database.batching import Batcher
from heliograph.base.database.pool import Connection, Pool, despite_deadlocks, is_down
from heliograph.base.process import measures
from heliograph.base.process.crash import crash_point
from heliograph.queue import leases
from heliograph.queue.leases import Postponed
from heliograph.sending import attempts
from heliograph.sending.attempts import Attempt, EndedAttempt
from heliograph.suppliers.contract import Verdict
from heliograph.webhooks.recording.handover import Deliveries, Handover, abandoned

log = structlog.get_logger()

#: Pause before a batch is retried while the database is unavailable, in seconds.
RETRY = 0.5

REQUEST = "SELECT request_id FROM {} WHERE organization_id = $1 AND id = $2"

Report = TypeVar("Report")
Report_contra = TypeVar("Report_contra", contravariant=True)


class AnsweredAttempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt, and its outcome according to the connector."""

    attempt: Attempt[Any]
    #: The channel's own outcome type; it has a `verdict`.
    outcome: Any
    #: True if the attempt had been given up, and was recorded with an unknown outcome.
    is_late: bool = False


class UnmatchedReports(Exception):
    """Some reports match nothing yet, but the answers that they refer to may be about to be committed: the reports are
    written again, on their own."""


class _Reported(msgspec.Struct, Generic[Report], frozen=True, gc=False):
    """Reports that arrived together."""

    reports: Sequence[Report]
    #: How many answers had arrived by then.
    after: int


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The effect of an answer. Without `postponed`, the work is done."""

    ended: EndedAttempt
    move: Any = None
    postponed: Postponed | None = None


async def settle(conn: Connection, settled: Sequence[Settlement], *, only_answers: bool = False) -> list[Any]:
    """Record the outcomes of attempts and settle their queue rows. Returns the moves that follow, which the caller must
    make in the same transaction. `only_answers`: no report of this channel is ever recorded as an attempt's outcome
    (`attempts.mark_accepted`).

    Queue rows are locked before attempts, in the same order as dispatch does.
    """
    done = [one.ended.attempt.lease for one in settled if one.postponed is None]
    back = [one.postponed for one in settled if one.postponed is not None]
    held = await leases.finish(conn, done) if done else 0
    # What was not accepted does not end a message of which another worker has begun a later attempt: that one decides.
    ends = [one.ended.attempt.lease.id for one in settled if one.postponed is None and one.ended.state != "accepted"]
    last = await leases.last_attempts(conn, done[0].kind, ends) if held < len(done) and ends else {}
    if back:
        await leases.postpone(conn, back)
    # A worker that takes a lease over records the attempt and changes the row's token in one transaction: while the
    # token is ours, nothing has been recorded. Should that ever be wrong, the batch is halved until each answer is
    # alone.
    are_new = only_answers and held == len(settled) > 1
    taken = await attempts.end(conn, [one.ended for one in settled], are_new=are_new)
    over = [one.lease for one in back if (one.lease.id, one.lease.attempt + 1) in taken]
    if over:
        await leases.withdraw(conn, over[0].kind, [lease.id for lease in over], only="all")
    moves = []
    for one in settled:
        id, number = one.ended.attempt.lease.id, one.ended.attempt.number
        decides = one.ended.state == "accepted" or last.get(id, 0) <= number
        if one.move is not None and decides and (id, number) not in taken:
            moves.append(one.move)
    return moves


class Writer(Protocol[Report_contra]):
    """How a channel writes a batch."""

    #: Its name in the queue, in logs and in crash points.
    kind: str
    #: The table of its messages, where they remain `accepted` until a supplier has accepted them.
    table: str

    async def prepare(self, answered: Sequence[AnsweredAttempt], reports: Sequence[Report_contra]) -> Any:
        """Read, before the transaction, the data that `write` needs and that cannot change in between."""

    async def write(
        self,
        conn: Connection,
        answered: Sequence[AnsweredAttempt],
        reports: Sequence[Report_contra],
        prepared: Any,
        handover: Handover | None,
        *,
        alone: bool,
    ) -> int:
        """Record the whole batch in the caller's transaction. Returns the number of webhook deliveries queued, except
        those taken by `handover`. `alone`: nothing else of this channel is being written in this process; otherwise it
        may raise UnmatchedReports."""


class Results(Generic[Report]):
    """Batches answers and reports. A report is what a supplier sends later: a receipt or a status."""

    def __init__(
        self, pool: Pool, writer: Writer[Report], deliveries: Deliveries | None = None, *, limit: int = 1000
    ) -> None:
        """`deliveries`: delivers the events raised here; None: other workers deliver them."""
        self._pool = pool
        self._deliveries = deliveries
        self._writer = writer
        #: Called for answers that have been recorded, or never will be.
        self.landed: Callable[[Sequence[Any]], object] = lambda answered: None
        self._answers: Batcher[AnsweredAttempt, None] = Batcher(
            self._record,
            name=f"{writer.kind} answers",
            limit=limit,
            indivisible=is_down,
            settled=self._settled,
        )
        self._reports: Batcher[_Reported[Report], None] = Batcher(
            self._store, name=f"{writer.kind} reports", limit=limit, indivisible=is_down
        )
        #: Answers that arrived, and how many of them have been recorded or never will be, in order of arrival.
        self._came = self._done = 0
        #: Set when the latter number grows.
        self._progress = asyncio.Event()
        #: Held while answers are written; see `Flights.renew`.
        self.writing = asyncio.Lock()

    @property
    def waiting(self) -> int:
        """The number of answers, and of reports that arrived together, not yet in a batch."""
        return self._answers.waiting + self._reports.waiting

    def answer(self, answered: AnsweredAttempt) -> None:
        """Record the outcome of an attempt; `landed` is called once it is committed."""
        self._came += 1
        self._answers.add(answered)

    async def report(self, reports: Sequence[Report]) -> None:
        """Record reports; returns once they are committed. Raises if one of them is not."""
        if not reports:
            return
        try:
            await self._reports.put(_Reported(reports, self._came))
        except Exception as error:
            if is_down(error) or len(reports) == 1:
                raise
            await asyncio.gather(*[self._reports.put(_Reported([one], self._came)) for one in reports])

    def queued(self) -> None:
        """Called when webhook deliveries were queued."""
        if self._deliveries is not None:
            self._deliveries.queued()

    async def until_recorded(self, answers: int | None = None) -> None:
        """Wait until that many answers, or all that have arrived so far, are recorded or never will be."""
        wanted = self._came if answers is None else answers
        while self._done < wanted:
            self._progress.clear()
            await self._progress.wait()

    async def drain(self) -> None:
        """Wait until everything is committed."""
        # Reports first: with a test key, the answer follows the report.
        await self._reports.drain()
        await self._answers.drain()

    async def _record(self, answered: list[AnsweredAttempt]) -> list[None]:
        is_known = False
        while True:
            try:
                # Written twice, answers would be counted twice.
                if not (is_known and await self._are_recorded(answered)):
                    await despite_deadlocks(partial(self._write, answered, [], self.writing))
                for verdict, count in Counter(one.outcome.verdict for one in answered).items():
                    measures.ATTEMPTS.add(self._writer.kind, str(verdict), by=count)
                return [None] * len(answered)
            except Exception as error:
                if not is_down(error):
                    if len(answered) == 1:
                        await self._give_up(answered[0], error)
                    raise
                # Answers exist only in this process. Each batch says once that it waits: said at each try, it was four
                # lines a second for as long as an outage lasted.
                kind = type(error).__name__
                if is_known:
                    log.debug("outcomes still waiting", channel=self._writer.kind, count=len(answered), error=kind)
                else:
                    log.warning(
                        "outcomes waiting for the database",
                        channel=self._writer.kind,
                        count=len(answered),
                        error=kind,
                    )
                is_known = True
                await asyncio.sleep(RETRY)

    async def _are_recorded(self, answered: Sequence[AnsweredAttempt]) -> bool:
        """Whether the last try was committed although its connection was lost. Accepted attempts do not show it, since
        receipts record them too; but to record them again changes nothing, except that WhatsApp counts each as two
        toward its user's pace."""
        told = [(one.attempt, str(one.outcome.verdict)) for one in answered if one.outcome.verdict != Verdict.ACCEPTED]
        if not told:
            return False
        async with self._pool.acquire() as conn:
            return await attempts.are_recorded(conn, told)

    async def _give_up(self, answered: AnsweredAttempt, error: Exception) -> None:
        """Log the answer that is lost: the lease expires, and then the attempt's outcome counts as unknown."""
        lease = answered.attempt.lease
        request = None
        # An answer does not carry its request's id: it is looked up for the few that are lost.
        with contextlib.suppress(Exception):
            async with self._pool.acquire() as conn:
                request = await conn.fetchval(REQUEST.format(self._writer.table), lease.organization_id, lease.id)
        log.error(
            "outcome not recorded",
            channel=self._writer.kind,
            message_id=str(lease.id),
            request_id=request or None,
            error=type(error).__name__,
        )

    def _settled(self, answered: Sequence[AnsweredAttempt], error: BaseException | None) -> None:
        self._done += len(answered)
        self._progress.set()
        self.landed(answered)

    async def _store(self, reported: list[_Reported[Report]]) -> list[None]:
        """Reports that cannot be stored are returned to the caller, and will be delivered again."""
        await self.until_recorded(max(one.after for one in reported))
        reports = [one for each in reported for one in each.reports]
        try:
            await despite_deadlocks(partial(self._write, [], reports, None))
        except UnmatchedReports:
            await despite_deadlocks(partial(self._write, [], reports, self.writing))
        measures.REPORTS.add(self._writer.kind, by=len(reports))
        return [None] * len(reported)

    async def _write(self, answered: list[AnsweredAttempt], reports: list[Report], turn: asyncio.Lock | None) -> None:
        prepared = await self._writer.prepare(answered, reports)
        # A rollback also discards the handover.
        handover = self._deliveries.handover() if self._deliveries is not None else None
        crash_point(f"{self._writer.kind}.record.before_commit")
        handed = [] if handover is None else [handover]
        async with (
            turn or contextlib.nullcontext(),
            abandoned(handed),
            self._pool.acquire() as conn,
            conn.transaction(),
        ):
            queued = await self._writer.write(
                conn, answered, reports, prepared, handover, alone=turn is not None and not answered
            )
        crash_point(f"{self._writer.kind}.record.after_commit")
        if handover is not None:
            handover.deliver()
        if queued:
            self.queued()
