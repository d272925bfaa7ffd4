"""The numbers as this worker uses them: a connector for each, kept in sync with the table.

The state that may stop a number is in the table (a hold of it or of its account), where all workers and operators see
it, and in its connector, which learns of it first. After a hold one message probes, and its outcome decides (`holds`).
A number that was silent recently begins with a few messages (`probing`). A number's rate is shared evenly among the
workers that are alive. What Meta lets it send to one user is not divided: a user's messages, whichever worker sends
them, count in its conversation.

The rule nobody may break: a number in trouble stops only itself, and its messages stay in the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Protocol
from uuid import UUID

import msgspec
import structlog

from heliograph.base.database.pool import Connection, Pool
from heliograph.queue.workers import LIVE_WORKERS
from heliograph.suppliers.contract import LostUntil, never_lost
from heliograph.suppliers.whatsapp_cloud.connector import CloudConnector
from heliograph.suppliers.whatsapp_cloud.contract import CloudOutcome, CloudSubmission, NumberConnector, OnCloudOutcome
from heliograph.suppliers.whatsapp_cloud.credential import Credential
from heliograph.suppliers.whatsapp_cloud.graph import CloudClient
from heliograph.whatsapp.dispatch import messaging_limits, test_mode
from heliograph.whatsapp.dispatch.claimed import ClaimedMessage
from heliograph.whatsapp.dispatch.messaging_limits import is_raised
from heliograph.whatsapp.dispatch.probing import Probe
from heliograph.whatsapp.mirror import accounts
from heliograph.whatsapp.mirror.accounts import SendingNumber

log = structlog.get_logger()


#: Maximum messages to one user in a round: other workers count most of them only once Meta has accepted them.
TOGETHER, TOGETHER_PAUSE = 5, 0.2
#: Messages to one user that wait for Meta's pace are due one after the other, but none later than after this many.
AHEAD = 10
#: If several workers share a number, such messages are spread over this many seconds: workers that wake at the same
#: moment would each send one.
SPREAD = 1.0


class PooledConnector(NumberConnector, Protocol):
    """A connector whose credential and rate may change while it runs."""

    def set_credential(self, credential: Credential) -> None: ...

    def set_rate(self, rate: float) -> None: ...

    def slow(self) -> None: ...


class PooledNumber(msgspec.Struct):
    """A number and its connector. `line`: None for messages of test keys."""

    line: SendingNumber | None
    connector: NumberConnector
    #: The state shared by its account's numbers; None if `line` is.
    probe: Probe | None = None
    #: The hold that the connector knows of.
    held_until: datetime | None = None
    #: Workers that share the number.
    workers: int = 1
    #: Another message is probing after the hold, or just did; checked again after the next read of the table.
    denied: bool = False

    @property
    def held(self) -> bool:
        """Whether it was held, and nothing has shown yet that the cause is gone: one message at a time probes, with
        permission."""
        return self.held_until is not None

    def capacity(self) -> int:
        """The number of messages that can leave now without waiting long."""
        room = self.connector.capacity()
        if self.held:
            return min(room, 1)
        if room > 0 and self.probe is not None and self.line is not None and not self.line.proven:
            few = self.probe.room(self.workers)
            return room if few is None else min(room, few)
        return room

    def pair_wait(self, due: ClaimedMessage, ahead: int) -> float:
        """Seconds until a message may be sent to its user, of whose messages `ahead` others come first."""
        wait = self.connector.pair_wait(due.recipient, ahead=min(ahead, AHEAD), debt=due.pair_debt or 0.0)
        if wait > 0 and self.workers > 1:
            return wait + due.lease.id.int % 1000 / 1000 * SPREAD
        return wait or (TOGETHER_PAUSE if ahead >= TOGETHER else 0.0)


#: Builds a number's connector: (line, credential, on_outcome).
Factory = Callable[[SendingNumber, Credential, OnCloudOutcome], PooledConnector]
#: Called at the end of an attempt: (number, submission, outcome).
OnOutcome = Callable[[UUID, CloudSubmission, CloudOutcome], None]


class CloudFactory:
    """Connectors to the Graph API; those of one host and version share its connections."""

    def __init__(self, lost_until: LostUntil = never_lost) -> None:
        self._lost_until = lost_until
        self._clients: dict[tuple[str, str], CloudClient] = {}

    def __call__(self, line: SendingNumber, credential: Credential, on_outcome: OnCloudOutcome) -> PooledConnector:
        where = (line.base_url, line.api_version)
        client = self._clients.get(where)
        if client is None:
            client = self._clients[where] = CloudClient(*where)
        return CloudConnector(client, line.graph_id, credential, on_outcome, lost_until=self._lost_until)

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()


class NumberPool:
    """The lines of one worker."""

    def __init__(
        self,
        pool: Pool,
        *,
        factory: Factory,
        unseal: Callable[[SendingNumber], Credential],
        on_outcome: OnOutcome,
        on_early: Callable[[UUID], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`unseal` decrypts a line's credential; `on_early` delivers a test message's statuses before its answer;
        `clock` gives monotonic seconds."""
        self._pool = pool
        self._factory = factory
        self._unseal = unseal
        self._on_outcome = on_outcome
        self._on_early = on_early
        self._clock = clock
        self._slots: dict[UUID, PooledNumber] = {}
        self._probes: dict[UUID, Probe] = {}
        self._broken: dict[UUID, str] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    async def start(self) -> None:
        """Open the line of test keys."""
        connector = test_mode.Connector(self._outcomes_of(test_mode.LINE), self._on_early)
        await self._put(test_mode.LINE, PooledNumber(None, connector))

    def slots(self) -> Mapping[UUID, PooledNumber]:
        """By number; that of test keys under `test_mode.LINE`."""
        return self._slots

    async def refresh(self, *, grace: float) -> None:
        """Sync with the table: open new numbers, close removed ones, pass on holds, tokens and rates."""
        async with self._pool.acquire() as conn:
            wanted = {line.number_id: line for line in await accounts.load_lines(conn)}
            workers = await live_workers(conn) if wanted else 1
        limits = {id: slot.line.messaging_limit for id, slot in self._slots.items() if slot.line is not None}
        raised = [id for id, limit in limits.items() if id in wanted and is_raised(limit, wanted[id].messaging_limit)]
        for id in [id for id in self._slots if id not in wanted and id != test_mode.LINE]:
            self._leave(id, grace)
        for id, line in wanted.items():
            slot = self._slots.get(id)
            if slot is not None and (_needs_reconnect(slot.line, line) or not self._pass_on(slot, line)):
                self._leave(id, grace)
                slot = None
            if slot is None and not self._is_stopping:
                slot = await self._open(id, line)
            if slot is not None:
                self._follow(slot, line, workers)
        if raised:
            async with self._pool.acquire() as conn:
                await messaging_limits.resume(conn, raised)
        self._probes = {slot.line.account_id: slot.probe for slot in self._slots.values() if slot.line and slot.probe}

    async def stop(self, *, grace: float) -> None:
        """Close all connectors: each gets `grace` seconds for its outstanding answers."""
        self._is_stopping = True
        for id in list(self._slots):
            self._leave(id, grace)
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _open(self, id: UUID, line: SendingNumber) -> PooledNumber | None:
        try:
            connector = self._factory(line, self._unseal(line), self._outcomes_of(id))
        except Exception as error:
            # One account with a broken configuration must not stop the others. It is logged once.
            if self._broken.get(id) != str(error):
                log.error("whatsapp number cannot be opened", number_id=str(id), error=str(error))
            self._broken[id] = str(error)
            return None
        self._broken.pop(id, None)
        slot = PooledNumber(line, connector, self._probes.setdefault(line.account_id, Probe(self._clock)))
        await self._put(id, slot)
        return slot

    async def _put(self, id: UUID, slot: PooledNumber) -> None:
        await slot.connector.start()
        self._slots[id] = slot
        if self._is_stopping:  # `stop` did not find it
            self._leave(id, 0.0)

    def _pass_on(self, slot: PooledNumber, line: SendingNumber) -> bool:
        """Give its connector a changed credential. False: it cannot be decrypted, and with the old one Meta's refusal
        would hold the account for all workers."""
        if slot.line is None or (slot.line.token, slot.line.app_secret) == (line.token, line.app_secret):
            return True
        try:
            credential = self._unseal(line)
        except Exception:  # `_open` logs it
            return False
        slot.connector.set_credential(credential)  # type: ignore[attr-defined]
        return True

    def _follow(self, slot: PooledNumber, line: SendingNumber, workers: int) -> None:
        connector = slot.connector
        if slot.line is not None and slot.line.released_at != line.released_at:
            connector.release()  # also ends holds that only the connector knew of
        too_fast = slot.line is not None and line.slowed_at is not None and slot.line.slowed_at != line.slowed_at
        slot.line, slot.workers, slot.denied = line, workers, False
        connector.set_rate(line.throughput_per_second / workers)  # type: ignore[attr-defined]
        if too_fast:
            connector.slow()  # type: ignore[attr-defined]
        if line.proven and slot.probe is not None:
            slot.probe.heard()
        if line.held_until == slot.held_until:
            return
        if line.held_until is None:
            connector.release()
        else:
            if slot.held_until is None or line.held_until < slot.held_until:
                # It was shortened: a new token, a successful check, or it is connected again. One that began in this
                # process may have been shortened before it was read here.
                connector.release()
            # After a hold that is over by now, one message probes.
            connector.hold(max(0.0, line.held_for or 0.0))
        slot.held_until = line.held_until

    def _outcomes_of(self, id: UUID) -> OnCloudOutcome:
        return lambda submission, outcome: self._on_outcome(id, submission, outcome)

    def _leave(self, id: UUID, grace: float) -> None:
        task = asyncio.create_task(self._slots.pop(id).connector.stop(grace=grace))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


async def live_workers(conn: Connection) -> int:
    """The number of workers that share each number's rate; at least 1."""
    return max(1, await conn.fetchval(LIVE_WORKERS))


def _needs_reconnect(old: SendingNumber | None, new: SendingNumber) -> bool:
    return old is not None and (old.base_url, old.api_version, old.graph_id) != (
        new.base_url,
        new.api_version,
        new.graph_id,
    )
