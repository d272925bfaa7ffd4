"""Storing messages from handsets: exactly as received, before the supplier is answered. `inbox.py` processes them.

The rule nobody may break: a message that was acknowledged is stored, octet for octet, whatever organization it turns
out to belong to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Actor, Principal
from heliograph.base.database import bounded_scan
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.base.database.text import storable
from heliograph.base.ids import uuid7
from heliograph.sealing import text_keys
from heliograph.sending.listing import MessagePage
from heliograph.suppliers.contract import Inbound

STORE = """
INSERT INTO inbound_messages (id, supplier_id, sender, recipient, form, body, raw, concatenation, received_at,
                              sender_ton, recipient_ton, key, acknowledged, asked)
SELECT id, $1, sender, recipient, form, body, raw,
       CASE WHEN total > 0 THEN ARRAY[reference, total, number] END, $2, sender_ton, recipient_ton,
       nullif(key, ''), key <> '', nullif(asked, '')
  FROM unnest($3::uuid[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::bytea[], $9::integer[],
              $10::integer[], $11::integer[], $12::smallint[], $13::smallint[], $14::text[], $15::text[])
       AS item (id, sender, recipient, form, body, raw, reference, total, number, sender_ton, recipient_ton, key, asked)
ON CONFLICT (supplier_id, key) WHERE key IS NOT NULL DO NOTHING
"""


async def store(conn: Connection, supplier_id: UUID, received: Sequence[Inbound]) -> list[UUID]:
    """Store inbound messages of one supplier; returns their ids. A repetition is not stored again."""
    none = (0, 0, 0)
    ids = [uuid7() for _ in received]
    await conn.execute(
        STORE,
        supplier_id,
        now(),
        ids,
        [storable(one.sender) for one in received],
        [storable(one.recipient) for one in received],
        [one.form for one in received],
        [one.body if one.text is None else one.text.encode("utf-8", "replace") for one in received],
        [one.raw for one in received],
        [(one.concatenation or none)[0] for one in received],
        [(one.concatenation or none)[1] for one in received],
        [(one.concatenation or none)[2] for one in received],
        [one.sender_ton for one in received],
        [one.recipient_ton for one in received],
        [_key(one) for one in received],
        [one.asked for one in received],
    )
    return ids


def _key(one: Inbound) -> str:
    """What a repetition has in common with the first; empty: the supplier gave no id. Some suppliers count from 1 again
    every day, or give all parts of a long text one id, so an id alone does not make a message a repetition. The text is
    left out: a digest of it would outlive its erasure."""
    if not one.key:
        return ""
    place = repr((one.key, one.sender, one.recipient, one.concatenation))
    return hashlib.blake2b(place.encode(), digest_size=16).hexdigest()


# In the order in which `inbox.py` locks them.
ACKNOWLEDGED = """
WITH held AS MATERIALIZED (SELECT id FROM inbound_messages WHERE id = ANY ($1) ORDER BY id FOR UPDATE)
UPDATE inbound_messages SET acknowledged = true WHERE id = ANY (ARRAY(SELECT id FROM held))
"""


async def acknowledged(conn: Connection, ids: Sequence[UUID]) -> None:
    """Record that the supplier got our answer for these: an identical message is then a new one, not a repetition."""
    await conn.execute(ACKNOWLEDGED, ids)


class Listed(msgspec.Struct, frozen=True):
    """A message from a handset as operators see it: assembled, or as received if it has no organization."""

    id: UUID
    received_at: datetime
    organization_id: UUID | None
    supplier: str | None
    sender: str
    recipient: str
    segments: int
    missing: int
    keyword: str | None
    #: None if it was erased or is not text.
    text: str | None


RECEIVED = """
SELECT m.id, m.received_at, m.organization_id, s.name AS supplier, m.sender, m.recipient, m.segments, m.missing,
       m.keyword, m.body AS text
  FROM (SELECT * FROM received_messages WHERE organization_id = $1 ORDER BY id DESC LIMIT $2) m
  LEFT JOIN LATERAL (SELECT name FROM suppliers WHERE id = m.supplier_id) s ON true
 ORDER BY m.id DESC
"""
UNASSIGNED = """
SELECT m.id, m.received_at, NULL::uuid AS organization_id, s.name AS supplier, m.sender, m.recipient, 1 AS segments,
       0 AS missing, NULL::text AS keyword, NULL::text AS text
  FROM (SELECT * FROM inbound_messages WHERE state = 'unassigned' ORDER BY id DESC LIMIT $1) m
  LEFT JOIN LATERAL (SELECT name FROM suppliers WHERE id = m.supplier_id) s ON true
 ORDER BY m.id DESC
"""


async def received(
    conn: Connection, *, organization_id: UUID, limit: int, with_text: bool = True, by: Principal = SYSTEM
) -> list[Listed]:
    """An organization's received messages, newest first. Showing texts is recorded in the audit log."""
    if with_text:
        await audit.record(
            conn,
            by,
            "message.revealed",
            object_id=organization_id,
            organization_id=organization_id,
            after={"received": limit},
        )
    found = [Listed(*row.values()) for row in await conn.fetch(RECEIVED, organization_id, limit)]
    texts = await text_keys.opened_of(conn, organization_id, "received_messages", [(one.id, one.text) for one in found])
    return [msgspec.structs.replace(one, text=texts[one.id]) for one in found]


async def unassigned(conn: Connection, *, limit: int) -> list[Listed]:
    """Messages that belong to no organization, or to several, part by part, newest first."""
    return [Listed(*row.values()) for row in await conn.fetch(UNASSIGNED, limit)]


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message from a handset as its organization sees it."""

    id: UUID
    sender: str
    recipient: str
    sender_id: UUID
    segments: int
    missing: int
    keyword: str | None
    #: None: no text, or erased.
    body: str | None
    received_at: datetime


PAGE = bounded_scan.statement(
    "received_messages",
    ", ".join(Received.__struct_fields__),
    fits="""
           ($6::text[] IS NULL OR sender = ANY ($6)) AND ($7::uuid IS NULL OR sender_id = $7)
           AND ($8::text IS NULL OR keyword IS NOT DISTINCT FROM $8)
           AND ($9::timestamptz IS NULL OR received_at >= $9)
           AND ($10::timestamptz IS NULL OR received_at < $10)""",
)


async def list_page(
    conn: Connection,
    actor: Actor,
    *,
    senders: Collection[str] | None = None,
    sender_id: UUID | None = None,
    keyword: str | None = None,
    date_from: datetime | None = None,
    date_to: datetime | None = None,
    after: UUID | None = None,
    limit: int = 50,
    look: int = bounded_scan.LOOK,
) -> MessagePage[Received]:
    """Messages that the organization received, newest first, older than `after`: up to `limit` + 1, so that the caller
    knows whether there are more. `senders`: the handset in any of these forms, E.164. A test key sees none: handsets
    write to live numbers."""
    if "live" not in actor.modes:
        return MessagePage([], None)
    bounds = bounded_scan.bounds(after, date_from=date_from, date_to=date_to)
    among = None if senders is None else list(senders)
    rows = await conn.fetch(
        PAGE, actor.organization_id, *bounds, limit + 1, look, among, sender_id, keyword, date_from, date_to
    )
    found, seen = bounded_scan.judged(rows, limit=limit, look=look)
    listed = [Received(**{name: row[name] for name in Received.__struct_fields__}) for row in found]
    return MessagePage(await _opened(conn, actor, listed), seen)


BY_IDS = f"""
SELECT {", ".join(Received.__struct_fields__)} FROM received_messages WHERE organization_id = $1 AND id = ANY ($2)
"""


async def by_ids(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> list[Received]:
    """The messages with these ids, as far as they exist."""
    rows = await conn.fetch(BY_IDS, actor.organization_id, list(ids))
    return await _opened(conn, actor, [Received(*row.values()) for row in rows])


async def _opened(conn: Connection, actor: Actor, messages: list[Received]) -> list[Received]:
    stored = [(one.id, one.body) for one in messages]
    texts = await text_keys.opened_of(conn, actor.organization_id, "received_messages", stored)
    return [msgspec.structs.replace(one, body=texts[one.id]) for one in messages]


STANDING = """
SELECT coalesce((SELECT extract(epoch FROM now() - due_at) FROM inbound_messages
                  WHERE due_at <= now() ORDER BY due_at LIMIT 1), 0)::float8,
       (SELECT count(*) FROM inbound_messages WHERE state = 'unassigned')
"""


async def standing(conn: Connection) -> tuple[float, int]:
    """Seconds for which the oldest message has been due, and the number of unassigned ones."""
    row = await conn.fetchrow(STANDING)
    assert row is not None
    return row[0], row[1]


# After $1, so that those which turn out to be unassigned again meanwhile are not processed forever.
RETRY = """
WITH chosen AS MATERIALIZED (
    SELECT id FROM inbound_messages WHERE state = 'unassigned' AND id > $1 AND ($2::text IS NULL OR recipient = $2)
     ORDER BY id LIMIT $3 FOR UPDATE
)
UPDATE inbound_messages SET state = 'new', message_id = NULL, due_at = now()
 WHERE id = ANY (ARRAY(SELECT id FROM chosen)) RETURNING id
"""
#: Messages per transaction: a hundred thousand at once took longer than a statement may.
BATCH = 10_000


async def retry(conn: Connection, *, recipient: str | None = None) -> int:
    """Process unassigned messages again, now that their number has an owner, in steps; returns the number of rows.
    `recipient`: only those to this number, in the supplier's form. If it is interrupted, it can be repeated."""
    count, after, done = 0, UUID(int=0), BATCH
    while done == BATCH:
        ids = [row["id"] for row in await conn.fetch(RETRY, after, recipient, BATCH)]
        done = len(ids)
        count, after = count + done, max(ids, default=after)
    return count
