"""A cache of the sessions that a process has seen recently, so that most page requests need no query for theirs.

As with API keys, an entry is never used once it is older than MAX_AGE, counted from before it was queried.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from heliograph.base.crypto import hash_secret
from heliograph.base.database.batching import Batcher
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.loading_cache import LoadingCache

#: Seconds; half of the promised time, leaving the rest for a slow response from the database.
MAX_AGE = 0.5
#: Seconds between two writes of one session's `seen_at` by one process.
SEEN_EVERY = 60.0
#: Number of sessions whose last write is remembered; beyond that all are forgotten, at one extra write each.
CAPACITY = 10_000
#: Length of a token; anything else is not ours.
LENGTH = 43

Session = TypeVar("Session")


class SessionBook(Generic[Session]):
    """One per process and realm. `authenticate` and `touch`: those of its table."""

    def __init__(
        self,
        pool: Pool,
        authenticate: Callable[[Connection, Sequence[bytes]], Awaitable[Mapping[bytes, Session]]],
        touch: Callable[[Connection, Sequence[bytes]], Awaitable[None]],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._authenticate = authenticate
        self._touch_many = touch
        self._now = monotonic
        self._known: LoadingCache[bytes, Session] = LoadingCache(
            self._load, max_age=MAX_AGE, limit=CAPACITY, indivisible=is_down
        )
        self._touched: dict[bytes, float] = {}
        self._touching: Batcher[bytes, None] = Batcher(self._touch, indivisible=is_down)

    async def find(self, token: str, *, bypass_cache: bool = False, is_use: bool = True) -> Session | None:
        """The session of a token; None if there is none. `bypass_cache`: bypass the cache, after a change. `is_use`: it
        is used: a session that is not ends."""
        if len(token) != LENGTH or not token.isascii():
            return None
        digest = hash_secret(token)
        known = await self._known.get(digest, bypass_cache=bypass_cache)
        if known is None or not is_use:
            return known
        now = self._now()
        if now - self._touched.get(digest, -SEEN_EVERY) >= SEEN_EVERY:
            if len(self._touched) >= CAPACITY:
                self._touched.clear()
            self._touched[digest] = now
            self._touching.put(digest)
        return known

    def forget(self, token: str) -> None:
        """Reload a session at its next request, because this process changed it."""
        self._known.forget(hash_secret(token))

    async def close(self) -> None:
        """Wait for pending writes."""
        await self._touching.drain()

    async def _load(self, digests: Sequence[bytes]) -> Mapping[bytes, Session]:
        async with self._pool.acquire() as conn:
            return await self._authenticate(conn, digests)

    async def _touch(self, digests: list[bytes]) -> list[None]:
        async with self._pool.acquire() as conn:
            await self._touch_many(conn, digests)
        return [None] * len(digests)
