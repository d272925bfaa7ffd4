"""Undoing an import: contacts that it created are deleted, those that it changed are restored.

The rule nobody may break: contacts changed since are left alone. Batches are undone in reverse order, each in
its own transaction, so that an undo that was killed is simply run again.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection, plan_by_key
from heliograph.base.errors import NotFound
from heliograph.contacts import records
from heliograph.queue import leases


class Import(msgspec.Struct, frozen=True):
    """An imported file of contacts."""

    id: UUID
    file: str
    started_at: datetime
    #: None: it was stopped, or is still running.
    finished_at: datetime | None
    rows: int
    created: int
    updated: int
    rejected: int
    undone_at: datetime | None


class Undone(msgspec.Struct):
    """The result for an import's contacts."""

    deleted: int = 0
    restored: int = 0
    #: Changed or deleted since, and left alone.
    kept: int = 0


_BEGUN = "kind = 'contacts' AND state NOT IN ('uploading', 'reading', 'checking', 'checked')"
LIST = f"""
SELECT id, file, started_at, finished_at, rows, created, updated, rejected, undone_at
  FROM contact_imports
 WHERE organization_id = $1 AND mode = $3 AND {_BEGUN} ORDER BY id DESC LIMIT $2
"""


async def list_imports(conn: Connection, actor: Actor, *, limit: int = 50) -> list[Import]:
    """The organization's contact imports that have begun, in the actor's mode, newest first."""
    return [Import(*row.values()) for row in await conn.fetch(LIST, actor.organization_id, limit, actor.mode)]


KNOWN = f"SELECT file FROM contact_imports WHERE organization_id = $1 AND id = $2 AND mode = $3 AND {_BEGUN}"
# Waits for the step that a worker has begun, and lets it begin no other. A command's batch that is not committed yet
# fails.
STOP = "UPDATE contact_imports SET state = 'stopped' WHERE organization_id = $1 AND id = $2 AND state = 'running'"
NEXT = """
SELECT batch, written_at, created FROM contact_import_batches
 WHERE organization_id = $1 AND import_id = $2 ORDER BY batch DESC LIMIT 1 FOR UPDATE
"""
# In the order of numbers, like all code that writes several contacts. A statement of its own: one that has to wait for
# a contact that is being noted as written to locks it, but does not find it where it has moved. Each is looked up by
# its whole key: before there are statistics, the index in the order of numbers, with all contacts, looks better.
HELD = """
SELECT FROM (
       SELECT written.id
         FROM unnest($5::uuid[] || ARRAY(SELECT contact_id FROM contact_import_images
                                          WHERE organization_id = $1 AND import_id = $2 AND batch = $3)) AS written (id)
              CROSS JOIN LATERAL (
              SELECT phone FROM contacts WHERE organization_id = $1 AND mode = $4 AND id = written.id LIMIT 1) known
        ORDER BY known.phone) one
       CROSS JOIN LATERAL (
       SELECT FROM contacts WHERE organization_id = $1 AND mode = $4 AND id = one.id LIMIT 1 FOR UPDATE) held
"""
DELETE = f"""
WITH gone AS (
    DELETE FROM contacts
     WHERE ctid = ANY (ARRAY(
           SELECT place FROM unnest($2::uuid[]) AS made (id) CROSS JOIN LATERAL (
                  SELECT ctid AS place FROM contacts
                   WHERE organization_id = $1 AND mode = $4 AND id = made.id AND updated_at = $3 LIMIT 1) c))
    RETURNING id, mode, tags
), untagged AS ({records.untag("gone")})
SELECT count(*)::int FROM gone
"""
# Imports only add tags, so those that existed before still exist.
RESTORE = f"""
WITH changed AS MATERIALIZED (
    SELECT c.place, c.id, c.tags AS present, image.* FROM (
           SELECT contact_id, name, first_name, last_name, tags, updated_at FROM contact_import_images
            WHERE organization_id = $1 AND import_id = $2 AND batch = $3) image
      CROSS JOIN LATERAL (
           SELECT ctid AS place, id, tags FROM contacts
            WHERE organization_id = $1 AND mode = $5 AND id = image.contact_id AND updated_at = $4 LIMIT 1) c
), back AS (
    UPDATE contacts SET name = changed.name, first_name = changed.first_name, last_name = changed.last_name,
                        tags = changed.tags, updated_at = changed.updated_at
      FROM changed WHERE contacts.ctid = changed.place
    RETURNING contacts.id
), added AS (
    SELECT id, $5::text AS mode, ARRAY(SELECT tag FROM unnest(present) AS tag WHERE tag <> ALL (tags)) AS tags
      FROM changed
), untagged AS ({records.untag("added")}), forgotten AS (
    DELETE FROM contact_import_images WHERE organization_id = $1 AND import_id = $2 AND batch = $3 RETURNING 1
)
SELECT (SELECT count(*) FROM back)::int AS restored, (SELECT count(*) FROM forgotten)::int AS images
"""
DONE = "DELETE FROM contact_import_batches WHERE organization_id = $1 AND import_id = $2 AND batch = $3"
# Nothing, if another worker has finished it: one whose lease ended meanwhile, or the one that took over.
UNDONE = """
UPDATE contact_imports SET undone_at = now(), state = 'undone'
 WHERE organization_id = $1 AND id = $2 AND state <> 'undone' RETURNING id
"""


async def undo(conn: Connection, actor: Actor, *, id: UUID, others_wait: bool = False) -> Undone:
    """Undo a contact import in the actor's mode; `conn` plans by key from then on. Idempotent. Raises NotFound.

    `others_wait`: for their turn. Raises LockNotAvailableError then, if a contact stays locked.
    """
    await plan_by_key(conn)
    done = Undone()
    place = (actor.organization_id, id)
    file = await conn.fetchval(KNOWN, *place, actor.mode)
    if file is None:
        raise NotFound("There is no such import.", resource="import", id=str(id))
    await conn.execute(STOP, *place)
    while True:
        async with conn.transaction():
            if others_wait:
                await conn.execute(leases.PATIENCE)
            batch = await conn.fetchrow(NEXT, *place)
            if batch is None:
                break
            at = batch["written_at"]
            await conn.execute(HELD, *place, batch["batch"], actor.mode, batch["created"])
            deleted = await conn.fetchval(DELETE, actor.organization_id, batch["created"], at, actor.mode)
            changed = await conn.fetchrow(RESTORE, *place, batch["batch"], at, actor.mode)
            assert changed is not None
            await conn.execute(DONE, *place, batch["batch"])
        done.deleted += deleted
        done.restored += changed["restored"]
        done.kept += len(batch["created"]) - deleted + changed["images"] - changed["restored"]
    async with conn.transaction():
        if await conn.fetchval(UNDONE, *place):
            await audit.record(conn, actor, "contacts.import_undone", object_id=id, name=file, after=done)
    return done
