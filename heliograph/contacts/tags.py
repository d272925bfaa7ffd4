"""Tags of contacts: list, rename, merge into another one, remove.

A tag may have a million contacts, so a change is a row in `tag_changes` that advances step by step, each a commit; a
worker finishes changes whose authors did not wait for them. The rule nobody may break: `contact_tags` matches
`contacts.tags` after every step, and an organization's changes run one after the other: two concurrent ones that create
each other's tags would never end.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import BRIEFLY, Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7

#: Where counting a tag's contacts stops in a list, and for a single tag.
COUNTED, COUNTED_ALONE = 1_000, 100_000
#: Contacts changed per step: some 100 ms.
STEP = 2_000
#: Maximum unfinished changes per organization. They run one after the other, so more would only wait, and each is a row
#: that is kept for a week.
MOST_OPEN = 20


class TooManyTagChanges(Refusal):
    """Twenty tag changes are in progress. Wait until one is done."""

    code, status = "too_many_tag_changes", 409


class Tag(msgspec.Struct, frozen=True):
    """A tag of contacts."""

    name: str
    #: How many contacts have it; `is_more`: there are more than were counted.
    contacts: int
    is_more: bool


class TagChange(msgspec.Struct, frozen=True):
    """A tag being renamed, merged or removed."""

    id: UUID
    tag: str
    #: None: it is removed.
    becomes: str | None
    contacts: int
    finished_at: datetime | None


# Skips from tag to tag in the index: the cost depends on the tags listed, not on their contacts.
LIST = """
WITH RECURSIVE named AS (
    (SELECT tag, 1 AS place FROM contact_tags WHERE organization_id = $1 AND mode = $2 AND tag > $3
      ORDER BY tag LIMIT 1)
    UNION ALL
    SELECT following.tag, named.place + 1 FROM named CROSS JOIN LATERAL (
           SELECT tag FROM contact_tags WHERE organization_id = $1 AND mode = $2 AND tag > named.tag
            ORDER BY tag LIMIT 1) following
     WHERE named.place < $4
)
SELECT tag,
       (SELECT count(*) FROM (SELECT FROM contact_tags t
                               WHERE t.organization_id = $1 AND t.mode = $2 AND t.tag = named.tag LIMIT $5) c)::int
         AS contacts
  FROM named ORDER BY place
"""


async def list_page(
    conn: Connection, actor: Actor, *, after: str = "", limit: int, counted: int = COUNTED
) -> list[Tag]:
    """Up to `limit` tags in alphabetical order, after `after`."""
    rows = await conn.fetch(LIST, actor.organization_id, actor.mode, after, limit, counted + 1)
    return [Tag(row["tag"], min(row["contacts"], counted), row["contacts"] > counted) for row in rows]


ONE = """
SELECT count(*)::int FROM (
    SELECT FROM contact_tags WHERE organization_id = $1 AND mode = $2 AND tag = $3 LIMIT $4) counted
"""


async def one(conn: Connection, actor: Actor, *, name: str, counted: int = COUNTED_ALONE) -> Tag:
    """A tag. Raises NotFound if no contact has it."""
    contacts = await conn.fetchval(ONE, actor.organization_id, actor.mode, name, counted + 1)
    if not contacts:
        raise NotFound("No contact has this tag.", resource="tag", id=name)
    return Tag(name, min(contacts, counted), contacts > counted)


UNUSED = """
SELECT wanted.tag FROM unnest($3::text[]) WITH ORDINALITY AS wanted (tag, place)
 WHERE NOT EXISTS (SELECT FROM contact_tags t
                    WHERE t.organization_id = $1 AND t.mode = $2 AND t.tag = wanted.tag LIMIT 1)
 ORDER BY place
"""


async def unused(conn: Connection, actor: Actor, *, names: Sequence[str]) -> list[str]:
    """Which of these tags no contact has, in the order given."""
    return [row["tag"] for row in await conn.fetch(UNUSED, actor.organization_id, actor.mode, list(names))]


# The row lock comes first: two people must not both take the last place.
LOCK_ORGANIZATION = "SELECT id FROM organizations WHERE id = $1 FOR NO KEY UPDATE"
OPEN_COUNT = "SELECT count(*) FROM tag_changes WHERE organization_id = $1 AND mode = $2 AND finished_at IS NULL"
BEGIN = """
INSERT INTO tag_changes (organization_id, mode, id, tag, becomes) VALUES ($1, $2, $3, $4, $5)
"""
STARTED = "organization_id, mode, id, tag, becomes"


async def begin(conn: Connection, actor: Actor, *, tag: str, becomes: str | None) -> UUID:
    """Begin to rename a tag, merge it into an existing one, or remove it (None); both in the form of `records.tag`.

    Runs in the caller's transaction, including the first step: with few contacts that is all. Raises Invalid, NotFound,
    TooManyTagChanges.
    """
    if becomes == tag:
        raise Invalid(("becomes", "same", "It already has this name."))
    found = await one(conn, actor, name=tag, counted=1)
    await conn.fetchval(LOCK_ORGANIZATION, actor.organization_id)
    if await conn.fetchval(OPEN_COUNT, actor.organization_id, actor.mode) >= MOST_OPEN:
        raise TooManyTagChanges
    id = uuid7()
    await conn.execute(BEGIN, actor.organization_id, actor.mode, id, found.name, becomes)
    await audit.record(conn, actor, "tag.changed", object_id=id, name=tag, before={"tag": tag}, after={"tag": becomes})
    if await conn.fetchval(FIRST, actor.organization_id, actor.mode) == id:
        await _step(conn, actor.organization_id, actor.mode, id, tag, becomes)
    return id


FIRST = """
SELECT id FROM tag_changes WHERE organization_id = $1 AND mode = $2 AND finished_at IS NULL ORDER BY id LIMIT 1
"""
# Only the first change of each organization, and of these the one with the least progress: a tag with a million
# contacts does not delay other organizations.
NEXT = f"""
SELECT {STARTED} FROM tag_changes c
 WHERE finished_at IS NULL AND NOT EXISTS (
       SELECT FROM tag_changes
        WHERE organization_id = c.organization_id AND mode = c.mode AND id < c.id AND finished_at IS NULL)
   AND id <> ALL ($1)
 ORDER BY contacts, id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
ANY = "EXISTS (SELECT FROM tag_changes WHERE finished_at IS NULL)"


async def step(conn: Connection) -> int:
    """Advance an unfinished change, in the caller's transaction; returns how many contacts were examined, and 1 for a
    change that ended. One that waits for a contact that somebody keeps locked, as in an open session, is passed over:
    it would always be the one with the least progress."""
    waiting: list[UUID] = []
    while (row := await conn.fetchrow(NEXT, waiting)) is not None:
        try:
            async with conn.transaction():
                await conn.execute(BRIEFLY)
                return await _step(conn, *row.values()) or 1
        except asyncpg.LockNotAvailableError:
            waiting.append(row["id"])
    return 0


UP_TO_IT = f"""
SELECT {STARTED} FROM tag_changes
 WHERE organization_id = $1 AND mode = $2 AND id <= $3 AND finished_at IS NULL ORDER BY id LIMIT 1 FOR UPDATE
"""


async def go_on(conn: Connection, actor: Actor, *, id: UUID) -> None:
    """Do one more step of this change, or of one that precedes it, in the caller's transaction, for callers that wait
    for it to finish."""
    row = await conn.fetchrow(UP_TO_IT, actor.organization_id, actor.mode, id)
    if row is not None:
        await _step(conn, *row.values())


SOME = """
SELECT contact_id FROM contact_tags WHERE organization_id = $1 AND mode = $2 AND tag = $3 ORDER BY contact_id LIMIT $4
"""
# In the order of numbers, like all code that writes several contacts. Each is looked up by its whole key, here and once
# locked: before there are statistics, the index in the order of numbers, with all contacts, looks better (7 s for 2,000
# of 100,000).
HELD = """
SELECT held.* FROM (
       SELECT wanted.id FROM (SELECT DISTINCT unnest($3::uuid[]) AS id) wanted CROSS JOIN LATERAL (
              SELECT phone FROM contacts WHERE organization_id = $1 AND mode = $2 AND id = wanted.id LIMIT 1) known
        ORDER BY known.phone) one
       CROSS JOIN LATERAL (
       SELECT id, phone, tags FROM contacts
        WHERE organization_id = $1 AND mode = $2 AND id = one.id LIMIT 1 FOR UPDATE) held
"""
#: An SQL condition: this is one of the locked contacts $3.
LOCKED = """ctid = ANY (ARRAY(
           SELECT place FROM unnest($3::uuid[]) AS wanted (id) CROSS JOIN LATERAL (
                  SELECT ctid AS place FROM contacts
                   WHERE organization_id = $1 AND mode = $2 AND id = wanted.id LIMIT 1) c))"""
CHANGE = f"""
WITH changed AS (
    UPDATE contacts
       SET tags = CASE WHEN $5::text IS NULL OR $5 = ANY (tags) THEN array_remove(tags, $4)
                       ELSE array_replace(tags, $4, $5) END,
           updated_at = $6
     WHERE {LOCKED} AND $4 = ANY (tags) RETURNING id
), gone AS (
    DELETE FROM contact_tags WHERE organization_id = $1 AND mode = $2 AND tag = $4 AND contact_id = ANY ($3)
), added AS (
    INSERT INTO contact_tags (organization_id, mode, tag, contact_id)
    SELECT $1, $2, $5, id FROM changed WHERE $5 IS NOT NULL ON CONFLICT DO NOTHING
)
SELECT count(*)::int FROM changed
"""
ADVANCE = """
UPDATE tag_changes SET contacts = contacts + $4, finished_at = CASE WHEN $5 THEN now() END
 WHERE organization_id = $1 AND mode = $2 AND id = $3
"""


async def _step(conn: Connection, organization_id: UUID, mode: str, id: UUID, tag: str, becomes: str | None) -> int:
    rows = await conn.fetch(SOME, organization_id, mode, tag, STEP)
    ids: Sequence[UUID] = [row["contact_id"] for row in rows]
    changed = 0
    if ids:
        await conn.fetch(HELD, organization_id, mode, ids)
        changed = await conn.fetchval(CHANGE, organization_id, mode, ids, tag, becomes, clock.now())
    await conn.execute(ADVANCE, organization_id, mode, id, changed, len(ids) < STEP)
    return len(ids)


GET = """
SELECT id, tag, becomes, contacts, finished_at FROM tag_changes WHERE organization_id = $1 AND mode = $2 AND id = $3
"""
OPEN = """
SELECT id, tag, becomes, contacts, finished_at FROM tag_changes
 WHERE organization_id = $1 AND mode = $2 AND finished_at IS NULL ORDER BY id LIMIT 20
"""


async def get(conn: Connection, actor: Actor, *, id: UUID) -> TagChange:
    """A change of a tag. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, actor.mode, id)
    if row is None:
        raise NotFound("There is no such change.", resource="tag_change", id=str(id))
    return TagChange(*row.values())


async def under_way(conn: Connection, actor: Actor) -> list[TagChange]:
    """Changes that are not finished."""
    rows = await conn.fetch(OPEN, actor.organization_id, actor.mode)
    return [TagChange(*row.values()) for row in rows]
