"""A worker's WhatsApp dispatcher and recorder with numbers that follow a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.sending.listing import shown_status
from heliograph.sending.results import Results
from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud.callbacks.items import ErrorNote, StatusItem
from heliograph.suppliers.whatsapp_cloud.contract import CloudHealth, CloudOutcome, CloudSubmission, OnCloudOutcome
from heliograph.suppliers.whatsapp_cloud.credential import Credential, credential
from heliograph.suppliers.whatsapp_cloud.errors import Kind, Scope, classify
from heliograph.suppliers.whatsapp_cloud.pacing import PairGate
from heliograph.whatsapp.callbacks import matching
from heliograph.whatsapp.callbacks.matching import Matched
from heliograph.whatsapp.dispatch import outcomes, test_mode
from heliograph.whatsapp.dispatch.channel import WhatsAppChannel
from heliograph.whatsapp.dispatch.number_pool import NumberPool
from heliograph.whatsapp.messages import QUEUED
from heliograph.whatsapp.mirror.accounts import SendingNumber
from heliograph.whatsapp.money.rates import RateBook
from heliograph.whatsapp.status import Move, move_many
from tests.rules import dispatching
from tests.rules.whatsapp_factories import Made

Script = Callable[[CloudSubmission], CloudOutcome | None]

UNREACHABLE = CloudOutcome(Verdict.UNREACHABLE, code="connect")
UNKNOWN = CloudOutcome(Verdict.UNKNOWN, fault=classify(None), code="TimeoutError")


def accept_all(submission: CloudSubmission) -> CloudOutcome:
    """Meta accepted it; its wamid is derived from the attempt."""
    return CloudOutcome(Verdict.ACCEPTED, wamid=wamid(submission.message_id, submission.attempt))


def wamid(id: UUID, attempt: int = 1) -> str:
    return f"wamid.{id.hex}.{attempt}"


def fault(code: int, subcode: int | None = None, **values: Any) -> CloudOutcome:
    """An error in the form of a Graph response."""
    found = classify(code, subcode, http_status=400)
    verdict = Verdict.BUSY if found.waits else Verdict.REFUSED
    return CloudOutcome(verdict, fault=found, code=str(code), detail="in Meta's words", **values)


class Scripted:
    """A number's connector that follows a script, and stops like the real one."""

    def __init__(self, on_outcome: OnCloudOutcome) -> None:
        self.on_outcome = on_outcome
        self.room = 100
        self.rate = 0.0
        self.slowed = 0
        self.token = ""
        self.submitted: list[CloudSubmission] = []
        self.script: Script = accept_all
        self.waits: dict[str, float] = {}
        #: Decides in place of `waits`.
        self.gate: PairGate | None = None
        #: Held; `trying`: it is over, and one message may try.
        self.held = self.trying = False
        self.stopped = False

    async def start(self) -> None:
        """Open at once."""

    def capacity(self) -> int:
        if self.held:
            return 0
        return 1 if self.trying else self.room

    def pair_wait(self, recipient: str, *, ahead: int = 0, debt: float = 0.0) -> float:
        if self.gate is None:
            return self.waits.get(recipient, 0.0)
        self.gate.learn(recipient, debt)
        return self.gate.wait(recipient, ahead=ahead)

    def submit(self, submission: CloudSubmission) -> None:
        self.submitted.append(submission)
        outcome = self.script(submission)
        if outcome is not None:
            asyncio.get_running_loop().call_soon(self._answer, submission, outcome)

    def hold(self, seconds: float, reason: Kind | None = None) -> None:
        self.held, self.trying = seconds > 0, True

    def release(self) -> None:
        self.held = self.trying = False

    def set_credential(self, credential: Credential) -> None:
        self.token = credential.token

    def set_rate(self, rate: float) -> None:
        self.rate = rate

    def slow(self) -> None:
        self.slowed += 1

    def health(self) -> CloudHealth:
        return CloudHealth(usable=not self.held, in_flight=0, queued=0, rate=self.rate)

    async def stop(self, *, grace: float) -> None:
        self.stopped = True

    def _answer(self, submission: CloudSubmission, outcome: CloudOutcome) -> None:
        known = outcome.fault
        if outcome.verdict is Verdict.ACCEPTED:
            self.trying = False
        elif known and known.scope in (Scope.NUMBER, Scope.ACCOUNT, Scope.CREDENTIAL) and not known.slow:
            self.hold(known.hold)
        self.on_outcome(submission, outcome)


class Bench(dispatching.Rounds):
    """One worker; `round` dispatches and records the answers."""

    def __init__(
        self, pool: Pool, *, grace: float = 180.0, claim_limit: int = 500, lease_seconds: float = 60.0
    ) -> None:
        self.pool = pool
        self.grace = grace
        #: What the numbers take for monotonic seconds.
        self.seconds = 1_000.0
        self.connectors: dict[UUID, Scripted] = {}
        self.rates = RateBook(pool)
        self.lines = NumberPool(
            pool,
            factory=self._factory,
            unseal=lambda line: credential(line.token.hex(), line.app_secret),
            on_outcome=lambda number, submission, outcome: self.answer(submission, outcome),
            on_early=self._early,
            clock=lambda: self.seconds,
        )
        self._claim_limit, self.lease_seconds = claim_limit, lease_seconds
        self.channel = WhatsAppChannel(pool, self.lines.slots, grace=grace)
        self.results: Results[Move] = Results(pool, self.channel)
        self.results.committed = self.channel.remember
        self.dispatcher = self._dispatcher()

    async def start(self) -> Bench:
        await self.lines.start()
        await self.refresh()
        return self

    async def refresh(self) -> None:
        await self.lines.refresh(grace=1.0)

    def restart(self) -> None:
        """A new dispatcher with the same numbers."""
        self.channel = WhatsAppChannel(self.pool, self.lines.slots, grace=self.grace)
        self.dispatcher = self._dispatcher()

    def answer(self, submission: CloudSubmission, outcome: CloudOutcome) -> None:
        """Have a connector report the outcome of a submission."""
        self.dispatcher.answered((submission.message_id, submission.attempt), outcome)

    async def _early(self, id: UUID) -> None:
        for attempt in self.dispatcher.flights.of(id):
            lease = attempt.lease
            await self.results.report(test_mode.statuses(lease.organization_id, id, attempt.message.recipient))

    @property
    def only(self) -> Scripted:
        (connector,) = self.connectors.values()
        return connector

    def _factory(self, line: SendingNumber, shown: Credential, on_outcome: OnCloudOutcome) -> Scripted:
        made = self.connectors[line.number_id] = Scripted(on_outcome)
        made.token = shown.token
        return made

    async def hear(self, who: Made, *items: StatusItem) -> None:
        """Apply statuses as a batch of callbacks does."""
        matched = [Matched(who.organization_id, who.number_id, item) for item in items]
        async with self.pool.acquire() as conn, conn.transaction():
            found = await matching.match_statuses(conn, matched, self.channel.named)
            moved, _ = await move_many(conn, found.moves, rates=self.rates)
            await matching.name_users(conn, found.names)
            await outcomes.apply_wider_failures(conn, found.wider_failures, moved)

    async def later(self, **by: float) -> None:
        """Let time pass, for leases, pauses, attempts, holds, windows and messages."""
        delta = timedelta(**by)
        for statement in (
            "UPDATE queue SET due_at = due_at - $1::interval, since = since - $1::interval,"
            " lease_until = lease_until - $1::interval,"
            " begun_at = begun_at - $1::interval",
            "UPDATE attempts SET started_at = started_at - $1::interval",
            "UPDATE whatsapp_messages SET accepted_at = accepted_at - $1::interval,"
            " deadline_at = deadline_at - $1::interval",
            "UPDATE whatsapp_numbers SET held_until = held_until - $1::interval, trying_at = trying_at - $1::interval",
            "UPDATE whatsapp_accounts SET held_until = held_until - $1::interval, trying_at = trying_at - $1::interval",
            "UPDATE whatsapp_templates SET held_until = held_until - $1::interval",
            "UPDATE whatsapp_conversations SET expires_at = expires_at - $1::interval,"
            " pair_paid_until = pair_paid_until - $1::interval",
            "UPDATE whatsapp_reached SET reached_at = reached_at - $1::interval",
            "UPDATE whatsapp_portfolios SET frees_at = frees_at - $1::interval",
            "UPDATE whatsapp_callbacks SET received_at = received_at - $1::interval",
        ):
            await self.pool.execute(statement, delta)
        self.seconds += delta.total_seconds()
        for connector in self.connectors.values():
            connector.held = False


def status_item(
    who: Made, id: UUID | None, status: str, *, wamid: str | None = None, code: int | None = None, **values: Any
) -> StatusItem:
    """A status as the webhook reports it; `id` None: without our id."""
    return StatusItem(
        waba_id=who.waba_id,
        phone_number_id=who.graph_id,
        wamid=wamid or f"wamid.{id.hex if id else ''}.1",
        status=status,
        at=values.pop("at", clock.now()),
        opaque=str(id) if id else None,
        errors=(ErrorNote(code),) if code else (),
        **values,
    )


async def row_of(pool: Pool, id: UUID) -> Any:
    shown = shown_status("m", QUEUED)
    return await pool.fetchrow(f"SELECT m.*, {shown} AS shown FROM whatsapp_messages m WHERE id = $1", id)


async def status_of(pool: Pool, id: UUID) -> tuple[str, str | None, str]:
    """(status, failure, charge)."""
    row = await row_of(pool, id)
    return row["shown"], row["failure_code"], row["charge"]


attempts = dispatching.attempts
queued = partial(dispatching.queued, kind="whatsapp")
pause_of = partial(dispatching.pause_of, kind="whatsapp")
waits = partial(dispatching.waits, kind="whatsapp")


async def tries_of(pool: Pool, id: UUID) -> int:
    tries: int = await pool.fetchval("SELECT tries FROM queue WHERE kind = 'whatsapp' AND id = $1", id)
    return tries
