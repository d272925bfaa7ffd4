"""Searching contacts: by tags, country, consent, a part of a name or a number; newest first, page by page.

Conditions without an index are checked contact by contact, among a bounded number (`base.database.bounded_scan`). The
rule nobody may break: a scan that ended before its page was full says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import naming, phones
from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan, clock
from heliograph.base.database.pool import Connection
from heliograph.contacts.records import Contact

#: Contacts examined per scan; fewer if each one's consent has to be looked up.
LOOK, LOOK_CONSENT = bounded_scan.LOOK, 5_000


class Filters(msgspec.Struct, frozen=True):
    """Which contacts are wanted; empty values and None match all."""

    #: In the form of `records.tag`.
    tags: tuple[str, ...] = ()
    #: Whether `any` or `all` of these tags are required.
    match: Literal["any", "all"] = "any"
    #: A phone number in any form, or a part of a name.
    text: str = ""
    #: Or a part of a number: whoever sees only the end of numbers could find out the rest digit by digit.
    or_part: bool = False
    #: ISO region by which a number in `text` is interpreted.
    home: str | None = None
    #: ISO region that their number belongs to.
    country: str | None = None
    opted_out: bool | None = None
    #: No message was sent to them since they became a contact, or within this many days.
    never_written: bool = False
    unwritten_days: int | None = None
    #: The last message that reached them arrived before this.
    delivered_before: datetime | None = None
    #: [from, until): when they became a contact.
    created_from: datetime | None = None
    created_until: datetime | None = None
    #: [from, until): when the last message was sent to them, to the hour.
    written_from: datetime | None = None
    written_until: datetime | None = None


class ContactPage(msgspec.Struct, frozen=True):
    """Up to `limit` + 1 contacts. `seen`: where the scan ended before finding that many; None: it is complete."""

    contacts: list[Contact]
    seen: UUID | None


_COLUMNS = (
    "organization_id, id, name, first_name, last_name, phone, tags, created_at, updated_at, written_at, delivered_at"
)
FITS = """
(($7::text IS NULL OR strpos(lower(name), lower($7)) > 0 OR strpos(phone, $19::text) > 0)
 AND ($8::text IS NULL OR starts_with(phone, $8)) AND ($9::text[] IS NULL OR phone = ANY ($9)) AND tags @> $10::text[]
 AND ($11::boolean IS NULL OR $11 = ((SELECT since FROM opted_out_since(organization_id, phone)) IS NOT NULL))
 AND (NOT $12::boolean OR written_at IS NULL) AND ($13::timestamptz IS NULL OR written_at < $13 OR written_at IS NULL)
 AND ($14::timestamptz IS NULL OR delivered_at < $14)
 AND ($15::timestamptz IS NULL OR created_at >= $15) AND ($16::timestamptz IS NULL OR created_at < $16)
 AND ($17::timestamptz IS NULL OR written_at >= $17) AND ($18::timestamptz IS NULL OR written_at < $18))
"""
_PAGE = """
SELECT page.*, (SELECT since FROM opted_out_since(page.organization_id, page.phone)) IS NOT NULL AS opted_out
  FROM ({looked}) page ORDER BY id DESC
"""
ALL = _PAGE.format(looked=bounded_scan.statement("contacts", _COLUMNS, fits=FITS, where="mode = $6"))
# The newest contacts of each tag, then the newest of these: a bounded number, whatever tags there are. They are
# numbered in the order of their tags, which are sorted anyway: sorting the contacts would read all of them first.
_TAGGED = f"""
SELECT * FROM (
    SELECT *, row_number() OVER (ORDER BY contact_id DESC) AS place, {FITS} AS fits
      FROM (SELECT t.contact_id, c.* FROM (
                SELECT DISTINCT contact_id FROM unnest($20::text[]) AS wanted (tag) CROSS JOIN LATERAL (
                    SELECT contact_id FROM contact_tags
                     WHERE organization_id = $1 AND mode = $6 AND tag = wanted.tag
                       AND contact_id < $2 AND contact_id >= $3
                     ORDER BY contact_id DESC LIMIT $5) one
                 ORDER BY contact_id DESC LIMIT $5) t CROSS JOIN LATERAL (
                SELECT {_COLUMNS} FROM contacts
                 WHERE organization_id = $1 AND mode = $6 AND id = t.contact_id LIMIT 1) c) looked_at
) judged
 WHERE fits OR place = $5
 ORDER BY contact_id DESC LIMIT $4
"""
TAGGED = _PAGE.format(looked=_TAGGED)
# Every number has one contact, so no scan is needed. LATERAL: by the index on numbers, not by ids from the newest on.
BY_PHONE = f"""
SELECT page.*, (SELECT since FROM opted_out_since(page.organization_id, page.phone)) IS NOT NULL AS opted_out
  FROM (SELECT * FROM (SELECT c.*, 0 AS place, {FITS} AS fits
                         FROM (SELECT DISTINCT number FROM unnest($9::text[]) AS wanted (number)) w CROSS JOIN LATERAL (
                               SELECT {_COLUMNS} FROM contacts
                                WHERE organization_id = $1 AND phone = w.number AND mode = $6 LIMIT 1) c
                        WHERE id < $2 AND id >= $3) judged
         WHERE fits OR place = $5 ORDER BY id DESC LIMIT $4) page
 ORDER BY id DESC
"""


async def search(
    conn: Connection, actor: Actor, *, filters: Filters, after: UUID | None = None, limit: int = 50
) -> ContactPage:
    """Contacts older than `after`, newest first: up to `limit` + 1, so that the caller knows whether there are more."""
    numbers, name, digits = _read(filters)
    look = LOOK if filters.opted_out is None else LOOK_CONSENT
    upper, lower = bounded_scan.bounds(after, date_from=filters.created_from, date_to=filters.created_until)
    prefix = None if filters.country is None else _prefix(filters.country)
    values: list[object] = [actor.organization_id, upper, lower, limit + 1, look, actor.mode, name, prefix, numbers]
    values += [list(filters.tags) if filters.match == "all" else [], filters.opted_out]
    days = filters.unwritten_days
    since = None if days is None else clock.now() - timedelta(days=days)
    values += [filters.never_written, since, filters.delivered_before]
    values += [filters.created_from, filters.created_until, filters.written_from, filters.written_until, digits]
    if numbers is not None:
        if filters.match == "any" and filters.tags:
            found = await conn.fetch(BY_PHONE, *values)
            wanted = set(filters.tags)
            return ContactPage([one for one in map(_contact, found) if not wanted.isdisjoint(one.tags)], None)
        return ContactPage([_contact(row) for row in await conn.fetch(BY_PHONE, *values)], None)
    if filters.tags:
        searched = list(filters.tags[:1] if filters.match == "all" else filters.tags)
        if filters == Filters(tags=filters.tags, match=filters.match) and len(searched) == len(filters.tags):
            values[4] = look = limit + 1  # all contacts with the tags match
        rows = await conn.fetch(TAGGED, *values, searched)
    else:
        rows = await conn.fetch(ALL, *values)
    fitting, seen = bounded_scan.judged(rows, limit=limit, look=look)
    return ContactPage([_contact(row) for row in fitting], seen)


BY_IDS = f"""
SELECT page.*, (SELECT since FROM opted_out_since(page.organization_id, page.phone)) IS NOT NULL AS opted_out
  FROM (SELECT {_COLUMNS} FROM contacts
         WHERE organization_id = $1 AND mode = $2 AND id = ANY ($3) ORDER BY id DESC) page
 ORDER BY id DESC
"""


async def by_ids(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> list[Contact]:
    """The contacts with these ids, newest first; missing ones are omitted."""
    rows = await conn.fetch(BY_IDS, actor.organization_id, actor.mode, list(ids)) if ids else []
    return [_contact(row) for row in rows]


async def pages(
    connect: Callable[[], AbstractAsyncContextManager[Connection]], actor: Actor, *, filters: Filters, size: int
) -> AsyncIterator[list[Contact]]:
    """All matching contacts, page by page, newest first. `connect` opens a connection for one page."""
    after: UUID | None = None
    while True:
        async with connect() as conn:
            found = await search(conn, actor, filters=filters, after=after, limit=size)
        page = found.contacts[:size]
        if page:
            yield page
        if len(found.contacts) > size:
            after = page[-1].id
        elif found.seen is not None:
            after = found.seen
        else:
            return


def _read(filters: Filters) -> tuple[list[str] | None, str | None, str | None]:
    """(spellings of the number searched for, part of the name searched for, digits that may be part of a number)"""
    text = naming.sought(filters.text)
    if not text:
        return None, None, None
    number = phones.read(text, region=filters.home) or phones.parse(text)
    if number is not None:
        return phones.spellings(number), None, None
    return None, text, phones.part(text) if filters.or_part else None


def _prefix(country: str) -> str:
    """The prefix of a country's numbers; for an unknown country, one that matches nothing."""
    return next((f"+{code}" for code, region in phones.REGIONS.items() if region == country), "-")


def _contact(row: asyncpg.Record) -> Contact:
    return Contact(*(row[name] for name in Contact.__struct_fields__))
