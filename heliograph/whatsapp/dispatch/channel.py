"""WhatsApp as a channel of the engine: which messages are picked, what is decided about them, and what answers do.

Each number is a line of the queue, so one in trouble delays no other. A round asks the lines with due work how much
they can take and claims that much, single sends before campaigns. Everything checked when a message was accepted is
checked again: opt-out, template, service window, lifetime, organization, and the current limits of the user and
portfolio.

The rule nobody may break: an attempt of unknown outcome waits for a status, and then the kind of message decides.
Messages that wait for a number, a credential, a template or a limit stay in the queue without using up their tries.
It has over 400 lines because all decisions about a message depend on what the round has read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.retry import look_pause
from heliograph.queue.backlog import Backlog
from heliograph.queue.holds import RESUMING, STOPPED_PAUSE
from heliograph.queue.leases import SINGLE, UNROUTED, Lease, Postponed
from heliograph.sending.attempts import MOST_ATTEMPTS, Attempt
from heliograph.sending.channel import COMMIT_LOST, Finish, LostResolution, Step
from heliograph.sending.results import AnsweredAttempt
from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud.bodies import template_body, text_body
from heliograph.suppliers.whatsapp_cloud.contract import CloudOutcome, CloudSubmission
from heliograph.webhooks.recording.events import Subscriptions
from heliograph.webhooks.recording.handover import Handover
from heliograph.whatsapp.callbacks.matching import KIND, NamedUsers
from heliograph.whatsapp.dispatch import claimed, held, holds, messaging_limits, outcomes, parking, test_mode
from heliograph.whatsapp.dispatch import lost as lost_answers
from heliograph.whatsapp.dispatch.claimed import ClaimedMessage, Content, Template, load_templates
from heliograph.whatsapp.dispatch.messaging_limits import BULK_LIMIT_PAUSE, BUSY_PAUSE, LIMIT_PAUSE
from heliograph.whatsapp.dispatch.number_pool import PooledNumber
from heliograph.whatsapp.dispatch.outcomes import Context
from heliograph.whatsapp.money.rates import RateBook
from heliograph.whatsapp.status import Move, move_many

#: Pause before a message whose template is paused, under review, or missing is examined again,
#: seconds; once that is over, it is sent at once.
TEMPLATE_PAUSE = 300.0
#: The same for one that cannot be decrypted here: the secret key differs, or its organization's is damaged.
LOCKED_PAUSE = 60.0
#: The same for one of unknown outcome while callbacks are waiting, or none has arrived since.
UNCERTAIN_PAUSE = 30.0
#: Tries of unknown outcome before a message is abandoned.
MOST_UNKNOWN = 3
#: Seconds until lines that were full are read again; a connector then still has work for a quarter of a second.
PACE = 0.05
#: How many rows of a line are examined at once while its portfolio's messaging limit is reached, or its account may not
#: begin conversations and messages that would are among them, even if the number can send fewer: most go back, and
#: those of users who count already, or whose window is open, are found among them.
LOOKED = 500
#: How many rows of lines without a connector are examined, and how often, in seconds: their numbers may be gone for
#: good.
ORPHANS, LOOK = 100, 1.0
GONE = """
SELECT n.id FROM unnest($1::uuid[], $2::uuid[]) AS asked (organization_id, id)
  JOIN whatsapp_numbers n ON n.organization_id = asked.organization_id AND n.id = asked.id
  JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
 WHERE n.state = 'removed' OR a.state = 'removed'
"""
# Whoever resumes such an account waits for this transaction, and nobody else does: it locks wallets later on, for which
# others wait that hold accounts. One that is being resumed is not found.
HOLD_PAUSED = """
SELECT n.id FROM unnest($1::uuid[], $2::uuid[]) AS asked (organization_id, id)
  JOIN whatsapp_numbers n ON n.organization_id = asked.organization_id AND n.id = asked.id
  JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
 WHERE a.state = 'paused' FOR KEY SHARE OF a SKIP LOCKED
"""
ACTIVE = """
SELECT n.id FROM whatsapp_numbers n
  JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
 WHERE n.id = ANY ($1::uuid[]) AND n.state = 'active' AND a.state = 'active'
"""


class WhatsAppChannel:
    """WhatsApp within one worker. Implements `sending.channel.Channel`."""

    kind = KIND
    table = "whatsapp_messages"

    def __init__(
        self,
        pool: Pool,
        slots: Callable[[], Mapping[UUID, PooledNumber]],
        *,
        grace: float,
        backlog: Backlog | None = None,
    ) -> None:
        """`slots`: this worker's current numbers. `grace`: seconds that an unknown outcome waits for a status.
        `backlog`: the worker's; None: its own."""
        self._backlog = backlog or Backlog(cycle=0.0)
        self.grace = grace
        self.is_full = False
        self._pool = pool
        self._slots = slots
        self._limits = messaging_limits.MessagingLimits()
        self._subscriptions = Subscriptions(pool)
        #: Who Meta says that recent messages were sent to; whether that is recorded of the answers written last.
        self.named = NamedUsers()
        self._are_named = False
        self._rates = RateBook(pool)
        #: The lines of the current round.
        self._now: dict[UUID, PooledNumber] = {}
        #: Lines with permission for one message to probe after a hold → until when (loop time).
        self._leaves: dict[UUID, float] = {}
        self._after = UNROUTED
        self._look_at = 0.0
        #: Line → whether the last round sent messages of it back because of the messaging limit, or because its account
        #: may not begin conversations; and how many messages of such a line may leave in this one.
        self._limited: dict[UUID, bool] = {}
        self._leaving_of: dict[UUID, int] = {}
        #: Lines that were filled in the last round, or had no room.
        self._paced: set[UUID] = set()
        #: Set when another round may be worthwhile: new work, free room, a hold that is over.
        self.wake = asyncio.Event()

    # -- a round -------------------------------------------------------------------------------------------------------

    async def before_round(self) -> None:
        # If a number is removed meanwhile, its connector answers that nothing was sent.
        self._now = dict(self._slots())
        await self._ask_to_try()

    async def pick(self, conn: Connection, *, limit: int) -> list[Lease]:
        """As much as the lines with due work can take, divided evenly if that is too much."""
        left = limit
        if left <= 0:
            self.is_full = True
            return []
        slots = self._now
        at = asyncio.get_running_loop().time()
        looking = at >= self._look_at
        if looking:
            self._after = await parking.leave(conn, KIND, without=slots, after=self._after)
            ended = asyncio.get_running_loop().time()
            self._look_at = ended + max(LOOK, look_pause(ended - at))
        await self._backlog.look(conn, KIND)
        lines = self._backlog.lines(KIND)
        places: dict[UUID, int] = {}
        rooms = sorted((self._wanted(line), line) for line in lines if line in slots)
        self._leaving_of = {line: self._room(line) for _, line in rooms if self._looks(line)}
        for n, (room, line) in enumerate(rooms):
            # Smallest first: the unused part of its share goes to those after it.
            places[line] = min(room, max(1, left // (len(rooms) - n))) if left > 0 else 0
            left -= places[line]
        if looking:
            unknown = [line for line in lines if line not in slots]
            # An active one belongs to another worker, or to this one as soon as it has read the table.
            active = {row["id"] for row in await conn.fetch(ACTIVE, unknown)} if unknown else set()
            places |= {line: ORPHANS for line in unknown if line not in active}
        rows = await self._backlog.pick(conn, KIND, places)
        self.is_full = left <= 0
        taken = Counter(lease.line for lease in rows)
        self._paced = {line for room, line in rooms if taken[line] >= room}
        if any(slots[line].connector.health().held == 0 and not slots[line].held for line in self._paced):
            # Their rates allow more as time passes.
            asyncio.get_running_loop().call_later(PACE, self.wake.set)
        rows.sort(key=lambda lease: lease.lane)
        return rows

    def _room(self, line: UUID) -> int:
        slot = self._now[line]
        return 0 if slot.held and line not in self._leaves else slot.capacity()

    def _wanted(self, line: UUID) -> int:
        room = self._room(line)
        return max(room, LOOKED) if room and self._looks(line) else room

    def _looks(self, line: UUID) -> bool:
        """Whether most of its messages may have to wait, so that those that may leave have to be found."""
        known = self._now[line].line
        return self._limited.get(line, known is not None and known.replies_only)

    async def _ask_to_try(self) -> None:
        """Get permission to probe for each line whose hold is over: of all messages that a hold stops, one at a time
        probes."""
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

    async def load(self, conn: Connection, rows: Sequence[Lease]) -> list[ClaimedMessage]:
        return await claimed.load(conn, rows)

    def home(self, lease: Lease) -> UUID:
        return lease.line

    async def find_lost(self, conn: Connection, lost: Sequence[ClaimedMessage]) -> LostResolution:
        """Nothing to do: statuses find their messages by themselves."""
        return LostResolution()

    async def give_up(self, conn: Connection, lost: Sequence[ClaimedMessage]) -> dict[UUID, Step]:
        decided: dict[UUID, Step] = dict(
            await self._orphans(conn, [one for one in lost if _home(one) not in self._now])
        )
        live = []
        stopped = await lost_answers.stopped(conn, lost)
        for one in lost:
            if one.lease.id in decided:
                continue
            if stopped.get(one.lease.id) is False:
                decided[one.lease.id] = Postponed(one.lease, UNCERTAIN_PAUSE, one.lease.line, counts=False)
            elif one.authentication or one.unknowns >= MOST_UNKNOWN or one.lease.id in stopped:
                # A second code would only invalidate the first one.
                decided[one.lease.id] = _failed(one, "unknown")
            elif one.mode == "live":
                live.append(one)
        if live:
            heard = await lost_answers.heard(conn, live, self.grace)
            pause = min(UNCERTAIN_PAUSE, self.grace)
            for one in live:
                if one.lease.id not in heard:
                    decided[one.lease.id] = Postponed(one.lease, pause, one.lease.line, counts=False)
        return decided

    async def decide(self, conn: Connection, messages: Sequence[ClaimedMessage]) -> list[Step]:
        orphans = await self._orphans(conn, [one for one in messages if one.is_unsent and _home(one) not in self._now])
        templates = await load_templates(conn, [one for one in messages if one.is_unsent])
        together: Counter[tuple[UUID, str]] = Counter()
        barred: set[UUID] = set()
        steps = [orphans.get(one.lease.id) or self._step(one, templates, together, barred) for one in messages]
        outgoing = [(place, one) for place, one in enumerate(steps) if isinstance(one, Attempt)]
        waits = await self._limits.admit(conn, [self._leaving(one) for _, one in outgoing], self._leaving_of)
        for (place, one), wait in zip(outgoing, waits, strict=True):
            if wait:
                steps[place] = Postponed(one.lease, wait, one.lease.line, counts=False)
        self._limited |= dict.fromkeys((one.lease.line for _, one in outgoing), False) | dict.fromkeys(barred, True)
        for (_, one), wait in zip(outgoing, waits, strict=True):
            self._limited[one.lease.line] |= wait >= LIMIT_PAUSE
        if BUSY_PAUSE in waits:
            # The watch looks for what is due only once a second.
            asyncio.get_running_loop().call_later(BUSY_PAUSE, self.wake.set)
        return steps

    def _leaving(self, one: Attempt[ClaimedMessage]) -> messaging_limits.Leaving:
        person = phones.person(one.message.recipient)
        return self._now[one.lease.line].line, person, one.message.window_open, one.lease.lane

    async def expire_one(self, conn: Connection, lease: Lease) -> int | None:
        return await held.expire_one(conn, lease)

    async def move(self, conn: Connection, moves: Sequence[Move]) -> int:
        return (await move_many(conn, moves, rates=None))[1]

    async def begun(self, conn: Connection, attempts: Sequence[Attempt[ClaimedMessage]]) -> None:
        await outcomes.count(conn, [one.message for one in attempts if one.context.is_counted])
        for one in attempts:
            line = self._now[one.lease.line].line
            if one.context.tries_hold and line is not None:
                self._leaves.pop(one.lease.line, None)
                await holds.tries(conn, one.lease.organization_id, line.account_id, one.message.number_id, one.lease.id)

    def rolled_back(self) -> None:
        """Nothing to do: what a round decides is in the database alone."""

    def submit(self, attempt: Attempt[ClaimedMessage]) -> None:
        slot = self._now[attempt.lease.line]
        if slot.probe is not None:
            slot.probe.took()
        slot.connector.submit(attempt.submission)

    def unsent(self, attempt: Attempt[ClaimedMessage]) -> CloudOutcome:
        return CloudOutcome(Verdict.UNREACHABLE, code=outcomes.UNCOMMITTED, detail=COMMIT_LOST)

    def after_round(self, rows: Collection[Lease]) -> bool:
        # Once everything that can be sent has been, the dispatcher is woken when there is room again.
        return self.is_full or any(lease.line not in self._paced for lease in rows)

    async def _orphans(self, conn: Connection, dues: list[ClaimedMessage]) -> dict[UUID, Step]:
        """Decide about messages of numbers that this worker does not have: gone permanently, or paused."""
        if not dues:
            return {}
        asked = [due.lease.organization_id for due in dues], [due.number_id for due in dues]
        gone = {row["id"] for row in await conn.fetch(GONE, *asked)}
        paused = {row["id"] for row in await conn.fetch(HOLD_PAUSED, *asked)}

        def decide(due: ClaimedMessage) -> Step:
            if due.number_id in gone:
                # If its answer was lost, nothing more is known.
                return _failed(due, "unknown" if due.attempt_state == "unknown" else "phone_number_unavailable")
            if due.at >= due.expires_at:
                return _failed(due, "expired")
            # Resuming the account does not find what a worker has at that moment.
            is_resuming = due.number_id == due.lease.line and due.number_id not in paused
            return Postponed(due.lease, RESUMING if is_resuming else STOPPED_PAUSE, due.lease.line, counts=False)

        return {due.lease.id: decide(due) for due in dues}

    def _step(
        self,
        due: ClaimedMessage,
        templates: Mapping[UUID, Template],
        together: Counter[tuple[UUID, str]],
        barred: set[UUID],
    ) -> Step:
        """Decide about one message whose earlier attempts, if any, are known to have ended. `barred` gets its line if
        it may not begin a conversation."""
        lease = due.lease
        if not due.is_unsent or due.attempt_state == "accepted":
            return Finish()
        if due.is_locked:
            return Postponed(lease, LOCKED_PAUSE, lease.line, counts=False)
        if due.content is None or due.at >= due.expires_at:
            return _failed(due, "expired")
        if lease.attempt >= MOST_ATTEMPTS:
            return _failed(due, "unknown")
        if due.opted_out:
            return _failed(due, "opted_out")
        if due.organization_state in ("suspended", "closed"):
            return Postponed(lease, STOPPED_PAUSE, lease.line, counts=False)
        content = msgspec.json.decode(due.content, type=Content)
        body = self._text(due, content) if due.template_id is None else self._template(due, content, templates)
        if not isinstance(body, bytes):
            return body
        home = _home(due)
        if lease.line != home:  # it waited for its template
            return Postponed(lease, 0.0, home, counts=False)
        slot = self._now[home]
        if slot.line is not None and slot.line.replies_only and due.template_id is not None and not due.window_open:
            # Meta would refuse it, and the hold would stop replies as well.
            barred.add(lease.line)
            pause = LIMIT_PAUSE if lease.lane == SINGLE else BULK_LIMIT_PAUSE
            return Postponed(lease, pause, lease.line, counts=False)
        ahead = together[lease.line, due.recipient]
        together[lease.line, due.recipient] += 1
        wait = slot.pair_wait(due, ahead)
        if wait > 0:
            return Postponed(lease, wait, lease.line, counts=False)
        number = lease.attempt + 1
        return Attempt(
            lease=lease,
            number=number,
            target_id=due.number_id,
            submission=CloudSubmission(lease.id, number, due.recipient, body),
            message=due,
            context=Context(
                slot.line.account_id if slot.line else None,
                slot.line.token if slot.line else b"",
                slot.held,
                is_counted=due.is_near_pace,
            ),
        )

    def _text(self, due: ClaimedMessage, content: Content) -> bytes | Finish:
        if due.mode == "live" and not due.window_open:
            return _failed(due, "window_closed")
        return text_body(to=due.recipient, text=content.body, opaque=str(due.lease.id), preview_url=content.previewUrl)

    def _template(
        self, due: ClaimedMessage, content: Content, templates: Mapping[UUID, Template]
    ) -> bytes | Finish | Postponed:
        template = templates.get(due.template_id) if due.template_id else None
        if template is None or template.disabled or template.status in ("rejected", "disabled", "removed"):
            return _failed(due, "template_unavailable")
        is_allowed = template.category in parking.CATEGORIES
        if not is_allowed and due.lease.lane == SINGLE:
            return _failed(due, "template_unavailable")
        if template.status != "approved" or not is_allowed:
            # Paused, or under review; or a campaign, which pauses, while somebody decides whether to have Meta's
            # category reviewed. A one-time code is useless later.
            if due.authentication:
                return _failed(due, "template_unavailable")
            return Postponed(due.lease, TEMPLATE_PAUSE, template.id, counts=False)
        if template.missing and not due.authentication:
            # Meta is being asked about it. A one-time code cannot wait for that, and Meta's answer to it will show the
            # same.
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

    # -- answers -------------------------------------------------------------------------------------------------------

    def heard(self, attempt: Attempt[ClaimedMessage], outcome: CloudOutcome) -> None:
        """Nothing to do: its connector has already processed the outcome."""

    async def prepare(self, answered: Sequence[AnsweredAttempt], reports: Sequence[Move]) -> dict[str, Any]:
        organizations = [one.attempt.lease.organization_id for one in answered]
        organizations += [one.organization_id for one in reports]
        return {
            kind: await self._subscriptions.wanting(organizations, kind) for kind in ("message.sent", "message.read")
        }

    async def write(
        self,
        conn: Connection,
        answered: Sequence[AnsweredAttempt],
        reports: Sequence[Move],
        prepared: Any,
        handover: Handover | None,
        *,
        alone: bool,
    ) -> int:
        found = await outcomes.record(conn, answered, grace=self.grace) if answered else None
        # Answers first: a status right after its answer should not count as early.
        moves = [*found.moves, *reports] if found else reports
        moved, deliveries = await move_many(conn, moves, rates=self._rates, announce=prepared, handover=handover)
        if found:
            queued, self._are_named = await outcomes.follow(conn, answered)
            deliveries += queued
            deliveries += await outcomes.apply_wider_failures(conn, found.wider_failures, moved, heard=found.heard)
        return deliveries

    def remember(self, answered: Sequence[AnsweredAttempt]) -> None:
        """Remember the users' names in answers that are committed."""
        if not self._are_named:
            return
        for one in answered:
            outcome: CloudOutcome = one.outcome
            if outcome.user_id and outcome.wa_id and one.attempt.submission.recipient == f"+{outcome.wa_id}":
                self.named.note(one.attempt.lease.id, outcome.user_id)


def _home(due: ClaimedMessage) -> UUID:
    """The line that it is sent from."""
    return test_mode.LINE if due.mode == "test" else due.number_id


def _failed(due: ClaimedMessage, code: str) -> Finish:
    return Finish(Move(due.lease.organization_id, due.lease.id, "failed", due.at, code, unsent=True))
