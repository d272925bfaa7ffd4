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
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
import structlog

from heliograph.base.crash import crash_point
from heliograph.base.db import Connection, Pool
from heliograph.queue import leases
from heliograph.queue.leases import UNROUTED, Lease, Postponed
from heliograph.queue.retry import HOLD
from heliograph.sms import encoding, receipts, test_mode
from heliograph.sms.outcomes import Answered, deadline
from heliograph.sms.recorder import Recorder
from heliograph.sms.routing import Breaker, Supplier, choose, covers
from heliograph.sms.status import Move, guard, move_many
from heliograph.suppliers.contract import Connector, Outcome, Submission, Verdict

log = structlog.get_logger()

#: A message of a suspended organization is looked at again after this, seconds.
SUSPENDED_PAUSE = 60.0
#: Tries that a supplier answered with "later" before another one is asked.
PATIENCE = 2
#: Messages that may be out without a recorded answer, in claims.
UNRECORDED = 2
#: Statuses of a message that no supplier has taken.
UNSENT = ("accepted", "sending")
#: Seconds between looks into the lines of suppliers that no row is known to wait in.
LOOK = 1.0
#: Rows of lines whose supplier cannot be used, moved on at once in one round.
REROUTE = 200
#: Rows of new work looked at in each round, however much waits in the suppliers' lines.
NEW = 32


class Account(msgspec.Struct):
    """A supplier as this worker uses it."""

    supplier: Supplier
    connector: Connector
    breaker: Breaker
    #: Segments that may still be handed over in this round.
    room: int = 0
    #: The circuit is open, and this round may send one message to see whether it still must be.
    probe: bool = False


class _Due(msgspec.Struct, frozen=True, gc=False):
    """A claimed message with all that decides about it."""

    lease: Lease
    status: str | None
    mode: str
    recipient: str
    sender: str
    encoding: str
    guarantee: str
    accepted_at: datetime
    expires_at: datetime | None
    body: str | None
    organization_state: str
    sender_status: str | None
    opted_out: bool
    at: datetime
    attempt: int
    attempt_supplier: UUID | None
    attempt_state: str | None
    started_at: datetime | None
    reference: int | None
    refusals: int


# Attempts are looked at only for rows that were tried or claimed before (`again`). LIMIT keeps each look-up a look-up:
# a plan made while a table is empty could otherwise read all of it once for a batch, and still do so when it is full.
DUE = """
SELECT m.status, m.mode, m.recipient, m.sender, m.encoding, m.guarantee, m.accepted_at, m.expires_at, t.body,
       o.state AS organization_state, s.status AS sender_status, silence.since IS NOT NULL AS opted_out, now() AS at,
       coalesce(a.attempt, 0) AS attempt, a.supplier_id AS attempt_supplier, a.state AS attempt_state, a.started_at,
       a.reference, coalesce(a.refusals, 0) AS refusals
  FROM unnest($1::uuid[], $2::uuid[], $3::boolean[]) WITH ORDINALITY AS item (organization_id, id, again, n)
  LEFT JOIN LATERAL (SELECT * FROM messages
                      WHERE organization_id = item.organization_id AND id = item.id LIMIT 1) m ON true
  LEFT JOIN LATERAL (SELECT body FROM message_texts
                      WHERE organization_id = item.organization_id AND message_id = item.id LIMIT 1) t ON true
  LEFT JOIN LATERAL (SELECT state FROM organizations WHERE id = item.organization_id LIMIT 1) o ON true
  LEFT JOIN LATERAL (SELECT status FROM sender_ids
                      WHERE organization_id = item.organization_id AND id = m.sender_id LIMIT 1) s ON true
  LEFT JOIN LATERAL (SELECT since FROM silence_1(item.organization_id, m.recipient)
                      WHERE (SELECT count(*) FROM automatic_replies
                              WHERE organization_id = item.organization_id AND recipient = m.recipient
                                AND message_id = item.id) = 0 LIMIT 1) silence ON true
  LEFT JOIN LATERAL (
       SELECT attempt, supplier_id, state, started_at, reference,
              count(*) FILTER (WHERE state = 'refused') OVER () AS refusals
         FROM sms_attempts WHERE item.again AND organization_id = item.organization_id AND message_id = item.id
        ORDER BY attempt DESC LIMIT 1) a ON true
 ORDER BY item.n
"""

# The message comes first: it may have been canceled, or an earlier attempt answered, since it was looked at. An attempt
# that is there already belongs to a worker that was taken for dead. In both cases this one must not go out.
BEGIN = f"""
WITH moved AS (
    UPDATE messages m SET status = 'sending'
      FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::uuid[], $5::integer[])
           AS item (organization_id, id, attempt, supplier_id, reference)
     WHERE m.organization_id = item.organization_id AND m.id = item.id AND {guard("m.status", "'sending'")}
    RETURNING item.*
)
INSERT INTO sms_attempts (organization_id, message_id, attempt, supplier_id, reference, state, started_at)
SELECT organization_id, id, attempt, supplier_id, reference, 'open', now() FROM moved
ON CONFLICT DO NOTHING
RETURNING message_id
"""

UNKNOWN = """
UPDATE sms_attempts a SET state = 'unknown', answered_at = now(), detail = 'the worker ended before the answer came'
  FROM unnest($1::uuid[], $2::uuid[], $3::smallint[]) AS lost (organization_id, message_id, attempt)
 WHERE a.organization_id = lost.organization_id AND a.message_id = lost.message_id AND a.attempt = lost.attempt
   AND a.state = 'open'
"""
ADOPT = """
INSERT INTO sms_parts (supplier_id, id_key, message_id, attempt, part, parts, organization_id, recipient_suffix,
                       created_at)
SELECT supplier_id, id_key, message_id, attempt, 1, 1, organization_id, recipient_suffix, now()
  FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::smallint[], $5::uuid[], $6::text[])
       AS found (supplier_id, id_key, message_id, attempt, organization_id, recipient_suffix)
ON CONFLICT DO NOTHING
"""

#: Pairs of sender and recipient whose last reference is remembered.
REFERENCES = 20_000


#: What becomes of one claimed message: nothing more, a new state, back into the queue, or out to a supplier.
_Step = Move | Postponed | tuple[Account, Submission] | None


class Dispatcher:
    """Moves messages from the queue to connectors; one per worker."""

    def __init__(
        self,
        pool: Pool,
        accounts: Callable[[], Mapping[UUID, Account]],
        recorder: Recorder,
        *,
        claim_limit: int,
        lease_seconds: float,
        grace: float,
    ) -> None:
        """`accounts`: the suppliers of this worker now. `grace`: seconds an unknown outcome waits for its receipt."""
        self._pool = pool
        self._accounts = accounts
        self._recorder = recorder
        self._claim_limit = claim_limit
        self._lease_seconds = lease_seconds
        self._grace = grace
        #: What was handed over: when (loop time), and how often the supplier's circuit had opened by then.
        self._flying: dict[tuple[UUID, int], tuple[_Due, float, int]] = {}
        self._references: OrderedDict[tuple[str, str], int] = OrderedDict()
        #: Lines of suppliers that rows wait in, as far as this worker knows; looked for again each LOOK seconds.
        self._parked: set[UUID] = set()
        self._look_at = 0.0
        self._usable: list[Supplier] = []
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
        crash_point("dispatch.before_commit")
        async with self._pool.acquire() as conn, conn.transaction():
            claimed = await self._claim(conn, room)
            outgoing = await self._decide(conn, claimed) if claimed else []
        crash_point("dispatch.after_commit")
        at = asyncio.get_running_loop().time()
        for due, account, submission in outgoing:
            self._flying[(submission.message_id, submission.attempt)] = (due, at, account.breaker.openings)
            account.connector.submit(submission)
        if outgoing:
            crash_point("dispatch.after_submit")
        return len(claimed)

    def answered(self, supplier_id: UUID, submission: Submission, outcome: Outcome) -> None:
        """A connector's `on_outcome`: record the end of an attempt."""
        key = (submission.message_id, submission.attempt)
        flying = self._flying.get(key)
        if flying is None:
            return
        due, _, sent_in = flying
        account = self._accounts().get(supplier_id)
        if account is not None:
            fault = outcome.alarm or outcome.verdict in (Verdict.UNREACHABLE, Verdict.UNKNOWN)
            fault = fault or (outcome.verdict is Verdict.BUSY and outcome.counts)
            was_open = account.breaker.open
            account.breaker.record(ok=not fault, sent_in=sent_in)
            if account.breaker.open != was_open:
                log.warning("supplier circuit", supplier=account.supplier.name, open=account.breaker.open)
        recorded = self._recorder.outcome(
            Answered(due.lease, submission, supplier_id, outcome, due.accepted_at, due.expires_at, due.refusals)
        )
        recorded.add_done_callback(lambda done: self._landed(key, done))

    async def renew(self) -> None:
        """Hold the leases of messages that have been in flight for a third of a lease; called that often."""
        at = asyncio.get_running_loop().time()
        old = [due.lease for due, since, _ in self._flying.values() if at - since > self._lease_seconds / 3]
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
        self._usable = []
        total = 0
        for id, account in self._accounts().items():
            account.room, account.probe = 0, False
            if account.supplier.state != "active" or account.connector.health().sessions == 0:
                continue
            if not account.breaker.open:
                account.room = account.connector.capacity()
            elif account.connector.capacity() > 0 and account.breaker.usable():
                account.probe = True
                account.room = 1
            else:
                continue
            if id != test_mode.SUPPLIER:
                total += account.room
                self._usable.append(account.supplier)
        # What was answered and is not recorded yet counts as in flight: otherwise a fast supplier's answers, and then
        # its receipts, would pile up in front of the recorder until it has to send the receipts away.
        return max(0, min(total, self._claim_limit, UNRECORDED * self._claim_limit - len(self._flying)))

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
        parked = {
            id: accounts[id].room if id in usable else reroute
            for id in self._parked & accounts.keys()
            if id != test_mode.SUPPLIER
        }
        claimed = await leases.claim(conn, "sms", parked, seconds=self._lease_seconds)
        found = {lease.line for lease in claimed}
        self._parked -= {id for id, places in parked.items() if places > 0 and id not in found}
        # A backlog in the lines must not keep new single sends from having their turn.
        left = max(room - len(claimed), min(room, NEW)) if usable else reroute
        new = {UNROUTED: left, test_mode.SUPPLIER: accounts[test_mode.SUPPLIER].room}
        claimed += await leases.claim(conn, "sms", new, seconds=self._lease_seconds)
        self._full = len(claimed) >= room
        claimed.sort(key=_lane)
        return claimed

    async def _decide(self, conn: Connection, claimed: list[Lease]) -> list[tuple[_Due, Account, Submission]]:
        """Settle what goes nowhere, and write the attempts of what goes out."""
        rows = await conn.fetch(
            DUE,
            [lease.organization_id for lease in claimed],
            [lease.id for lease in claimed],
            [lease.again for lease in claimed],
        )
        dues = [_Due(lease, *row.values()) for lease, row in zip(claimed, rows, strict=True)]
        lost = [due for due in dues if due.status in UNSENT and due.attempt_state in ("open", "unknown")]
        decided: dict[UUID, _Step] = await self._resolve(conn, lost) if lost else {}
        outgoing: list[tuple[_Due, Account, Submission]] = []
        finished: list[Lease] = []
        moves: list[Move] = []
        back: list[Postponed] = []
        uncertain = {due.lease.id for due in lost}
        for due in dues:
            step = decided[due.lease.id] if due.lease.id in decided else self._step(due)
            if isinstance(step, Move) and due.lease.id in uncertain:
                # It will not be tried again, and nobody knows whether the last try reached the handset.
                step = _unknown(due)
            match step:
                case None:
                    finished.append(due.lease)
                case Move():
                    moves.append(step)
                    finished.append(due.lease)
                case Postponed():
                    back.append(step)
                case (account, submission):
                    outgoing.append((due, account, submission))
        # Lines whose rows all stay where they are: worth no look in the very next round.
        usable = {supplier.id for supplier in self._usable}
        stuck = {one.line for one in back if one.line == one.lease.line} - usable
        self._parked -= stuck - {due.lease.line for due, _, _ in outgoing}
        if finished:
            await leases.finish(conn, finished)
        if back:
            await leases.postpone(conn, back)
        _, deliveries = await move_many(conn, moves)
        if deliveries:
            self._recorder.deliveries.set()
        return await self._begin(conn, outgoing) if outgoing else []

    async def _begin(
        self, conn: Connection, outgoing: list[tuple[_Due, Account, Submission]]
    ) -> list[tuple[_Due, Account, Submission]]:
        """Write the attempts' rows; what comes back may go out once they are committed."""
        rows = await conn.fetch(
            BEGIN,
            [due.lease.organization_id for due, _, _ in outgoing],
            [due.lease.id for due, _, _ in outgoing],
            [submission.attempt for _, _, submission in outgoing],
            [account.supplier.id for _, account, _ in outgoing],
            [submission.reference for _, _, submission in outgoing],
        )
        begun = {row["message_id"] for row in rows}
        return [one for one in outgoing if one[0].lease.id in begun]

    async def _resolve(self, conn: Connection, lost: list[_Due]) -> dict[UUID, _Step]:
        """Messages whose last attempt has an end that nobody saw. Those that may be tried again are absent."""
        await conn.execute(
            UNKNOWN,
            [due.lease.organization_id for due in lost],
            [due.lease.id for due in lost],
            [due.attempt for due in lost],
        )
        keys = await receipts.find_for_uncertain(
            conn,
            [
                receipts.Uncertain(due.attempt_supplier, due.started_at, due.recipient, due.reference or 0)
                for due in lost
                if due.attempt_supplier is not None and due.started_at is not None
            ],
        )
        decided: dict[UUID, _Step] = {}
        found = [(due, key) for due, key in zip(lost, keys, strict=True) if key is not None]
        if found:
            await self._adopt(conn, found)
        for due, key in zip(lost, keys, strict=True):
            lease = due.lease
            assert due.started_at is not None
            waits = (due.started_at + timedelta(seconds=self._grace) - due.at).total_seconds()
            if key is not None:
                decided[lease.id] = None
            elif waits > 0:
                decided[lease.id] = Postponed(lease, waits, UNROUTED, counts=False)
            elif due.guarantee == "at_most_once":
                decided[lease.id] = _unknown(due)
        return decided

    async def _adopt(self, conn: Connection, found: list[tuple[_Due, str]]) -> None:
        """A receipt speaks of these, so the supplier has them: the receipt's id stands for the answer that was lost."""
        await conn.execute(
            ADOPT,
            [due.attempt_supplier for due, _ in found],
            [key for _, key in found],
            [due.lease.id for due, _ in found],
            [due.attempt for due, _ in found],
            [due.lease.organization_id for due, _ in found],
            [receipts.suffix(due.recipient) for due, _ in found],
        )
        await move_many(conn, [Move(due.lease.organization_id, due.lease.id, "sent", due.at) for due, _ in found])
        answers = [(due.attempt_supplier, key) for due, key in found if due.attempt_supplier is not None]
        applied = await receipts.adopt(conn, answers, policies=self._recorder.policies)
        if applied.deliveries:
            self._recorder.deliveries.set()

    def _step(self, due: _Due) -> _Step:
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

    def _route(self, due: _Due) -> _Step:
        accounts = self._accounts()
        lease = due.lease
        if due.mode == "test":
            supplier: Supplier | None = accounts[test_mode.SUPPLIER].supplier
        else:
            refused = due.attempt_supplier if due.attempt_state == "refused" else None
            suppliers = [account.supplier for id, account in accounts.items() if id != test_mode.SUPPLIER]
            covering = [one for one in suppliers if covers(one, due.recipient)]
            others = [one for one in covering if one.id != refused]
            if suppliers and not others:
                # Whoever refused it is not asked twice.
                end = ("rejected", due.at, "rejected") if covering else ("failed", due.at, "destination_unreachable")
                return Move(lease.organization_id, lease.id, *end, unsent=True)
            usable = [one for one in self._usable if one.id != refused]
            supplier = choose(usable, due.recipient, lease.id, avoid=_avoided(due))
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
            self._parked.add(supplier.id)
            return Postponed(lease, 0.0, supplier.id, counts=False)
        encoded = encoding.encode(due.body or "", smart=due.encoding == "gsm7")
        account.room -= len(encoded.segments)
        if account.probe:
            account.probe = False
            account.breaker.begin_probe()
        validity = None
        if due.expires_at is not None:
            validity = max(1, int((due.expires_at - due.at).total_seconds()))
        return account, Submission(
            message_id=lease.id,
            attempt=due.attempt + 1,
            to=due.recipient[1:],
            sender=due.sender,
            segments=encoded.segments,
            encoding=encoded.encoding,
            reference=self._reference(due, len(encoded.segments)),
            validity_seconds=validity,
        )

    def _reference(self, due: _Due, segments: int) -> int:
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


def _unknown(due: _Due) -> Move:
    return Move(due.lease.organization_id, due.lease.id, "unknown", due.at, unsent=True)


def _avoided(due: _Due) -> UUID | None:
    """The supplier to pass over if there is another one: what is only full for the moment is waited for."""
    if due.attempt_state == "unreachable" or (due.attempt_state == "busy" and due.lease.tries >= PATIENCE):
        return due.attempt_supplier
    return None
