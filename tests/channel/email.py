"""Email, a third channel of minimal size: it proves that a channel is one object to the engine. Its mail server answers
each message with one line: "250 <id>", "421 later" or "550 no".
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts.requests import Answer
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.queue.backlog import Backlog
from heliograph.queue.leases import UNROUTED, Lease, Postponed
from heliograph.queue.work import Loop, Work
from heliograph.sending.attempts import Attempt, EndedAttempt
from heliograph.sending.channel import Finish, LostResolution, Step
from heliograph.sending.dispatch import Dispatcher
from heliograph.sending.intake import Intake
from heliograph.sending.results import AnsweredAttempt, Results
from heliograph.sending.settling import Settlement, settle
from heliograph.suppliers.contract import Verdict
from heliograph.webhooks.recording import events
from heliograph.webhooks.recording.handover import Deliveries, Handover

SCHEMA = """
CREATE TABLE email_messages (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    status          text NOT NULL CHECK (status IN ('accepted', 'delivered', 'failed')),
    recipient       text NOT NULL,
    subject         text NOT NULL,
    mail_id         text,
    accepted_at     timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id))
"""
#: The mail server, as a target of attempts.
SERVER = UUID(int=25)
WINDOW = 100


class Email(msgspec.Struct, frozen=True):
    """A message to accept."""

    actor: Actor
    to: str
    subject: str
    key_hash: UUID | None = None
    request_hash: bytes | None = None


class Item(msgspec.Struct, frozen=True):
    send: Email
    id: UUID


STORE = """
WITH item AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[])
           AS item (organization_id, id, recipient, subject)
), stored AS (
    INSERT INTO email_messages (organization_id, id, status, recipient, subject, accepted_at)
    SELECT organization_id, id, 'accepted', recipient, subject, now() FROM item
)
INSERT INTO queue (kind, line, organization_id, due_at, id)
SELECT 'email', $5, organization_id, now(), id FROM item
"""


class Acceptor:
    """The 202: the commit comes before the response."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._intake: Intake[Item] = Intake(self._store, name="email accept")

    async def accept(self, email: Email) -> Answer:
        return await self._intake.put(Item(email, uuid7()))

    async def _store(self, items: list[Item]) -> list[Answer | BaseException]:
        rows = [(one.send.actor.organization_id, one.id, one.send.to, one.send.subject) for one in items]
        await self._pool.execute(STORE, *(list(column) for column in zip(*rows, strict=True)), UNROUTED)
        return [Answer(202, msgspec.json.encode({"id": one.id}), False) for one in items]


class Claimed(msgspec.Struct, frozen=True):
    """A claimed message with everything that decides about it."""

    lease: Lease
    status: str
    recipient: str
    subject: str
    at: datetime
    attempt_state: str | None
    started_at: datetime | None
    organization_state: str

    @property
    def is_unsent(self) -> bool:
        return self.status == "accepted"


LOAD = """
SELECT m.status, m.recipient, m.subject, now() AS at, a.state, a.started_at, o.state AS organization_state
  FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS item (organization_id, id, n)
       CROSS JOIN LATERAL (SELECT status, recipient, subject FROM email_messages
                            WHERE organization_id = item.organization_id AND id = item.id LIMIT 1) m
       CROSS JOIN LATERAL (SELECT state FROM organizations WHERE id = item.organization_id LIMIT 1) o
  LEFT JOIN LATERAL (SELECT state, started_at FROM attempts
                      WHERE organization_id = item.organization_id AND message_id = item.id
                      ORDER BY attempt DESC LIMIT 1) a ON true
 ORDER BY item.n
"""


class Submission(msgspec.Struct, frozen=True):
    message_id: UUID
    attempt: int
    line: str


class Outcome(msgspec.Struct, frozen=True):
    verdict: Verdict
    text: str = ""


class Move(msgspec.Struct, frozen=True):
    organization_id: UUID
    id: UUID
    status: str
    mail_id: str | None = None


MOVE = """
UPDATE email_messages m SET status = v.status, mail_id = v.mail_id
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[]) AS v (organization_id, id, status, mail_id)
 WHERE m.organization_id = v.organization_id AND m.id = v.id AND m.status = 'accepted'
RETURNING m.organization_id, m.id, m.status, m.recipient
"""


async def move_many(conn: Connection, moves: Sequence[Move], handover: Handover | None = None) -> int:
    """The first result of a message is final, and raises its only event."""
    rows = [(one.organization_id, one.id, one.status, one.mail_id) for one in moves]
    moved = await conn.fetch(MOVE, *(list(column) for column in zip(*rows, strict=True))) if rows else []
    raised = []
    for row in moved:
        shown = {"id": row["id"], "channel": "email", "to": row["recipient"], "status": row["status"]}
        data = msgspec.json.encode({"message": shown}).decode()
        kind = f"message.{row['status']}"
        raised.append(events.Event(row["organization_id"], uuid7(), kind, "req", data, clock.now(), row["id"]))
    return await events.record(conn, raised, handover=handover)


class MailServer:
    """The connector: one connection per message."""

    def __init__(self, port: int, on_outcome: Any) -> None:
        self._port, self._on_outcome = port, on_outcome
        self.open: set[asyncio.Task[None]] = set()

    def submit(self, submission: Submission) -> None:
        task = asyncio.create_task(self._send(submission))
        self.open.add(task)
        task.add_done_callback(self.open.discard)

    async def _send(self, submission: Submission) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            self._on_outcome(submission, Outcome(Verdict.UNREACHABLE))
            return
        try:
            writer.write(f"{submission.line}\n".encode())
            answer = (await reader.readline()).decode().strip()
        finally:
            writer.close()
        verdict = {"250": Verdict.ACCEPTED, "421": Verdict.BUSY, "550": Verdict.REFUSED}.get(answer[:3])
        self._on_outcome(submission, Outcome(verdict or Verdict.UNKNOWN, answer[4:]))


class EmailChannel:
    """Email within one worker. Implements `sending.channel.Channel`."""

    kind, table, is_full = "email", "email_messages", False

    def __init__(self, server: MailServer, backlog: Backlog, *, grace: float) -> None:
        self.grace, self._backlog = grace, backlog
        self.wake = asyncio.Event()
        self._server = server

    async def before_round(self) -> None:
        """The server always has room for a window."""

    async def pick(self, conn: Connection, *, limit: int) -> list[Lease]:
        room = min(limit, WINDOW - len(self._server.open))
        await self._backlog.look(conn, self.kind)
        return await self._backlog.pick(conn, self.kind, {UNROUTED: room})

    async def load(self, conn: Connection, claimed: Sequence[Lease]) -> list[Claimed]:
        rows = await conn.fetch(LOAD, [one.organization_id for one in claimed], [one.id for one in claimed])
        return [Claimed(lease, *row.values()) for lease, row in zip(claimed, rows, strict=True)]

    def home(self, lease: Lease) -> UUID:
        return UNROUTED

    async def find_lost(self, conn: Connection, lost: Sequence[Claimed]) -> LostResolution:
        return LostResolution()  # a mail server sends no receipts

    async def give_up(self, conn: Connection, lost: Sequence[Claimed]) -> dict[UUID, Step]:
        return {one.lease.id: Finish(Move(one.lease.organization_id, one.lease.id, "failed")) for one in lost}

    async def decide(self, conn: Connection, messages: Sequence[Claimed]) -> list[Step]:
        return [self._out(one) if one.is_unsent else Finish() for one in messages]

    async def expire_one(self, conn: Connection, lease: Lease) -> None:
        """Email has no validity."""

    async def move(self, conn: Connection, moves: Sequence[Move]) -> int:
        return await move_many(conn, moves)

    async def begun(self, conn: Connection, attempts: Sequence[Attempt[Claimed]]) -> None:
        """Nothing else is to be written."""

    def submit(self, attempt: Attempt[Claimed]) -> None:
        self._server.submit(attempt.submission)

    def heard(self, attempt: Attempt[Claimed], outcome: Outcome) -> None:
        """There is no circuit to inform."""

    def after_round(self, claimed: Collection[Lease]) -> bool:
        return True

    async def prepare(self, answered: Sequence[AnsweredAttempt], reports: Sequence[Move]) -> None:
        """Nothing is looked up before a batch."""

    async def write(
        self, conn: Connection, answered: Sequence[AnsweredAttempt], reports: Sequence[Move], prepared: None,
        handover: Handover | None, *, alone: bool,
    ) -> int:  # fmt: skip
        moves = await settle(conn, [_settled(one) for one in answered])
        return await move_many(conn, moves, handover)

    def _out(self, one: Claimed) -> Attempt[Claimed]:
        number = one.lease.attempt + 1
        submission = Submission(one.lease.id, number, f"{one.recipient} {one.subject}")
        return Attempt(lease=one.lease, number=number, target_id=SERVER, submission=submission, message=one)


def _settled(one: AnsweredAttempt) -> Settlement:
    lease, outcome = one.attempt.lease, one.outcome
    ended = EndedAttempt(one.attempt, outcome.verdict.value, detail=outcome.text)
    match outcome.verdict:
        case Verdict.ACCEPTED:
            return Settlement(ended, Move(lease.organization_id, lease.id, "delivered", outcome.text))
        case Verdict.REFUSED:
            return Settlement(ended, Move(lease.organization_id, lease.id, "failed"))
        case _:
            return Settlement(ended, postponed=Postponed(lease, 0.0, UNROUTED))


class EmailWork(Work):
    """Email within one worker; `worker.CHANNELS` has a line for it."""

    def __init__(
        self, pool: Pool, settings: Settings, worker_id: UUID, deliveries: Deliveries, backlog: Backlog, *, port: int
    ) -> None:
        server = MailServer(port, lambda one, end: self._dispatcher.answered((one.message_id, one.attempt), end))
        self._channel = EmailChannel(server, backlog, grace=settings.uncertain_grace_seconds)
        self._results: Results[Move] = Results(pool, self._channel, deliveries)
        limits = {"claim_limit": settings.claim_limit, "lease_seconds": settings.lease_seconds}
        self._dispatcher = Dispatcher(pool, self._channel, self._results, backlog=backlog, **limits)
        backlog.on_work("email", self._channel.wake.set)

    def loops(self) -> Sequence[Loop]:
        return (Loop("email", self._dispatcher.round, self._channel.wake),)

    def queued(self) -> None:
        self._channel.wake.set()

    async def drain(self) -> None:
        await self._results.drain()

    async def renew(self) -> None:
        await self._dispatcher.renew()
