"""Saved texts: an organization's reusable texts, by name. Live and test mode share them.

The rule nobody may break: the content of a text never reaches the audit log.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound, Problems, Refusal
from heliograph.base.ids import uuid7
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import Sealing
from heliograph.sms.accepting.accept import MAX_TEXT

#: Maximum number of texts per organization, and length of a name.
MOST, MAX_NAME = 200, 100

Name = TypeVar("Name", str, str | None)


class SavedTextExists(Refusal):
    """There is a saved text with this name already."""

    code, status = "saved_text_exists", 409


class TooManySavedTexts(Refusal):
    """An organization can keep at most 200 texts. Remove one that is no longer needed."""

    code, status = "too_many_saved_texts", 409


class SavedText(msgspec.Struct, frozen=True):
    """A reusable text; placeholders such as `{{name}}` are filled by campaigns."""

    id: UUID
    name: str
    body: str
    created_at: datetime
    updated_at: datetime
    #: When it was last sent, to the minute.
    used_at: datetime | None


_COLUMNS = ", ".join(SavedText.__struct_fields__)
LIST = f"SELECT {_COLUMNS} FROM saved_texts WHERE organization_id = $1 ORDER BY lower(name) LIMIT {MOST}"
GET = f"SELECT {_COLUMNS} FROM saved_texts WHERE organization_id = $1 AND id = $2"


async def list_all(conn: Connection, actor: Actor) -> list[SavedText]:
    """The organization's texts, by name."""
    rows = await conn.fetch(LIST, actor.organization_id)
    return await _opened(conn, actor, [SavedText(*row.values()) for row in rows])


async def get(conn: Connection, actor: Actor, *, id: UUID) -> SavedText:
    """One text. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, id)
    if row is None:
        raise NotFound("There is no such text.", resource="saved_text", id=str(id))
    return (await _opened(conn, actor, [SavedText(*row.values())]))[0]


async def _opened(conn: Connection, actor: Actor, saved: list[SavedText]) -> list[SavedText]:
    """Texts with their bodies opened; one whose key was destroyed becomes empty."""
    stored = [(one.id, one.body) for one in saved]
    texts = await text_keys.opened_of(conn, actor.organization_id, "saved_texts", stored)
    return [msgspec.structs.replace(one, body=texts[one.id] or "") for one in saved]


# The row lock comes first: two people must not both save the last text that the limit allows.
LOCK_ORGANIZATION = "SELECT id FROM organizations WHERE id = $1 FOR NO KEY UPDATE"
COUNT = "SELECT count(*) FROM saved_texts WHERE organization_id = $1"
INSERT = f"""
INSERT INTO saved_texts (organization_id, id, name, body, created_at, updated_at) VALUES ($1, $2, $3, $4, now(), now())
ON CONFLICT DO NOTHING RETURNING {_COLUMNS}
"""


async def create(conn: Connection, actor: Actor, *, name: str, body: str) -> SavedText:
    """Save a text. Raises Invalid (fields `name` and `body`), SavedTextExists, TooManySavedTexts, Unavailable."""
    name = checked(name, body)
    async with conn.transaction():
        await conn.fetchval(LOCK_ORGANIZATION, actor.organization_id)
        if await conn.fetchval(COUNT, actor.organization_id) >= MOST:
            raise TooManySavedTexts
        id = uuid7()
        row = await conn.fetchrow(INSERT, actor.organization_id, id, name, await _sealed(conn, actor, id, body))
        if row is None:
            raise SavedTextExists
        made = msgspec.structs.replace(SavedText(*row.values()), body=body)
        await audit.record(conn, actor, "saved_text.created", object_id=made.id, name=name)
    return made


# What is not given stays as it is in the row: of two changes at once, neither undoes the other.
CHANGE = """
UPDATE saved_texts SET name = coalesce($3, name), body = coalesce($4, body), updated_at = now()
 WHERE organization_id = $1 AND id = $2
   AND NOT EXISTS (SELECT FROM saved_texts other
                    WHERE other.organization_id = $1 AND lower(other.name) = lower($3) AND other.id <> $2)
RETURNING id
"""


async def change(conn: Connection, actor: Actor, *, id: UUID, name: str | None = None, body: str | None = None) -> None:
    """Change a text's name or body; None: unchanged. Raises NotFound, Invalid, SavedTextExists, Unavailable."""
    name = checked(name, body)
    async with conn.transaction():
        known = await get(conn, actor, id=id)
        name, body = (None if name == known.name else name), (None if body == known.body else body)
        if (name, body) == (None, None):
            return
        sealed = None if body is None else await _sealed(conn, actor, id, body)
        try:
            async with conn.transaction():
                changed = await conn.fetchval(CHANGE, actor.organization_id, id, name, sealed)
        except asyncpg.UniqueViolationError:  # another got this name at the same moment
            changed = None
        if changed is None:
            await get(conn, actor, id=id)  # unless it was removed at the same moment
            raise SavedTextExists
        before, becomes = {"name": known.name}, name or known.name
        after = {"name": becomes} | ({} if body is None else {"body": "changed"})
        await audit.record(conn, actor, "saved_text.changed", object_id=id, name=becomes, before=before, after=after)


REMOVE = "DELETE FROM saved_texts WHERE organization_id = $1 AND id = $2 RETURNING name"


async def remove(conn: Connection, actor: Actor, *, id: UUID) -> None:
    """Delete a text. Idempotent."""
    async with conn.transaction():
        name = await conn.fetchval(REMOVE, actor.organization_id, id)
        if name is not None:
            await audit.record(conn, actor, "saved_text.removed", object_id=id, name=name)


USED = """
UPDATE saved_texts SET used_at = now()
 WHERE organization_id = $1 AND id = $2 AND (used_at IS NULL OR used_at < now() - interval '1 minute')
"""


async def used(conn: Connection, actor: Actor, *, id: UUID) -> None:
    """Record that a text was sent."""
    await conn.execute(USED, actor.organization_id, id)


async def _sealed(conn: Connection, actor: Actor, id: UUID, body: str) -> str:
    sealing = await Sealing.of(conn, [actor.organization_id])
    return sealing.sealed(actor.organization_id, "saved_texts", id, body)


def checked(name: Name, body: str | None) -> Name:
    """The name, trimmed, of a text to save or to change; None: unchanged. Raises Invalid (fields `name` and `body`)."""
    wrong = Problems()
    with wrong.gathering():
        if name is not None:
            name = naming.checked(name, "name", longest=MAX_NAME)
    if body is not None and (not 1 <= len(body) <= MAX_TEXT or not naming.is_readable(body)):
        wrong.add("body", "length", f"`body` must be 1 to {MAX_TEXT} characters")
    wrong.report()
    return name
