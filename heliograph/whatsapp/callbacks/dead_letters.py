"""Dead letters: items of callbacks that could not be parsed or applied, kept encrypted for an operator to inspect and
retry.

Those of an organization that seals its texts are first encrypted under its key, so that discarding the key erases them
too. The rule nobody may break: users' texts stay sealed, and a reason never quotes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.audit import recording as audit
from heliograph.base import crypto
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.base.sentences import said
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import Item, Sealing
from heliograph.suppliers.whatsapp_cloud.callbacks.items import (
    AccountItem,
    AlarmItem,
    CallItem,
    CapabilityItem,
    MessageItem,
    NumberItem,
    StatusItem,
    TemplateItem,
)

log = structlog.get_logger()

Readable = StatusItem | MessageItem | CallItem | TemplateItem | NumberItem | CapabilityItem | AccountItem | AlarmItem
#: Items that could be parsed can be retried.
READABLE: dict[str, type[Readable]] = {
    kind.__name__: kind
    for kind in (StatusItem, MessageItem, CallItem, TemplateItem, NumberItem, CapabilityItem, AccountItem, AlarmItem)
}


#: Name of the timer that retries, and seconds between its steps.
TIMER, EVERY = "whatsapp dead letters", 10.0
#: Where a retry of messages to unknown numbers begins: above all ids. One of all begins below them.
NEWEST, OLDEST = UUID(int=2**128 - 1), UUID(int=0)
#: Where counting them stops: the checks count them every minute.
COUNTED = 10_000
#: Why a user's message or call waits: its account has no such number, or not yet.
UNKNOWN_NUMBER = said("unknown number")


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """An item to be stored as a dead letter. `raw`: its bytes, or the result of `raw_of`."""

    app: UUID
    #: When its callback arrived.
    at: datetime
    reason: str
    raw: bytes
    #: The organization it would belong to; None: unknown.
    organization_id: UUID | None = None


class StoredDeadLetter(msgspec.Struct, frozen=True):
    """A stored dead letter."""

    id: UUID
    app: UUID
    received_at: datetime
    reason: str
    #: Empty if it was sealed under a secret key that is not available here, or for its organization, whose key was
    #: discarded or is not available here.
    raw: bytes

    @property
    def item(self) -> Readable | None:
        """The item, if it could be parsed."""
        try:
            ((name, value),) = msgspec.json.decode(self.raw, type=dict[str, msgspec.Raw]).items()
            return msgspec.json.decode(value, type=READABLE[name])
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, KeyError, RecursionError):
            return None


class _Sealed(msgspec.Struct, tag="sealed", frozen=True):
    """Stored in a dead letter in place of its bytes."""

    organization_id: UUID
    text: str


_HEAD = b'{"type":"sealed",'


def raw_of(item: Readable) -> bytes:
    """An item in its stored form."""
    return msgspec.json.encode({type(item).__name__: item})


STORE = """
INSERT INTO whatsapp_dead_letters (id, app, body, reason, received_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::text[], $5::timestamptz[])
"""


async def store(conn: Connection, key: Key, letters: Sequence[DeadLetter]) -> None:
    """Store them. `key`: from `apps.seal_key`."""
    if not letters:
        return
    ids = [uuid7() for _ in letters]
    sealing = await Sealing.of(conn, {one.organization_id for one in letters if one.organization_id is not None})
    bodies = [_wrapped(sealing, id, one) for id, one in zip(ids, letters, strict=True)]
    await conn.execute(
        STORE,
        ids,
        [one.app for one in letters],
        [crypto.seal(key, body, context(id)) for id, body in zip(ids, bodies, strict=True)],
        [one.reason for one in letters],
        [one.at for one in letters],
    )
    log.error("dead letters stored", count=len(letters), reasons=sorted({one.reason for one in letters})[:5])


LIST = "SELECT id, app, received_at, reason, body FROM whatsapp_dead_letters WHERE id < $2 ORDER BY id DESC LIMIT $1"


async def list_all(conn: Connection, key: Key, *, limit: int, below: UUID = NEWEST) -> list[StoredDeadLetter]:
    """Dead letters below an id, newest first."""
    return await _opened(conn, key, await conn.fetch(LIST, limit, below))


GET = "SELECT id, app, received_at, reason, body FROM whatsapp_dead_letters WHERE id = $1"


async def get(conn: Connection, key: Key, *, id: UUID) -> StoredDeadLetter:
    """A dead letter by its id. Raises NotFound."""
    row = await conn.fetchrow(GET, id)
    if row is None:
        raise NotFound("There is no such item.", id=str(id))
    (found,) = await _opened(conn, key, [row])
    return found


EXISTS = "SELECT EXISTS (SELECT FROM whatsapp_dead_letters WHERE id = $1)"


async def demand(conn: Connection, *, id: UUID) -> None:
    """Raises NotFound if there is no such dead letter. Needs no key, unlike `get`."""
    if not await conn.fetchval(EXISTS, id):
        raise NotFound("There is no such item.", id=str(id))


TAKE = """
SELECT id, app, received_at, reason, body FROM whatsapp_dead_letters
 WHERE id > $3 AND ($2::uuid IS NULL OR id = $2) ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
"""
# The number that a message is for is sealed, and every sync of an account writes its numbers: so all of the app's are
# retried for a minute after each sync, until they expire. There may be hundreds of thousands, and thousands of numbers,
# so numbers are read once for all of them.
_SYNCED = """
SELECT a.app, max(n.changed_at) AS at
  FROM whatsapp_accounts a JOIN whatsapp_numbers n ON n.organization_id = a.organization_id AND n.account_id = a.id
 WHERE n.state = 'active' AND n.changed_at > now() - interval '1 minute' GROUP BY a.app
"""
#: An SQL condition: users' messages to numbers that were unknown may have an owner by now.
ANY_AWAITED = f"""
EXISTS (SELECT FROM whatsapp_dead_letters WHERE reason = '{UNKNOWN_NUMBER}')
    AND EXISTS (SELECT FROM ({_SYNCED}) synced
                 WHERE EXISTS (SELECT FROM whatsapp_dead_letters l
                                WHERE l.app = synced.app AND reason = '{UNKNOWN_NUMBER}' AND received_at < synced.at))
"""
# Newest first, page by page, since a number that stays unknown may get any number of messages.
TAKE_AWAITED = f"""
WITH synced AS MATERIALIZED ({_SYNCED})
SELECT id, app, received_at, reason, body FROM whatsapp_dead_letters l
 WHERE id < $2 AND reason = '{UNKNOWN_NUMBER}' AND received_at < (SELECT at FROM synced WHERE synced.app = l.app)
 ORDER BY id DESC LIMIT $1 FOR UPDATE OF l SKIP LOCKED
"""
DELETE = "DELETE FROM whatsapp_dead_letters WHERE id = ANY ($1)"
DROP = "DELETE FROM whatsapp_dead_letters WHERE id = $1 RETURNING reason, received_at"


async def drop(conn: Connection, *, id: UUID, by: Principal = SYSTEM) -> None:
    """Discard a dead letter, for an operator. Raises NotFound."""
    async with conn.transaction():
        row = await conn.fetchrow(DROP, id)
        if row is None:
            raise NotFound("There is no such item.", id=str(id))
        await audit.record(conn, by, "callback.dropped", object_id=id, before=dict(row))


async def take(
    conn: Connection, key: Key, *, limit: int, id: UUID | None = None, after: UUID = OLDEST
) -> list[StoredDeadLetter]:
    """The oldest ones after an id, or the one with an id, locked until the caller's transaction ends."""
    return await _opened(conn, key, await conn.fetch(TAKE, limit, id, after))


async def take_awaited(conn: Connection, key: Key, *, below: UUID, limit: int) -> list[StoredDeadLetter]:
    """The newest ones below an id that meet ANY_AWAITED, in ascending order of ids, locked like those of `take`."""
    rows = await conn.fetch(TAKE_AWAITED, limit, below)
    return await _opened(conn, key, rows[::-1])


async def delete(conn: Connection, ids: Sequence[UUID]) -> None:
    """Delete dead letters that are settled."""
    await conn.execute(DELETE, ids)


COUNT = "SELECT count(*) FROM (SELECT FROM whatsapp_dead_letters LIMIT $1) counted"


async def count(conn: Connection) -> int:
    """The number of dead letters; COUNTED + 1: more than COUNTED."""
    number: int = await conn.fetchval(COUNT, COUNTED + 1)
    return number


def context(id: UUID) -> str:
    """The context of a dead letter's seal."""
    return f"whatsapp_dead_letters/{id}"


def _wrapped(sealing: Sealing, id: UUID, one: DeadLetter) -> bytes:
    whose = one.organization_id
    if whose is None or not sealing.seals(whose) or sealing.is_locked(whose):
        # The signer of a callback can imitate our sealed form; a leading space makes it ordinary JSON.
        return b" " + one.raw if one.raw.startswith(_HEAD) else one.raw
    text = sealing.sealed(whose, "whatsapp_dead_letters", id, one.raw.decode())
    return msgspec.json.encode(_Sealed(whose, text))


async def _opened(conn: Connection, key: Key, rows: Sequence[asyncpg.Record]) -> list[StoredDeadLetter]:
    found: list[StoredDeadLetter] = []
    places, items, locked = [], [], 0
    for id, app, received_at, reason, body in rows:
        try:
            raw = crypto.unseal(key, body, context(id))
        except crypto.Unsealable:  # a worker with another key stored it; the others can be read
            raw, locked = b"", locked + 1
        if raw.startswith(_HEAD):
            wrapped = msgspec.json.decode(raw, type=_Sealed)
            places.append(len(found))
            items.append(Item(wrapped.organization_id, id, wrapped.text))
        found.append(StoredDeadLetter(id, app, received_at, reason, raw))
    if locked:
        log.error("dead letters cannot be decrypted", count=locked)
    for place, text in zip(places, await text_keys.opened(conn, "whatsapp_dead_letters", items), strict=True):
        found[place] = msgspec.structs.replace(found[place], raw=(text or "").encode())
    return found
