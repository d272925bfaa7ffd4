"""The sessions that a process has seen lately, so that most requests of a page cost no query for theirs.

As with keys: what is known is never used when it is more than MAX_AGE old, counted from before it was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from heliograph.base.crypto import hash_secret
from heliograph.base.database.batching import Batcher
from heliograph.base.database.pool import Pool, is_down
from heliograph.base.loading_cache import LoadingCache
from heliograph.people import sessions
from heliograph.people.sessions import Known

#: Seconds; half of the promise, the rest is for a slow answer of the database.
MAX_AGE = 0.5
#: Seconds between two writes of one session's `seen_at` by one process.
SEEN_EVERY = 60.0
#: Sessions whose last write is remembered; past it all are forgotten, which costs each one a write too many.
CAPACITY = 10_000
#: Characters of a token; what has another number is none of ours.
LENGTH = 43


class SessionBook:
    """One per process."""

    def __init__(self, pool: Pool, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._now = monotonic
        self._known: LoadingCache[bytes, Known] = LoadingCache(
            self._load, max_age=MAX_AGE, limit=CAPACITY, indivisible=is_down
        )
        self._touched: dict[bytes, float] = {}
        self._touching: Batcher[bytes, None] = Batcher(self._touch, indivisible=is_down)

    async def find(self, token: str, *, anew: bool = False) -> Known | None:
        """Who is behind a token; None: nobody. `anew`: as of now, for who has just changed something."""
        if len(token) != LENGTH or not token.isascii():
            return None
        digest = hash_secret(token)
        known = await self._known.get(digest, anew=anew)
        if known is None:
            return None
        now = self._now()
        if now - self._touched.get(digest, -SEEN_EVERY) >= SEEN_EVERY:
            if len(self._touched) >= CAPACITY:
                self._touched.clear()
            self._touched[digest] = now
            self._touching.put(digest)
        return known

    def forget(self, token: str) -> None:
        """Something about it was changed here: look again at the next request."""
        self._known.forget(hash_secret(token))

    async def close(self) -> None:
        """Finish what is being written."""
        await self._touching.drain()

    async def _load(self, digests: Sequence[bytes]) -> dict[bytes, Known]:
        async with self._pool.acquire() as conn:
            return await sessions.authenticate_many(conn, digests)

    async def _touch(self, digests: list[bytes]) -> list[None]:
        async with self._pool.acquire() as conn:
            await sessions.touch(conn, digests)
        return [None] * len(digests)
