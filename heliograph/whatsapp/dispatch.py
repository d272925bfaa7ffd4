"""Dispatch of WhatsApp messages: from the queue to their numbers' connectors.

Each number is a line of the queue, so one in trouble delays nobody else. A round asks the lines with due work how much
they can take, claims that much (single sends before campaigns), decides about each message, commits an attempt row
for those that go out, and only then hands them over. Whatever was checked when a message was accepted is checked again
here: opt-out, template, service window, lifetime, organization, and what one user or one portfolio may still get.

The rule nobody may break: no attempt leaves without its committed row, and none while an earlier one may have reached
the user: it waits for a status, and then what kind of message it is decides. What waits for a number, a credential, a
template or a limit stays in the queue and loses none of its tries.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.base.crash import crash_point
from heliograph.base.db import Connection, Pool
from heliograph.queue import leases
from heliograph.queue.leases import UNROUTED, Lease, Postponed
from heliograph.suppliers.whatsapp_cloud.bodies import template_body, text_body
from heliograph.suppliers.whatsapp_cloud.contract import CloudOutcome, CloudSubmission
from heliograph.whatsapp import holds, messaging_limits, parking, test_mode
from heliograph.whatsapp.claimed import ClaimedMessage, Content, Template, load, load_templates
from heliograph.whatsapp.number_pool import PooledNumber
from heliograph.whatsapp.outcomes import Answered
from heliograph.whatsapp.recorder import Recorder
from heliograph.whatsapp.status import Move, move_many

log = structlog.get_logger()

KIND = "whatsapp"
#: A message of a suspended organization, or of a paused account, is looked at again after this, seconds.
SUSPENDED_PAUSE = 60.0
#: One whose template is paused, under review, or missing is looked at again after this; once that is over, at once.
TEMPLATE_PAUSE = 300.0
#: One whose outcome is unknown while callbacks wait, or none has come since.
UNCERTAIN_PAUSE = 30.0
#: Graces after which silence is taken for an answer although no callback of anything came: it is a quiet number.
SILENCE = 5
#: One whose attempt was just found without an end, at least.
OVERTAKEN = 5.0
#: Tries of unknown outcome before a message is given up.
MOST_UNKNOWN = 3
#: Attempts of any outcome: one a minute for 22 days. What is numbered in 16 bits must end before these do.
MOST_ATTEMPTS = 32_000
#: Messages that may be out without a recorded answer, in claims.
UNRECORDED = 2
#: Messages to one user handed over in one round: its gate counts them only once they are handed over.
TOGETHER, TOGETHER_PAUSE = 5, 0.2
#: Seconds until lines that had no more room are looked at again; a connector has work for a quarter of a second.
PACE = 0.05
#: Rows of lines that have no connector, looked at each so many seconds: their numbers may be gone for good.
ORPHANS, LOOK = 100, 1.0
#: Statuses of a message that Meta has not been heard of about.
UNSENT = ("accepted", "queued")


# The message comes first: it may have been canceled, or a status have come, since it was looked at. An attempt that is
# there already belongs to a worker that was taken for dead. In both cases this one must not go out. The state is
# spelled so that the index of deadlines, which holds every open message, does not seem to answer this.
BEGIN = """
WITH moved AS (
    UPDATE whatsapp_messages m SET status = 'queued'
      FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::uuid[]) AS item (organization_id, id, attempt, number_id)
     WHERE m.organization_id = item.organization_id AND m.id = item.id AND m.status || '' IN ('accepted', 'queued')
    RETURNING item.*
)
INSERT INTO whatsapp_attempts (organization_id, message_id, attempt, number_id, state, started_at)
SELECT organization_id, id, attempt, number_id, 'open', now() FROM moved
ON CONFLICT DO NOTHING
RETURNING message_id
"""

# An attempt that somebody has locked is being answered at this moment. It is not waited for: the recorder, which holds
# it, may be waiting for what this transaction holds.
UNKNOWN = """
WITH lost AS MATERIALIZED (
    SELECT a.* FROM unnest($1::uuid[], $2::uuid[], $3::smallint[]) AS item (organization_id, message_id, attempt)
     CROSS JOIN LATERAL (
           SELECT organization_id, message_id, attempt FROM whatsapp_attempts
            WHERE organization_id = item.organization_id AND message_id = item.message_id AND attempt = item.attempt
              AND state = 'open' FOR UPDATE SKIP LOCKED) a
)
UPDATE whatsapp_attempts a
   SET state = 'unknown', answered_at = now(), detail = 'the worker ended before the answer came'
  FROM lost
 WHERE a.organization_id = lost.organization_id AND a.message_id = lost.message_id AND a.attempt = lost.attempt
"""
# Callbacks of the app have come since the attempt began, or nothing has for long ($4), and none waits to be read: what
# Meta had to say of a lost answer has been heard. An outage of our own looks like silence until the first callback
# comes again, and Meta repeats what it could not bring. (What came in the last second is being worked on, and traffic
# would never let that be nothing.)
HEARD = """
SELECT asked.message_id FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::boolean[], $5::uuid[])
       AS asked (organization_id, id, started_at, is_long, message_id)
  JOIN whatsapp_numbers n ON n.organization_id = asked.organization_id AND n.id = asked.id
  JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
  JOIN whatsapp_apps app ON app.id = a.app
 WHERE (app.last_callback_at > asked.started_at
        OR asked.is_long AND (app.verified_at IS NOT NULL OR app.last_callback_at IS NOT NULL))
   AND NOT EXISTS (SELECT FROM whatsapp_callbacks waiting
                    WHERE waiting.app = app.id AND waiting.received_at < now() - interval '1 second')
"""
GONE = """
SELECT n.id FROM unnest($1::uuid[], $2::uuid[]) AS asked (organization_id, id)
  JOIN whatsapp_numbers n ON n.organization_id = asked.organization_id AND n.id = asked.id
  JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
 WHERE n.state = 'removed' OR a.state = 'removed'
"""
ACTIVE = """
SELECT n.id FROM whatsapp_numbers n
  JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
 WHERE n.id = ANY ($1::uuid[]) AND n.state = 'active' AND a.state = 'active'
"""

_Out = tuple[ClaimedMessage, PooledNumber, CloudSubmission]
#: What becomes of one claimed message: nothing more, a new state, back into the queue, or out.
_Step = Move | Postponed | _Out | None


class Dispatcher:
    """Moves messages from the queue to connectors; one per worker."""

    def __init__(
        self,
        pool: Pool,
        slots: Callable[[], Mapping[UUID, PooledNumber]],
        recorder: Recorder,
        *,
        claim_limit: int,
        lease_seconds: float,
        grace: float,
    ) -> None:
        """`slots`: the lines of this worker now. `grace`: seconds that an unknown outcome waits for a status."""
        self._pool = pool
        self._slots = slots
        self._recorder = recorder
        self._claim_limit = claim_limit
        self._lease_seconds = lease_seconds
        self._grace = grace
        self._reach = messaging_limits.MessagingLimits()
        #: The lines of the present round.
        self._now: dict[UUID, PooledNumber] = {}
        #: What was handed over, since when (loop time), and whether it was the one that tries after a hold.
        self._flying: dict[tuple[UUID, int], tuple[ClaimedMessage, UUID | None, float, bool]] = {}
        #: Lines of which one message may try after a hold, and until when (loop time).
        self._leaves: dict[UUID, float] = {}
        self._after = UNROUTED
        self._look_at = 0.0
        self._full = False
        #: Lines that took all they had room for in the last round, or had none.
        self._paced: set[UUID] = set()
        #: Set when something may have changed: new work, free room, a hold that is over.
        self.wake = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Messages handed to connectors whose end is not recorded yet."""
        return len(self._flying)

    async def round(self) -> int:
        """Claim and submit once; returns how many rows were claimed, 0 if there is no room for more just now."""
        # A number that goes meanwhile has its connector answer that nothing left.
        self._now = dict(self._slots())
        await self._ask_to_try()
        crash_point("whatsapp.before_commit")
        try:
            async with self._pool.acquire() as conn, conn.transaction():
                claimed = await self._claim(conn)
                outgoing = await self._decide(conn, claimed) if claimed else []
        except asyncpg.DeadlockDetectedError:
            return 1  # statuses of the same messages went first: nothing was claimed, and the next round sees them
        crash_point("whatsapp.after_commit")
        at = asyncio.get_running_loop().time()
        for due, slot, submission in outgoing:
            account_id = slot.line.account_id if slot.line else None
            self._flying[submission.message_id, submission.attempt] = (due, account_id, at, slot.held)
            if slot.probe is not None:
                slot.probe.took()
            slot.connector.submit(submission)
        if outgoing:
            crash_point("whatsapp.after_submit")
        # Where all that can go has gone, `wake` is set when there is room again.
        return len(claimed) if self._full or any(lease.line not in self._paced for lease in claimed) else 0

    def answered(self, submission: CloudSubmission, outcome: CloudOutcome) -> None:
        """A connector's `on_outcome`: record the end of an attempt."""
        key = (submission.message_id, submission.attempt)
        flying = self._flying.get(key)
        if flying is None:
            return
        due, account_id, _, tries_hold = flying
        recorded = self._recorder.outcome(
            Answered(
                due.lease,
                submission,
                outcome,
                due.number_id,
                account_id,
                due.conversation_id,
                due.template_id,
                due.authentication,
                due.expires_at,
                due.unknowns,
                tries_hold,
            )
        )
        recorded.add_done_callback(lambda done: self._landed(key, done))

    async def early(self, message_id: UUID) -> None:
        """The statuses of a test message, before its answer."""
        for (id, _), (due, *_) in self._flying.items():
            if id == message_id:
                moves = test_mode.statuses(due.lease.organization_id, id, due.recipient)
                return await self._recorder.moves(moves)
        return None

    async def renew(self) -> None:
        """Hold the leases of messages that have been in flight for a third of a lease; called that often."""
        at = asyncio.get_running_loop().time()
        old = [due.lease for due, _, since, _ in self._flying.values() if at - since > self._lease_seconds / 3]
        if old:
            async with self._recorder.writing, self._pool.acquire() as conn:
                await leases.renew(conn, old, seconds=self._lease_seconds)

    def _landed(self, key: tuple[UUID, int], recorded: asyncio.Future[None]) -> None:
        self._flying.pop(key, None)
        error = None if recorded.cancelled() else recorded.exception()
        if error is not None:
            # Its lease ends, and then it is an attempt whose answer was lost.
            log.error("whatsapp outcome not recorded", message_id=str(key[0]), error=type(error).__name__)
        if self._full:
            self.wake.set()

    async def _ask_to_try(self) -> None:
        """Get leave for one message of each line whose hold is over: of all that it stops, one at a time tries."""
        at = asyncio.get_running_loop().time()
        self._leaves = {line: until for line, until in self._leaves.items() if until > at and line in self._now}
        for id, slot in self._now.items():
            over = slot.held and slot.line is not None and slot.connector.capacity() > 0
            if not over or slot.denied or id in self._leaves:
                continue
            assert slot.line is not None
            async with self._pool.acquire() as conn:
                leave = await holds.leave_to_try(conn, slot.line.organization_id, id)
            if leave:
                self._leaves[id] = at + holds.UNUSED / 2
            else:
                slot.denied = True

    # -- claiming ------------------------------------------------------------------------------------------------------

    async def _claim(self, conn: Connection) -> list[Lease]:
        """As much as the lines with due work can take, evenly where that is too much."""
        # What was answered and is not recorded yet counts as in flight: otherwise answers would pile up.
        left = min(self._claim_limit, UNRECORDED * self._claim_limit - len(self._flying))
        if left <= 0:
            self._full = True
            return []
        slots = self._now
        at = asyncio.get_running_loop().time()
        looking = at >= self._look_at
        if looking:
            self._look_at = at + LOOK
            await parking.leave(conn, KIND, without=slots)
        lines, self._after = await leases.lines(conn, KIND, after=self._after)
        places: dict[UUID, int] = {}
        rooms = sorted((self._room(line), line) for line in lines if line in slots)
        for n, (room, line) in enumerate(rooms):
            # The smallest first: what it leaves of its share goes to those after it.
            places[line] = min(room, max(1, left // (len(rooms) - n))) if left > 0 else 0
            left -= places[line]
        if looking:
            unknown = [line for line in lines if line not in slots]
            # One that is active is another worker's, or this one's as soon as it has looked at the table.
            active = {row["id"] for row in await conn.fetch(ACTIVE, unknown)} if unknown else set()
            places |= {line: ORPHANS for line in unknown if line not in active}
        claimed = await leases.claim(conn, KIND, places, seconds=self._lease_seconds)
        self._full = left <= 0
        taken = Counter(lease.line for lease in claimed)
        self._paced = {line for room, line in rooms if taken[line] >= room}
        if any(slots[line].connector.health().held == 0 and not slots[line].held for line in self._paced):
            # Their rates let more through with time alone.
            asyncio.get_running_loop().call_later(PACE, self.wake.set)
        claimed.sort(key=lambda lease: lease.lane)
        return claimed

    def _room(self, line: UUID) -> int:
        slot = self._now[line]
        return 0 if slot.held and line not in self._leaves else slot.capacity()

    # -- deciding ------------------------------------------------------------------------------------------------------

    async def _decide(self, conn: Connection, claimed: list[Lease]) -> list[_Out]:
        """Settle what goes nowhere, and write the attempts of what goes out."""
        dues = await load(conn, claimed)
        open_ = [due for due in dues if due.status in UNSENT]
        decided = await self._resolve(conn, [due for due in open_ if due.attempt_state in ("open", "unknown")])
        decided.update(await self._orphans(conn, [due for due in open_ if _home(due) not in self._now]))
        templates = await load_templates(conn, open_)
        together: Counter[tuple[UUID, str]] = Counter()
        steps = [
            decided[due.lease.id] if due.lease.id in decided else self._step(due, templates, together) for due in dues
        ]
        outgoing = [step for step in steps if isinstance(step, tuple)]
        waits = await self._reach.admit(
            conn, [(slot.line, due.recipient, due.window_open) for due, slot, _ in outgoing]
        )
        moves = [step for step in steps if isinstance(step, Move)]
        back = [step for step in steps if isinstance(step, Postponed)]
        back += [
            Postponed(due.lease, wait, due.lease.line, counts=False)
            for (due, _, _), wait in zip(outgoing, waits, strict=True)
            if wait
        ]
        outgoing = [one for one, wait in zip(outgoing, waits, strict=True) if not wait]
        finished = [due.lease for due, step in zip(dues, steps, strict=True) if step is None or isinstance(step, Move)]
        if finished:
            await leases.finish(conn, finished)
        if back:
            await leases.postpone(conn, back)
        begun = await self._begin(conn, outgoing) if outgoing else []
        # Last, since it locks wallets.
        _, deliveries = await move_many(conn, moves, rates=None)
        if deliveries:
            self._recorder.deliveries.set()
        for due, slot, submission in begun:
            if slot.held and slot.line is not None:
                self._leaves.pop(due.lease.line, None)
                await holds.tries(
                    conn, due.lease.organization_id, slot.line.account_id, due.number_id, submission.message_id
                )
        return begun

    async def _begin(self, conn: Connection, outgoing: list[_Out]) -> list[_Out]:
        """Write the attempts' rows; what comes back may go out once they are committed."""
        # In the order in which statuses lock messages.
        ordered = sorted(outgoing, key=lambda one: (one[0].lease.organization_id.int, one[0].lease.id.int))
        rows = await conn.fetch(
            BEGIN,
            [due.lease.organization_id for due, _, _ in ordered],
            [due.lease.id for due, _, _ in ordered],
            [submission.attempt for _, _, submission in ordered],
            [due.number_id for due, _, _ in ordered],
        )
        begun = {row["message_id"] for row in rows}
        return [one for one in outgoing if one[0].lease.id in begun]

    async def _resolve(self, conn: Connection, lost: list[ClaimedMessage]) -> dict[UUID, _Step]:
        """Messages whose last attempt has an end that nobody saw. Those that may be tried again are absent."""
        if not lost:
            return {}
        lost = sorted(lost, key=lambda due: due.lease.id.int)  # as answers and statuses lock attempts
        await conn.execute(
            UNKNOWN,
            [due.lease.organization_id for due in lost],
            [due.lease.id for due in lost],
            [due.attempt for due in lost],
        )
        decided: dict[UUID, _Step] = {}
        over = []
        for due in lost:
            assert due.started_at is not None
            waits = (due.started_at + timedelta(seconds=self._grace) - due.at).total_seconds()
            if due.attempt_state == "open" or (due.lease.id, due.attempt) in self._flying:
                # Whoever has its answer may have waited for the database as we did, and is about to record it.
                waits = max(waits, OVERTAKEN)
            if waits > 0:
                decided[due.lease.id] = Postponed(due.lease, waits, due.lease.line, counts=False)
            elif due.authentication or due.unknowns >= MOST_UNKNOWN:
                # A second code would only say that the first one is void.
                decided[due.lease.id] = _failed(due, "unknown")
            elif due.mode == "live":
                over.append(due)
        if over:
            began = [due.started_at or due.at for due in over]
            rows = await conn.fetch(
                HEARD,
                [due.lease.organization_id for due in over],
                [due.number_id for due in over],
                began,
                [due.at - at >= SILENCE * timedelta(seconds=self._grace) for due, at in zip(over, began, strict=True)],
                [due.lease.id for due in over],
            )
            heard = {row["message_id"] for row in rows}
            for due in over:
                if due.lease.id not in heard:
                    pause = min(UNCERTAIN_PAUSE, self._grace)
                    decided[due.lease.id] = Postponed(due.lease, pause, due.lease.line, counts=False)
        return decided

    async def _orphans(self, conn: Connection, dues: list[ClaimedMessage]) -> dict[UUID, _Step]:
        """Messages of numbers that this worker does not have: gone for good, or paused."""
        if not dues:
            return {}
        rows = await conn.fetch(GONE, [due.lease.organization_id for due in dues], [due.number_id for due in dues])
        gone = {row["id"] for row in rows}
        return {
            due.lease.id: _failed(due, "unknown")
            if due.number_id in gone
            else _failed(due, "expired")
            if due.at >= due.expires_at
            else Postponed(due.lease, SUSPENDED_PAUSE, due.lease.line, counts=False)
            for due in dues
        }

    def _step(
        self, due: ClaimedMessage, templates: Mapping[UUID, Template], together: Counter[tuple[UUID, str]]
    ) -> _Step:
        """What to do with one message whose earlier attempts, if any, are known to have ended."""
        lease = due.lease
        if due.status not in UNSENT or due.attempt_state == "accepted":
            return None
        if due.content is None or due.at >= due.expires_at:
            return _failed(due, "expired")
        if due.attempt >= MOST_ATTEMPTS:
            return _failed(due, "unknown")
        if due.opted_out:
            return _failed(due, "opted_out")
        if due.organization_state in ("suspended", "closed"):
            return Postponed(lease, SUSPENDED_PAUSE, lease.line, counts=False)
        content = msgspec.json.decode(due.content, type=Content)
        body = self._text(due, content) if due.template_id is None else self._template(due, content, templates)
        if not isinstance(body, bytes):
            return body
        home = _home(due)
        if lease.line != home:  # it waited for its template
            return Postponed(lease, 0.0, home, counts=False)
        slot = self._now[home]
        wait = slot.connector.pair_wait(due.recipient)
        if wait == 0.0:
            together[lease.line, due.recipient] += 1
            wait = TOGETHER_PAUSE if together[lease.line, due.recipient] > TOGETHER else 0.0
        if wait > 0:
            return Postponed(lease, wait, lease.line, counts=False)
        return due, slot, CloudSubmission(lease.id, due.attempt + 1, due.recipient, body)

    def _text(self, due: ClaimedMessage, content: Content) -> bytes | Move:
        if due.mode == "live" and not due.window_open:
            return _failed(due, "window_closed")
        return text_body(to=due.recipient, text=content.body, opaque=str(due.lease.id), preview_url=content.previewUrl)

    def _template(
        self, due: ClaimedMessage, content: Content, templates: Mapping[UUID, Template]
    ) -> bytes | Move | Postponed:
        template = templates.get(due.template_id) if due.template_id else None
        if (
            template is None
            or template.disabled
            or template.status in ("rejected", "disabled", "removed")
            or template.category not in ("utility", "authentication")
        ):
            return _failed(due, "template_unavailable")
        if template.status != "approved":
            # Paused, or under review. A code is of no use later.
            if due.authentication:
                return _failed(due, "template_unavailable")
            return Postponed(due.lease, TEMPLATE_PAUSE, template.id, counts=False)
        if template.missing and not due.authentication:
            # Meta is being asked for it. A code cannot wait for that, and Meta's answer to it is one as well.
            return Postponed(due.lease, TEMPLATE_PAUSE, template.id, counts=False)
        if template.layout.check(content.parameters):
            return _failed(due, "template_unavailable")
        return template_body(
            to=due.recipient,
            name=template.name,
            language=template.language,
            layout=template.layout,
            parameters=content.parameters,
            opaque=str(due.lease.id),
        )


def _home(due: ClaimedMessage) -> UUID:
    """The line that it is sent from."""
    return test_mode.LINE if due.mode == "test" else due.number_id


def _failed(due: ClaimedMessage, code: str) -> Move:
    return Move(due.lease.organization_id, due.lease.id, "failed", due.at, code, unsent=True)
