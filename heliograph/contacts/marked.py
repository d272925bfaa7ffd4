"""Bulk changes to selected contacts: tag, untag or delete them together, and undo it within an hour.

The rule nobody may break: an undo reverts only its own change. A contact that somebody has since created or tagged
again is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.contacts import records
from heliograph.contacts.records import MAX_TAGS
from heliograph.contacts.tags import HELD, LOCKED

#: Maximum contacts changed at once.
MOST = 200
#: How long a change can be undone.
UNDONE_FOR = timedelta(hours=1)


class Change(msgspec.Struct, frozen=True):
    """A change, and the number of contacts changed."""

    id: UUID
    #: "deleted", "tagged" or "untagged".
    what: str
    tag: str | None
    count: int
    #: The changed contacts, if known.
    ids: Sequence[UUID] = ()


ADD = f"""
WITH changed AS (
    UPDATE contacts SET tags = tags || $4::text, updated_at = $6
     WHERE {LOCKED} RETURNING id
), tagged AS (
    INSERT INTO contact_tags (organization_id, mode, tag, contact_id) SELECT $1, $2, $4, id FROM changed
        ON CONFLICT DO NOTHING
)
INSERT INTO contact_changes (organization_id, mode, change_id, contact_id, what, tag, changed_at)
SELECT $1, $2, $5, id, 'tagged', $4, now() FROM changed
"""
REMOVE = f"""
WITH changed AS (
    UPDATE contacts SET tags = array_remove(tags, $4::text), updated_at = $6
     WHERE {LOCKED} RETURNING id
), untagged AS (
    DELETE FROM contact_tags WHERE organization_id = $1 AND mode = $2 AND tag = $4 AND contact_id = ANY ($3)
)
INSERT INTO contact_changes (organization_id, mode, change_id, contact_id, what, tag, changed_at)
SELECT $1, $2, $5, id, 'untagged', $4, now() FROM changed
"""
DELETE = f"""
WITH gone AS (
    DELETE FROM contacts WHERE {LOCKED} RETURNING *
), untagged AS ({records.untag("gone")})
INSERT INTO contact_changes (organization_id, mode, change_id, contact_id, what, name, first_name, last_name, phone,
                             tags, notes, created_at, updated_at, written_at, written_id, delivered_at, changed_at)
SELECT $1, $2, $4, id, 'deleted', name, first_name, last_name, phone, tags,
       (SELECT notes FROM contact_notes
         WHERE organization_id = $1 AND mode = $2 AND contact_id = gone.id LIMIT 1),
       created_at, updated_at, written_at,
       (SELECT message_id FROM contact_last_messages
         WHERE organization_id = $1 AND mode = $2 AND contact_id = gone.id LIMIT 1),
       delivered_at, now()
  FROM gone
"""


async def add_tag(conn: Connection, actor: Actor, *, ids: Sequence[UUID], tag: str) -> Change:
    """Add a tag to contacts (in the form of `records.tag`); those that already have it, or the maximum number of tags,
    are unchanged. Runs in the caller's transaction. Raises Invalid."""
    held = await _held(conn, actor, ids)
    wanted = [row["id"] for row in held if tag not in row["tags"] and len(row["tags"]) < MAX_TAGS]
    change = Change(uuid7(), "tagged", tag, len(wanted), wanted)
    if wanted:
        await conn.execute(ADD, actor.organization_id, actor.mode, wanted, tag, change.id, clock.now())
        await _record(conn, actor, change, held, wanted)
    return change


async def remove_tag(conn: Connection, actor: Actor, *, ids: Sequence[UUID], tag: str) -> Change:
    """Remove a tag from contacts. Runs in the caller's transaction. Raises Invalid."""
    held = await _held(conn, actor, ids)
    wanted = [row["id"] for row in held if tag in row["tags"]]
    change = Change(uuid7(), "untagged", tag, len(wanted), wanted)
    if wanted:
        await conn.execute(REMOVE, actor.organization_id, actor.mode, wanted, tag, change.id, clock.now())
        await _record(conn, actor, change, held, wanted)
    return change


async def delete(conn: Connection, actor: Actor, *, ids: Sequence[UUID]) -> Change:
    """Delete contacts; opt-outs of their numbers remain. Runs in the caller's transaction. Raises Invalid."""
    held = await _held(conn, actor, ids)
    wanted = [row["id"] for row in held]
    change = Change(uuid7(), "deleted", None, len(wanted))
    if wanted:
        await conn.execute(DELETE, actor.organization_id, actor.mode, wanted, change.id)
        await _record(conn, actor, change, held, wanted)
    return change


FIND = """
SELECT what, tag, count(*)::int AS count FROM contact_changes
 WHERE organization_id = $1 AND mode = $2 AND change_id = $3 AND changed_at > now() - $4::interval
 GROUP BY what, tag
"""


async def find(conn: Connection, actor: Actor, *, id: UUID) -> Change | None:
    """A change that can still be undone; None: there is none."""
    row = await conn.fetchrow(FIND, actor.organization_id, actor.mode, id, UNDONE_FOR)
    return None if row is None else Change(id, row["what"], row["tag"], row["count"])


TAKEN = """
DELETE FROM contact_changes WHERE organization_id = $1 AND mode = $2 AND change_id = $3
RETURNING contact_id, what, tag, name, first_name, last_name, phone, tags, notes, created_at, written_at, written_id,
          delivered_at
"""
# A contact whose number has a new contact stays deleted.
RESTORE = """
WITH back AS (
    INSERT INTO contacts (organization_id, mode, id, name, first_name, last_name, phone, tags, created_at, updated_at,
                          written_at, delivered_at)
    SELECT $1, $2, one.id, one.name, one.first_name, one.last_name, one.phone, string_to_array(one.tags, E'\\x1f'),
           one.created_at, $11, one.written_at, one.delivered_at
      FROM unnest($3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::timestamptz[],
                  $12::timestamptz[], $13::timestamptz[])
           AS one (id, name, first_name, last_name, phone, tags, created_at, written_at, delivered_at)
        ON CONFLICT DO NOTHING
    RETURNING id, tags
), tagged AS (
    INSERT INTO contact_tags (organization_id, mode, tag, contact_id)
    SELECT $1, $2, tag, id FROM back, unnest(tags) AS tag ON CONFLICT DO NOTHING
), noted AS (
    INSERT INTO contact_notes (organization_id, mode, contact_id, notes)
    SELECT $1, $2, back.id, was.notes FROM back JOIN unnest($3::uuid[], $10::text[]) AS was (id, notes) USING (id)
     WHERE was.notes <> ''
), last AS (
    INSERT INTO contact_last_messages (organization_id, mode, contact_id, message_id)
    SELECT $1, $2, back.id, was.message_id
      FROM back JOIN unnest($3::uuid[], $14::uuid[]) AS was (id, message_id) USING (id)
     WHERE was.message_id IS NOT NULL
)
SELECT id FROM back
"""


async def undo(conn: Connection, actor: Actor, *, id: UUID) -> Change:
    """Undo a change; returns it, with the number of contacts restored. Runs in the caller's transaction. Raises
    NotFound if it was already undone, or is too old."""
    if await find(conn, actor, id=id) is None:
        raise NotFound("This can no longer be undone.", resource="change", id=str(id))
    rows = await conn.fetch(TAKEN, actor.organization_id, actor.mode, id)
    if not rows:
        raise NotFound("This can no longer be undone.", resource="change", id=str(id))
    what, tag = rows[0]["what"], rows[0]["tag"]
    ids = [row["contact_id"] for row in rows]
    if what == "deleted":
        return Change(id, what, None, await _restore(conn, actor, rows))
    again = await (remove_tag if what == "tagged" else add_tag)(conn, actor, ids=ids, tag=tag)
    # An undo is not a change that could be undone itself.
    await conn.execute(FORGET, actor.organization_id, actor.mode, again.id)
    return Change(id, what, tag, again.count)


FORGET = "DELETE FROM contact_changes WHERE organization_id = $1 AND mode = $2 AND change_id = $3"


async def _restore(conn: Connection, actor: Actor, rows: Sequence[asyncpg.Record]) -> int:
    listed = sorted(rows, key=lambda row: row["phone"])
    back = await conn.fetch(
        RESTORE,
        actor.organization_id,
        actor.mode,
        *([row[name] for row in listed] for name in ("contact_id", "name", "first_name", "last_name", "phone")),
        ["\x1f".join(row["tags"]) for row in listed],
        [row["created_at"] for row in listed],
        [row["notes"] or "" for row in listed],
        clock.now(),
        [row["written_at"] for row in listed],
        [row["delivered_at"] for row in listed],
        [row["written_id"] for row in listed],
    )
    came = {row["id"] for row in back}
    await audit.record_many(
        conn,
        actor.principal,
        [
            audit.Entry(
                action="contact.created",
                object_id=str(row["contact_id"]),
                organization_id=actor.organization_id,
                after={"phone": row["phone"], "tags": row["tags"], "restored": True},
            )
            for row in listed
            if row["contact_id"] in came
        ],
    )
    return len(came)


async def _held(conn: Connection, actor: Actor, ids: Sequence[UUID]) -> list[asyncpg.Record]:
    if not ids:
        raise Invalid(("ids", "required", "Mark at least one person."))
    if len(ids) > MOST:
        raise Invalid(("ids", "length", "Mark at most 200 people at once."))
    return list(await conn.fetch(HELD, actor.organization_id, actor.mode, list(ids)))


async def _record(
    conn: Connection, actor: Actor, change: Change, held: Sequence[asyncpg.Record], wanted: Sequence[UUID]
) -> None:
    """Record one entry per contact, since the log will be searched for the history of a single contact."""
    changed = set(wanted)
    entries = []
    for row in held:
        if row["id"] not in changed:
            continue
        before = {"phone": row["phone"], "tags": row["tags"]}
        if change.what == "deleted":
            entries.append(_entry(actor, "contact.deleted", row["id"], before, None))
        else:
            tags = [tag for tag in row["tags"] if tag != change.tag]
            after = {"phone": row["phone"], "tags": [*tags, change.tag] if change.what == "tagged" else tags}
            entries.append(_entry(actor, "contact.changed", row["id"], before, after))
    await audit.record_many(conn, actor.principal, entries)


def _entry(
    actor: Actor, action: str, id: UUID, before: dict[str, object], after: dict[str, object] | None
) -> audit.Entry:
    return audit.Entry(
        action=action, object_id=str(id), organization_id=actor.organization_id, before=before, after=after
    )
