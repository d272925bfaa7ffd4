"""Dead letters: items of callbacks that could not be parsed or applied, kept encrypted for an operator to inspect and
retry.

The rule nobody may break: what users wrote stays sealed, and a reason never quotes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
import structlog

from heliograph.audit import recording as audit
from heliograph.base import crypto
from heliograph.base.actor import SYSTEM, Who
from heliograph.base.crypto import Key
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.suppliers.whatsapp_cloud.callbacks.items import (
    AccountItem,
    AlarmItem,
    CapabilityItem,
    MessageItem,
    NumberItem,
    StatusItem,
    TemplateItem,
)

log = structlog.get_logger()

Readable = StatusItem | MessageItem | TemplateItem | NumberItem | CapabilityItem | AccountItem | AlarmItem
#: What could be parsed can be retried.
READABLE: dict[str, type[Readable]] = {
    kind.__name__: kind
    for kind in (StatusItem, MessageItem, TemplateItem, NumberItem, CapabilityItem, AccountItem, AlarmItem)
}


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """An item to be stored as a dead letter. `raw`: its bytes, or what `raw_of` makes of it."""

    app: UUID
    #: When its callback came.
    at: datetime
    reason: str
    raw: bytes


class StoredDeadLetter(msgspec.Struct, frozen=True):
    """A stored dead letter."""

    id: UUID
    app: UUID
    received_at: datetime
    reason: str
    raw: bytes

    @property
    def item(self) -> Readable | None:
        """The item, if it could be parsed."""
        try:
            ((name, value),) = msgspec.json.decode(self.raw, type=dict[str, msgspec.Raw]).items()
            return msgspec.json.decode(value, type=READABLE[name])
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, KeyError):
            return None


def raw_of(item: Readable) -> bytes:
    """An item as it is stored."""
    return msgspec.json.encode({type(item).__name__: item})


STORE = """
INSERT INTO whatsapp_dead_letters (id, app, body, reason, received_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::text[], $5::timestamptz[])
"""


async def store(conn: Connection, key: Key, letters: Sequence[DeadLetter]) -> None:
    """Store them. `key`: of `accounts.seal_key`."""
    if not letters:
        return
    ids = [uuid7() for _ in letters]
    await conn.execute(
        STORE,
        ids,
        [one.app for one in letters],
        [crypto.seal(key, one.raw, context(id)) for id, one in zip(ids, letters, strict=True)],
        [one.reason for one in letters],
        [one.at for one in letters],
    )
    log.error("dead letters stored", count=len(letters), reasons=sorted({one.reason for one in letters})[:5])


LIST = "SELECT id, app, received_at, reason, body FROM whatsapp_dead_letters ORDER BY id DESC LIMIT $1"


async def list_all(conn: Connection, key: Key, *, limit: int) -> list[StoredDeadLetter]:
    """Dead letters, newest first. Raises Unsealable."""
    return [_opened(key, *row) for row in await conn.fetch(LIST, limit)]


TAKE = (
    "SELECT id, app, received_at, reason, body FROM whatsapp_dead_letters ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED"
)
DELETE = "DELETE FROM whatsapp_dead_letters WHERE id = ANY ($1)"
DROP = "DELETE FROM whatsapp_dead_letters WHERE id = $1 RETURNING reason, received_at"


async def drop(conn: Connection, *, id: UUID, by: Who = SYSTEM) -> None:
    """Give one up: nobody will want it. Raises NotFound."""
    async with conn.transaction():
        row = await conn.fetchrow(DROP, id)
        if row is None:
            raise NotFound("There is no such item.", id=str(id))
        await audit.record(conn, by, "callback.dropped", object_id=id, before=dict(row))


async def take(conn: Connection, key: Key, *, limit: int) -> list[StoredDeadLetter]:
    """The oldest, locked until the end of the caller's transaction. Raises Unsealable."""
    return [_opened(key, *row) for row in await conn.fetch(TAKE, limit)]


async def delete(conn: Connection, ids: Sequence[UUID]) -> None:
    """Delete dead letters that have been dealt with."""
    await conn.execute(DELETE, ids)


async def count(conn: Connection) -> int:
    """How many there are."""
    number: int = await conn.fetchval("SELECT count(*) FROM whatsapp_dead_letters")
    return number


def context(id: UUID) -> str:
    """The context of a dead letter's seal."""
    return f"whatsapp_dead_letters/{id}"


def _opened(key: Key, id: UUID, app: UUID, received_at: datetime, reason: str, body: bytes) -> StoredDeadLetter:
    return StoredDeadLetter(id, app, received_at, reason, crypto.unseal(key, body, context(id)))
