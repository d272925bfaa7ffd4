"""Receipts and messages on their way in: gathered, stored in batches, and only then acknowledged to the supplier.

The rule nobody may break: deliver_sm_resp(0) is written after the handler returned, which is after its commit. A full
queue or a handler that raises gets 0x64 (come back later), so that nothing is lost and the reader never waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import structlog

from heliograph.suppliers.contract import OnAnswered
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.link import Connection

log = structlog.get_logger(__name__)

Item = TypeVar("Item")

STORED = 0x00
LATER = 0x64
#: The handler commits a batch at a time; more than this in one would keep the first of it waiting. It is twice what is
#: submitted meanwhile at the most, so that receipts never fall behind the submits that they speak of.
_BATCH = 2000


class PduIntake(Generic[Item]):
    """A bounded queue in front of `handle`, with one batch in flight.

    `handle` may return a function; it is told which of the batch were answered.
    """

    def __init__(
        self, handle: Callable[[Sequence[Item]], Awaitable[OnAnswered | None]], *, limit: int, name: str
    ) -> None:
        self._handle = handle
        self._limit = limit
        self._name = name
        self._queue: list[tuple[Item, Connection, p.DeliverSm | p.DataSm]] = []
        self._runner: asyncio.Task[None] | None = None

    def put(self, item: Item, connection: Connection, pdu: p.DeliverSm | p.DataSm) -> None:
        """Take one in, or answer at once that it must come again."""
        if len(self._queue) >= self._limit:
            connection.respond(pdu, LATER)
            return
        self._queue.append((item, connection, pdu))
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())

    async def drain(self, seconds: float) -> None:
        """Wait until everything taken in so far is answered, but no longer than this."""
        if self._runner is not None:
            await asyncio.wait([self._runner], timeout=seconds)

    async def _run(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue[:_BATCH], self._queue[_BATCH:]
                status, on_answered = STORED, None
                try:
                    on_answered = await self._handle([item for item, _, _ in batch])
                except Exception as error:
                    log.error("smpp_not_stored", intake=self._name, count=len(batch), error=type(error).__name__)
                    status = LATER
                answered = [
                    place for place, (_, connection, pdu) in enumerate(batch) if connection.respond(pdu, status)
                ]
                if on_answered is not None:
                    on_answered(answered)
        finally:
            self._runner = None
