"""Chooses the supplier that carries a message now, as far as this worker can tell: called once per claimed message.

Rows wait in lines. New work is in the line UNROUTED; work for a supplier that is currently full moves to that
supplier's line, where it delays no other work.

The rule nobody may break: a supplier gets no more than its capacity, and one that refused a message is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec
import structlog

from heliograph.base.money import Charge
from heliograph.base.retry import HOLD
from heliograph.base.sentences import Sentence, kept
from heliograph.classes.kinds import CLASSES
from heliograph.queue.leases import SINGLE, Postponed
from heliograph.routes import words
from heliograph.routes.decisions import Decisions
from heliograph.routes.lookup import Candidates, Route, Table
from heliograph.senders.book import Book
from heliograph.sending.attempts import Attempt
from heliograph.sending.channel import Finish, Step
from heliograph.sms.charges import Charges
from heliograph.sms.dispatch import test_mode
from heliograph.sms.dispatch.adapting import Facts
from heliograph.sms.dispatch.claimed import ClaimedMessage
from heliograph.sms.dispatch.routing import Prospects, Supplier, ending, holds_back, overlap, serving, unchanged
from heliograph.sms.dispatch.supplier_pool import PooledSupplier
from heliograph.sms.status import Move
from heliograph.sms.submitting import written
from heliograph.suppliers.alphabets.segments import References

log = structlog.get_logger()

#: How many times a supplier may answer "later" before another one is tried.
PATIENCE = 2
#: How long missing segments of a long message may follow those that a supplier has; after that the whole message is
#: sent again.
CONTINUED = timedelta(hours=1)
#: How many rows are moved per round out of lines of unusable suppliers.
REROUTE = 200
#: How many rows of new work are examined per round, however much is waiting in the suppliers' lines.
NEW = 32
NO_SUPPLIER: frozenset[UUID] = frozenset()


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """The chosen supplier for a message."""

    account: PooledSupplier
    #: How often its circuit had opened by then (`Breaker.openings`).
    openings: int
    #: The recipient's network (MCC-MNC); empty if unknown.
    network: str = ""
    #: The supplier's charge; None if unknown.
    cost: Charge | None = None
    #: The name of the route that chose it; None if no route did.
    route: str | None = None


class Selection:
    """The suppliers of this worker in the current round, and the choice among them."""

    def __init__(
        self,
        accounts: Callable[[], Mapping[UUID, PooledSupplier]],
        *,
        patience: float,
        routes: Callable[[], Sequence[Route]] = tuple,
        charges: Charges | None = None,
        book: Callable[[], Book] = Book,
    ) -> None:
        """`accounts`: returns this worker's current suppliers. `patience`: seconds that a message waits for a slow
        supplier before the next one is tried. `routes`: the active ones; the same object while nothing has changed.
        `charges`: suppliers' charges; None: unknown. `book`: their rules for senders and numbers."""
        self._book = book
        #: The rules in this round.
        self._rules = Book()
        self._charges = charges or Charges()
        self._accounts = accounts
        #: The suppliers of this round. If one is removed meanwhile, its connector answers that nothing was sent.
        self.pool: Mapping[UUID, PooledSupplier] = {}
        self._routes = routes
        #: The input from which `_table` was compiled.
        self._compiled: tuple[list[Supplier], Sequence[Route]] = [], ()
        self._table = Table([])
        #: What is recorded about the choice of suppliers.
        self.facts = Facts(self._charges.book)
        self.decisions = Decisions(
            lambda: {id: one.supplier.name for id, one in self.pool.items()}, facts=self.facts.of
        )
        #: Suppliers that may get messages in this round: usable here, or by another worker.
        self._known: dict[UUID, Supplier] = {}
        self._patience = patience
        self._references = References(20_000)
        #: Suppliers that take live messages in this round, usable or not.
        self._serving: list[Supplier] = []
        #: Suppliers that can be used in this round.
        self.usable: list[Supplier] = []
        #: Suppliers that only other workers can use now: a message for one of them waits in its line.
        self.elsewhere: list[Supplier] = []
        #: How many rows are examined when the lines of full suppliers are checked for messages that have waited long
        #: enough.
        self.overflow = NEW
        #: Suppliers' lines with waiting rows, as far as this worker knows.
        self.parked: set[UUID] = set()
        #: Rows left to other workers in this round.
        self.left_to_others = 0
        #: True if only simulators carry live messages.
        self.is_simulated = False

    def make_room(self) -> int:
        """Ask every account how much it can take in this round; returns the total number of live messages."""
        self.pool = dict(self._accounts())
        self.usable, self.elsewhere = [], []
        self._rules = self._book()
        total = 0
        # Once per round rather than per message.
        self._serving = serving(one.supplier for id, one in self.pool.items() if id != test_mode.SUPPLIER)
        self.is_simulated = all(one.simulated for one in self._serving) and bool(self._serving)
        serve = {one.id for one in self._serving} | {test_mode.SUPPLIER}
        routes = self._routes()
        if self._compiled[1] is not routes or self._compiled[0] != self._serving:
            self._table, self._compiled = Table(self._serving, routes), (self._serving, routes)
        for id, account in self.pool.items():
            account.room, account.probe = 0, False
            supplier = account.supplier
            if supplier.state != "active" or supplier.held or id not in serve:
                continue
            is_ready = account.connector.ready()
            if is_ready and not account.breaker.open:
                account.room = account.connector.capacity()
            elif is_ready and account.connector.capacity() > 0 and account.breaker.usable():
                account.room, account.probe = 1, True
            else:
                if account.elsewhere:
                    self.elsewhere.append(account.supplier)
                continue
            if id != test_mode.SUPPLIER:
                total += account.room
                self.usable.append(account.supplier)
        self.left_to_others = 0
        total -= self._drop_stalled()
        # Only a worker that can use some supplier leaves work to others: otherwise, nothing here would be delayed.
        self._known = {one.id: one for one in self.usable + self.elsewhere} if self.usable else {}
        return total

    def _drop_stalled(self) -> int:
        """Open the circuits of suppliers that only defer messages or do not answer, if another one could carry them
        instead. Returns the capacity lost."""
        gone = 0
        for supplier in list(self.usable):
            account = self.pool[supplier.id]
            others = [one for one in self.usable if one is not supplier and overlap(one, supplier)]
            if account.moves_elsewhere:
                continue  # another worker's messages are answered, so the supplier does not stall
            if others and not account.breaker.open and account.breaker.stalls(self._patience):
                account.breaker.trip()
                log.warning("supplier circuit", supplier=supplier.name, open=True, stalled=True)
                self.usable.remove(supplier)
                gone += account.room
                account.room = 0
        return gone

    def route(self, due: ClaimedMessage) -> Step:
        """The next step for a message that may be sent: its supplier, when to look at it again, or how it ends."""
        if due.mode == "test":
            return self._hand_over(due, self.pool[test_mode.SUPPLIER], None, None)
        prospects = self._prospects(due)
        if (ended := self._ended(due, prospects)) is not None:
            return ended
        supplier, decision = None if self._put_off(due) else self._begun_at(due, self._known), None
        if supplier is None:
            supplier, skipped = self._choose(due, prospects)
            if supplier is None:
                return self._wait(due, prospects)
            decision = self.decisions.number(prospects.found, skipped)
        return self._hand_over(due, self.pool[supplier.id], decision, prospects)

    def _prospects(self, due: ClaimedMessage) -> Prospects:
        """The suppliers that carry to its recipient, and those of them that cannot have it."""
        found = self._candidates(due)
        barred = self._barred(due, found.suppliers) if self._rules.judges else NO_SUPPLIER
        unrated = self._unrated(due, found)
        if not due.refused:
            return Prospects(found, barred, unrated, NO_SUPPLIER)
        # A supplier that refused it is not tried twice, and one that is paused is not waited for after that. A message
        # that a held supplier could carry waits for the operator, unless that supplier refused it.
        active = {id for id, one in self.pool.items() if one.supplier.state == "active"}
        spent = frozenset(id for id in found.suppliers if id not in active or id in due.refused)
        return Prospects(found, barred, unrated, spent)

    def _ended(self, due: ClaimedMessage, prospects: Prospects) -> Finish | None:
        """How a message ends that no supplier may ever have; None: one may, or no supplier serves now."""
        suppliers, lease = prospects.found.suppliers, due.lease
        if suppliers and not (prospects.barred or prospects.unrated or due.refused):
            return None  # the usual case
        end = ending(suppliers, barred=prospects.barred, unrated=prospects.unrated, refused=prospects.spent)
        if end is None or not self._serving:
            return None
        return Finish(Move(lease.organization_id, lease.id, end[0], due.at, end[1], unsent=True))

    def _wait(self, due: ClaimedMessage, prospects: Prospects) -> Postponed:
        """No supplier can carry it now. It waits in the line of one that would, where it delays no others; if there is
        nothing to delay, it stays where it is."""
        lease = due.lease
        line = lease.line
        if self.usable:
            line = next((id for id in prospects.found.order(lease.id) if prospects.may_have(id)), line)
        # In its own line it stays due, so that a worker with a session finds it at once, and keeps its place, so that
        # its waiting time is known.
        pause = -due.waited(lease.due_at) if line == lease.line else HOLD
        return Postponed(lease, pause, line, counts=False)

    def _hand_over(
        self, due: ClaimedMessage, account: PooledSupplier, decision: int | None, prospects: Prospects | None
    ) -> Step:
        """Give it to its supplier, or, if that has no room, to the next one or into the supplier's line. `prospects`:
        None in test mode, in which there is no other supplier."""
        if account.room > 0:
            return self._out(due, account, decision, None if prospects is None else prospects.found.route)
        waited = due.waited(due.lease.due_at)
        if account.supplier in self.elsewhere:
            self.left_to_others += 1
        elif prospects is not None and waited > self._patience_of(due) and self._overflows(due, account):
            other, skipped = self._choose(due, prospects, with_room=True)
            if other is not None:
                self.overflow = REROUTE
                decision = self.decisions.number(prospects.found, skipped)
                return self._out(due, self.pool[other.id], decision, prospects.found.route)
        self.parked.add(account.supplier.id)
        # It keeps its due time, so that its waiting time is known.
        return Postponed(due.lease, -waited, account.supplier.id, counts=False)

    def _overflows(self, due: ClaimedMessage, account: PooledSupplier) -> bool:
        """True if a message that has waited too long for its supplier may go to the next one. If its supplier is merely
        full, this applies to short-lived messages only."""
        return due.lease.lane == SINGLE and (due.is_short_lived or account.breaker.is_slow())

    def _patience_of(self, due: ClaimedMessage) -> float:
        """Seconds that a message waits for a slow supplier."""
        own = CLASSES[due.traffic_class].patience
        return self._patience * (min(own, CLASSES["otp"].patience) if due.is_short_lived else own)

    def _put_off(self, due: ClaimedMessage) -> bool:
        """True if the supplier of the last attempt has used up its tries, or was passed over by an operator."""
        if due.attempt_state == "unreachable" or due.attempt_supplier in due.passed:
            return True
        if due.attempt_state != "busy":
            return False
        return due.lease.tries >= PATIENCE or due.waited(due.busy_since) > self._patience_of(due)

    def _barred(self, due: ClaimedMessage, suppliers: Iterable[UUID]) -> frozenset[UUID]:
        """The suppliers that do not accept this sender there."""
        network = self._charges.directory.place(due.recipient).network
        return frozenset(id for id in suppliers if self._spoken(due, id, network) is None)

    def _unrated(self, due: ClaimedMessage, found: Candidates) -> frozenset[UUID]:
        """The suppliers without a price for it, on a route that requires one."""
        if found.route is None or not found.route.rated:
            return NO_SUPPLIER
        priced, told, to, at, name = self._charges.cost, self._told, due.recipient, due.at, due.traffic_class
        return frozenset(id for id in found.suppliers if priced(id, to, told(due, id), 1, at, name)[1] is None)

    def _told(self, due: ClaimedMessage, supplier_id: UUID) -> str:
        """The sender that a supplier is given, and charges for: its rules may replace the message's own."""
        network = self._charges.directory.place(due.recipient).network if self._rules.judges else ""
        return self._spoken(due, supplier_id, network) or due.sender

    def _spoken(self, due: ClaimedMessage, supplier_id: UUID, network: str) -> str | None:
        return self._rules.spoken(
            supplier_id,
            due.recipient,
            organization_id=due.lease.organization_id,
            sender=due.sender,
            network=network,
        )

    def _candidates(self, due: ClaimedMessage) -> Candidates:
        place = self._charges.directory.place(due.recipient)
        found = self._table.candidates(
            due.recipient,
            organization_id=due.lease.organization_id,
            sender=due.sender,
            traffic_class=due.traffic_class,
            network=place.network or None,
            is_certain=place.is_exact,
        )
        owners = self._rules.owners(due.sender)
        return self._table.owned(found, due.recipient, owners) if owners else found

    def _choose(
        self, due: ClaimedMessage, prospects: Prospects, *, with_room: bool = False
    ) -> tuple[Supplier | None, tuple[tuple[UUID, str], ...]]:
        """The first candidate that can take the message now, and why those before it cannot. A supplier that deferred
        it, or that refuses its sender, is chosen only if there is no other; one that is merely full is waited for."""
        accounts, lease = self.pool, due.lease
        put_off = due.attempt_supplier if due.attempt_supplier is not None and self._put_off(due) else None
        last: Supplier | None = None
        skipped: list[tuple[UUID, str]] = []
        for id in prospects.found.order(lease.id):
            one = self._known.get(id)
            if due.refused and id in due.refused:
                skipped.append((id, words.REFUSED_IT))
            elif id in prospects.unrated:
                skipped.append((id, words.UNRATED))
            elif id in prospects.barred:
                skipped.append((id, words.BARRED))
            elif one is None:
                skipped.append((id, self._unusable(due, id)))
            elif with_room and accounts[id].room <= 0:
                skipped.append((id, words.FULL))
            elif one.holds and holds_back(one, lease.organization_id, lease.id):
                skipped.append((id, words.HELD))
            elif id in due.passed or id == put_off:
                last = last or one
                skipped.append((id, words.PASSED_OVER if id in due.passed else words.PUT_OFF))
            elif accounts[id].senders.avoided(due.sender):
                last = last or one
                skipped.append((id, words.AVOIDED))
            else:
                return one, tuple(skipped)
        return last, tuple((id, why) for id, why in skipped if last is None or id != last.id)

    def _unusable(self, due: ClaimedMessage, id: UUID) -> Sentence:
        account = self.pool.get(id)
        if account is None or account.supplier.state != "active":
            return kept(account.supplier.state if account is not None else "removed")
        if account.supplier.held:
            return words.HELD
        if account.breaker.open:
            return words.circuit_open(due.at - timedelta(seconds=account.breaker.open_for()))
        return words.UNBOUND

    def _begun_at(self, due: ClaimedMessage, usable: Mapping[UUID, Supplier]) -> Supplier | None:
        """The supplier that has, or may have, some segments of a long message, if the rest may follow there."""
        if due.parts == 1 or due.series_at is None or due.attempt_supplier is None:
            return None
        if due.attempt_state not in ("busy", "unknown", "unreachable") or due.at - due.series_at > CONTINUED:
            return None
        one = usable.get(due.attempt_supplier)
        if one is None or one.id in (due.refused or ()) or holds_back(one, due.lease.organization_id, due.lease.id):
            return None
        return one if unchanged(one, due.series_at, at=due.at) else None

    def _out(
        self, due: ClaimedMessage, account: PooledSupplier, decision: int | None, route: Route | None
    ) -> Attempt[ClaimedMessage]:
        attempt, due = due.lease.attempt + 1, due.resumed(account.supplier.id)
        continues = self._begun_at(due, {account.supplier.id: account.supplier}) is not None
        sender, address = due.sender, None
        if due.mode == "live":
            sender = self._told(due, account.supplier.id)
            address = self._rules.address(account.supplier.id, due.recipient)
        submission = written.submission(
            due.lease.id,
            attempt,
            recipient=due.recipient,
            sender=sender,
            address=address,
            body=due.body or "",
            coding=due.encoding,
            traffic_class=due.traffic_class,
            reference=due.reference or 0 if continues else due.lease.id.int & 0xFFFF,
            expires_at=due.expires_at,
            at=due.at,
            held=(due.taken or ()) if continues else (),
        )
        parts = account.connector.parts(submission)
        if parts > 1 and not continues:
            reference = self._references.next((due.sender, due.recipient), submission.reference)
            submission = msgspec.structs.replace(submission, reference=reference)
        account.room -= parts - len(submission.held)
        if account.probe:
            account.probe = False
            account.breaker.begin_probe()
        network, cost = "", None
        if due.mode == "live":
            billed = account.connector.billed(submission) if self._charges.book.has_cards else 1
            id, to, name = account.supplier.id, due.recipient, due.traffic_class
            network, cost = self._charges.cost(id, to, sender, billed, due.at, name)
        return Attempt(
            lease=due.lease,
            number=attempt,
            target_id=account.supplier.id,
            submission=submission,
            message=due,
            context=Chosen(account, account.breaker.openings, network, cost, None if route is None else route.name),
            reference=submission.reference,
            continues=due.series if continues else None,
            parts=parts,
            decision=decision,
        )
