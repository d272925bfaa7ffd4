"""An organization's notes about a contact, for its own people: never used in messages.

The rule nobody may break: notes are part of the contact. They are deleted with it, whoever deletes or erases it, and
the audit log records that they were changed, but never their text.
"""

from __future__ import annotations

from uuid import UUID

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.database.text import storable
from heliograph.base.errors import Invalid, NotFound

#: Maximum characters of notes.
LONGEST = 2_000

GET = """
SELECT coalesce((SELECT notes FROM contact_notes
                  WHERE organization_id = $1 AND mode = $2 AND contact_id = $3 LIMIT 1), '')
  FROM contacts WHERE organization_id = $1 AND mode = $2 AND id = $3
"""


async def get(conn: Connection, actor: Actor, *, id: UUID) -> str:
    """The notes on a contact; empty if there are none. Raises NotFound."""
    found: str | None = await conn.fetchval(GET, actor.organization_id, actor.mode, id)
    if found is None:
        raise NotFound("There is no such contact.", resource="contact", id=str(id))
    return found


# Sets `updated_at`, since undoing an import leaves alone contacts that somebody has changed since.
WRITE = """
WITH touched AS (
    UPDATE contacts SET updated_at = $5 WHERE organization_id = $1 AND mode = $2 AND id = $3 RETURNING id
)
INSERT INTO contact_notes AS known (organization_id, mode, contact_id, notes) SELECT $1, $2, id, $4 FROM touched
    ON CONFLICT (organization_id, mode, contact_id) DO UPDATE SET notes = excluded.notes
"""


async def write(conn: Connection, actor: Actor, *, id: UUID, notes: str) -> None:
    """Replace the notes on a contact. Raises NotFound, Invalid."""
    text = storable(notes.replace("\r\n", "\n").strip(), LONGEST + 1)
    if len(text) > LONGEST:
        raise Invalid(("notes", "length", f"Notes have at most {LONGEST} characters."))
    async with conn.transaction():
        if await get(conn, actor, id=id) != text:
            await conn.execute(WRITE, actor.organization_id, actor.mode, id, text, clock.now())
            await audit.record(conn, actor, "contact.changed", object_id=id, after={"notes": "(changed)"})
