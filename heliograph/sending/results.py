"""The single writer of a channel: outcomes of attempts and reports about messages, in one transaction per batch.

Answers and reports are written concurrently, so that neither waits for the other's commit. A report waits for the
answers that arrived before it, so a report that follows its answer immediately finds it recorded.

The rule nobody may break: nothing is acknowledged before it is committed, and what only this process knows (an answer)
is kept until the database accepts it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import groupby
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.base.database.batching import Batcher
from heliograph.base.database.pool import BRIEFLY, ROW_LOCKED, Connection, Pool, despite_deadlocks, is_down
from heliograph.base.process import measures
from heliograph.base.process.crash import crash_point
from heliograph.sending import attempts
from heliograph.sending.attempts import Attempt
from heliograph.suppliers.contract import PartlyStored, Verdict
from heliograph.webhooks.recording.handover import Deliveries, Handover, abandoned

log = structlog.get_logger()

#: Pause before a batch is retried while the database is unavailable, in seconds.
RETRY = 0.5
#: Organizations, at most, whose answers are set aside, and the pause before they are retried, in seconds: no lease can
#: be renewed while each waits for its lock.
MOST_ASIDE, ASIDE_RETRY = 4, 2.0
#: Seconds for which reports wait for locks only briefly after one had to, and for how many locks in one batch: ten
#: tell one report from a thousand others.
LOCKS_FOR, MOST_LOCKS = 60.0, 40

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


class SetAside(Exception):
    """Rows of its organization are locked: the answer is recorded as soon as they are not."""


class UnmatchedReports(Exception):
    """Some reports match nothing yet, but the answers that they refer to may be about to be committed: the reports are
    written again, on their own."""


class _Reported(msgspec.Struct, Generic[Report], frozen=True, gc=False):
    """Reports that arrived together."""

    reports: Sequence[Report]
    #: How many answers had arrived by then.
    after: int


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
        #: Called for answers that are committed.
        self.committed: Callable[[Sequence[AnsweredAttempt]], object] = lambda answered: None
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
        #: The answers of organizations whose rows somebody keeps locked.
        self._aside: dict[UUID, Batcher[AnsweredAttempt, None]] = {}
        self._limit = limit
        #: How many attempts have an answer that is set aside.
        self.held_up = 0
        #: Until then, reports wait for locks only briefly; monotonic seconds.
        self._locks_until = 0.0

    @property
    def waiting(self) -> int:
        """The number of answers, and of reports that arrived together, not yet in a batch."""
        return self._answers.waiting + self._reports.waiting + sum(one.waiting for one in self._aside.values())

    @property
    def aside(self) -> Collection[UUID]:
        """Organizations whose answers wait because rows of them are locked."""
        return self._aside.keys()

    def answer(self, answered: AnsweredAttempt) -> None:
        """Record the outcome of an attempt; `landed` is called once it is committed."""
        self._came += 1
        self._answers.add(answered)

    async def report(self, reports: Sequence[Report]) -> None:
        """Record reports; returns once they are committed. Raises if one of them is not: PartlyStored if there are
        others."""
        if not reports:
            return
        try:
            await self._reports.put(_Reported(reports, self._came))
        except Exception as error:
            if is_down(error) or len(reports) == 1:
                raise
            each = [self._reports.put(_Reported([one], self._came)) for one in reports]
            found = await asyncio.gather(*each, return_exceptions=True)
            if errors := {place: one for place, one in enumerate(found) if one is not None}:
                raise PartlyStored(errors) from None

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

    async def drain(self, *, aside: bool = True) -> None:
        """Wait until everything is committed; `aside`: also what waits for a locked row."""
        # Reports first: with a test key, the answer follows the report.
        await self._reports.drain()
        await self._answers.drain()
        while aside and self._aside:
            await asyncio.gather(*(one.drain() for one in self._aside.values()))

    async def _record(self, answered: list[AnsweredAttempt]) -> list[SetAside | None]:
        """Record answers, or set them aside if rows of their organization stay locked, so that others' do not wait."""
        held = [one for one in answered if _organization(one) in self._aside] if self._aside else []
        self._set_aside(held)
        here = [one for one in answered if _organization(one) not in self._aside] if held else answered
        left = await self._keep(here)
        ids = {id(one) for one in (*held, *left)}
        return [SetAside() if id(one) in ids else None for one in answered]

    def _set_aside(self, answered: Sequence[AnsweredAttempt]) -> None:
        for one in answered:
            organization = _organization(one)
            if organization not in self._aside:
                told = str(organization)
                log.warning("answers wait for a locked row", channel=self._writer.kind, organization_id=told)
                self._aside[organization] = Batcher(
                    partial(self._record_aside, organization),
                    name=f"{self._writer.kind} answers",
                    limit=self._limit,  # the first batch is a part of one that was tried as a whole
                    settled=lambda answered, error: self._released(answered),
                )
            self.held_up += not one.is_late
            self._aside[organization].add(one)

    def _released(self, answered: Sequence[AnsweredAttempt]) -> None:
        self.held_up -= sum(not one.is_late for one in answered)
        self.landed(answered)

    async def _record_aside(self, organization: UUID, answered: list[AnsweredAttempt]) -> list[None]:
        left = await self._keep(answered, aside=True)
        while left:
            await asyncio.sleep(ASIDE_RETRY)
            left = await self._keep(left, aside=True)
        if not self._aside[organization].waiting:
            del self._aside[organization]
        return [None] * len(answered)

    async def _keep(self, answered: Sequence[AnsweredAttempt], *, aside: bool = False) -> list[AnsweredAttempt]:
        """Record answers, except those of organizations whose rows are locked, which it sets aside and returns.
        `aside`: they have been set aside."""
        left: list[AnsweredAttempt] = []
        # What is set aside may have been committed since: a commit that hung may have been what held the lock.
        is_known = briefly = aside
        parts = deque([answered] if answered else [])
        while parts:
            part = parts[0]
            try:
                await despite_deadlocks(partial(self._write, part, [], self.writing, briefly=briefly, again=is_known))
                for verdict, count in Counter(one.outcome.verdict for one in part).items():
                    measures.ATTEMPTS.add(self._writer.kind, str(verdict), by=count)
                parts.popleft()
            except ROW_LOCKED as error:
                groups = _by_organization(part)
                is_locked = isinstance(error, asyncpg.LockNotAvailableError)
                # With more of them, it is a table that is locked.
                may_leave = aside or len(self._aside) < MOST_ASIDE
                if may_leave and (not briefly or len(groups) > 1):
                    parts.popleft()
                    parts.extendleft(reversed(groups))
                    briefly = True
                elif may_leave and is_locked:
                    left += parts.popleft()
                    if not aside:
                        self._set_aside(part)
                        # They begin as a batch of their own: of what follows and was not tried, nothing is recorded.
                        await asyncio.sleep(0)
                else:
                    briefly = aside
                    is_known = await self._pause(part, error, again=is_known)
            except Exception as error:
                if is_down(error):
                    is_known = await self._pause(part, error, again=is_known)
                    continue
                measures.BATCH_FAILURES.add(f"{self._writer.kind} answers")
                parts.popleft()
                if len(part) == 1:
                    await self._give_up(part[0], error)
                else:  # one bad answer must not fail the others
                    parts.extendleft([part[len(part) // 2 :], part[: len(part) // 2]])
        return left

    async def _pause(self, part: Sequence[AnsweredAttempt], error: Exception, *, again: bool) -> bool:
        """Wait before answers are recorded again, since they exist only in this process. Each batch says once that it
        waits: said at each try, it was four lines a second for as long as an outage lasted."""
        said: dict[str, Any] = {"channel": self._writer.kind, "count": len(part), "error": type(error).__name__}
        if again:
            log.debug("outcomes still waiting", **said)
        else:
            log.warning("outcomes waiting for the database", **said)
        await asyncio.sleep(RETRY)
        return True

    async def _are_recorded(self, conn: Connection, answered: Sequence[AnsweredAttempt]) -> bool:
        """Whether the last try was committed although its connection was lost: written twice, answers would be counted
        twice. Accepted attempts without a code do not show it, since receipts record them too; but to record them again
        changes nothing, except that WhatsApp counts each as two toward its user's pace. Nor does a late one without an
        outcome, as when another segment's answer is still missing: it was recorded like that before."""
        told = [
            (one.attempt, str(one.outcome.verdict))
            for one in answered
            if not (one.is_late and one.outcome.verdict == Verdict.UNKNOWN)
        ]
        return bool(told) and await attempts.are_recorded(conn, self._writer.kind, told)

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
        if not isinstance(error, SetAside):
            self.landed(answered)

    async def _store(self, reported: list[_Reported[Report]]) -> list[BaseException | None]:
        """Reports that cannot be stored are returned to the caller, and will be delivered again: all of them, or those
        of a row that is locked."""
        await self.until_recorded(max(one.after for one in reported))
        results: list[BaseException | None] = []
        locks = 0
        briefly = monotonic() < self._locks_until
        parts = deque([reported])
        while parts:
            part = parts.popleft()
            reports = [one for each in part for one in each.reports]
            try:
                try:
                    await despite_deadlocks(partial(self._write, [], reports, None, briefly=briefly))
                except UnmatchedReports:
                    await despite_deadlocks(partial(self._write, [], reports, self.writing, briefly=briefly))
            except ROW_LOCKED as error:
                self._locks_until = monotonic() + LOCKS_FOR
                if briefly and isinstance(error, asyncpg.QueryCanceledError):  # no lock takes that long
                    return results + [error] * (len(part) + sum(map(len, parts)))
                locks += briefly
                if locks >= MOST_LOCKS or (briefly and len(part) == 1):
                    results += [error] * len(part)
                else:
                    halves = [part[: len(part) // 2], part[len(part) // 2 :]] if briefly else [part]
                    parts.extendleft(reversed(halves))
                briefly = True
                continue
            measures.REPORTS.add(self._writer.kind, by=len(reports))
            results += [None] * len(part)
        return results

    async def _write(
        self,
        answered: Sequence[AnsweredAttempt],
        reports: list[Report],
        turn: asyncio.Lock | None,
        *,
        briefly: bool = False,
        again: bool = False,
    ) -> None:
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
            if briefly:
                await conn.execute(BRIEFLY)
            if again and await self._are_recorded(conn, answered):
                return
            queued = await self._writer.write(
                conn, answered, reports, prepared, handover, alone=turn is not None and not answered
            )
        crash_point(f"{self._writer.kind}.record.after_commit")
        if answered:
            self.committed(answered)
        if handover is not None:
            handover.deliver()
        if queued:
            self.queued()


def _organization(one: AnsweredAttempt) -> UUID:
    return one.attempt.lease.organization_id


def _by_organization(answered: Sequence[AnsweredAttempt]) -> list[list[AnsweredAttempt]]:
    return [list(group) for _, group in groupby(sorted(answered, key=_organization), key=_organization)]
