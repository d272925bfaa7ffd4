"""The keys that a process has seen lately, so that a request costs no query for its key.

The rule nobody may break: what is known about a key is never used when it is older than a second, so that a
revocation holds on every process within one second. Past REFRESH_AFTER a key is asked for again in the background,
past STALE_AFTER a request waits for the answer; both ages count from before the query was sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from asyncio import Future
from collections.abc import Callable
from uuid import UUID

from heliograph.accounts.api_keys import Known, Unauthorized, authenticate_many, is_well_formed
from heliograph.base.actor import Actor
from heliograph.base.batching import Batcher
from heliograph.base.crypto import hash_secret
from heliograph.base.db import Pool, is_down

#: Seconds. The tenth that is left of the promised second is for the clock's and the loop's grain.
REFRESH_AFTER = 0.4
STALE_AFTER = 0.9
#: Seconds between two writes of one key's last_used_at by one process.
USED_EVERY = 60.0
#: Keys kept; when there are more, those not used for longest are forgotten and cost one query at their next use.
CAPACITY = 100_000

# Two processes may write the same keys at once: locks are taken in the order of ids, and a row that another one is
# writing needs no second write.
TOUCH = """
UPDATE api_keys SET last_used_at = now()
 WHERE id IN (SELECT id FROM api_keys
               WHERE id = ANY($1) AND (last_used_at IS NULL OR last_used_at < now() - interval '50 seconds')
               ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
"""


class _Entry:
    __slots__ = ("known", "read_at", "refresh", "touched_at")

    def __init__(self, known: Known, read_at: float) -> None:
        self.known = known
        self.read_at = read_at
        self.touched_at = -USED_EVERY
        self.refresh: Future[tuple[Known | None, float]] | None = None


class Keyring:
    """One per process."""

    def __init__(self, pool: Pool, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._now = monotonic
        self._entries: dict[bytes, _Entry] = {}
        self._asking: Batcher[bytes, tuple[Known | None, float]] = Batcher(self._ask, indivisible=is_down)
        self._touching: Batcher[UUID, None] = Batcher(self._touch, indivisible=is_down)

    async def authenticate(self, secret: str, address: str) -> Actor:
        """Who this secret speaks for, used from `address`. Raises Unauthorized, or what the database raises."""
        digest = hash_secret(secret)
        entry = self._entries.get(digest)
        now = self._now()
        if entry is None:
            if not is_well_formed(secret):
                raise Unauthorized
            entry = await self._meet(digest)
        elif (age := now - entry.read_at) > REFRESH_AFTER:
            if entry.refresh is None:
                entry.refresh = self._asking.put(digest)
                entry.refresh.add_done_callback(lambda answer: self._learn(digest, entry, answer))
            if age > STALE_AFTER:
                # Shielded: others wait for the same answer, and one that gives up must not take it from them.
                known, _ = await asyncio.shield(entry.refresh)
                if known is None:
                    raise Unauthorized
                entry.known = known
        if entry.known.networks and not _inside(address, entry.known):
            raise Unauthorized
        if now - entry.touched_at >= USED_EVERY:
            entry.touched_at = now
            key_id = entry.known.actor.key_id
            assert key_id is not None
            self._touching.put(key_id)
        return entry.known.actor

    async def close(self) -> None:
        """Finish what is being written."""
        await self._asking.drain()
        await self._touching.drain()

    async def _meet(self, digest: bytes) -> _Entry:
        known, read_at = await self._asking.put(digest)
        if known is None:
            raise Unauthorized
        if len(self._entries) >= CAPACITY:
            for forgotten in sorted(self._entries, key=lambda each: self._entries[each].read_at)[: CAPACITY // 10]:
                del self._entries[forgotten]
        return self._entries.setdefault(digest, _Entry(known, read_at))

    def _learn(self, digest: bytes, entry: _Entry, answer: Future[tuple[Known | None, float]]) -> None:
        entry.refresh = None
        if answer.cancelled() or answer.exception() is not None:
            return
        known, read_at = answer.result()
        if known is None:
            self._entries.pop(digest, None)
        else:
            entry.known, entry.read_at = known, read_at

    async def _ask(self, digests: list[bytes]) -> list[tuple[Known | None, float]]:
        read_at = self._now()
        async with self._pool.acquire() as conn:
            return [(known, read_at) for known in await authenticate_many(conn, digests)]

    async def _touch(self, ids: list[UUID]) -> list[None]:
        async with self._pool.acquire() as conn:
            await conn.execute(TOUCH, ids)
        return [None] * len(ids)


def _inside(address: str, known: Known) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return any((mapped or parsed) in network for network in known.networks)
