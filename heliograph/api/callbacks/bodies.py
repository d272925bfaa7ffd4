"""Limits on the memory held for bodies that are still arriving: in total, and for one address.

Small and large bodies have separate room, so small ones are accepted however many large ones stall. The rule nobody may
break: a body that is still arriving is never turned away in favor of one that has stalled. When there is no room, the
body stalled for longest gives way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from heliograph.base.errors import Unavailable
from heliograph.base.network.addresses import sharer


class ByteLimits(msgspec.Struct, frozen=True):
    """Bytes that may be held in total, and for one address."""

    size: int
    share: int


#: Bodies of up to this many bytes are small. Most callbacks have one or two thousand.
SMALL = 65_536
SMALL_ROOM = ByteLimits(16 * 1_048_576, 8 * 1_048_576)
#: A hundred callbacks of a thousand statuses each; a body is briefly in memory twice, as received and sealed.
LARGE_ROOM = ByteLimits(32 * 1_048_576, 10 * 1_048_576)
#: A body that received nothing for this many seconds may have to give way.
STALLED = 1.0


class BodyBuffers:
    """The bodies held by one process, inside a running event loop."""

    def __init__(self, *, small: ByteLimits = SMALL_ROOM, large: ByteLimits = LARGE_ROOM, limit: int = SMALL) -> None:
        """`limit`: maximum size of a small body, in bytes."""
        self._limit = limit
        self._small = _BodyPool(small)
        self._large = _BodyPool(large)
        self._now: Callable[[], float] = asyncio.get_running_loop().time

    def begin(self, address: str) -> Body:
        """Register a body arriving from `address`, read by the current task."""
        task = asyncio.current_task()
        assert task is not None
        return Body(sharer(address), task, self._now())

    def grow(self, body: Body, size: int) -> None:
        """Account for `size` more bytes. Raises Unavailable if there is no room; nothing of the body is then held."""
        now = self._now()
        body.moved_at = now
        total = body.size + size
        pool = self._small if total <= self._limit else self._large
        if body.pool is not pool:
            self.release(body)
            size = total
        pool.take(body, size)
        while not pool.has_room(body.address):
            stalled = pool.stalled(body, now - STALLED)
            if stalled is None:
                self.release(body)
                raise _no_room()
            self.release(stalled)
            stalled.gave_way = True
            stalled.task.cancel()

    def finish(self, body: Body) -> None:
        """The body is complete: it is held until released, and no longer competes for room."""
        body.is_complete = True

    def release(self, body: Body) -> None:
        """Release the body. Releasing it twice has no effect."""
        if body.pool is not None:
            body.pool.drop(body)


class Body:
    """One body. A task that is cancelled while `gave_way` raises what `gone` returns."""

    __slots__ = ("address", "gave_way", "is_complete", "moved_at", "pool", "size", "task")

    def __init__(self, address: str, task: asyncio.Task[object], now: float) -> None:
        self.address = address
        self.task = task
        #: When its latest bytes arrived.
        self.moved_at = now
        self.size = 0
        self.pool: _BodyPool | None = None
        self.is_complete = False
        self.gave_way = False

    def gone(self) -> Unavailable:
        """Undo the cancellation of its task, and return the refusal that explains it."""
        self.task.uncancel()
        return _no_room()


class _BodyPool:
    """Bodies that share a limit."""

    def __init__(self, room: ByteLimits) -> None:
        self._room = room
        self._held = 0
        self._of: dict[str, int] = {}
        self._bodies: set[Body] = set()

    def take(self, body: Body, size: int) -> None:
        body.pool = self
        body.size += size
        self._bodies.add(body)
        self._held += size
        self._of[body.address] = self._of.get(body.address, 0) + size

    def drop(self, body: Body) -> None:
        self._bodies.discard(body)
        self._held -= body.size
        # When an address has several empty bodies, as GET requests do, the first to finish removes the address.
        left = self._of.get(body.address, 0) - body.size
        if left:
            self._of[body.address] = left
        else:
            self._of.pop(body.address, None)
        body.pool = None
        body.size = 0

    def has_room(self, address: str) -> bool:
        return self._held <= self._room.size and self._of.get(address, 0) <= self._room.share

    def stalled(self, newcomer: Body, since: float) -> Body | None:
        """The body stalled for longest, at least since `since`; of the newcomer's address if its share is full."""
        of_address = self._of.get(newcomer.address, 0) > self._room.share
        candidates = [
            one
            for one in self._bodies
            if one.moved_at <= since and not one.is_complete and (not of_address or one.address == newcomer.address)
        ]
        return min(candidates, key=lambda one: one.moved_at, default=None)


def _no_room() -> Unavailable:
    refusal = Unavailable()
    refusal.headers |= {"connection": "close"}  # what is left of the body is not worth reading
    return refusal
