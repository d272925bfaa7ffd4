"""The audit log as a file: CSV for people, a JSON object per line for programs. An export is an entry itself."""

from __future__ import annotations

from typing import TextIO

import msgspec

from heliograph.audit.reading import Filter, Recorded, everything, shown
from heliograph.audit.recording import record
from heliograph.base.actor import Actor, Who
from heliograph.base.csv_files import Writer
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection

COLUMNS = Recorded.__struct_fields__


async def write(conn: Connection, who: Actor | Who, wanted: Filter, *, file: TextIO, as_json: bool = False) -> int:
    """Write the entries that fit, newest first; returns how many. Raises Invalid.

    `who` exports: that is recorded before the first line is out, and stands in the file.
    """
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
    count = 0
    writer = None if as_json else Writer(file, COLUMNS)
    async for page in everything(conn, wanted):
        for one in page:
            if writer is None:
                file.write(msgspec.json.encode(shown(one) | {"at": iso(one.at)}).decode() + "\n")
            else:
                writer.row([_cell(getattr(one, name) if name != "at" else iso(one.at)) for name in COLUMNS])
        count += len(page)
    return count


def _cell(value: object) -> str:
    return "" if value is None else str(value)
