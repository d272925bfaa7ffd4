"""Receiving suppliers' callbacks: verified, sealed, stored, and only then answered. `processing.py` reads them.

Callbacks of one account that are committed together share a row and a place in the queue: with one row each, inserting,
locking and deleting them cost the database as much as everything else that it does for a message.

The rule nobody may break: nothing is answered with 200 before it is committed, and nothing is stored unless it came to
the account's own address and, if its supplier signs, with a valid signature. A replaced secret signs for another day.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NoReturn
from uuid import UUID

import msgspec
import structlog

from heliograph.base import crypto
from heliograph.base.crypto import Key
from heliograph.base.database.batching import Batcher, HeldConnection
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.errors import CallbackNotGenuine, NotFound
from heliograph.base.ids import uuid7
from heliograph.base.loading_cache import LoadingCache
from heliograph.base.process.crash import crash_point
from heliograph.base.process.settings import Settings
from heliograph.sms.callbacks import addresses
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.suppliers import kinds
from heliograph.suppliers.http.kind import Callback, HttpKind, HttpSettings, Reply, Secrets, secrets_of

log = structlog.get_logger()

#: The kind of a stored callback's queue row; its line is the supplier.
KIND = "sms_in"
#: A callback belongs to no organization until it is read.
NOBODY = UUID(int=0)
#: Maximum number of callbacks per row, and roughly of their octets: callbacks read together are locked together.
MOST, OCTETS = 64, 256 * 1024
#: Seconds between two log lines about callbacks of one account that are refused for the same reason.
SAY_EVERY = 60.0


class NotTheSupplier(CallbackNotGenuine):
    """This request does not come from the supplier that this address was given to."""


class CallbackAccount(msgspec.Struct, frozen=True):
    """An account that calls back."""

    id: UUID
    kind: HttpKind
    settings: HttpSettings
    #: The current ones and, for a while, those that they replaced.
    secrets: tuple[Secrets, ...]
    #: Headers named in its settings, in lower case.
    headers: frozenset[str]


class Content(msgspec.Struct, frozen=True, array_like=True):
    """A callback, and the last part of the path that it was sent to."""

    what: str
    callback: Callback


class ReceivedCallback(msgspec.Struct, frozen=True):
    """A callback to be stored, and its account."""

    supplier_id: UUID
    content: Content


def context(id: UUID) -> str:
    """The context with which a callback is sealed."""
    return f"supplier_callbacks/{id}"


# One statement, so that callbacks and their place in the queue take one commit and one round trip.
STORE = """
WITH item AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bytea[]) AS item (id, supplier_id, body)
), stored AS (
    INSERT INTO supplier_callbacks (id, supplier_id, body, received_at) SELECT id, supplier_id, body, now() FROM item
)
INSERT INTO queue (kind, line, organization_id, due_at, id)
SELECT $4, supplier_id, $5, now() + make_interval(secs => $6), id FROM item
"""


async def store(
    conn: Connection, key: Key, rows: Sequence[tuple[UUID, Sequence[Content]]], *, pause: float = 0
) -> None:
    """Store rows of callbacks, each with its account, to be read after `pause` seconds."""
    ids = [uuid7() for _ in rows]
    sealed = [
        crypto.seal(key, msgspec.msgpack.encode(contents), context(id))
        for id, (_, contents) in zip(ids, rows, strict=True)
    ]
    await conn.execute(STORE, ids, [supplier_id for supplier_id, _ in rows], sealed, KIND, NOBODY, pause)


def opened(key: Key, id: UUID, body: bytes) -> list[Content]:
    """The callbacks of a row. Raises crypto.Unsealable, and msgspec.DecodeError."""
    return msgspec.msgpack.decode(crypto.unseal(key, body, context(id)), type=list[Content])


def rows_of(items: Sequence[ReceivedCallback]) -> list[tuple[UUID, list[Content]]]:
    """Group callbacks into rows by account, in order."""
    rows: list[tuple[UUID, list[Content]]] = []
    begun: dict[UUID, tuple[list[Content], int]] = {}
    for one in items:
        size = len(one.content.callback.body) + len(one.content.callback.url)
        row, octets = begun.get(one.supplier_id, ([], 0))
        if not row or len(row) >= MOST or octets + size > OCTETS:
            row, octets = [], 0
            rows.append((one.supplier_id, row))
        row.append(one.content)
        begun[one.supplier_id] = row, octets + size
    return rows


class SupplierCallbacks:
    """Takes callbacks; one per process. All methods raise asyncpg's exceptions while the database is unavailable."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool = pool
        self._kept = HeldConnection(pool)
        self._token_key = addresses.token_key(settings)
        self._key = suppliers.seal_key(settings)
        #: The last valid secret part of each known account.
        self._tokens: dict[UUID, str] = {}
        self._known: LoadingCache[UUID, CallbackAccount] = LoadingCache(self._load, indivisible=is_down)
        self._batcher: Batcher[ReceivedCallback, None] = Batcher(self._commit, limit=256, indivisible=is_down)
        #: When a refusal was last logged, by account and reason: only existing accounts, so there are few.
        self._said: dict[tuple[UUID, str], float] = {}
        #: Set after each commit that put work into the queue; cleared by the task that wakes the workers.
        self.stored = asyncio.Event()

    async def account(self, supplier_id: UUID, token: str) -> CallbackAccount:
        """The account whose address this is. Raises NotFound."""
        # A caller that does not know the address causes no query. A token that was valid once stays valid, so that a
        # comparison suffices.
        right = self._tokens.get(supplier_id)
        is_known = right is not None and crypto.constant_time_equal(right, token)
        if not is_known and not addresses.is_token(self._token_key, supplier_id, token):
            raise NotFound("There is nothing at this path.", resource="path")
        known = await self._known.get(supplier_id)
        if known is None:
            raise NotFound("There is nothing at this path.", resource="path")
        self._tokens[supplier_id] = token
        return known

    async def take(self, known: CallbackAccount, what: str, callback: Callback, *, address: str) -> Reply:
        """Store one callback; returns its answer once it is committed. Raises NotTheSupplier."""
        if not known.settings.takes_from(address):
            self._refuse(known, "address", address)
        if not any(known.kind.is_genuine(known.settings, secrets, callback) for secrets in known.secrets):
            self._refuse(known, "signature", address)
        await self._batcher.put(ReceivedCallback(known.id, Content(what, callback)))
        return known.kind.reply(known.settings)

    async def drain(self) -> None:
        """Wait until every batch is committed."""
        await self._batcher.drain()
        await self._kept.close()

    def _refuse(self, known: CallbackAccount, reason: str, address: str) -> NoReturn:
        """Raises NotTheSupplier; operators find the reason in the log."""
        now = time.monotonic()
        if now - self._said.get((known.id, reason), -SAY_EVERY) >= SAY_EVERY:
            self._said[known.id, reason] = now
            log.warning("supplier's callback refused", supplier_id=str(known.id), reason=reason, address=address)
        raise NotTheSupplier

    async def _load(self, ids: Sequence[UUID]) -> dict[UUID, CallbackAccount]:
        async with self._pool.acquire() as conn:
            found = await routing.load(conn)
            old = await suppliers.old_secrets(conn, self._key, ids)
        known = [self._opened(one, old.get(one.id, ())) for one in found if one.id in ids]
        return {one.id: one for one in known if one is not None}

    def _opened(self, one: Supplier, old: Sequence[str]) -> CallbackAccount | None:
        kind = kinds.HTTP.get(one.kind)
        if kind is None:
            return None
        settings = kinds.settings_from(one.kind, one.settings)
        secrets = secrets_of(suppliers.open_secret(self._key, one))
        # Those without a password that there is now would let an empty one pass.
        replaced = [known for known in map(secrets_of, old) if secrets.keys() <= known.keys()]
        return CallbackAccount(one.id, kind, settings, (secrets, *replaced), kind.headers(settings))

    async def _commit(self, items: list[ReceivedCallback]) -> list[None]:
        crash_point("supplier_callback.before_commit")
        async with self._kept.use() as conn:
            await store(conn, self._key, rows_of(items))
        crash_point("supplier_callback.after_commit")
        self.stored.set()
        return [None] * len(items)
