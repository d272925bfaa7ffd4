"""Contacts as records: create, list, delete, and the statement that writes thousands of them.

The rule nobody may break: `contact_tags` mirrors `contacts.tags`, so both are written in one transaction, under the
lock of the contact's row. Whether somebody has opted out is read from `opt_outs`, never stored here.

Live and test mode have separate contacts; an actor reads and writes those of its mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming, phones
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7

MAX_NAME = 200
MAX_TAGS = 50
MAX_TAG = 64

#: What happens to an entry whose number already has a contact.
OnDuplicate = Literal["skip", "update"]

#: Separates the tags of one contact on their way to the database. `tag` allows no control characters.
_SEPARATOR = "\x1f"
#: Greater than any id.
_END = UUID(int=2**128 - 1)


class ContactAlreadyExists(Refusal):
    """A contact with this phone number already exists."""

    code, status = "contact_already_exists", 409


class Contact(msgspec.Struct, frozen=True):
    """One contact as its organization sees it."""

    id: UUID
    name: str
    first_name: str | None
    last_name: str | None
    phone: str
    tags: list[str]
    opted_out: bool
    created_at: datetime
    updated_at: datetime
    #: When a message was last sent to them, and last arrived, to the hour: see `recency`. None: never.
    written_at: datetime | None = None
    delivered_at: datetime | None = None


class Entry(msgspec.Struct, gc=False):
    """A contact to write, with validated values. Without a name, its number is used."""

    phone: str
    name: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    tags: tuple[str, ...] = ()


class Written(msgspec.Struct):
    """Counts of the results for entries; those not counted existed and are unchanged."""

    created: int = 0
    updated: int = 0
    #: Numbers whose contacts would have more than MAX_TAGS tags; they were left alone.
    overfull: Sequence[str] = ()
    #: New and changed contacts, and the `updated_at` of all of them.
    created_ids: Sequence[UUID] = ()
    updated_ids: Sequence[UUID] = ()
    at: datetime | None = None


# ── Validation of clients' values ─────────────────────────────────────────────────────────────────────────────────


def phone(text: str, field: str = "phone") -> str:
    """A number in E.164. Raises Invalid on `field`."""
    number = phones.normalize(text)
    if number is None:
        raise Invalid((field, "pattern", f"`{field}` must be a phone number with country code: `+258841234567`"))
    return number


def name(text: str, field: str = "name") -> str:
    """A trimmed name. Raises Invalid on `field`."""
    return naming.checked(text, field, longest=MAX_NAME)


def tag(text: str, field: str, *, of: str = "") -> str:
    """A tag: in lower case and NFC, trimmed, with single spaces within. Raises Invalid on `field`."""
    text = naming.composed(" ".join(text.split()).lower(), longest=MAX_TAG)
    if not naming.is_plain(text):
        raise Invalid((field, "pattern", f"`{field}` must not contain control characters"))
    if len(text) > MAX_TAG or not naming.is_readable(text):
        raise Invalid((field, "length", f"{of}`{field}` must have 1 to {MAX_TAG} characters"))
    return text


def tags(texts: Iterable[str], field: str = "tags") -> tuple[str, ...]:
    """Tags, deduplicated, in the order given. Raises Invalid on `field`."""
    found = tuple(dict.fromkeys([tag(text, field, of="each of ") for text in texts]))
    if len(found) > MAX_TAGS:
        raise Invalid((field, "length", f"`{field}` must list at most {MAX_TAGS} tags"))
    return found


def full_name(first_name: str | None, last_name: str | None) -> str | None:
    """Both parts of a name joined; None if there are none."""
    return " ".join(part for part in (first_name, last_name) if part) or None


# ── Operations ────────────────────────────────────────────────────────────────────────────────────────────────────

# Not EXISTS: the planner may read all opt-outs of the organization into a hash first, for one page.
_COLUMNS = """
c.id, c.name, c.first_name, c.last_name, c.phone, c.tags,
(SELECT since FROM opted_out_since(c.organization_id, c.phone))
    IS NOT NULL AS opted_out,
c.created_at, c.updated_at, c.written_at, c.delivered_at
"""

BY_PHONE = f"SELECT {_COLUMNS} FROM contacts c WHERE organization_id = $1 AND mode = $2 AND phone = $3"


async def create(conn: Connection, actor: Actor, *, entry: Entry) -> Contact:
    """Create a contact. Raises ContactAlreadyExists, with the existing one's id, if its number has one."""
    while True:
        async with conn.transaction():
            written = await create_many(conn, actor, entries=[entry])
            row = await conn.fetchrow(BY_PHONE, actor.organization_id, actor.mode, entry.phone)
            if row is not None and written.created:
                told = {"phone": entry.phone, "tags": entry.tags}
                await audit.record(conn, actor, "contact.created", object_id=row["id"], after=told)
        if row is not None:
            break  # otherwise it existed, and has just been deleted
    found = Contact(*row.values())
    if not written.created:
        raise ContactAlreadyExists(id=str(found.id))
    return found


# Names belong together: a change of one replaces all three. A name equal to the number means that none was given. Tags
# are added, never removed. The caller sorts by number: in different orders, two writers of the same contacts could
# deadlock. Only new contacts get the given ids; their tags cannot exist yet, and checking was a third of the cost.
# Unchanged ones are looked up one by one: with a join, 2,000 rows read all of the organization's contacts 2,000 times.
WRITE = """
WITH given AS MATERIALIZED (
    SELECT g.id, g.phone, coalesce(g.name, g.phone) AS name, g.first_name, g.last_name,
           string_to_array(g.tags, E'\\x1f') AS tags
      FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
        AS g (id, phone, name, first_name, last_name, tags)
), written AS (
    INSERT INTO contacts (organization_id, mode, id, name, first_name, last_name, phone, tags, created_at, updated_at)
    SELECT $1, $11, id, name, first_name, last_name, phone, tags, $8, $8 FROM given
        ON CONFLICT (organization_id, phone, mode) DO UPDATE
       SET name = CASE excluded.name WHEN excluded.phone THEN contacts.name ELSE excluded.name END,
           first_name = CASE excluded.name WHEN excluded.phone THEN contacts.first_name ELSE excluded.first_name END,
           last_name = CASE excluded.name WHEN excluded.phone THEN contacts.last_name ELSE excluded.last_name END,
           tags = contacts.tags || ARRAY(SELECT t FROM unnest(excluded.tags) AS t WHERE t <> ALL (contacts.tags)),
           updated_at = excluded.updated_at
     WHERE $9
       AND (NOT excluded.tags <@ contacts.tags
            OR excluded.name <> excluded.phone
               AND (excluded.name, excluded.first_name, excluded.last_name)
                   IS DISTINCT FROM (contacts.name, contacts.first_name, contacts.last_name))
       AND cardinality(contacts.tags)
           + cardinality(ARRAY(SELECT t FROM unnest(excluded.tags) AS t WHERE t <> ALL (contacts.tags))) <= $10
    RETURNING id, tags
), told AS MATERIALIZED (
    SELECT id, tags, id IN (SELECT id FROM given) AS is_new FROM written
), tagged AS (
    INSERT INTO contact_tags (organization_id, mode, tag, contact_id)
    SELECT $1, $11, tag, id FROM told, unnest(tags) AS tag WHERE is_new
), tagged_again AS (
    INSERT INTO contact_tags (organization_id, mode, tag, contact_id)
    SELECT $1, $11, tag, id FROM told, unnest(tags) AS tag WHERE NOT is_new
        ON CONFLICT DO NOTHING
), overfull AS (
    SELECT g.phone FROM given g CROSS JOIN LATERAL (
           SELECT tags FROM contacts WHERE organization_id = $1 AND phone = g.phone AND mode = $11 LIMIT 1) c
     WHERE $9 AND (SELECT count(*) FROM written) < (SELECT count(*) FROM given)
       AND cardinality(c.tags) + cardinality(g.tags) > $10
       AND (SELECT count(*) FROM (SELECT unnest(c.tags) UNION SELECT unnest(g.tags)) AS each) > $10
)
SELECT ARRAY(SELECT id FROM told WHERE is_new) AS created, ARRAY(SELECT id FROM told WHERE NOT is_new) AS updated,
       ARRAY(SELECT phone FROM overfull) AS overfull
"""


async def create_many(
    conn: Connection, actor: Actor, *, entries: Sequence[Entry], on_duplicate: OnDuplicate = "skip"
) -> Written:
    """Write contacts, each number at most once; numbers that already have a contact are skipped or updated.

    An update replaces the name if one is given, and adds tags. Commits with the caller's transaction, if there is one.
    """
    at = clock.now()
    # Ids in the given order, so that lists show a file's people in the file's order; rows in the order of numbers.
    numbered = sorted([(each.phone, uuid7(), each) for each in entries])
    listed = [each for _, _, each in numbered]
    row = await conn.fetchrow(
        WRITE,
        actor.organization_id,
        [id for _, id, _ in numbered],
        [each.phone for each in listed],
        [each.name for each in listed],
        [each.first_name for each in listed],
        [each.last_name for each in listed],
        [_SEPARATOR.join(each.tags) for each in listed],
        at,
        on_duplicate == "update",
        MAX_TAGS,
        actor.mode,
    )
    assert row is not None
    return Written(len(row["created"]), len(row["updated"]), row["overfull"], row["created"], row["updated"], at)


# The bound is always a value: "$3 IS NULL OR id < $3" would read everything newer to find a page.
LIST = f"""
SELECT {_COLUMNS} FROM contacts c
 WHERE organization_id = $1 AND mode = $2 AND id < $3
 ORDER BY id DESC LIMIT $4
"""

LIST_TAGGED = f"""
SELECT {_COLUMNS}
  FROM (SELECT contact_id FROM contact_tags
         WHERE organization_id = $1 AND mode = $2 AND contact_id < $3 AND tag = $5
         ORDER BY contact_id DESC LIMIT $4) t
  JOIN contacts c ON c.organization_id = $1 AND c.mode = $2 AND c.id = t.contact_id
 ORDER BY c.id DESC
"""


async def list_page(
    conn: Connection, actor: Actor, *, limit: int, after: UUID | None = None, tag: str | None = None
) -> list[Contact]:
    """Up to `limit` contacts, newest first, older than `after`; with `tag` (in the form of `tag()`), only those."""
    values = (actor.organization_id, actor.mode, after or _END, limit)
    rows = await (conn.fetch(LIST, *values) if tag is None else conn.fetch(LIST_TAGGED, *values, tag))
    return [Contact(*row.values()) for row in rows]


BY_ID = f"SELECT {_COLUMNS} FROM contacts c WHERE organization_id = $1 AND mode = $2 AND id = $3"
FIND_PHONE = (
    f"SELECT {_COLUMNS} FROM contacts c WHERE organization_id = $1 AND mode = $2 AND phone = ANY ($3)"
    " ORDER BY id DESC LIMIT $4"
)
FIND_NAME = f"""
SELECT {_COLUMNS} FROM contacts c
 WHERE organization_id = $1 AND mode = $2 AND strpos(lower(name), lower($3)) > 0 ORDER BY id DESC LIMIT $4
"""


async def find(conn: Connection, actor: Actor, *, text: str, country: str | None, limit: int = 50) -> list[Contact]:
    """Contacts with a number, in any spelling, or with a text in their name; newest first.

    `country`: ISO region by which a number without a calling code is interpreted.
    """
    number = phones.read(text, region=country) or phones.parse(text)
    whose = (actor.organization_id, actor.mode)
    if number is None:
        rows = await conn.fetch(FIND_NAME, *whose, naming.sought(text), limit)
    else:
        rows = await conn.fetch(FIND_PHONE, *whose, phones.spellings(number), limit)
    return [Contact(*row.values()) for row in rows]


async def one(conn: Connection, actor: Actor, *, which: str, country: str | None) -> Contact:
    """The contact with an id or number, interpreted as in `find`. Raises NotFound, Invalid (it is neither)."""
    try:
        rows = await conn.fetch(BY_ID, actor.organization_id, actor.mode, UUID(which))
    except ValueError:
        number = phones.read(which, region=country)
        if number is None:
            what = "give the contact's id, or its phone number with + and country code"
            raise Invalid(("contact", "pattern", what)) from None
        rows = await conn.fetch(FIND_PHONE, actor.organization_id, actor.mode, phones.spellings(number), 2)
    if len(rows) > 1:
        raise Invalid(
            ("contact", "ambiguous", "several contacts have this number in different spellings: give the id of one")
        )
    if not rows:
        raise NotFound("There is no such contact.", resource="contact", id=which)
    return Contact(*rows[0].values())


async def get(conn: Connection, actor: Actor, *, id: UUID) -> Contact:
    """A contact. Raises NotFound."""
    row = await conn.fetchrow(BY_ID, actor.organization_id, actor.mode, id)
    if row is None:
        raise NotFound("There is no such contact.", resource="contact", id=str(id))
    return Contact(*row.values())


def untag(gone: str) -> str:
    """The statement that deletes the tags of the rows of the CTE `gone` (id, mode, tags), for organization $1. Each is
    looked up by its whole key: with a join, 2,000 contacts among 10,000 take 16 s instead of 20 ms."""
    return f"""
    DELETE FROM contact_tags
     WHERE ctid = ANY (ARRAY(
           SELECT place FROM {gone} CROSS JOIN LATERAL unnest({gone}.tags) AS one (name) CROSS JOIN LATERAL (
                  SELECT ctid AS place FROM contact_tags
                   WHERE organization_id = $1 AND mode = {gone}.mode AND tag = one.name AND contact_id = {gone}.id
                   LIMIT 1) t))
"""


HELD = """
SELECT name, first_name, last_name, phone, tags FROM contacts
 WHERE organization_id = $1 AND mode = $2 AND id = $3 FOR UPDATE
"""
CHANGE = """
UPDATE contacts SET name = $4, first_name = $5, last_name = $6, phone = $7, tags = $8, updated_at = $9,
                    written_at = CASE WHEN person_of(phone) = person_of($7) THEN written_at END,
                    delivered_at = CASE WHEN person_of(phone) = person_of($7) THEN delivered_at END
 WHERE organization_id = $1 AND mode = $2 AND id = $3
"""
ADD_TAGS = """
INSERT INTO contact_tags (organization_id, mode, tag, contact_id)
SELECT $1, $2, tag, $4 FROM unnest($3::text[]) AS tag ON CONFLICT DO NOTHING
"""
OTHER = "SELECT id FROM contacts WHERE organization_id = $1 AND phone = $3 AND mode = $2"


class Changes(msgspec.Struct, frozen=True):
    """What to change in a contact, with validated values; None: unchanged."""

    phone: str | None = None
    #: (name, first name, last name): they belong together.
    names: tuple[str, str | None, str | None] | None = None
    #: Replaces all tags.
    tags: tuple[str, ...] | None = None


async def change(conn: Connection, actor: Actor, *, id: UUID, changes: Changes) -> Contact:
    """Change a contact. Raises NotFound, and ContactAlreadyExists if another one has the number."""
    place = (actor.organization_id, actor.mode, id)
    async with conn.transaction():
        row = await conn.fetchrow(HELD, *place)
        if row is None:
            raise NotFound("There is no such contact.", resource="contact", id=str(id))
        name, *parts = changes.names or (row["name"], row["first_name"], row["last_name"])
        phone = changes.phone or row["phone"]
        names = (phone if name == row["phone"] else name, *parts)  # the name of a contact without one is its number
        tags = list(row["tags"]) if changes.tags is None else list(changes.tags)
        while True:
            other = None if phone == row["phone"] else await conn.fetchval(OTHER, *place[:2], phone)
            if other is not None:
                raise ContactAlreadyExists(id=str(other))
            with contextlib.suppress(asyncpg.UniqueViolationError):  # created at the same moment, perhaps gone by now
                async with conn.transaction():
                    await conn.execute(CHANGE, *place, *names, phone, tags, clock.now())
                break
        if phones.person(phone) != phones.person(row["phone"]):
            await conn.execute(FORGET_LAST, *place)
        gone = [tag for tag in row["tags"] if tag not in tags]
        await conn.execute(DELETE_TAGS, actor.organization_id, actor.mode, gone, id)
        await conn.execute(ADD_TAGS, actor.organization_id, actor.mode, tags, id)
        before = {"phone": row["phone"], "tags": row["tags"]}
        after: dict[str, object] = {"phone": phone, "tags": tags}
        if changes.names is not None and names[0] != row["name"]:
            after["name"] = "(changed)"  # records that outlive people's erasure do not name them
        await audit.record(conn, actor, "contact.changed", object_id=id, before=before, after=after)
        return await get(conn, actor, id=id)


FORGET_LAST = "DELETE FROM contact_last_messages WHERE organization_id = $1 AND mode = $2 AND contact_id = $3"

# Two statements: the second sees tags committed while the first waited for the contact's row.
DELETE = "DELETE FROM contacts WHERE organization_id = $1 AND mode = $2 AND id = $3 RETURNING phone, tags"

DELETE_TAGS = """
DELETE FROM contact_tags WHERE organization_id = $1 AND mode = $2 AND tag = ANY ($3) AND contact_id = $4
"""


async def delete(conn: Connection, actor: Actor, *, id: UUID) -> None:
    """Delete a contact; its number's opt-out remains. Raises NotFound."""
    async with conn.transaction():
        row = await conn.fetchrow(DELETE, actor.organization_id, actor.mode, id)
        if row is None:
            raise NotFound("There is no such contact.", resource="contact", id=str(id))
        await conn.execute(DELETE_TAGS, actor.organization_id, actor.mode, row["tags"], id)
        await audit.record(conn, actor, "contact.deleted", object_id=id, before=dict(row))
