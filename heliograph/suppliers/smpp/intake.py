"""Incoming receipts and messages: collected, stored in batches, and only then acknowledged to the supplier.

A full list pauses reading from the connections that filled it until half of it is stored: TCP then makes the supplier
wait. Once read, nothing is refused because the list is full.

The rule nobody may break: deliver_sm_resp(0) is written after the handler has returned, and so after its commit. Items
that a handler could not store, alone of their batch, get 0x64 (try again later), as do those behind a stuck handler, so
that nothing is lost and no connection is left unread for longer than its peer tolerates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

import structlog

from heliograph.suppliers.contract import OnAnswered, PartlyStored
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.link import Connection

log = structlog.get_logger(__name__)

Item = TypeVar("Item")

STORED = 0x00
LATER = 0x64
#: The handler commits one batch at a time; larger ones would keep their first item waiting. This is twice the number of
#: segments that can be submitted meanwhile, so that receipts never fall behind the submits they refer to.
_BATCH = 2000
#: Maximum seconds that connections are left unread behind one batch: peers probe silent ones every half minute.
_PATIENCE = 20.0


class PduIntake(Generic[Item]):
    """A bounded list in front of `handle`, with one batch in flight.

    `limit`: how many may wait before reading stops; items already read are still accepted. `handle` may return a
    function, which is called with the positions of the items that were answered.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[Item]], Awaitable[OnAnswered | None]],
        *,
        limit: int,
        name: str,
        patience: float = _PATIENCE,
    ) -> None:
        self._handle = handle
        self._limit = limit
        self._name = name
        self._patience = patience
        self._queue: list[tuple[Item, Connection, p.DeliverSm | p.DataSm]] = []
        self._runner: asyncio.Task[None] | None = None
        self._held: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """The number of items not yet in a batch."""
        return len(self._queue)

    @property
    def holds(self) -> bool:
        """Whether reading from some connection is paused until there is room."""
        return bool(self._held)

    def put(self, item: Item, connection: Connection, pdu: p.DeliverSm | p.DataSm) -> None:
        """Add an item."""
        self._queue.append((item, connection, pdu))
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())
        if len(self._queue) >= self._limit and connection not in self._held:
            self._held.add(connection)
            connection.hold()
            self._wait()

    async def drain(self, seconds: float) -> None:
        """Wait until everything added so far is answered, but no longer than this."""
        if self._runner is not None:
            await asyncio.wait([self._runner], timeout=seconds)

    async def _run(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue[:_BATCH], self._queue[_BATCH:]
                if len(self._queue) <= self._limit // 2:
                    self._release()
                failed: Mapping[int, BaseException] = {}
                on_answered = None
                try:
                    on_answered = await self._handle([item for item, _, _ in batch])
                except PartlyStored as error:
                    failed = error.errors
                except Exception as error:
                    failed = dict.fromkeys(range(len(batch)), error)
                if failed:
                    kind = type(next(iter(failed.values()))).__name__
                    log.error("SMPP messages not stored", intake=self._name, count=len(failed), error=kind)
                self._wait()
                answered = [
                    place
                    for place, (_, connection, pdu) in enumerate(batch)
                    if connection.respond(pdu, LATER if place in failed else STORED)
                ]
                if on_answered is not None:
                    self._tell(on_answered, answered)
        finally:
            self._runner = None
            self._release()

    def _tell(self, on_answered: OnAnswered, answered: Sequence[int]) -> None:
        """The items are stored and answered; whatever goes wrong in here, the next batch follows."""
        try:
            on_answered(answered)
        except Exception:
            log.exception("SMPP intake handler failed", intake=self._name, count=len(answered))

    def _wait(self) -> None:
        """Restart the timeout of the batch in flight, if a connection is waiting for it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self._timer = asyncio.get_running_loop().call_later(self._patience, self._give_up)

    def _give_up(self) -> None:
        """The batch in flight is stuck, so the items behind it cannot be stored either."""
        waiting, self._queue = self._queue, []
        log.error(
            "SMPP messages not stored", intake=self._name, count=len(waiting), error="the previous batch is stuck"
        )
        for _, connection, pdu in waiting:
            connection.respond(pdu, LATER)
        self._release()

    def _release(self) -> None:
        """Resume reading."""
        held, self._held = self._held, set()
        for connection in held:
            connection.release()
        self._wait()
