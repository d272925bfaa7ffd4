"""All connections of a process: how many there may be, how much may be unsent in them, and when each has to end.

One sweep handles all of them, because a timer for every request costs more than parsing it. The rule nobody may break:
no address can keep others out. An address that has used up its share of connections loses the one that has been idle
for longest, and so do all of them together at the overall limit; and unread answers are dropped, those without progress
for longest first, before they fill the memory.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Protocol

import msgspec

from heliograph.base.network.addresses import sharer
from heliograph.base.process.settings import Settings
from heliograph.http.reader import ReaderLimits

#: How many of the connections that we wait for are checked for being idle before the oldest has to go.
_LOOKED_AT = 64


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for clients. Sizes in bytes, times in seconds."""

    request: ReaderLimits = ReaderLimits()
    head_seconds: float = 10.0
    body_seconds: float = 10.0
    idle_seconds: float = 75.0
    #: How long an answer may wait for a client that reads nothing of it.
    write_seconds: float = 10.0
    #: How long closing may take: until the client has read the last answer and closes too.
    closing_seconds: float = 2.0
    #: How much is read and discarded of a request that was answered before its body arrived.
    discard_bytes: int = 1_048_576
    connections: int = 8_192
    connections_per_address: int = 1_024
    #: For answers, in our memory and the kernel's, and requests waiting behind them, over all connections.
    unsent_bytes: int = 67_108_864
    #: How many requests a client may pipeline at once.
    pipeline: int = 64
    #: Their maximum size; they are kept unparsed.
    ahead_bytes: int = 65_536
    sweep_seconds: float = 0.25


def limits_of(settings: Settings) -> Limits:
    """The limits in the settings."""
    return Limits(
        head_seconds=settings.body_deadline_seconds,
        body_seconds=settings.body_deadline_seconds,
        write_seconds=settings.body_deadline_seconds,
        idle_seconds=settings.keep_alive_seconds,
        connections=settings.max_connections,
        connections_per_address=settings.max_connections_per_address,
        unsent_bytes=settings.max_unsent_bytes,
    )


class Peer:
    """An address, as grouped by `sharer`."""

    __slots__ = ("count", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.waiting: dict[Registered, None] = {}


class Registered(Protocol):
    """A connection, as the registry sees it."""

    #: On the loop's clock.
    deadline: float
    #: Bytes of answers so far, and how many of them the client has received.
    written: int
    taken: int
    #: When `taken` last grew; 0 while nothing is unsent.
    taken_at: float
    #: Set by the registry.
    peer: Peer | None

    @property
    def is_idle(self) -> bool:
        """Whether no byte of a request has arrived since it was opened, or since the last answer."""

    @property
    def ahead(self) -> int:
        """Bytes of requests waiting for their turn."""

    def expire(self, now: float) -> None:
        """The deadline has passed."""

    def unsent(self) -> int:
        """Bytes of answers that the client has not confirmed."""

    def give_way(self) -> None:
        """End at once: its place is needed."""

    def shutdown(self) -> None:
        """The process is stopping: finish what has begun."""

    def abort(self) -> None:
        """End at once, with a reset."""


class Registry:
    """One per server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.connections: set[Registered] = set()
        #: The process is stopping: each connection ends after its next answer.
        self.draining = False
        #: Connections whose next request is incomplete, and since when; overall, and by address.
        self._waiting: dict[Registered, None] = {}
        self._peers: dict[str, Peer] = {}
        self._emptied: asyncio.Future[None] | None = None

    def add(self, connection: Registered) -> bool:
        """Add a connection; False if there is no room for it. It stays until `remove` either way."""
        self.connections.add(connection)
        return len(self.connections) <= self.limits.connections or self._make_room(self._waiting)

    def attribute(self, connection: Registered, address: str) -> bool:
        """Record the connection's client, which is not a trusted proxy; False if it has too many connections. Call at
        most once per connection."""
        name = sharer(address)
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = Peer(name)
        peer.count += 1
        connection.peer = peer
        if connection in self._waiting:
            peer.waiting[connection] = None
        return peer.count <= self.limits.connections_per_address or self._make_room(peer.waiting, but=connection)

    def is_flood(self, connection: Registered) -> bool:
        """Whether there are so many connections that not even a refusal is worth sending."""
        peer = connection.peer
        return _far_past(len(self.connections), self.limits.connections) or (
            peer is not None and _far_past(peer.count, self.limits.connections_per_address)
        )

    def await_request(self, connection: Registered) -> None:
        """The connection's next request is awaited from now on."""
        self._waiting[connection] = None
        peer = connection.peer
        if peer is not None:
            peer.waiting[connection] = None

    def begin_request(self, connection: Registered) -> None:
        """The head of a request has arrived."""
        self._waiting.pop(connection, None)
        peer = connection.peer
        if peer is not None:
            peer.waiting.pop(connection, None)

    def remove(self, connection: Registered) -> None:
        """The connection has ended, or is about to. Idempotent."""
        self.connections.discard(connection)
        if self._emptied is not None and not self.connections and not self._emptied.done():
            self._emptied.set_result(None)
        self.begin_request(connection)
        peer, connection.peer = connection.peer, None
        if peer is not None:
            peer.count -= 1
            if not peer.count:
                del self._peers[peer.name]

    async def emptied(self) -> None:
        """Wait until there are no connections."""
        while self.connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    async def run(self) -> None:
        """Sweep forever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.limits.sweep_seconds)
            self.sweep(loop.time())

    def sweep(self, now: float) -> None:
        """End connections past their deadline, and drop answers that nobody reads."""
        unread: list[tuple[float, int, Registered]] = []
        for connection in list(self.connections):
            if connection.deadline < now:
                connection.expire(now)
            ahead = connection.ahead
            if ahead or connection.written != connection.taken:
                unsent = connection.unsent()
                taken = connection.written - unsent
                if not unsent:
                    connection.taken_at = 0.0
                elif taken != connection.taken or not connection.taken_at:
                    connection.taken_at = now
                elif now - connection.taken_at > self.limits.write_seconds:
                    connection.abort()
                    continue
                connection.taken = taken
                if unsent or ahead:
                    # Connections that wait for us, rather than we for them, are dropped last.
                    unread.append((connection.taken_at or now, unsent + ahead, connection))
        held = sum(unsent for _, unsent, _ in unread)
        if held > self.limits.unsent_bytes:
            unread.sort(key=lambda one: one[0])
            for _, unsent, connection in unread:
                connection.abort()
                held -= unsent
                if held <= self.limits.unsent_bytes:
                    break

    def _make_room(self, waiting: dict[Registered, None], *, but: Registered | None = None) -> bool:
        oldest = itertools.islice((one for one in waiting if one is not but), _LOOKED_AT)
        first = next(oldest, None)
        if first is None:
            return False
        leaving = first if first.is_idle else next((one for one in oldest if one.is_idle), first)
        self.remove(leaving)
        leaving.give_way()
        return True


def _far_past(count: int, limit: int) -> bool:
    return count > limit * 1.25 + 16
