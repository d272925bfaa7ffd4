"""Items of callbacks that could not be read or applied: put aside, sealed, for an operator to look at and try again.

The rule nobody may break: what users wrote stays sealed, and a reason never quotes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
import structlog

from heliograph.base import crypto
from heliograph.base.database.pool import Connection
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
#: What could be read can be tried again.
READABLE: dict[str, type[Readable]] = {
    kind.__name__: kind
    for kind in (StatusItem, MessageItem, TemplateItem, NumberItem, CapabilityItem, AccountItem, AlarmItem)
}


class Reject(msgspec.Struct, frozen=True, gc=False):
    """An item that is put aside. `raw`: its bytes, or what `raw_of` makes of it."""

    app: UUID
    #: When its callback came.
    at: datetime
    reason: str
    raw: bytes


class Rejected(msgspec.Struct, frozen=True):
    """One that was."""

    id: UUID
    app: UUID
    received_at: datetime
    reason: str
    raw: bytes

    @property
    def item(self) -> Readable | None:
        """The item, if it could be read."""
        try:
            ((name, value),) = msgspec.json.decode(self.raw, type=dict[str, msgspec.Raw]).items()
            return msgspec.json.decode(value, type=READABLE[name])
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, KeyError):
            return None


def raw_of(item: Readable) -> bytes:
    """An item as it is kept."""
    return msgspec.json.encode({type(item).__name__: item})


PUT_ASIDE = """
INSERT INTO whatsapp_rejects (id, app, body, reason, received_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::text[], $5::timestamptz[])
"""


async def put_aside(conn: Connection, key: bytes, rejects: Sequence[Reject]) -> None:
    """Keep them. `key`: of `accounts.seal_key`."""
    if not rejects:
        return
    ids = [uuid7() for _ in rejects]
    await conn.execute(
        PUT_ASIDE,
        ids,
        [one.app for one in rejects],
        [crypto.seal(key, one.raw, context(id)) for id, one in zip(ids, rejects, strict=True)],
        [one.reason for one in rejects],
        [one.at for one in rejects],
    )
    log.error("callback items set aside", count=len(rejects), reasons=sorted({one.reason for one in rejects})[:5])


LIST = "SELECT id, app, received_at, reason, body FROM whatsapp_rejects ORDER BY id DESC LIMIT $1"


async def list_all(conn: Connection, key: bytes, *, limit: int) -> list[Rejected]:
    """What was put aside, newest first. Raises Unsealable."""
    return [_opened(key, *row) for row in await conn.fetch(LIST, limit)]


TAKE = "SELECT id, app, received_at, reason, body FROM whatsapp_rejects ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED"
DELETE = "DELETE FROM whatsapp_rejects WHERE id = ANY ($1)"


async def take(conn: Connection, key: bytes, *, limit: int) -> list[Rejected]:
    """The oldest, locked until the end of the caller's transaction. Raises Unsealable."""
    return [_opened(key, *row) for row in await conn.fetch(TAKE, limit)]


async def delete(conn: Connection, ids: Sequence[UUID]) -> None:
    """They are dealt with."""
    await conn.execute(DELETE, ids)


async def count(conn: Connection) -> int:
    """How many there are."""
    number: int = await conn.fetchval("SELECT count(*) FROM whatsapp_rejects")
    return number


def context(id: UUID) -> str:
    """The context of a rejected item's seal."""
    return f"whatsapp_rejects/{id}"


def _opened(key: bytes, id: UUID, app: UUID, received_at: datetime, reason: str, body: bytes) -> Rejected:
    return Rejected(id, app, received_at, reason, crypto.unseal(key, body, context(id)))
