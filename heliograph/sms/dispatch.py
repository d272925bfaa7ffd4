"""Dispatch: from the queue to a supplier.

Each round claims due rows, decides about each message, commits an attempt row for those that go out, and only then
hands them to their connectors. How many are claimed follows from how many the connectors can take, so a supplier's
window, its rate and the CPU are the only bounds.

Rows wait in lines. New work is in the line UNROUTED; what is meant for a supplier that is full at the moment moves to
that supplier's line, where it delays nobody else.

The rule nobody may break: no attempt leaves without its committed row, and no message is tried again while an earlier
attempt may still have reached the handset: it waits for a receipt, and then the send's own guarantee decides.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import timedelta
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.base.crash import crash_point
from heliograph.base.db import Connection, Pool
from heliograph.queue import leases
from heliograph.queue.leases import SINGLE, UNROUTED, Lease, Postponed
from heliograph.queue.retry import HOLD
from heliograph.sms import encoding, test_mode
from heliograph.sms.claimed import UNSENT, ClaimedMessage, load
from heliograph.sms.outcomes import Answered, deadline
from heliograph.sms.recorder import Recorder
from heliograph.sms.routing import Breaker, Senders, Supplier, choose, covers, holds_back, overlap, serving
from heliograph.sms.status import Move, guard, move_many
from heliograph.sms.uncertain import resolve, unknown
from heliograph.suppliers.contract import Connector, Outcome, Scope, Submission, Verdict

log = structlog.get_logger()

#: A message of a suspended organization is looked at again after this, seconds.
SUSPENDED_PAUSE = 60.0
#: Messages that live no longer than this are taken for one-time codes. They wait a fifth of the usual patience for a
#: supplier that is slow, and campaigns four times as long.
SHORT_LIVED, HASTE, LEISURE = timedelta(minutes=15), 5.0, 4.0
#: Tries that a supplier answered with "later" before another one is asked.
PATIENCE = 2
#: Messages that may be out without a recorded answer, in claims.
UNRECORDED = 2
#: Segments of a long message follow those that a supplier has for so long; then it is sent as a whole, anew.
CONTINUED = timedelta(hours=1)
#: Seconds between looks into the lines of suppliers that no row is known to wait in.
LOOK = 1.0
#: Rows of lines whose supplier cannot be used, moved on at once in one round.
REROUTE = 200
#: Rows of new work looked at in each round, however much waits in the suppliers' lines.
NEW = 32


class PooledSupplier(msgspec.Struct):
    """A supplier as this worker uses it."""

    supplier: Supplier
    connector: Connector
    breaker: Breaker
    senders: Senders = msgspec.field(default_factory=lambda: Senders(time.monotonic))
    #: Segments that may still be handed over in this round.
    room: int = 0
    #: Another worker has it bound and uses it.
    elsewhere: bool = False
    #: Other workers have it not, and may leave messages for it in its line.
    fed: bool = False
    #: The circuit is open, and this round may send one message to see whether it still must be.
    probe: bool = False


# The message comes first: it may have been canceled, or an earlier attempt answered, since it was looked at. An attempt
# that is there already belongs to a worker that was taken for dead. In both cases this one must not go out.
BEGIN = f"""
WITH moved AS (
    UPDATE messages m SET status = 'sending'
      FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::uuid[], $5::integer[], $6::smallint[], $7::smallint[])
           AS item (organization_id, id, attempt, supplier_id, reference, continues, parts)
     WHERE m.organization_id = item.organization_id AND m.id = item.id AND {guard("m.status", "'sending'")}
    RETURNING item.*
)
INSERT INTO sms_attempts (organization_id, message_id, attempt, supplier_id, reference, continues, parts, state,
                          started_at)
SELECT organization_id, id, attempt, supplier_id, reference, continues, parts, 'open', now() FROM moved
ON CONFLICT DO NOTHING
RETURNING message_id
"""

#: Pairs of sender and recipient whose last reference is remembered.
REFERENCES = 20_000


class _Out(msgspec.Struct, frozen=True, gc=False):
    """A message on its way out."""

    due: ClaimedMessage
    account: PooledSupplier
    submission: Submission
    #: The first attempt of its series, and the segments of the whole message.
    series: int
    parts: int


class _Flying(msgspec.Struct, frozen=True, gc=False):
    """What was handed over: since when (loop time), and how often the supplier's circuit had opened by then."""

    out: _Out
    since: float
    openings: int


#: What becomes of one claimed message: nothing more, a new state, back into the queue, or out to a supplier.
_Step = Move | Postponed | _Out | None


class Dispatcher:
    """Moves messages from the queue to connectors; one per worker."""

    def __init__(
        self,
        pool: Pool,
        accounts: Callable[[], Mapping[UUID, PooledSupplier]],
        recorder: Recorder,
        *,
        claim_limit: int,
        lease_seconds: float,
        grace: float,
        patience: float = 15.0,
    ) -> None:
        """`accounts`: the suppliers of this worker now. `grace`: seconds an unknown outcome waits for its receipt.
        `patience`: seconds that a message waits for a supplier that is slow before the next one is asked."""
        self._pool = pool
        self._accounts = accounts
        self._recorder = recorder
        self._claim_limit = claim_limit
        self._lease_seconds = lease_seconds
        self._grace = grace
        self._patience = patience
        #: Rows looked at, when there is a look at the lines of full suppliers, for what has waited long enough.
        self._overflow = NEW
        #: By message and attempt.
        self._flying: dict[tuple[UUID, int], _Flying] = {}
        #: What ended without an answer, since when (loop time): one that comes late still counts.
        self._unanswered: dict[tuple[UUID, int], tuple[_Flying, float]] = {}
        self._references: OrderedDict[tuple[str, str], int] = OrderedDict()
        #: Lines of suppliers that rows wait in, as far as this worker knows; looked for again each LOOK seconds.
        self._parked: set[UUID] = set()
        self._look_at = 0.0
        self._usable: list[Supplier] = []
        #: Suppliers that only other workers can use now: a message that belongs there waits in their line.
        self._elsewhere: list[Supplier] = []
        #: Rows were left to other workers in this round; in the last one, most were.
        self._left_to_others = 0
        self._passes_on = False
        #: Set when rows were left to other workers, who should be told.
        self.passed_on = asyncio.Event()
        #: The last round took all it could: room that comes free is worth another one.
        self._full = False
        #: Set when something may have changed: new work, a free window, a new supplier.
        self.wake = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Messages handed to connectors whose end is not recorded yet."""
        return len(self._flying)

    async def round(self) -> int:
        """Claim and submit once; returns how many rows were claimed."""
        room = self._make_room()
        self._left_to_others = 0
        crash_point("dispatch.before_commit")
        try:
            async with self._pool.acquire() as conn, conn.transaction():
                claimed = await self._claim(conn, room)
                outgoing = await self._decide(conn, claimed) if claimed else []
        except asyncpg.DeadlockDetectedError:
            return 1  # somebody else's transaction went first: nothing was claimed, and the next round sees what it did
        crash_point("dispatch.after_commit")
        self._passes_on = self._left_to_others * 2 > len(claimed)
        if self._left_to_others:
            self.passed_on.set()
        at = asyncio.get_running_loop().time()
        for one in outgoing:
            submission, account = one.submission, one.account
            self._flying[submission.message_id, submission.attempt] = _Flying(one, at, account.breaker.openings)
            account.breaker.asked()
            account.connector.submit(submission)
        if outgoing:
            crash_point("dispatch.after_submit")
        return len(claimed)

    def answered(self, supplier_id: UUID, submission: Submission, outcome: Outcome) -> None:
        """A connector's `on_outcome`: record the end of an attempt."""
        key = (submission.message_id, submission.attempt)
        flying = self._flying.get(key)
        if flying is None:
            late = self._unanswered.get(key)
            if late is not None:
                self._record(late[0].out, supplier_id, outcome)
            return
        self._count(supplier_id, outcome, flying)
        if outcome.verdict is Verdict.UNKNOWN:
            self._unanswered[key] = (flying, asyncio.get_running_loop().time())
        self._record(flying.out, supplier_id, outcome).add_done_callback(lambda done: self._landed(key, done))

    def _record(self, out: _Out, supplier_id: UUID, outcome: Outcome) -> asyncio.Future[None]:
        due = out.due
        return self._recorder.outcome(
            Answered(
                due.lease,
                out.submission,
                supplier_id,
                outcome,
                due.accepted_at,
                due.expires_at,
                out.series,
                len(due.refused or ()),
            )
        )

    def _count(self, supplier_id: UUID, outcome: Outcome, flying: _Flying) -> None:
        """Tell the supplier's circuit."""
        account = self._accounts().get(supplier_id)
        if account is None:
            return
        verdict, scope, breaker = outcome.verdict, outcome.scope, account.breaker
        sender = flying.out.submission.sender
        if verdict is Verdict.ACCEPTED:
            account.senders.taken(sender)
        elif scope is not Scope.ACCOUNT and (outcome.failover or verdict is Verdict.BUSY):
            account.senders.refused(sender)
        if verdict in (Verdict.ACCEPTED, Verdict.REFUSED):
            breaker.moved()
        elif verdict is Verdict.BUSY and not outcome.counts:
            breaker.put_off()
        if (verdict is Verdict.BUSY and not outcome.counts) or scope is Scope.SENDER:
            return  # it says neither that the supplier is well nor that it is not
        fault = verdict in (Verdict.UNREACHABLE, Verdict.UNKNOWN)
        fault = fault or (scope is Scope.ACCOUNT and (outcome.alarm or verdict is Verdict.BUSY))
        was_open = breaker.open
        breaker.record(ok=not fault, sent_in=flying.openings)
        if breaker.open != was_open:
            log.warning("supplier circuit", supplier=account.supplier.name, open=breaker.open)

    async def renew(self) -> None:
        """Hold the leases of messages that have been in flight for a third of a lease, and forget those whose answer
        would come too late; called that often."""
        at = asyncio.get_running_loop().time()
        for key in [key for key, (_, since) in self._unanswered.items() if at - since > self._grace]:
            del self._unanswered[key]
        old = [one.out.due.lease for one in self._flying.values() if at - one.since > self._lease_seconds / 3]
        if old:
            async with self._recorder.writing, self._pool.acquire() as conn:
                await leases.renew(conn, old, seconds=self._lease_seconds)

    def _landed(self, key: tuple[UUID, int], recorded: asyncio.Future[None]) -> None:
        self._flying.pop(key, None)
        error = None if recorded.cancelled() else recorded.exception()
        if error is not None:
            # Its lease ends, and then it is an attempt whose answer was lost.
            log.error("outcome not recorded", message_id=str(key[0]), error=type(error).__name__)
        if self._full:
            self.wake.set()

    def _make_room(self) -> int:
        """Ask every account what it can take in this round; returns how many live messages that are in all."""
        self._usable, self._elsewhere = [], []
        total = 0
        serve = {one.id for one in self._serving()} | {test_mode.SUPPLIER}
        for id, account in self._accounts().items():
            account.room, account.probe = 0, False
            supplier = account.supplier
            if supplier.state != "active" or supplier.held or id not in serve:
                continue
            sessions = account.connector.health().sessions
            if sessions > 0 and not account.breaker.open:
                account.room = account.connector.capacity()
            elif sessions > 0 and account.connector.capacity() > 0 and account.breaker.usable():
                account.probe = True
                account.room = 1
            else:
                if account.elsewhere:
                    self._elsewhere.append(account.supplier)
                continue
            if id != test_mode.SUPPLIER:
                total += account.room
                self._usable.append(account.supplier)
        total -= self._leave_alone_what_stalls()
        # What was answered and is not recorded yet counts as in flight: otherwise a fast supplier's answers, and then
        # its receipts, would pile up in front of the recorder until it has to send the receipts away.
        return max(0, min(total, self._claim_limit, UNRECORDED * self._claim_limit - len(self._flying)))

    def _serving(self) -> list[Supplier]:
        """The suppliers of live messages, usable or not."""
        return serving(one.supplier for id, one in self._accounts().items() if id != test_mode.SUPPLIER)

    def _leave_alone_what_stalls(self) -> int:
        """Open the circuits of suppliers that only put off or do not answer, where another one could carry instead.
        Returns the room that is gone."""
        accounts = self._accounts()
        gone = 0
        for supplier in list(self._usable):
            account = accounts[supplier.id]
            others = [one for one in self._usable if one is not supplier and overlap(one, supplier)]
            if others and not account.breaker.open and account.breaker.stalls(self._patience):
                account.breaker.trip()
                log.warning("supplier circuit", supplier=supplier.name, open=True, stalled=True)
                self._usable.remove(supplier)
                gone += account.room
                account.room = 0
        return gone

    async def _claim(self, conn: Connection, room: int) -> list[Lease]:
        """First what waits in the suppliers' own lines, then new work for the room that is left.

        The line of a supplier that cannot be used now is looked at as well, for what another one could carry.
        """
        at = asyncio.get_running_loop().time()
        accounts = self._accounts()
        looking = at >= self._look_at
        if looking:
            self._look_at = at + LOOK
            self._parked.update(accounts)
        usable = {supplier.id for supplier in self._usable}
        # Where nothing can be carried at all, a look now and then still ends what has expired.
        reroute = REROUTE if usable or looking else 0
        # The lines of suppliers that are full, too, for what has waited so long that another one is asked.
        overflow = self._overflow if looking and room > 0 else 0
        elsewhere = {supplier.id for supplier in self._elsewhere}
        fed = {id for id in usable if accounts[id].fed}
        parked = {
            id: (accounts[id].room or overflow) if id in usable else reroute
            for id in (self._parked | fed) & accounts.keys() - elsewhere
            if id != test_mode.SUPPLIER
        }
        if looking:
            self._overflow = NEW
        claimed = await leases.claim(conn, "sms", parked, seconds=self._lease_seconds)
        found = {lease.line for lease in claimed}
        self._parked -= {id for id, places in parked.items() if places > 0 and id not in found}
        # A backlog in the lines must not keep new single sends from having their turn.
        left = max(room - len(claimed), min(room, NEW)) if usable else reroute
        if self._passes_on:
            left = min(left, NEW)
        new = {UNROUTED: left, test_mode.SUPPLIER: accounts[test_mode.SUPPLIER].room}
        claimed += await leases.claim(conn, "sms", new, seconds=self._lease_seconds)
        self._full = len(claimed) >= room
        claimed.sort(key=_lane)
        return claimed

    async def _decide(self, conn: Connection, claimed: list[Lease]) -> list[_Out]:
        """Settle what goes nowhere, and write the attempts of what goes out."""
        dues = await load(conn, claimed)
        lost = [due for due in dues if due.status in UNSENT and due.attempt_state in ("open", "unknown")]
        decided: dict[UUID, _Step] = {}
        moves: list[Move] = []
        uncertain = {due.lease.id for due in lost}
        if lost:
            resolved = await resolve(
                conn, lost, grace=self._grace, policies=self._recorder.policies, held=self._flying.keys()
            )
            decided.update(resolved.steps)
            moves += resolved.moves
            uncertain -= resolved.known.keys()
            dues = [resolved.known.get(due.lease.id, due) for due in dues]
        outgoing: list[_Out] = []
        finished: list[Lease] = []
        back: list[Postponed] = []
        for due in dues:
            step = decided[due.lease.id] if due.lease.id in decided else self._step(due)
            if isinstance(step, Move) and due.lease.id in uncertain:
                # It will not be tried again, and nobody knows whether the last try reached the handset.
                step = unknown(due)
            match step:
                case None:
                    finished.append(due.lease)
                case Move():
                    moves.append(step)
                    finished.append(due.lease)
                case Postponed():
                    back.append(step)
                case _Out():
                    outgoing.append(step)
        # Lines whose rows all stay where they are: worth no look in the very next round.
        usable = {supplier.id for supplier in self._usable}
        stuck = {one.line for one in back if one.line == one.lease.line} - usable
        self._parked -= stuck - {one.due.lease.line for one in outgoing}
        if finished:
            await leases.finish(conn, finished)
        if back:
            await leases.postpone(conn, back)
        _, deliveries = await move_many(conn, moves)
        if deliveries:
            self._recorder.deliveries.set()
        return await self._begin(conn, outgoing) if outgoing else []

    async def _begin(self, conn: Connection, outgoing: list[_Out]) -> list[_Out]:
        """Write the attempts' rows; what comes back may go out once they are committed."""
        ordered = sorted(outgoing, key=lambda one: one.due.lease.id.int)  # as the recorder locks messages
        rows = await conn.fetch(
            BEGIN,
            [one.due.lease.organization_id for one in ordered],
            [one.due.lease.id for one in ordered],
            [one.submission.attempt for one in ordered],
            [one.account.supplier.id for one in ordered],
            [one.submission.reference for one in ordered],
            [one.series if one.series != one.submission.attempt else None for one in ordered],
            [one.parts for one in ordered],
        )
        begun = {row["message_id"] for row in rows}
        return [one for one in outgoing if one.due.lease.id in begun]

    def _step(self, due: ClaimedMessage) -> _Step:
        """What to do with one message whose earlier attempts, if any, are known to have ended."""
        lease = due.lease
        message = (lease.organization_id, lease.id)
        if due.status not in UNSENT:
            return None
        if due.body is None or due.at >= deadline(due.accepted_at, due.expires_at):
            return Move(*message, "expired", due.at, "expired", unsent=True)
        if due.opted_out:
            return Move(*message, "rejected", due.at, "opted_out", unsent=True)
        if due.sender_status != "approved":
            return Move(*message, "rejected", due.at, "sender_not_approved", unsent=True)
        if due.organization_state in ("suspended", "closed"):
            return Postponed(lease, SUSPENDED_PAUSE, lease.line, counts=False)
        return self._route(due)

    def _route(self, due: ClaimedMessage) -> _Step:
        accounts = self._accounts()
        lease = due.lease
        if due.mode == "test":
            supplier: Supplier | None = accounts[test_mode.SUPPLIER].supplier
        else:
            refused = due.refused or ()
            suppliers = self._serving()
            covering = [one for one in suppliers if covers(one, due.recipient)]
            others = [one for one in covering if one.id not in refused]
            if refused:
                # What somebody could carry waits for an operator, but not what somebody has refused.
                others = [one for one in others if one.state == "active"]
            if suppliers and not others:
                # Whoever refused it is not asked twice.
                end = ("rejected", due.at, "rejected") if covering else ("failed", due.at, "destination_unreachable")
                return Move(lease.organization_id, lease.id, *end, unsent=True)
            # Only a worker that can use somebody leaves work to others: elsewhere it would be in nobody's way here.
            known = self._usable + self._elsewhere if self._usable else []
            usable = [
                one
                for one in known
                if one.id not in refused and not (one.holds and holds_back(one, lease.organization_id, lease.id))
            ]
            supplier = self._begun_at(due, usable) or choose(
                usable, due.recipient, lease.id, avoid=self._avoided(due, usable)
            )
            if supplier is None:
                # Nobody can carry it now. It waits in the line of one that would, out of the others' way; with nobody
                # to be in the way of, it stays where it is.
                supplier = choose(others, due.recipient, lease.id) if self._usable else None
                line = supplier.id if supplier else lease.line
                # What stays, stays due: a worker with a session may be about to look, and would find nothing each time.
                return Postponed(lease, 0.0 if line == lease.line else HOLD, line, counts=False)
        assert supplier is not None
        account = accounts[supplier.id]
        if account.room <= 0:
            waited = (due.at - lease.due_at).total_seconds()
            if supplier in self._elsewhere:
                self._left_to_others += 1
            elif due.mode == "live" and waited > self._patience_of(due) and self._overflows(due, account):
                free = [one for one in usable if accounts[one.id].room > 0]
                other = choose(free, due.recipient, lease.id, avoid=self._avoided(due, free))
                if other is not None:
                    self._overflow = REROUTE
                    return self._out(due, accounts[other.id])
            self._parked.add(supplier.id)
            # It stays due since it was, so that it is known how long it waits.
            return Postponed(lease, -waited, supplier.id, counts=False)
        return self._out(due, account)

    def _overflows(self, due: ClaimedMessage, account: PooledSupplier) -> bool:
        """True if a message that waited for its supplier too long may go to the next one. One that is merely full is
        waited for, save by what lives so short."""
        return due.lease.lane == SINGLE and (self._is_short_lived(due) or account.breaker.is_slow())

    def _is_short_lived(self, due: ClaimedMessage) -> bool:
        return due.expires_at is not None and due.expires_at - due.accepted_at <= SHORT_LIVED

    def _patience_of(self, due: ClaimedMessage) -> float:
        """Seconds that a message waits for a supplier that is slow."""
        if self._is_short_lived(due):
            return self._patience / HASTE
        return self._patience if due.lease.lane == SINGLE else self._patience * LEISURE

    def _put_off(self, due: ClaimedMessage) -> bool:
        """True if the supplier of the last attempt had its chances."""
        if due.attempt_state == "unreachable":
            return True
        if due.attempt_state != "busy":
            return False
        waited = (due.at - due.busy_since).total_seconds() if due.busy_since is not None else 0.0
        return due.lease.tries >= PATIENCE or waited > self._patience_of(due)

    def _avoided(self, due: ClaimedMessage, usable: list[Supplier]) -> set[UUID]:
        """The suppliers to pass over if there are others: what is only full for the moment is waited for."""
        accounts = self._accounts()
        avoided = {one.id for one in usable if accounts[one.id].senders.avoided(due.sender)}
        if due.attempt_supplier is not None and self._put_off(due):
            avoided.add(due.attempt_supplier)
        return avoided

    def _begun_at(self, due: ClaimedMessage, usable: list[Supplier]) -> Supplier | None:
        """Who has, or may have, some segments of a long message, if the others may follow there."""
        if due.parts == 1 or due.series_at is None or self._put_off(due):
            return None
        if due.attempt_state not in ("busy", "unknown", "open") or due.at - due.series_at > CONTINUED:
            return None
        # If its settings have changed since, it may get the message in other segments than before.
        return next(
            (one for one in usable if one.id == due.attempt_supplier and one.changed_at < due.series_at),
            None,
        )

    def _out(self, due: ClaimedMessage, account: PooledSupplier) -> _Out:
        # What was chosen at accept shows in what came of it: nothing is replaced that was not needed then.
        replaced = due.encoding == "gsm7"
        encoded = encoding.encode(due.body or "", smart=replaced, accents=replaced)
        attempt = due.attempt + 1
        continues = self._begun_at(due, [account.supplier]) is not None
        validity = None
        if due.expires_at is not None:
            validity = max(1, int((due.expires_at - due.at).total_seconds()))
        submission = Submission(
            message_id=due.lease.id,
            attempt=attempt,
            to=due.recipient[1:],
            sender=due.sender,
            segments=encoded.segments,
            encoding=encoded.encoding,
            reference=due.reference or 0 if continues else self._reference(due, len(encoded.segments)),
            validity_seconds=validity,
            held=tuple(due.taken or ()) if continues else (),
        )
        account.room -= len(encoded.segments) - len(submission.held)
        if account.probe:
            account.probe = False
            account.breaker.begin_probe()
        parts = account.connector.parts(submission)
        return _Out(due, account, submission, due.series if continues else attempt, parts)

    def _reference(self, due: ClaimedMessage, segments: int) -> int:
        """16 bits. Long messages count up per sender and recipient: a handset puts parts together by it, so two long
        messages on their way to one handset must not share one (drawn at random, 8 bits do so once in 256)."""
        if segments == 1:
            return due.lease.id.int & 0xFFFF
        pair = (due.sender, due.recipient)
        reference = (self._references.pop(pair, due.lease.id.int & 0xFFFF) + 1) & 0xFFFF
        self._references[pair] = reference
        if len(self._references) > REFERENCES:
            self._references.popitem(last=False)
        return reference


def _lane(lease: Lease) -> int:
    return lease.lane
