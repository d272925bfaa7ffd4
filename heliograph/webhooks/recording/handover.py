"""Handover: the worker that records an event delivers it at once, without a claim.

A transaction inserts the queue rows of its deliveries already leased, as many as this worker has room for; after its
commit they go to the Deliverer in memory. The rest are inserted as due work for any worker to claim.

The rule nobody may break: nothing is delivered before it is committed, and nothing committed depends on this worker
alone. If it dies between commit and `deliver`, the leases end like any other. If only the answer to the commit is lost,
they need not: see `abandoned`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Protocol
from uuid import UUID

from heliograph.base.database.pool import is_down
from heliograph.webhooks.recording.events import Event

#: At most this many endpoints with room are passed to a statement.
MOST_ENDPOINTS = 500


class Handover:
    """The deliveries of one transaction. A rollback discards the handover."""

    __slots__ = ("_abandon", "_deliver", "_room", "_taken", "seconds", "token")

    def __init__(
        self,
        token: UUID,
        *,
        room: Callable[[Collection[UUID]], dict[UUID, int]],
        deliver: Callable[[Sequence[tuple[Event, UUID]]], None],
        abandon: Callable[[Sequence[tuple[Event, UUID]]], None],
        seconds: float,
    ) -> None:
        """`token`: for leases of `seconds`. `room`: endpoints of these organizations, and how many deliveries each may
        take. `deliver`, `abandon`: take (event, endpoint) pairs."""
        self._room = room
        self._deliver = deliver
        self._abandon = abandon
        self.seconds = seconds
        self.token = token
        self._taken: list[tuple[Event, UUID]] = []

    def room(self, organizations: Collection[UUID]) -> dict[UUID, int]:
        """Endpoints of these organizations, and how many more deliveries each may take."""
        free = self._room(organizations)
        for _, endpoint_id in self._taken:
            if endpoint_id in free:
                free[endpoint_id] -= 1
        return dict([(id, places) for id, places in free.items() if places > 0][:MOST_ENDPOINTS])

    def take(self, event: Event, endpoint_id: UUID) -> None:
        """Note that this delivery was inserted under the lease."""
        self._taken.append((event, endpoint_id))

    def deliver(self) -> None:
        """Deliver what was taken; called after the transaction has committed."""
        if self._taken:
            taken, self._taken = self._taken, []
            self._deliver(taken)

    def abandon(self) -> None:
        """Put what was taken back into the queue, if it is there: the commit failed, perhaps only by its answer."""
        if self._taken:
            taken, self._taken = self._taken, []
            self._abandon(taken)


@contextlib.asynccontextmanager
async def abandoned(handed: Sequence[Handover]) -> AsyncIterator[None]:
    """Around the transaction of these handovers: if its connection is lost, or it is cancelled, they are abandoned."""
    try:
        yield
    except BaseException as error:
        if is_down(error) or not isinstance(error, Exception):
            for one in handed:
                one.abandon()
        raise


class Deliveries(Protocol):
    """The part of a worker that delivers, as its other parts use it."""

    def queued(self) -> None:
        """Called after deliveries were queued."""

    def handover(self) -> Handover | None:
        """A handover for one transaction; None: this worker delivers nothing."""
