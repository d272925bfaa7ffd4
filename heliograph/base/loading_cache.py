"""A loading cache: rows that may be at most a moment old, loaded in batches.

The data that every request needs (its key, its organization's senders) changes rarely, but a change must take effect
everywhere within a second. So a value is used for `max_age` seconds and then reloaded, together with all others that
are due.

`Current` does the same for data that a process holds as a whole, such as all rates, and refreshes by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Generic, Protocol, TypeVar

from heliograph.base.database.batching import Batcher
from heliograph.base.database.pool import Connection, Pool

Key = TypeVar("Key")
Value = TypeVar("Value")

#: Seconds after which a change takes effect everywhere, approximately.
EVERY = 1.0
#: Maximum age of data before callers wait for a refresh, seconds.
OLDEST = 3.0


class LoadingCache(Generic[Key, Value]):
    """`load` gets the keys that are due and returns those that exist; a missing one is cached as None."""

    def __init__(
        self,
        load: Callable[[Sequence[Key]], Awaitable[Mapping[Key, Value]]],
        *,
        max_age: float = 0.5,
        limit: int = 100_000,
        indivisible: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        """`limit`: maximum values kept; beyond it, all are dropped and reloaded on request."""
        self._load = load
        self._max_age = max_age
        self._limit = limit
        self._values: dict[Key, tuple[float, Value | None]] = {}
        #: The latest load of each key, and when it was asked for.
        self._loads: dict[Key, tuple[float, asyncio.Future[Value | None]]] = {}
        #: The keys that were forgotten since the query in progress began.
        self._forgotten: set[Key] = set()
        self._batcher: Batcher[Key, Value | None] = Batcher(self._fill, indivisible=indivisible)

    def peek(self, key: Key) -> tuple[bool, Value | None]:
        """(True, value) without waiting if the value is fresh; else (False, None)."""
        found = self._values.get(key)
        if found is not None and monotonic() - found[0] < self._max_age:
            return True, found[1]
        return False, None

    async def get(self, key: Key, *, bypass_cache: bool = False) -> Value | None:
        """The value, at most `max_age` old; with `bypass_cache`, loaded after this call."""
        if not bypass_cache:
            fresh, value = self.peek(key)
            if fresh:
                return value
            under_way = self._loads.get(key)
            # A load that takes longer may miss a change that was made since.
            if under_way is not None and monotonic() - under_way[0] < self._max_age:
                return await asyncio.shield(under_way[1])
        load = monotonic(), self._batcher.put(key)
        self._loads[key] = load
        try:
            return await asyncio.shield(load[1])
        finally:
            if self._loads.get(key) is load:
                del self._loads[key]

    def forget(self, key: Key) -> None:
        """Reload this value when it is next requested, also if a load is in progress: it may have missed a change."""
        self._values.pop(key, None)
        self._loads.pop(key, None)
        if not self._batcher.is_idle:
            self._forgotten.add(key)

    async def _fill(self, keys: list[Key]) -> list[Value | None]:
        # The age counts from before the query, so that changes during it are not missed.
        asked_at = monotonic()
        self._forgotten.clear()
        found = await self._load(list(dict.fromkeys(keys)))
        if len(self._values) > self._limit:
            self._values.clear()
        for key in keys:
            if key not in self._forgotten:
                self._values[key] = (asked_at, found.get(key))
        return [found.get(key) for key in keys]


class Refreshed(Protocol):
    """Data that can be refreshed."""

    @property
    def age(self) -> float:
        """Seconds since the last `refresh` began."""

    async def refresh(self, conn: Connection | Pool) -> None:
        """Load changes, unless that was done within the last EVERY seconds."""


Held = TypeVar("Held", bound=Refreshed)


class Current(Generic[Held]):
    """Refreshed data for callers that need it now and then."""

    def __init__(self, pool: Pool, held: Held) -> None:
        self._pool = pool
        self._held = held
        self._refreshing: asyncio.Task[None] | None = None

    async def get(self, conn: Connection | None = None) -> Held:
        """The current data; waits only if it has not been requested for a while. Raises what the database raises.
        `conn`: the caller's connection, used if it must wait: a caller that holds one must not wait for another from
        the same pool.
        """
        age = self._held.age
        if age > OLDEST and conn is not None:
            await self._held.refresh(conn)
        elif age > EVERY:
            if self._refreshing is None:
                self._refreshing = asyncio.create_task(self._refresh())
                # Usually nobody waits for it: the previous data stays valid until a refresh succeeds.
                self._refreshing.add_done_callback(lambda task: task.cancelled() or task.exception())
            if age > OLDEST:
                await asyncio.shield(self._refreshing)
        return self._held

    async def close(self) -> None:
        """Wait for a refresh in progress."""
        if self._refreshing is not None:
            await asyncio.wait([self._refreshing])

    async def _refresh(self) -> None:
        try:
            await self._held.refresh(self._pool)
        finally:
            self._refreshing = None
