"""The audit log as a file: CSV for people, a JSON object per line for programs. Each export is an entry of its own."""

from __future__ import annotations

import contextlib
import io
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TextIO
from uuid import UUID

import msgspec

from heliograph.audit.reading import PAGE, AuditEntry, Filter, as_values, list_page
from heliograph.audit.recording import record
from heliograph.base.actor import Actor, Principal
from heliograph.base.csv_files import Writer
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection

COLUMNS = AuditEntry.__struct_fields__


async def write(
    conn: Connection, who: Actor | Principal, wanted: Filter, *, file: TextIO, as_json: bool = False
) -> int:
    """Write the matching entries, newest first; returns how many. Raises Invalid.

    The export by `who` is recorded before the first line is written, and is part of the file.
    """
    await begin(conn, who, wanted, as_json=as_json)
    total = 0
    async for count, text in pieces(lambda: contextlib.nullcontext(conn), wanted, as_json=as_json):
        file.write(text)
        total += count
    return total


async def begin(conn: Connection, who: Actor | Principal, wanted: Filter, *, as_json: bool = False) -> None:
    """Record an export by `who`."""
    told = {
        "format": "json" if as_json else "csv",
        **{name: getattr(wanted, name) for name in wanted.__struct_fields__},
    }
    await record(
        conn,
        who,
        "audit.exported",
        object_id=wanted.organization_id or "everything",
        organization_id=wanted.organization_id,
        after={name: value for name, value in told.items() if value is not None},
    )


async def pieces(
    connect: Callable[[], AbstractAsyncContextManager[Connection]],
    wanted: Filter,
    *,
    as_json: bool = False,
    delimiter: str = ",",
) -> AsyncIterator[tuple[int, str]]:
    """The file, piece by piece: (entries, text). `connect` opens a connection for one piece. Raises Invalid."""
    file = io.StringIO()
    writer = None if as_json else Writer(file, COLUMNS, delimiter=delimiter)
    after: UUID | None = None
    while True:
        async with connect() as conn:
            looked = await list_page(conn, wanted, after=after, limit=PAGE)
        for one in looked.entries:
            if writer is None:
                file.write(msgspec.json.encode(as_values(one) | {"at": iso(one.at)}).decode() + "\n")
            else:
                writer.row([_cell(getattr(one, name) if name != "at" else iso(one.at)) for name in COLUMNS])
        yield len(looked.entries), file.getvalue()
        file.seek(0)
        file.truncate()
        if looked.seen is None:
            return
        after = looked.seen


def _cell(value: object) -> str:
    return "" if value is None else str(value)
