"""Test keys: the whole process without a supplier or quota. The recipient's last four digits choose the outcome.

    0000 delivered          0004 no receipt
    0001 undelivered        0005 delivered after 60 s
    0002 failed             0006 delivered, with the receipt twice
    0003 expired            0007 delivered, with the receipt before the submit's answer
    anything else: delivered

The connector stands in for a supplier's. Its receipts are rows in the queue (kind "test"), so they arrive even if the
worker that sent the message dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.suppliers.contract import (
    Health,
    OnOutcome,
    OnReceipts,
    Outcome,
    Part,
    Receipt,
    ReceiptState,
    Submission,
    Verdict,
)

#: Stands for the supplier of test messages, which has no row in `suppliers`.
SUPPLIER = UUID(int=1)
#: Messages taken at a time.
WINDOW = 500

STATES = {
    "0001": ReceiptState.UNDELIVERED,
    "0002": ReceiptState.FAILED,
    "0003": ReceiptState.EXPIRED,
}
SILENT, LATE, TWICE, EARLY = "0004", "0005", "0006", "0007"


def receipt_after(to: str) -> float | None:
    """Seconds from the submit's answer to the receipt; None: there is no receipt from the queue."""
    match to[-4:]:
        case "0004" | "0007":
            return None
        case "0005":
            return 60.0
    return 0.0


class Connector:
    """Accepts everything. Implements `suppliers.contract.Connector`."""

    def __init__(self, on_outcome: OnOutcome, on_receipts: OnReceipts) -> None:
        self._on_outcome = on_outcome
        self._on_receipts = on_receipts
        self._open: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self) -> None:
        """There is nothing to connect to."""

    def ready(self) -> bool:
        return not self._stopping

    def capacity(self) -> int:
        return 0 if self._stopping else WINDOW - len(self._open)

    def parts(self, submission: Submission) -> int:
        return submission.count

    def billed(self, submission: Submission) -> int:
        return submission.count

    def submit(self, submission: Submission) -> None:
        if self._stopping:
            asyncio.get_running_loop().call_soon(self._on_outcome, submission, Outcome(Verdict.UNREACHABLE))
            return
        task = asyncio.create_task(self._take(submission))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    def set_sessions(self, count: int) -> None:
        """Does nothing: it has no sessions."""

    def slow(self, pause: float) -> None:
        """Does nothing: it is never throttled."""

    def health(self) -> Health:
        return Health(sessions=1, in_flight=len(self._open))

    async def stop(self, *, grace: float) -> None:
        self._stopping = True
        if self._open:
            _, late = await asyncio.wait(self._open, timeout=grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _take(self, submission: Submission) -> None:
        count = submission.count
        if submission.to.endswith(EARLY):
            receipts = _receipts(submission.message_id, submission.to, submission.sender, count)
            try:
                await self._on_receipts(receipts)
            except asyncio.CancelledError:
                self._on_outcome(submission, Outcome(Verdict.UNKNOWN))
                return
            except Exception:
                # The database is unavailable. Every submission needs an outcome, or its message would wait forever.
                self._on_outcome(submission, Outcome(Verdict.UNREACHABLE))
                return
        parts = tuple(Part(number, _key(submission.message_id, number), "test") for number in range(1, count + 1))
        self._on_outcome(submission, Outcome(Verdict.ACCEPTED, parts))


DUE = """
SELECT m.id, m.recipient, m.sender, m.segments FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id)
       CROSS JOIN LATERAL (
       SELECT id, recipient, sender, segments FROM messages
        WHERE organization_id = item.organization_id AND id = item.id) m
"""


async def due_receipts(conn: Connection, messages: Sequence[tuple[UUID, UUID]]) -> list[Receipt]:
    """The receipts of test messages, given as (organization, message)."""
    rows = await conn.fetch(DUE, [org for org, _ in messages], [message for _, message in messages])
    receipts: list[Receipt] = []
    for message_id, recipient, sender, segments in rows:
        made = _receipts(message_id, recipient[1:], sender, segments)
        receipts += made
        if recipient.endswith(TWICE):
            receipts += [msgspec.structs.replace(receipt, raw=receipt.raw + b" again") for receipt in made]
    return receipts


def _key(message_id: UUID, part: int) -> str:
    return f"test-{message_id.hex}-{part}"


def _receipts(message_id: UUID, to: str, sender: str, parts: int) -> list[Receipt]:
    state = STATES.get(to[-4:], ReceiptState.DELIVERED)
    return [
        Receipt(
            keys=(_key(message_id, number),),
            state=state,
            recipient=to,
            sender=sender,
            raw=f"test receipt {message_id} part {number} {state}".encode(),
        )
        for number in range(1, parts + 1)
    ]
