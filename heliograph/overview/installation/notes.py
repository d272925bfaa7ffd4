"""Operators' notes about an organization, for each other.

The rule nobody may break: an organization never reads them. They appear in none of its pages, responses or exports, and
their entries in the audit log belong to the installation.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.database.text import storable
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7

#: Maximum characters per note, and notes per organization.
LONGEST, MOST = 2_000, 200


class Note(msgspec.Struct, frozen=True):
    """One of them."""

    id: UUID
    #: The author's name at that time.
    author: str
    body: str
    created_at: datetime


LIST = """
SELECT id, author, body, created_at FROM organization_notes WHERE organization_id = $1 ORDER BY id DESC LIMIT $2
"""


async def listed(conn: Connection, *, organization_id: UUID, limit: int = MOST) -> list[Note]:
    """The notes on an organization, newest first."""
    return [Note(*row.values()) for row in await conn.fetch(LIST, organization_id, limit)]


# The row lock comes first: two operators must not both write the last note that there is room for.
LOCK_ORGANIZATION = "SELECT name FROM organizations WHERE id = $1 FOR NO KEY UPDATE"
COUNT = "SELECT count(*) FROM organization_notes WHERE organization_id = $1"
INSERT = """
INSERT INTO organization_notes (organization_id, id, author, body, created_at) VALUES ($1, $2, $3, $4, now())
RETURNING id, author, body, created_at
"""


async def add(conn: Connection, *, organization_id: UUID, body: str, by: Principal = SYSTEM) -> Note:
    """Write a note. Raises NotFound, Invalid (`body`)."""
    body = storable(body.replace("\r\n", "\n").strip(), LONGEST + 1)
    if not 1 <= len(body) <= LONGEST:
        raise Invalid(("body", "length", "A note must have 1 to 2,000 characters."))
    async with conn.transaction():
        name = await conn.fetchval(LOCK_ORGANIZATION, organization_id)
        if name is None:
            raise NotFound(resource="organization", id=str(organization_id))
        if await conn.fetchval(COUNT, organization_id) >= MOST:
            raise Invalid(("body", "several", "There are 200 notes already. Remove one that is out of date."))
        row = await conn.fetchrow(INSERT, organization_id, uuid7(), by.name or by.kind, body)
        assert row is not None
        made = Note(*row.values())
        after = {"organization": name}
        await audit.record(conn, by, "organization.noted", object_id=made.id, name=name, after=after)
    return made


REMOVE = """
DELETE FROM organization_notes note USING organizations o
 WHERE note.organization_id = $1 AND note.id = $2 AND o.id = note.organization_id RETURNING o.name
"""


async def remove(conn: Connection, *, organization_id: UUID, id: UUID, by: Principal = SYSTEM) -> None:
    """Remove one. Idempotent."""
    async with conn.transaction():
        name = await conn.fetchval(REMOVE, organization_id, id)
        if name is not None:
            before = {"organization": name}
            await audit.record(conn, by, "organization.noted", object_id=id, name=name, before=before)
