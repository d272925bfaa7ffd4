"""Dispatch: from the queue to the connectors. Every channel runs the same round:

    pick       due rows, as many as can be handed over; locked, so that no other worker takes them
    load       everything needed to decide about each message, read again
    resolve    attempts whose outcome is unknown: wait for news, then let the channel decide
    decide     the channel decides: send and to whom, postpone, or end
    begin      record the attempt and its lease, and commit
    submit     hand over to the connector, after the commit

The rule nobody may break: nothing leaves without its committed attempt, and nothing is sent again while an earlier
attempt may have arrived and news of it may still come.

It has over 400 lines because a round is one transaction, whatever fails in it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Generic, TypeVar
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph import traces
from heliograph.accounts import organizations
from heliograph.accounts.organizations import STOPPED
from heliograph.base.database import clock
from heliograph.base.database.pool import BRIEFLY, ROW_LOCKED, Connection, Pool, follow_clock, is_down
from heliograph.base.process import measures, spans
from heliograph.base.process.crash import crash_point
from heliograph.base.process.logs import Sparse
from heliograph.base.process.spans import Span
from heliograph.queue import leases
from heliograph.queue.backlog import Backlog
from heliograph.queue.holds import RESUMING
from heliograph.queue.leases import Lease, Postponed
from heliograph.sending import attempts, unsubmitted
from heliograph.sending.attempts import Attempt
from heliograph.sending.channel import Channel, Finish, Message, Step
from heliograph.sending.flights import Flights, Key
from heliograph.sending.results import RETRY, AnsweredAttempt, Results
from heliograph.suppliers.contract import Verdict

Report = TypeVar("Report")

log = structlog.get_logger()

_locked = Sparse("messages wait for a locked row")

#: Messages that may be out without a recorded answer, in multiples of a claim: otherwise a fast supplier's answers and
#: reports would pile up in front of the writer until it has to refuse reports.
UNRECORDED_CLAIMS = 2
#: A message whose attempt was just found without an outcome waits at least this many seconds: the process that has its
#: answer may also have been waiting for the database, and be about to record it.
RECENT_LOSS_WAIT = 5.0
#: A message about which no decision is possible is tried again after this many seconds: often enough for the alert
#: about failing steps, which needs more than five failures in ten minutes.
SET_ASIDE = 60.0
#: A round that reached a time limit has probably waited for a row that somebody keeps locked, as in an open session.
#: For this many seconds after such a lock, rounds wait for locks only briefly, and leave what is locked for a moment.
LOCKS_FOR, LOCKED_PAUSE = 300.0, 5.0
#: Halving finds a message whose rows are locked within this many locks. After that, those of one organization are left
#: together, and after so many, all that a round has not decided about yet.
TO_FIND, MOST_LOCKS = 10, 20
NOTHING = 0, 0


class Dispatcher(Generic[Message, Report]):
    """Moves messages of one channel from the queue to its connectors; one per worker."""

    def __init__(
        self,
        pool: Pool,
        channel: Channel[Message, Report],
        results: Results[Report],
        *,
        claim_limit: int,
        lease_seconds: float,
        backlog: Backlog | None = None,
    ) -> None:
        """`backlog`: the one from which the channel claims."""
        self._pool = pool
        self._channel = channel
        self._backlog = backlog or Backlog()
        self._results = results
        results.landed = self._landed
        self._claim_limit = claim_limit
        self._lease_seconds = lease_seconds
        self.flights = Flights(late=channel.grace, lease_seconds=lease_seconds)
        #: Held during a round.
        self._in_round = asyncio.Lock()
        self._stopping = False
        #: Attempts that were not handed over (`unsubmitted`).
        self._unsubmitted: list[Attempt[Message]] = []
        self.wake = channel.wake
        #: The last round failed, perhaps because of one of its messages.
        self._is_wary = False
        #: Until then, a round waits for locks only briefly, monotonic seconds; and how many locks this one has met.
        self._locks_until = 0.0
        self._locks = 0
        #: The first lane and organization that such a round has not decided about: the next one begins with them.
        self._rest = NOTHING
        #: The number of answers that frees enough room for another round.
        self._wake_after = 0
        #: The traced messages of this round, and the traced attempts under way.
        self._found: dict[UUID, traces.TraceContext] = {}
        self._spans: dict[Key, Span] = {}

    @property
    def in_flight(self) -> int:
        """Messages handed to connectors whose outcome is not recorded yet."""
        return len(self.flights)

    async def round(self) -> int:
        """Pick and submit once; returns how many rows were picked, or 0 if another round is not worthwhile now."""
        async with self._in_round:
            return 0 if self._stopping else await self._round()

    async def stop(self, *, grace: float) -> None:
        """Begin no more rounds, and wait up to `grace` seconds until the current one has handed over its attempts.

        Cancelled between its commit and its connectors, it would leave attempts that nobody has: in doubt until their
        leases and the wait for receipts are over, and at most once, for ever."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace), self._in_round:
                return

    async def drain(self) -> None:
        """Wait until every outcome is committed, however long the database is away, except those that wait for a locked
        row (`linger`); called after `stop`."""
        await self._results.drain(aside=False)
        while self._unsubmitted:
            try:
                await self._settle_unsubmitted()
                return
            except Exception as error:
                if not is_down(error):
                    raise
                await asyncio.sleep(RETRY)

    async def linger(self) -> None:
        """Wait for the outcomes that a locked row holds up; called after `drain`."""
        await self._results.drain()

    async def _round(self) -> int:
        channel = self._channel
        await self._settle_unsubmitted()
        await channel.before_round()
        # Answers that are set aside leave room for others. There are few, since nothing follows them.
        unrecorded = len(self.flights) + len(self._unsubmitted) - self._results.held_up
        limit = min(self._claim_limit, UNRECORDED_CLAIMS * self._claim_limit - unrecorded)
        outgoing: list[Attempt[Message]] = []
        self._found.clear()
        briefly, self._locks = 0.0 < self._locks_until > monotonic(), 0
        first, self._rest = self._rest, NOTHING
        crash_point(f"{channel.kind}.dispatch.before_commit")
        try:
            async with self._pool.acquire() as conn:
                began = monotonic()  # leases begin no earlier
                async with self._backlog.transaction(conn):
                    if briefly:
                        await conn.execute(BRIEFLY)
                    picked = await channel.pick(conn, limit=limit)
                    if briefly:  # those of an organization may be left together
                        picked.sort(key=lambda one: (_place(one) < first, _place(one)))
                    if self._results.aside:
                        picked = await self._without_aside(conn, picked)
                    decide = self._bisect if self._is_wary or briefly else self._decide
                    outgoing = await decide(conn, picked) if picked else []
        except asyncpg.DeadlockDetectedError:
            channel.rolled_back()
            return 1  # another transaction won: nothing was done, and the next round will see its effects
        except BaseException as error:
            # If there are any, it was on its way to the commit, or past it.
            self._unsubmitted += outgoing
            channel.rolled_back()
            self._is_wary = may_be_of_one(error)
            if isinstance(error, ROW_LOCKED):
                self._locks_until = monotonic() + LOCKS_FOR
            raise
        if picked:
            self._is_wary = False
        crash_point(f"{channel.kind}.dispatch.after_commit")
        if outgoing:
            self._wake_after = (len(outgoing) + 1) // 2
            self._hand_over(outgoing, began)
            crash_point(f"{channel.kind}.dispatch.after_submit")
        return len(picked) if channel.after_round(picked) else 0

    def _hand_over(self, outgoing: list[Attempt[Message]], began: float) -> None:
        """Submit attempts that are committed. `began`: monotonic seconds, no later than their leases began."""
        for n, attempt in enumerate(outgoing):
            if monotonic() - began > self._lease_seconds / 2:
                # The process or the database stood still. Other workers may have sent the rest already.
                self._unsubmitted += outgoing[n:]
                return
            self.flights.add(attempt, since=began)
            if self._found:
                self._trace(attempt)
            try:
                self._channel.submit(attempt)
            except Exception:
                # A part of it may have been sent. Its lease expires, and then its outcome counts as unknown.
                self._fail("attempt not handed over", attempt.lease)
                self.flights.landed([(attempt.lease.id, attempt.number)])

    def answered(self, key: Key, outcome: Any) -> None:
        """Record the outcome of an attempt, as reported by a connector."""
        if self._spans and (span := self._spans.pop(key, None)) is not None:
            span.end({"verdict": str(outcome.verdict)}, failed=outcome.verdict is Verdict.UNKNOWN)
        # Checked first: an attempt that was given up stays in flight until that is recorded, and the database may be
        # down.
        late = self.flights.find_late(key)
        if late is not None:
            self._results.answer(AnsweredAttempt(late, outcome, is_late=True))
            return
        attempt = self.flights.find(key)
        if attempt is None:
            return
        self._channel.heard(attempt, outcome)
        if outcome.verdict is Verdict.UNKNOWN:
            self.flights.give_up(key)
        self._results.answer(AnsweredAttempt(attempt, outcome))
        # The next round need not wait until this is recorded.
        self._wake_after -= 1
        if self._wake_after == 0 and self._channel.is_full:
            self.wake.set()

    async def renew(self) -> None:
        """Renew the leases of messages in flight; called every third of a lease."""
        await self.flights.renew(self._pool, self._results.writing)

    async def _settle_unsubmitted(self) -> None:
        """Record that nothing was sent in attempts that have begun, but were not handed over."""
        if not self._unsubmitted:
            return
        async with self._pool.acquire() as conn:
            begun, self._unsubmitted = await unsubmitted.look(conn, self._channel.kind, self._unsubmitted)
        if not begun:
            return
        log.warning("attempts that were not handed over end unsent", channel=self._channel.kind, count=len(begun))
        for one in begun:
            self.flights.add(one, since=monotonic())
            self.answered((one.lease.id, one.number), self._channel.unsent(one))
        # Their leases may have ended: the next round would take them for lost, and wait for news of them.
        await self._results.until_recorded()

    def _landed(self, answered: Sequence[AnsweredAttempt]) -> None:
        self.flights.landed([(one.attempt.lease.id, one.attempt.number) for one in answered])
        if self._channel.is_full:
            self.wake.set()

    async def _bisect(self, conn: Connection, picked: list[Lease]) -> list[Attempt[Message]]:
        """Like `_decide`, but if that fails, each half separately: a single message that fails is set aside, so that it
        delays no other. What the channel has reserved for a half that failed stays reserved until the next round."""
        try:
            async with conn.transaction():
                return await self._decide(conn, picked)
        except Exception as error:
            is_locked = isinstance(error, asyncpg.LockNotAvailableError)
            if not is_locked and not may_be_of_one(error):
                raise
            self._channel.rolled_back()
            if is_locked:
                self._locks += 1
                self._locks_until = monotonic() + LOCKS_FOR
                is_found = self._locks > TO_FIND and len({one.organization_id for one in picked}) == 1
                if is_found or len(picked) == 1:
                    await self._leave_locked(conn, picked)
                    return []
                if self._locks >= MOST_LOCKS:
                    if self._rest == NOTHING:
                        self._rest = _place(picked[0])
                    self._backlog.leave(conn)
                    return []
            if len(picked) == 1:
                self._fail("message set aside", picked[0])
                await self._set_aside(conn, picked[0])
                return []
        middle = len(picked) // 2
        first = await self._bisect(conn, picked[:middle])
        return first + await self._bisect(conn, picked[middle:])

    async def _leave_locked(self, conn: Connection, picked: Sequence[Lease]) -> None:
        """Leave messages of one organization whose rows are locked. Attempts under way are left to their workers."""
        organization = str(picked[0].organization_id)
        kind = self._channel.kind
        _locked.warn(log, f"{kind} {organization}", channel=kind, organization_id=organization)
        if under_way := [one for one in picked if one.begun_at is not None]:
            await leases.renew_picked(conn, under_way, seconds=self._lease_seconds)
        await self._leave(conn, [one for one in picked if one.begun_at is None])

    async def _without_aside(self, conn: Connection, picked: list[Lease]) -> list[Lease]:
        """These without new messages of organizations whose answers cannot be recorded now: they would pile up."""
        aside = [one for one in picked if one.begun_at is None and one.organization_id in self._results.aside]
        await self._leave(conn, aside)
        ids = {one.id for one in aside}
        return [one for one in picked if one.id not in ids]

    async def _leave(self, conn: Connection, picked: Sequence[Lease]) -> None:
        back = [Postponed(one, LOCKED_PAUSE, one.line, counts=False) for one in picked]
        if back:
            await leases.postpone_picked(conn, back)

    async def _set_aside(self, conn: Connection, lease: Lease) -> None:
        if lease.begun_at is not None:  # an attempt that was under way is not forgotten with its lease
            await attempts.mark_unknown(conn, [lease])
        elif await self._expire(conn, lease):
            return
        await leases.postpone_picked(conn, [Postponed(lease, SET_ASIDE, lease.line, counts=False)])

    async def _expire(self, conn: Connection, lease: Lease) -> bool:
        """End a message that keeps failing, once it is past its validity and no longer waits for news: its sender
        expects it to end by then."""
        try:
            async with conn.transaction():
                deliveries = await self._channel.expire_one(conn, lease)
        except Exception as error:
            if not may_be_of_one(error):
                raise
            self._fail("message not expired", lease)
            return False
        if deliveries:
            self._results.queued()
        return deliveries is not None

    def _fail(self, what: str, lease: Lease) -> None:
        """Log a failure that an operator has to look at; called in an exception handler."""
        log.exception(what, channel=self._channel.kind, message_id=str(lease.id))
        measures.FAILURES.add(f"{self._channel.kind} dispatch")

    async def _decide(self, conn: Connection, picked: list[Lease]) -> list[Attempt[Message]]:
        """Settle the messages that are not sent, and begin the attempts of those that are."""
        channel = self._channel
        unseen = [lease for lease in picked if lease.begun_at is not None]
        alive = await self._alive(conn, unseen)
        if alive:
            await leases.renew_picked(conn, alive, seconds=self._lease_seconds)
            ids = {one.id for one in alive}
            picked = [one for one in picked if one.id not in ids]
            unseen = [one for one in unseen if one.id not in ids]
        if unseen:
            await attempts.mark_unknown(conn, unseen)
        messages = await channel.load(conn, picked)
        stopped = {one.lease.organization_id for one in messages if one.organization_state in STOPPED}
        resuming = stopped - await organizations.hold_stopped(conn, stopped) if stopped else stopped
        moves: list[Any] = []
        steps: dict[UUID, Step] = {}
        lost = [one for one in messages if one.is_unsent and one.attempt_state == "unknown"]
        if lost:
            steps, known = await self._resolve(conn, lost, moves)
            messages = [known.get(one.lease.id, one) for one in messages]
        decided = [one for one in messages if one.lease.id not in steps]
        if decided:
            chosen = await channel.decide(conn, decided)
            steps.update(zip((one.lease.id for one in decided), chosen, strict=True))
        finished: list[Lease] = []
        back: list[Postponed] = []
        outgoing: list[Attempt[Message]] = []
        for message in messages:
            match steps[message.lease.id]:
                case Finish(move):
                    finished.append(message.lease)
                    if move is not None:
                        moves.append(move)
                case Postponed() as postponed:
                    # Resuming does not find what a worker has at that moment. What changes its line waits for more.
                    stays = postponed.line == message.lease.line and postponed.pause > RESUMING
                    is_soon = stays and message.lease.organization_id in resuming
                    back.append(msgspec.structs.replace(postponed, pause=RESUMING) if is_soon else postponed)
                case Attempt() as attempt:
                    outgoing.append(attempt)
        begun = await self._still_free(conn, outgoing, finished)
        if finished:
            await leases.finish_picked(conn, finished)
        if back:
            await leases.postpone_picked(conn, back)
        if begun:
            await attempts.begin(conn, begun, seconds=self._lease_seconds)
            if spans.on():
                marked = [one.lease for one in begun if spans.is_marked(one.lease.id)]
                if marked:
                    self._found |= await traces.find(conn, [(one.organization_id, one.id) for one in marked])
        # After the dispatcher's own writes, since moves lock messages and balances; the channel's notes about attempts
        # come after those, in the same order as when their answers are recorded.
        if moves and await channel.move(conn, moves):
            self._results.queued()
        if begun:
            await channel.begun(conn, begun)
        return begun

    async def _alive(self, conn: Connection, unseen: Sequence[Lease]) -> Sequence[Lease]:
        """The attempts under way among these that are not lost although their leases have ended: those of this process,
        which stood still, or whose database's clock was set; and all, while their workers may not have renewed them
        since the clock was set forward, which ended leases that had just begun."""
        own = [one for one in unseen if (one.id, one.attempt) in self.flights]
        if len(own) == len(unseen):
            return own
        await follow_clock(conn)
        return unseen if clock.since_forward() < self._lease_seconds else own

    def _trace(self, one: Attempt[Message]) -> None:
        """Trace an attempt that is committed and about to be handed over."""
        kept = self._found.pop(one.lease.id, None)
        if kept is None:
            return
        if one.number == 1:
            traces.waited(self._channel.kind, one.lease.id, kept)
        span = traces.attempt_begun(self._channel.kind, one.lease.id, one.number, one.target_id, kept)
        self._spans[one.lease.id, one.number] = span

    async def _still_free(
        self, conn: Connection, outgoing: list[Attempt[Message]], finished: list[Lease]
    ) -> list[Attempt[Message]]:
        """The messages that may be sent. An answer to an earlier attempt may have been recorded since the message was
        loaded: then its work goes into `finished`."""
        again = [one.lease for one in outgoing if one.lease.attempt > 0]
        if not again:
            return outgoing
        unsent = await attempts.still_unsent(conn, self._channel.table, again)
        finished += [lease for lease in again if lease.id not in unsent]
        return [one for one in outgoing if one.lease.attempt == 0 or one.lease.id in unsent]

    async def _resolve(
        self, conn: Connection, lost: Sequence[Message], moves: list[Any]
    ) -> tuple[dict[UUID, Step], dict[UUID, Message]]:
        """For messages whose last attempt has an unknown outcome: their next step, or the message as it is now known to
        be. Those that may be sent again are in neither."""
        found = await self._channel.find_lost(conn, lost)
        moves += found.moves
        steps: dict[UUID, Step] = {id: Finish() for id, known in found.known.items() if known is None}
        known = {id: one for id, one in found.known.items() if one is not None}
        over: list[Message] = []
        for one in lost:
            lease = one.lease
            if lease.id in found.known:
                continue
            assert one.started_at is not None
            waits = (one.started_at + timedelta(seconds=self._channel.grace) - one.at).total_seconds()
            # News takes as long as ever to come, however far the clock was set forward.
            waits = max(waits, self._channel.grace - clock.since_forward())
            if lease.begun_at is not None or (lease.id, lease.attempt) in self.flights:
                waits = max(waits, RECENT_LOSS_WAIT)
            if waits > 0:
                steps[lease.id] = Postponed(lease, waits, self._channel.home(lease), counts=False)
            else:
                over.append(one)
        if over:
            steps.update(await self._channel.give_up(conn, over))
        return steps, known


def _place(one: Lease) -> tuple[int, int]:
    return one.lane, one.organization_id.int


def may_be_of_one(error: BaseException) -> bool:
    """Whether the data of one message may be the cause, rather than the database or another transaction's lock."""
    others = asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError
    return isinstance(error, Exception) and not is_down(error) and not isinstance(error, others)
