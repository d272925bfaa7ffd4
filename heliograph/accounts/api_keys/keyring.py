"""A cache of the keys that a process has seen recently, so that a request needs no query for its key.

The rule nobody may break: a cached key is never used once it is more than MAX_AGE old, so that a revocation takes
effect in every process within one second. The age counts from before the query was sent.
"""

from __future__ import annotations

import ipaddress
import sys
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from heliograph import notices
from heliograph.accounts.api_keys.authentication import KeyOwner, Unauthorized, authenticate_many
from heliograph.accounts.api_keys.spelling import is_well_formed
from heliograph.base.actor import Actor
from heliograph.base.crypto import hash_secret
from heliograph.base.database import clock
from heliograph.base.database.batching import Batcher
from heliograph.base.database.pool import Pool, is_down
from heliograph.base.loading_cache import LoadingCache
from heliograph.notices import Notice

#: Seconds; half of the promised time, leaving the rest for a slow response from the database.
MAX_AGE = 0.5
#: Seconds between two writes of one key's last_used_at by one process: a minute, plus the time that a write may take,
#: so that the second one is not slightly too early.
USED_EVERY = 62.0
#: Number of keys whose last write is remembered; beyond that all are forgotten, which costs one extra write each.
CAPACITY = 100_000
#: Networks remembered per key, and how many new ones are reported within an hour.
NETWORKS, TOLD = 20, 3
#: Seconds for which the list of all keys is reused while somebody is guessing keys; a new key may take that long to
#: work.
EXISTING_AGE = 5.0

# Eight bytes of each are enough to recognize a guess, and a hundred thousand keys make one value of 800 kB.
EXISTING = "SELECT string_agg(substr(secret_hash, 1, 8), ''::bytea) FROM api_keys WHERE status <> 'revoked'"

# Two processes may write the same keys at once: rows are locked in the order of their ids, and a row that the other
# process is writing needs no second write. A use in times to come is from before the clock was set back. Returns the
# keys that were used from a new network; a key's first network is not reported. One that cannot be reported, because
# others just were, is not remembered either, and so is reported with its next use after the hour.
TOUCH = f"""
WITH held AS MATERIALIZED (
    SELECT key.organization_id, key.id, key.networks, item.address, item.operation, item.network,
           NOT item.network = ANY (key.networks)
           AND (SELECT count(*) FROM notices known
                 WHERE known.organization_id = key.organization_id AND known.kind = 'key.network'
                   AND known.object = key.id::text AND {notices.IS_RECENT.format("$5::interval")}) < {TOLD} AS is_new
      FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS item (id, address, operation, network)
           CROSS JOIN LATERAL (
           SELECT organization_id, id, networks FROM api_keys
            WHERE id = item.id AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute'
                                    OR last_used_at > {clock.LATEST})
              FOR NO KEY UPDATE SKIP LOCKED) key
), touched AS (
    UPDATE api_keys key
       SET last_used_at = now(), last_used_from = held.address, last_used_for = held.operation,
           networks = CASE WHEN held.is_new THEN (ARRAY[held.network] || held.networks)[:{NETWORKS}]
                           ELSE held.networks END
      FROM held WHERE key.id = held.id
    RETURNING key.organization_id, key.id, key.name, key.mode, held.network,
              held.is_new AND cardinality(held.networks) > 0 AS is_told
)
SELECT organization_id, id, name, mode, network FROM touched WHERE is_told
"""


class Keyring:
    """One per process."""

    def __init__(self, pool: Pool, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._now = monotonic
        self._keys: LoadingCache[bytes, KeyOwner] = LoadingCache(self._load, max_age=MAX_AGE, indivisible=is_down)
        self._existing: LoadingCache[str, frozenset[int]] = LoadingCache(self._list, max_age=EXISTING_AGE)
        self._touched: dict[UUID, float] = {}
        self._touching: Batcher[tuple[UUID, str, str], None] = Batcher(self._touch, indivisible=is_down)

    async def authenticate(self, secret: str, address: str, *, operation: str = "", is_guess: bool = False) -> Actor:
        """The actor whose secret this is. Raises Unauthorized, or what the database raises.

        `address`, `operation`: where the key is used from, and the operation; the latest are kept. `is_guess`:
        `address` has sent too many invalid keys; an unknown key then costs no query.
        """
        digest = hash_secret(secret)
        fresh, known = self._keys.peek(digest)
        if not fresh and is_well_formed(secret) and not (is_guess and await self._is_unknown(digest)):
            known = await self._keys.get(digest)
        if known is None or (known.networks and not _inside(address, known)):
            raise Unauthorized
        now = self._now()
        key_id = known.actor.key_id
        assert key_id is not None
        if now - self._touched.get(key_id, -USED_EVERY) >= USED_EVERY:
            if len(self._touched) >= CAPACITY:
                self._touched.clear()
            self._touched[key_id] = now
            self._touching.put((key_id, address, operation))
        return known.actor

    async def close(self) -> None:
        """Wait for pending writes."""
        await self._touching.drain()

    async def _is_unknown(self, digest: bytes) -> bool:
        """True if no key had this digest when all were last listed, at most EXISTING_AGE ago."""
        existing = await self._existing.get(EXISTING) or frozenset()
        return int.from_bytes(digest[:8], sys.byteorder) not in existing

    async def _list(self, names: Sequence[str]) -> dict[str, frozenset[int]]:
        digests = await self._pool.fetchval(EXISTING) or b""
        return dict.fromkeys(names, frozenset(memoryview(digests).cast("Q")))

    async def _load(self, digests: Sequence[bytes]) -> dict[bytes, KeyOwner]:
        async with self._pool.acquire() as conn:
            found = await authenticate_many(conn, digests)
        return {digest: known for digest, known in zip(digests, found, strict=True) if known is not None}

    async def _touch(self, used: list[tuple[UUID, str, str]]) -> list[None]:
        # In the order of their ids, in which rows are locked; one entry per key.
        places = {id: (address, operation) for id, address, operation in sorted(used)}
        async with self._pool.acquire() as conn, conn.transaction():
            rows = await conn.fetch(
                TOUCH,
                list(places),
                [address for address, _ in places.values()],
                [operation for _, operation in places.values()],
                [network_of(address) for address, _ in places.values()],
                notices.QUIET,
            )
            told = [
                Notice(
                    row["organization_id"],
                    "key.network",
                    str(row["id"]),
                    row["name"],
                    row["mode"],
                    {"network": row["network"]},
                )
                for row in rows
            ]
            await notices.record_many(conn, told, quiet=None)
        return [None] * len(used)


def network_of(address: str) -> str:
    """The network of an address, by which places are distinguished: IPv4 /24, IPv6 /48; "" if it is not an address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return str(ipaddress.ip_network((parsed, 24 if parsed.version == 4 else 48), strict=False))


def _inside(address: str, known: KeyOwner) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return any((mapped or parsed) in network for network in known.networks)
