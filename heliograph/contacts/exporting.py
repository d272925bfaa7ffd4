"""Contacts as a file: CSV, which `importing.py` can read back, or one JSON object per line. Read page by page by key:
memory does not grow with their number.

The rule nobody may break: no cell begins like a formula, since some people wrote these names and others open the file.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TextIO

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.csv_files import Writer, joined
from heliograph.base.database.clock import iso, iso_or_none
from heliograph.base.database.pool import Connection, plan_by_key
from heliograph.contacts import search
from heliograph.contacts.records import Contact
from heliograph.contacts.search import Filters

COLUMNS = (
    "name",
    "first_name",
    "last_name",
    "phone",
    "tags",
    "opted_out",
    "created_at",
    "updated_at",
    "last_written_at",
    "last_delivered_at",
    "id",
)
#: Contacts per page; limited because processing a page blocks everything else in the process.
PAGE = 1_000


async def write(
    conn: Connection,
    actor: Actor,
    *,
    file: TextIO,
    tag: str | None = None,
    as_json: bool = False,
    on_progress: Callable[[int], None],
) -> int:
    """Write all contacts, newest first, or those with `tag` (as returned by `records.tag`); returns how many.

    `conn` plans by key from then on.
    """
    await plan_by_key(conn)
    filters = Filters(tags=() if tag is None else (tag,))
    await begin(conn, actor, filters=filters, as_json=as_json)
    total = 0
    async for count, text in pieces(lambda: contextlib.nullcontext(conn), actor, filters=filters, as_json=as_json):
        file.write(text)
        total += count
        on_progress(total)
    return total


async def begin(conn: Connection, actor: Actor, *, filters: Filters, as_json: bool) -> None:
    """Record the export before the first line is written: an interrupted export discloses data too."""
    told: dict[str, object] = {"tag": ", ".join(filters.tags) or None, "format": "json" if as_json else "csv"}
    told |= {"country": filters.country, "opted_out": filters.opted_out, "searched": bool(filters.text) or None}
    told |= {"never_written": filters.never_written or None, "unwritten_days": filters.unwritten_days}
    told |= {"delivered_before": iso_or_none(filters.delivered_before)}
    told = {name: value for name, value in told.items() if value is not None}
    await audit.record(conn, actor, "contacts.exported", object_id=actor.organization_id, after=told)


async def pieces(
    connect: Callable[[], AbstractAsyncContextManager[Connection]],
    actor: Actor,
    *,
    filters: Filters,
    as_json: bool = False,
    delimiter: str = ",",
) -> AsyncIterator[tuple[int, str]]:
    """The file, newest first, in pieces of (number of contacts, text). `connect` opens a connection for one piece."""
    file = io.StringIO()
    writer = None if as_json else Writer(file, COLUMNS, delimiter=delimiter)
    if writer is not None:
        yield 0, _taken(file)
    async for page in search.pages(connect, actor, filters=filters, size=PAGE):
        for each in page:
            if writer is None:
                file.write(line(each))
            else:
                writer.row(cells(each))
        yield len(page), _taken(file)


def _taken(file: io.StringIO) -> str:
    text = file.getvalue()
    file.seek(0)
    file.truncate()
    return text


def cells(contact: Contact) -> tuple[str, ...]:
    """The cells of a contact, by COLUMNS."""
    return (
        contact.name,
        contact.first_name or "",
        contact.last_name or "",
        contact.phone,
        joined(contact.tags, ";"),
        "yes" if contact.opted_out else "no",
        iso(contact.created_at),
        iso(contact.updated_at),
        "" if contact.written_at is None else iso(contact.written_at),
        "" if contact.delivered_at is None else iso(contact.delivered_at),
        str(contact.id),
    )


def line(contact: Contact) -> str:
    """A contact as a line of JSON, with the names that the API uses."""
    shown = msgspec.structs.asdict(contact)
    shown |= {"last_written_at": shown.pop("written_at"), "last_delivered_at": shown.pop("delivered_at")}
    shown |= {name: iso_or_none(value) for name, value in shown.items() if name.endswith("_at")}
    return msgspec.json.encode(shown).decode() + "\n"
