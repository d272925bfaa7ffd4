"""Contacts as a file: CSV, which `importing.py` reads back, or a line of JSON each. Pages by key: memory does not grow
with their number.

The rule nobody may break: no cell begins like a formula, since people wrote these names and others open the file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TextIO
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.csv_files import Writer
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection, plan_by_key
from heliograph.contacts import records
from heliograph.contacts.records import Contact

COLUMNS = ("name", "first_name", "last_name", "phone", "tags", "opted_out", "created_at", "updated_at", "id")
PAGE = 5_000


async def write(
    conn: Connection,
    actor: Actor,
    *,
    file: TextIO,
    tag: str | None = None,
    as_json: bool = False,
    on_progress: Callable[[int], None],
) -> int:
    """Write all contacts, newest first, or those with `tag` (in its form of `records.tag`); returns how many.

    `conn` plans by key from then on.
    """
    await plan_by_key(conn)
    # Before the first line is written: an interrupted export has disclosed something, too.
    told = {"tag": tag, "format": "json" if as_json else "csv"}
    await audit.record(conn, actor, "contacts.exported", object_id=actor.organization_id, after=told)
    count = 0
    writer = None if as_json else Writer(file, COLUMNS)
    async for page in _pages(conn, actor, tag):
        for each in page:
            if writer is None:
                file.write(_line(each))
            else:
                writer.row(_cells(each))
        count += len(page)
        on_progress(count)
    return count


async def _pages(conn: Connection, actor: Actor, tag: str | None) -> AsyncIterator[list[Contact]]:
    after: UUID | None = None
    while page := await records.list_page(conn, actor, limit=PAGE, after=after, tag=tag):
        yield page
        after = page[-1].id


def _cells(contact: Contact) -> tuple[str, ...]:
    return (
        contact.name,
        contact.first_name or "",
        contact.last_name or "",
        contact.phone,
        ";".join(contact.tags),
        "yes" if contact.opted_out else "no",
        iso(contact.created_at),
        iso(contact.updated_at),
        str(contact.id),
    )


def _line(contact: Contact) -> str:
    shown = {name: getattr(contact, name) for name in contact.__struct_fields__}
    shown |= {"created_at": iso(contact.created_at), "updated_at": iso(contact.updated_at)}
    return msgspec.json.encode(shown).decode() + "\n"
