"""Test keys: the whole process without Meta and free of charge. The recipient's last four digits choose the outcome.

    0000 sent, delivered, read      0004 sent, and then nothing
    0001 failed: unreachable        0005 read after 60 s
    0002 failed                     0006 every status twice
    0003 failed: expired            0007 the statuses before the answer of the send
    anything else: sent, delivered, read

The connector takes the place of a number's. Its statuses are rows in the queue (kind "whatsapp_test"), so they arrive
even if the worker that sent the message dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.queue import leases
from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud.contract import CloudHealth, CloudOutcome, CloudSubmission, OnCloudOutcome
from heliograph.suppliers.whatsapp_cloud.errors import Kind
from heliograph.whatsapp.status import Move

#: The line of test messages; no number has this id.
LINE = UUID(int=1)
#: Kind of the queue rows that deliver statuses.
KIND = "whatsapp_test"
#: Maximum messages in flight.
WINDOW = 500

FAILURES = {"0001": "recipient_unreachable", "0002": "unknown", "0003": "expired"}
SILENT, LATE, TWICE, EARLY = "0004", "0005", "0006", "0007"

DUE = """
SELECT m.organization_id, m.id, m.recipient
  FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id) CROSS JOIN LATERAL (
       SELECT organization_id, id, recipient FROM whatsapp_messages
        WHERE organization_id = item.organization_id AND id = item.id) m
"""


class Connector:
    """Accepts everything. Implements `suppliers.whatsapp_cloud.contract.NumberConnector`."""

    def __init__(self, on_outcome: OnCloudOutcome, on_early: Callable[[UUID], Awaitable[None]]) -> None:
        """`on_early`: delivers the statuses of a message before its send is answered."""
        self._on_outcome = on_outcome
        self._on_early = on_early
        self._open: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self) -> None:
        """Nothing to open."""

    def capacity(self) -> int:
        return 0 if self._stopping else WINDOW - len(self._open)

    def pair_wait(self, recipient: str, *, ahead: int = 0, debt: float = 0.0) -> float:
        return 0.0

    def submit(self, submission: CloudSubmission) -> None:
        if self._stopping:
            nothing = CloudOutcome(Verdict.UNREACHABLE, code="stopped")
            asyncio.get_running_loop().call_soon(self._on_outcome, submission, nothing)
            return
        task = asyncio.create_task(self._take(submission))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    def hold(self, seconds: float, reason: Kind | None = None) -> None:
        """Ignored: this line is never held."""

    def release(self) -> None:
        """See `hold`."""

    def health(self) -> CloudHealth:
        return CloudHealth(usable=not self._stopping, in_flight=len(self._open), queued=0, rate=float(WINDOW))

    async def stop(self, *, grace: float) -> None:
        self._stopping = True
        if self._open:
            _, late = await asyncio.wait(self._open, timeout=grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _take(self, submission: CloudSubmission) -> None:
        if submission.recipient.endswith(EARLY):
            try:
                await self._on_early(submission.message_id)
            except asyncio.CancelledError:
                self._on_outcome(submission, CloudOutcome(Verdict.UNKNOWN, code="stopped"))
                return
            except Exception:
                # The database is unavailable. Every submission must get an outcome, or its message would wait forever.
                self._on_outcome(submission, CloudOutcome(Verdict.UNREACHABLE))
                return
        wamid = f"test-{submission.message_id.hex}-{submission.attempt}"
        self._on_outcome(submission, CloudOutcome(Verdict.ACCEPTED, wamid=wamid))


async def expect(conn: Connection, messages: Sequence[tuple[UUID, UUID, str]]) -> None:
    """Queue the statuses of accepted test messages: (organization, message, recipient)."""
    items = [
        (LINE, organization_id, id, 60.0 if recipient.endswith(LATE) else 0.0)
        for organization_id, id, recipient in messages
        if not recipient.endswith(EARLY)
    ]
    if items:
        await leases.put(conn, KIND, items)


async def due(conn: Connection, messages: Sequence[tuple[UUID, UUID]]) -> list[Move]:
    """The statuses of test messages: (organization, message)."""
    rows = await conn.fetch(DUE, [organization for organization, _ in messages], [id for _, id in messages])
    moves: list[Move] = []
    for organization_id, id, recipient in rows:
        moves += statuses(organization_id, id, recipient)
    return moves


def statuses(organization_id: UUID, id: UUID, recipient: str) -> list[Move]:
    """The statuses that Meta would report for such a message."""
    at = clock.now()
    ending = recipient[-4:]
    if ending in FAILURES:
        words = ["sent", "failed"] if ending == "0003" else ["failed"]
    elif ending == SILENT:
        words = ["sent"]
    else:
        words = ["sent", "delivered", "read"] * (2 if ending == TWICE else 1)
    return [Move(organization_id, id, word, at, FAILURES[ending] if word == "failed" else None) for word in words]
