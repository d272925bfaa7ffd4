"""SMS as a channel of the engine: picking rows, deciding about messages, and the effects of answers and receipts.

Rows wait in lines (`selection`): new work in UNROUTED, messages meant for a full supplier in that supplier's line. The
number picked follows from how many the connectors can take, so a supplier's window, its rate and the CPU are the only
limits. Whatever was checked when a message was accepted is checked again.

The rule nobody may break: an attempt with an unknown outcome waits for a receipt, and then the send's guarantee
decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog

from heliograph.base.database.pool import Connection, Pool
from heliograph.base.process import measures
from heliograph.guard.judging import Judge, Outgoing
from heliograph.queue.backlog import Backlog
from heliograph.queue.holds import STOPPED_PAUSE
from heliograph.queue.leases import SINGLE, UNROUTED, Lease, Postponed
from heliograph.routes.lookup import Route
from heliograph.senders.book import Book
from heliograph.sending.attempts import MOST_ATTEMPTS, Attempt
from heliograph.sending.channel import COMMIT_LOST, Finish, LostResolution, Step
from heliograph.sending.results import AnsweredAttempt
from heliograph.sms import daytime
from heliograph.sms.charges import Charges
from heliograph.sms.daytime import Daytime
from heliograph.sms.dispatch import claimed, held, outcomes, test_mode, uncertain
from heliograph.sms.dispatch.claimed import ClaimedMessage
from heliograph.sms.dispatch.outcomes import deadline
from heliograph.sms.dispatch.selection import NEW, REROUTE, Selection
from heliograph.sms.dispatch.supplier_pool import PooledSupplier
from heliograph.sms.lookups.asking import Lookups
from heliograph.sms.reports import receipts
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.sms.status import Move, move_many
from heliograph.suppliers.contract import Outcome, Scope, Verdict
from heliograph.webhooks.recording.events import Subscriptions, Wanting, wanted
from heliograph.webhooks.recording.handover import Handover

log = structlog.get_logger()

#: Pause before a message whose organization's text key cannot be opened is examined again, seconds.
LOCKED_PAUSE = 60.0
#: Seconds between looks into suppliers' lines that seem empty.
LOOK = 1.0


class SmsChannel:
    """SMS within one worker. Implements `sending.channel.Channel`."""

    kind = "sms"
    table = "messages"

    def __init__(
        self,
        pool: Pool,
        accounts: Callable[[], Mapping[UUID, PooledSupplier]],
        *,
        grace: float,
        patience: float = 15.0,
        backlog: Backlog | None = None,
        routes: Callable[[], Sequence[Route]] = tuple,
        charges: Charges | None = None,
        book: Callable[[], Book] = Book,
        lookups: Lookups | None = None,
    ) -> None:
        """`accounts`: returns this worker's current suppliers. `grace`: seconds an unknown outcome waits for its
        receipt. `patience`: seconds that a message waits for a slow supplier before the next one is tried. `backlog`:
        the worker's; None: a separate one. `routes`: the active ones. `charges`: suppliers' charges. `book`: their
        rules for senders and numbers. `lookups`: looks up a number's network; None: no look-ups."""
        self._lookups = lookups
        self._backlog = backlog or Backlog(cycle=0.0)
        self.grace = grace
        self.is_full = False
        #: Set when another round may be worthwhile: new work, freed capacity, a new supplier.
        self.wake = asyncio.Event()
        self._accounts = accounts
        self._selection = Selection(accounts, patience=patience, routes=routes, charges=charges, book=book)
        self._judge = Judge()
        self._daytime = Daytime()
        self._subscriptions = Subscriptions(pool)
        #: Live messages that the suppliers can take in this round.
        self._room = 0
        self._look_at = 0.0
        #: True if most rows of the last round were left to other workers.
        self._passes_on = False
        #: Set when rows were left to other workers, to notify them.
        self.passed_on = asyncio.Event()
        #: Which receipts decide the status of a message with several parts, by supplier.
        self.policies: dict[UUID, str] = {}

    # -- a round -------------------------------------------------------------------------------------------------------

    async def before_round(self) -> None:
        self._selection.decisions.begin()
        self._room = self._selection.make_room()

    async def pick(self, conn: Connection, *, limit: int) -> list[Lease]:
        """First rows in the suppliers' own lines, then new work for the remaining capacity.

        The line of a supplier that cannot be used now is read too, for messages that another one could carry.
        """
        room = max(0, min(self._room, limit))
        at = asyncio.get_running_loop().time()
        accounts, selection = self._selection.pool, self._selection
        looking = at >= self._look_at
        if looking:
            self._look_at = at + LOOK
            selection.parked.update(accounts)
        usable = {supplier.id for supplier in selection.usable}
        # If nothing can be carried at all, an occasional look still ends expired messages.
        reroute = REROUTE if usable or looking else 0
        # Also the lines of full suppliers, for messages that have waited long enough to try another one.
        overflow = selection.overflow if looking and room > 0 else 0
        elsewhere = {supplier.id for supplier in selection.elsewhere}
        fed = {id for id in usable if accounts[id].fed}
        parked = {
            id: (accounts[id].room or overflow) if id in usable else reroute
            for id in (selection.parked | fed) & accounts.keys() - elsewhere
            if id != test_mode.SUPPLIER
        }
        if looking:
            selection.overflow = NEW
        await self._backlog.look(conn, self.kind)
        rows = await self._backlog.pick(conn, self.kind, parked)
        found = {lease.line for lease in rows}
        selection.parked -= {id for id, places in parked.items() if places > 0 and id not in found}
        # A backlog in the lines must not delay new single sends.
        left = max(room - len(rows), min(room, NEW)) if usable else reroute
        if self._passes_on:
            left = min(left, NEW)
        new = {UNROUTED: left, test_mode.SUPPLIER: accounts[test_mode.SUPPLIER].room}
        rows += await self._backlog.pick(conn, self.kind, new)
        self.is_full = len(rows) >= room
        rows.sort(key=_lane)
        return rows

    async def load(self, conn: Connection, picked: Sequence[Lease]) -> list[ClaimedMessage]:
        return await claimed.load(conn, picked)

    def home(self, lease: Lease) -> UUID:
        return UNROUTED

    async def find_lost(self, conn: Connection, lost: Sequence[ClaimedMessage]) -> LostResolution:
        return await uncertain.find(conn, lost, policies=self.policies)

    async def give_up(self, conn: Connection, lost: Sequence[ClaimedMessage]) -> dict[UUID, Step]:
        steps: dict[UUID, Step] = {}
        for one in lost:
            if one.guarantee == "at_most_once":
                steps[one.lease.id] = Finish(uncertain.unknown(one))
            elif (wait := uncertain.patience(one, self.grace)) > 0:
                # A receipt may come meanwhile.
                steps[one.lease.id] = Postponed(one.lease, min(wait, self.grace), UNROUTED, counts=False)
        return steps

    async def decide(self, conn: Connection, messages: Sequence[ClaimedMessage]) -> list[Step]:
        steps: list[Step] = []
        suspicious = await self._suspicious(conn, messages)
        waiting: list[tuple[UUID, UUID, datetime]] = []
        unknown: Mapping[UUID, float] = {}
        if self._lookups is not None and self._lookups.is_used:
            fresh = [one for one in messages if one.attempt == 0 and one.may_leave and one.lease.id not in suspicious]
            unknown = await self._lookups.before(conn, fresh)
        for message in messages:
            if message.lease.id in suspicious:
                # It waits for an operator, in a line of its own.
                steps.append(held.hold(message))
                continue
            step = self._decide(message, unknown.get(message.lease.id))
            if isinstance(step, datetime):
                lease = message.lease
                waiting.append((lease.organization_id, lease.id, step))
                # A little later, to make up for rounding.
                step = Postponed(lease, (step - message.at).total_seconds() + 0.001, UNROUTED, counts=False)
            if isinstance(step, Finish) and step.move is not None and message.was_unknown:
                # It will not be tried again, and it is unknown whether one of its tries reached the handset.
                step = Finish(uncertain.unknown(message))
            steps.append(step)
        if waiting:
            await daytime.note(conn, waiting)
        # Lines whose rows all stay where they are need no look in the next round.
        back = [one for one in steps if isinstance(one, Postponed)]
        usable = {supplier.id for supplier in self._selection.usable}
        stuck = {one.line for one in back if one.line == one.lease.line} - usable
        self._selection.parked -= stuck - {one.lease.line for one in steps if isinstance(one, Attempt)}
        return steps

    async def _suspicious(self, conn: Connection, messages: Sequence[ClaimedMessage]) -> set[UUID]:
        """The messages that the guard holds. It examines those not yet offered to any supplier, except campaigns, whose
        audience the organization chose, and test messages, which cost nothing."""
        fresh = [
            Outgoing(one.lease.organization_id, one.lease.id, one.recipient, one.traffic_class)
            for one in messages
            if one.lease.line == UNROUTED
            and one.lease.lane == SINGLE
            and one.lease.attempt == 0
            and one.is_unsent
            and not one.is_locked
        ]
        return await self._judge.judge(conn, fresh, at=messages[0].at) if fresh else set()

    async def share(self, pool: Pool) -> None:
        """Share what the guard has seen here with other workers."""
        await self._judge.share(pool)

    async def expire_one(self, conn: Connection, lease: Lease) -> int | None:
        return await held.expire_one(conn, lease, grace=self.grace)

    async def move(self, conn: Connection, moves: Sequence[Move]) -> int:
        # Among them are messages whose receipt shows that a supplier took them.
        taken = {one.organization_id for one in moves if one.status == "sent"}
        wanting = await wanted(conn, taken, "message.sent") if taken else frozenset()
        return (await move_many(conn, moves, announce_sent=wanting)).deliveries

    async def measure(self, conn: Connection | Pool) -> None:
        """Load suppliers' quality, which is recorded with routing decisions from now on."""
        if await self._selection.facts.refresh(conn):
            self._selection.decisions.renew()

    async def begun(self, conn: Connection, attempts: Sequence[Attempt[ClaimedMessage]]) -> None:
        """Record the routing decision of each attempt."""
        decided = {one.decision for one in attempts}
        await self._selection.decisions.store(conn, decided, at=attempts[0].message.at)

    def rolled_back(self) -> None:
        # Holds that began in this transaction do not exist: messages that meet one would pass.
        self._judge.refresh()

    def submit(self, attempt: Attempt[ClaimedMessage]) -> None:
        # The supplier may have been removed by now; then its connector answers that nothing was sent.
        account: PooledSupplier = attempt.context.account
        account.breaker.asked()
        account.connector.submit(attempt.submission)

    def unsent(self, attempt: Attempt[ClaimedMessage]) -> Outcome:
        return Outcome(Verdict.UNREACHABLE, detail=COMMIT_LOST, counts=False, scope=Scope.PROCESS)

    def after_round(self, picked: Collection[Lease]) -> bool:
        self._selection.decisions.committed()
        self._passes_on = self._selection.left_to_others * 2 > len(picked)
        if self._selection.left_to_others:
            self.passed_on.set()
        return True

    def _decide(self, message: ClaimedMessage, unknown: float | None) -> Step | datetime:
        """The next step for a message whose earlier attempts, if any, are known to have ended; a time is the end of the
        recipient's quiet hours. `unknown`: seconds for which it waits for its number's network."""
        lease = message.lease
        id = (lease.organization_id, lease.id)
        if not message.is_unsent:
            return Finish()
        if message.is_locked:
            return Postponed(lease, LOCKED_PAUSE, lease.line, counts=False)
        if message.body is None or message.at >= deadline(message.accepted_at, message.expires_at):
            return Finish(Move(*id, "expired", message.at, "expired", unsent=True))
        if lease.attempt >= MOST_ATTEMPTS:
            return Finish(Move(*id, "failed", message.at, "failed", unsent=True))
        if message.opted_out:
            return Finish(Move(*id, "rejected", message.at, "opted_out", unsent=True))
        if message.sender_status != "approved":
            return Finish(Move(*id, "rejected", message.at, "sender_not_approved", unsent=True))
        if message.organization_state in ("suspended", "closed"):
            return Postponed(lease, STOPPED_PAUSE, lease.line, counts=False)
        # Quiet hours do not apply to simulators.
        opens = None if self._selection.is_simulated else self._daytime.opens(message)
        if opens is None and unknown is not None:
            return Postponed(lease, unknown, lease.line, counts=False)
        return opens or self._selection.route(message)

    # -- what comes back -----------------------------------------------------------------------------------------------

    def heard(self, attempt: Attempt[ClaimedMessage], outcome: Outcome) -> None:
        """Inform the supplier's circuit breaker."""
        account: PooledSupplier = attempt.context.account
        if self._accounts().get(attempt.target_id) is not account:
            return  # it was replaced or removed meanwhile: nothing is learned about the new one
        verdict, scope, breaker = outcome.verdict, outcome.scope, account.breaker
        if scope is Scope.PROCESS:
            return  # the supplier was not asked
        sender, fault = attempt.message.sender, False
        if verdict is Verdict.ACCEPTED:
            account.senders.taken(sender)
            breaker.moved()
        else:
            throttled = verdict is Verdict.BUSY and not outcome.counts
            if scope is not Scope.ACCOUNT and (outcome.failover or verdict is Verdict.BUSY):
                account.senders.refused(sender)
            if verdict is Verdict.REFUSED:
                breaker.moved()
            elif throttled:
                breaker.put_off()
            if throttled or scope is Scope.SENDER:
                return  # it says nothing about the supplier's health
            fault = verdict in (Verdict.UNREACHABLE, Verdict.UNKNOWN)
            fault = fault or (scope is Scope.ACCOUNT and (outcome.alarm or verdict is Verdict.BUSY))
        was_open = breaker.open
        breaker.record(ok=not fault, sent_in=attempt.context.openings)
        if breaker.open != was_open:
            log.warning("supplier circuit", supplier=account.supplier.name, open=breaker.open)

    async def prepare(self, answered: Sequence[AnsweredAttempt], reports: Sequence[ReceivedReceipt]) -> Wanting:
        accepted = [one.attempt.lease.organization_id for one in answered if one.outcome.verdict is Verdict.ACCEPTED]
        return await self._subscriptions.wanting(accepted, "message.sent")

    async def write(
        self,
        conn: Connection,
        answered: Sequence[AnsweredAttempt],
        reports: Sequence[ReceivedReceipt],
        prepared: Any,
        handover: Handover | None,
        *,
        alone: bool,
    ) -> int:
        moves: list[Move] = []
        if answered:
            moves += await outcomes.record(conn, answered, grace=self.grace, policies=self.policies)
        found = await receipts.match(conn, reports, policies=self.policies, alone=alone) if reports else None
        if found is not None:
            moves += found.moves
        moved = await move_many(conn, moves, announce_sent=prepared, handover=handover)
        if answered:
            await outcomes.reconcile(conn, answered, moved.ids)
        if found is not None:
            await receipts.keep(conn, found, moved)
            measures.RECEIPTS.add("matched", by=found.matched)
            measures.RECEIPTS.add("unmatched", by=len(found.batch) - found.matched)
        return moved.deliveries + await outcomes.suppress(conn, answered)


def _lane(lease: Lease) -> int:
    return lease.lane
