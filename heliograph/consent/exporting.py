"""An organization's opt-outs as a file: CSV for people and other services, or a JSON object per line."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.csv_files import Writer
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.consent import optouts
from heliograph.consent.optouts import OptOut

COLUMNS = ("phone", "since", "source", "keyword")
PAGE = 2_000


async def begin(conn: Connection, actor: Actor, *, as_json: bool) -> None:
    """Record the export before the first line is written: an interrupted export discloses data, too."""
    told = {"format": "json" if as_json else "csv"}
    await audit.record(conn, actor, "opt_outs.exported", object_id=actor.organization_id, after=told)


def values(one: OptOut) -> dict[str, str | None]:
    """A line of the file, by column."""
    return {"phone": one.recipient, "since": iso(one.since), "source": one.source, "keyword": one.keyword}


async def pieces(
    connect: Callable[[], AbstractAsyncContextManager[Connection]],
    actor: Actor,
    *,
    as_json: bool = False,
    delimiter: str = ",",
) -> AsyncIterator[tuple[int, str]]:
    """The file, newest first, in pieces of (number of opt-outs, text). `connect` opens a connection for one piece."""
    file = io.StringIO()
    writer = None if as_json else Writer(file, COLUMNS, delimiter=delimiter)
    after: tuple[datetime, str] | None = None
    while True:
        async with connect() as conn:
            page = await optouts.list_page(conn, actor, after=after, limit=PAGE)
        for one, person in page:
            after = one.since, person
            found = values(one)
            if writer is None:
                file.write(msgspec.json.encode(found).decode() + "\n")
            else:
                writer.row([found[name] or "" for name in COLUMNS])
        yield len(page), file.getvalue()
        file.seek(0)
        file.truncate()
        if len(page) < PAGE:
            return
