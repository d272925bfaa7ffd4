"""A loading cache: rows that may be at most a moment old, loaded in batches.

What every request asks for (its key, its organization's senders) changes rarely, but a change must hold everywhere
within a second. So a value is used for `max_age` seconds and then reloaded, together with whatever else is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Generic, TypeVar

from heliograph.base.database.batching import Batcher

Key = TypeVar("Key")
Value = TypeVar("Value")


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
        """`limit`: how many values are kept; beyond it, all are dropped and reloaded when requested."""
        self._load = load
        self._max_age = max_age
        self._limit = limit
        self._values: dict[Key, tuple[float, Value | None]] = {}
        self._loads: dict[Key, asyncio.Future[Value | None]] = {}
        self._batcher: Batcher[Key, Value | None] = Batcher(self._fill, indivisible=indivisible)

    def peek(self, key: Key) -> tuple[bool, Value | None]:
        """(True, value) without waiting if the value is fresh; else (False, None)."""
        found = self._values.get(key)
        if found is not None and monotonic() - found[0] < self._max_age:
            return True, found[1]
        return False, None

    async def get(self, key: Key, *, anew: bool = False) -> Value | None:
        """The value, at most `max_age` old; with `anew`, loaded after this call."""
        if not anew:
            fresh, value = self.peek(key)
            if fresh:
                return value
            under_way = self._loads.get(key)
            if under_way is not None:
                return await asyncio.shield(under_way)
        load = self._batcher.put(key)
        self._loads[key] = load
        try:
            return await asyncio.shield(load)
        finally:
            if self._loads.get(key) is load:
                del self._loads[key]

    def forget(self, key: Key) -> None:
        """Reload this one when it is next requested."""
        self._values.pop(key, None)

    async def _fill(self, keys: list[Key]) -> list[Value | None]:
        # The age counts from before the query, so that changes during it are not missed.
        asked_at = monotonic()
        found = await self._load(list(dict.fromkeys(keys)))
        if len(self._values) > self._limit:
            self._values.clear()
        for key in keys:
            self._values[key] = (asked_at, found.get(key))
        return [found.get(key) for key in keys]
