"""Idempotency of mutations: the same key and payload give one outcome, stored and replayed byte for byte.

Claiming the key, running the operation and storing its outcome are one transaction, so a crash leaves either all of it
or nothing, and a refused mutation frees its key. A duplicate that arrives in the meantime waits for the first one's
row. (Sends keep the same promise in `sending/intake.py`, by the batch.)
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg
import msgspec

from heliograph.accounts.requests import IdempotencyConflict, IdempotencyInProgress
from heliograph.base.actor import Actor
from heliograph.base.crypto import Key, Unsealable, derive_key, seal, unseal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Unavailable
from heliograph.base.ids import uuid_of
from heliograph.base.process.settings import Settings

#: The format of a key: 1 to 255 printable ASCII characters.
MAX_LENGTH = 255

_encoder = msgspec.json.Encoder(order="deterministic")


def seal_key(settings: Settings) -> Key:
    """The key that stored responses are sealed under if they contain a secret."""
    return derive_key(settings.secret_keys, "stored answers")


def context(key_hash: UUID) -> str:
    """The context of a stored response's seal."""
    return f"idempotency/{key_hash}"


class Outcome(msgspec.Struct, frozen=True):
    """The response to a mutation, new or replayed."""

    status: int
    body: bytes
    replayed: bool


def checked_key(value: bytes) -> str:
    """The key in a header. Raises Invalid."""
    if not 1 <= len(value) <= MAX_LENGTH or not value.isascii() or not (key := value.decode("ascii")).isprintable():
        why = "`Idempotency-Key` must be given once, as 1 to 255 printable ASCII characters"
        raise Invalid(("Idempotency-Key", "format", why))
    return key


def key_hash(mode: str, method: str, path: str, key: str) -> UUID:
    """The hash under which a key is stored within its organization: the first 16 bytes of SHA-256 over the API key's
    mode, method, path and key."""
    return uuid_of(hashlib.sha256(f"{mode} {method} {path}\n{key}".encode()).digest()[:16])


def request_hash(body: object) -> bytes:
    """SHA-256 of a validated body in canonical form; spelling, order and spaces of the original do not matter."""
    return hashlib.sha256(_encoder.encode(body)).digest()


LOCK_TIMEOUT = "SELECT set_config('lock_timeout', $1, true)"

# A duplicate's INSERT waits here until the first transaction ends. An expired key is taken over.
CLAIM = """
INSERT INTO idempotency AS known (organization_id, key_hash, request_hash, status, body, created_at)
VALUES ($1, $2, $3, 200, '', now())
    ON CONFLICT (organization_id, key_hash) DO UPDATE
   SET request_hash = excluded.request_hash, status = 200, body = '', created_at = excluded.created_at
 WHERE known.created_at <= now() - make_interval(hours => $4)
RETURNING true
"""

FIND = "SELECT request_hash, status, body FROM idempotency WHERE organization_id = $1 AND key_hash = $2"

STORE = "UPDATE idempotency SET status = $3, body = $4 WHERE organization_id = $1 AND key_hash = $2"


async def once(
    conn: Connection,
    actor: Actor,
    *,
    key: UUID,
    request: bytes,
    hours: int,
    wait_seconds: float,
    run: Callable[[], Awaitable[tuple[int, bytes]]],
    seal_key: Key | None = None,
) -> Outcome:
    """Run `run` once for this key and payload, in a transaction on `conn` that also stores what it returns.

    `key`, `request`: from `key_hash` and `request_hash`. `hours`: time to live. A duplicate waits up to `wait_seconds`.
    `seal_key` encrypts the stored response if it contains a secret. Raises IdempotencyConflict, IdempotencyInProgress,
    Unavailable, and what `run` raises; then nothing is stored.
    """
    async with conn.transaction():
        await conn.fetchval(LOCK_TIMEOUT, f"{int(wait_seconds * 1000)}ms")
        try:
            claimed = await conn.fetchval(CLAIM, actor.organization_id, key, request, hours)
        except asyncpg.LockNotAvailableError as error:
            # Waiting for a duplicate happens in the index of keys, and the error says so. Otherwise somebody has locked
            # the whole table.
            raise (IdempotencyInProgress if getattr(error, "context", None) else Unavailable)() from None
        if not claimed:
            known = await conn.fetchrow(FIND, actor.organization_id, key)
            if known is None:  # it expired at this very moment
                raise IdempotencyInProgress
            if known["request_hash"] != request:
                raise IdempotencyConflict
            return Outcome(known["status"], _opened(seal_key, key, known["body"]), True)
        await conn.fetchval(LOCK_TIMEOUT, "0")
        status, body = await run()
        await conn.execute(STORE, actor.organization_id, key, status, _closed(seal_key, key, body))
    return Outcome(status, body, False)


def _closed(seal_key: Key | None, key: UUID, body: bytes) -> str:
    return body.decode() if seal_key is None else base64.b64encode(seal(seal_key, body, context(key))).decode()


def _opened(seal_key: Key | None, key: UUID, body: str) -> bytes:
    if seal_key is None:
        return body.encode()
    try:
        return unseal(seal_key, base64.b64decode(body), context(key))
    except Unsealable:
        raise IdempotencyConflict(
            "This Idempotency-Key was used earlier. The stored response contains a secret and can no "
            "longer be replayed: the service's secret key has changed since."
        ) from None
