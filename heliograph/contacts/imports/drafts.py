"""An uploaded file and its import: its bytes in chunks, how they are read, the result.

    uploading → reading → checking → checked → running ⇄ stopped
                                                  running → finished → undoing → undone

`reading`: a person says how to read the file and what its columns are. `checking`: a worker examines all of it without
writing anything. `checked`: the person decides. A file is erased when its import has ended, and after a week in any
case. The rule nobody may break: a state changes only here and in `running.py`, with a guard in the UPDATE.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7
from heliograph.contacts import sheets
from heliograph.contacts.imports.survey import Survey, forget_examples
from heliograph.contacts.sheets import Layout

#: Maximum bytes of a file, and bytes of a chunk.
LONGEST, CHUNK = 200_000_000, 262_144
#: Maximum files of unfinished imports per organization, each of up to LONGEST; minimum seconds before a pace is told.
MOST_OPEN, EARLY = 20, 2
#: How long an import can be undone by its organization, and how long a file and its rejected rows are kept.
UNDONE_FOR, KEPT = timedelta(hours=24), timedelta(days=7)
#: Kinds of imports: contacts, or numbers that must not be messaged.
KINDS = ("contacts", "opt_outs")
#: States before anything was written.
UNSTARTED = ("uploading", "reading", "checking", "checked")
#: An SQL condition: a campaign may go to the people of this row of `contact_imports`.
IS_AUDIENCE = "kind = 'contacts' AND state IN ('running', 'stopped', 'finished')"

_TOO_LONG = "A file can be at most 200 MB."
_TOO_MANY = "There are 20 unfinished imports. Discard some of them, or continue those that are stopped."


class ImportMoved(Refusal):
    """This import has changed in the meantime. Check its current state."""

    code, status = "import_moved", 409


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An import, from its upload to its end."""

    id: UUID
    mode: str
    kind: str
    state: str
    file: str
    author: str
    started_at: datetime
    finished_at: datetime | None
    undone_at: datetime | None
    size: int
    encoding: str | None
    delimiter: str | None
    preamble: int
    has_header: bool
    #: Field to index of its column.
    fields: dict[str, int]
    columns: list[str]
    country: str | None
    tags: list[str]
    on_duplicate: str
    survey: Survey | None
    #: A worker's progress in bytes, and the result for the rows up to there.
    position: int
    #: When it was last started or resumed, and how many rows it had read by then.
    resumed_at: datetime | None
    resumed_from: int
    rows: int
    created: int
    updated: int
    unchanged: int
    rejected: int
    can_undo: bool
    #: A campaign may go to its people.
    is_audience: bool
    erases_at: datetime

    def pace(self, now: datetime) -> tuple[float, float] | None:
        """(rows per second, seconds left) at its pace since it was last started or resumed; None: not known."""
        if self.state != "running" or self.resumed_at is None or self.survey is None:
            return None
        seconds, done = (now - self.resumed_at).total_seconds(), self.rows - self.resumed_from
        if seconds < EARLY or done <= 0:
            return None
        return done / seconds, max(self.survey.rows - self.rows, 0) * seconds / done

    @property
    def layout(self) -> Layout:
        """How to read its file."""
        return Layout(
            self.encoding or "utf-8",
            self.delimiter or ",",
            self.columns,
            self.fields,
            self.preamble,
            has_header=self.has_header,
        )


COLUMNS = f"""
id, mode, kind, state, file, coalesce(author, '') AS author, started_at, finished_at, undone_at,
coalesce(size, 0) AS size, encoding, delimiter, preamble, has_header, fields, columns, country, tags, on_duplicate,
survey, position, resumed_at, resumed_from, rows, created, updated, unchanged, rejected,
state IN ('finished', 'stopped') AND coalesce(finished_at, started_at) > now() - interval '24 hours' AS can_undo,
{IS_AUDIENCE} AS is_audience,
started_at + interval '7 days' AS erases_at
"""
# A stopped import counts as long as its file is kept.
BEGIN = """
INSERT INTO contact_imports (organization_id, mode, id, kind, state, file, user_id, author, started_at, is_uploaded)
SELECT $1, $2, $3, $4, 'uploading', $5, $6, $7, now(), true
 WHERE (SELECT count(*) FROM (SELECT FROM contact_imports i WHERE organization_id = $1 AND is_uploaded
          AND (state IN ('uploading', 'reading', 'checking', 'checked', 'running')
               OR (state = 'stopped' AND (SELECT true FROM contact_import_chunks
                                           WHERE organization_id = $1 AND import_id = i.id LIMIT 1)))
        LIMIT $8) open) < $8
RETURNING id
"""


async def begin(conn: Connection, actor: Actor, *, file: str, kind: str = "contacts") -> UUID:
    """Begin an upload. Raises Invalid if there are too many unfinished imports."""
    assert kind in KINDS
    who = actor.principal
    id = uuid7()
    name = "".join(one for one in file if one.isprintable())[:200] or "file"
    made = await conn.fetchval(
        BEGIN, actor.organization_id, actor.mode, id, kind, name, who.id, who.name[:200], MOST_OPEN
    )
    if made is None:
        raise Invalid(("file", "count", _TOO_MANY))
    return id


PUT = """
INSERT INTO contact_import_chunks (organization_id, import_id, number, bytes) VALUES ($1, $2, $3, $4)
"""


async def put(conn: Connection, actor: Actor, *, id: UUID, number: int, chunk: bytes) -> None:
    """Store the next chunk of a file. Raises Invalid if it is not a text table, or too long."""
    if number == 0 and chunk.startswith(sheets.WORKBOOKS):
        raise Invalid(("file", "format", sheets.WORKBOOK))
    if (number + 1) * CHUNK > LONGEST + CHUNK:
        raise Invalid(("file", "length", _TOO_LONG))
    await conn.execute(PUT, actor.organization_id, id, number, chunk)


UPLOADED = f"""
UPDATE contact_imports
   SET state = 'reading', size = $4, encoding = $5, delimiter = $6, has_header = $7, columns = $8, fields = $9,
       preamble = $10
 WHERE organization_id = $1 AND mode = $2 AND id = $3 AND state = 'uploading'
RETURNING {COLUMNS}
"""


async def uploaded(conn: Connection, actor: Actor, *, id: UUID, size: int, encoding: str) -> Draft:
    """Complete an upload, and detect the file's format. Raises Invalid if it is empty."""
    sample = await head(conn, actor, id=id)
    found = sheets.detect_layout(sample, encoding=encoding)
    row = await conn.fetchrow(
        UPLOADED,
        actor.organization_id,
        actor.mode,
        id,
        size,
        found.encoding,
        found.delimiter,
        found.has_header,
        msgspec.json.encode(found.columns).decode(),
        msgspec.json.encode(found.fields).decode(),
        found.preamble,
    )
    return _moved(row)


DISCARD = """
DELETE FROM contact_imports WHERE organization_id = $1 AND mode = $2 AND id = $3
   AND state IN ('uploading', 'reading', 'checking', 'checked') RETURNING id
"""
FORGET = "DELETE FROM contact_import_chunks WHERE organization_id = $1 AND import_id = $2"


async def discard(conn: Connection, actor: Actor, *, id: UUID) -> None:
    """Delete a file from which nothing was imported. Raises NotFound."""
    async with conn.transaction():
        if await conn.fetchval(DISCARD, actor.organization_id, actor.mode, id) is None:
            raise NotFound("There is no such import.", resource="import", id=str(id))
        await conn.execute(FORGET, actor.organization_id, id)


GET = f"SELECT {COLUMNS} FROM contact_imports WHERE organization_id = $1 AND mode = $2 AND id = $3 AND is_uploaded"
LIST = f"""
SELECT {COLUMNS} FROM contact_imports
 WHERE organization_id = $1 AND mode = $2 AND id < $3 AND state <> 'uploading' ORDER BY id DESC LIMIT $4
"""
_LAST = UUID(int=2**128 - 1)


async def get(conn: Connection, actor: Actor, *, id: UUID) -> Draft:
    """An import. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, actor.mode, id)
    if row is None:
        raise NotFound("There is no such import.", resource="import", id=str(id))
    return draft(row)


async def list_page(conn: Connection, actor: Actor, *, after: UUID | None, limit: int) -> list[Draft]:
    """Imports from pages and the command line, newest first."""
    rows = await conn.fetch(LIST, actor.organization_id, actor.mode, after or _LAST, limit)
    return [draft(row) for row in rows]


HEAD = """
SELECT bytes FROM contact_import_chunks WHERE organization_id = $1 AND import_id = $2 ORDER BY number LIMIT 1
"""


async def head(conn: Connection, actor: Actor, *, id: UUID) -> bytes:
    """The beginning of a file; empty once it was erased."""
    found: bytes | None = await conn.fetchval(HEAD, actor.organization_id, id)
    return found or b""


READ_AS = f"""
UPDATE contact_imports SET encoding = $4, delimiter = $5, has_header = $6, columns = $7, fields = $8,
                           preamble = $9, state = 'reading'
 WHERE organization_id = $1 AND mode = $2 AND id = $3 AND state IN ('reading', 'checked')
RETURNING {COLUMNS}
"""


async def read_as(conn: Connection, actor: Actor, *, id: UUID, layout: Layout) -> Draft:
    """Set how a file is read. Raises ImportMoved."""
    row = await conn.fetchrow(
        READ_AS,
        actor.organization_id,
        actor.mode,
        id,
        layout.encoding,
        layout.delimiter,
        layout.has_header,
        msgspec.json.encode(layout.columns).decode(),
        msgspec.json.encode(layout.fields).decode(),
        layout.preamble,
    )
    return _moved(row)


CHECK = f"""
UPDATE contact_imports SET state = 'checking', fields = $4, country = $5, tags = $6, on_duplicate = $7, survey = NULL,
                           position = 0, worker = NULL, lease_until = NULL
 WHERE organization_id = $1 AND mode = $2 AND id = $3 AND state IN ('reading', 'checked')
RETURNING {COLUMNS}
"""


async def check(
    conn: Connection,
    actor: Actor,
    *,
    id: UUID,
    fields: Mapping[str, int],
    country: str | None,
    tags: Sequence[str],
    on_duplicate: str,
) -> Draft:
    """Have a worker check the whole file. Raises Invalid, ImportMoved."""
    if "phone" not in fields:
        raise Invalid(("fields", "required", "Choose the column with the phone numbers."))
    row = await conn.fetchrow(
        CHECK,
        actor.organization_id,
        actor.mode,
        id,
        msgspec.json.encode(fields).decode(),
        country,
        list(tags),
        on_duplicate,
    )
    return _moved(row)


AGAIN = f"""
UPDATE contact_imports SET state = 'reading' WHERE organization_id = $1 AND mode = $2 AND id = $3
   AND state IN ('checking', 'checked') RETURNING {COLUMNS}
"""


async def back(conn: Connection, actor: Actor, *, id: UUID) -> Draft:
    """Return to the choice of columns. Raises ImportMoved."""
    return _moved(await conn.fetchrow(AGAIN, actor.organization_id, actor.mode, id))


# A condition on contact_imports. Retention deletes a long file in steps, so some chunks may exist while others do not.
_HAS_FILE = """
size = (SELECT sum(octet_length(bytes)) FROM contact_import_chunks c
         WHERE c.organization_id = contact_imports.organization_id AND c.import_id = contact_imports.id)
"""
RUN = f"""
UPDATE contact_imports SET state = 'running', started_at = CASE WHEN rows = 0 THEN now() ELSE started_at END,
                           position = CASE WHEN rows = 0 THEN 0 ELSE position END,
                           resumed_at = now(), resumed_from = rows
 WHERE organization_id = $1 AND mode = $2 AND id = $3 AND state IN ('checked', 'stopped')
   AND {_HAS_FILE}
RETURNING {COLUMNS}
"""
HAS_FILE = f"SELECT {_HAS_FILE} FROM contact_imports WHERE organization_id = $1 AND id = $2"


async def run(conn: Connection, actor: Actor, *, id: UUID, confirmed: Collection[str] = ()) -> Draft:
    """Import a checked file, or resume a stopped import. Raises Invalid if some of its survey's `doubts` are not
    confirmed, and ImportMoved, also if the file has been erased: the import of what is left would seem complete."""
    async with conn.transaction():
        found = _moved(await conn.fetchrow(RUN, actor.organization_id, actor.mode, id))
        if found.survey is not None and (left := [one for one in found.survey.doubts if one not in confirmed]):
            raise Invalid(*((one, "required", f"Unconfirmed: {one}.") for one in left))
        await forget_examples(conn, actor, id=id, found=found.survey)
        told = {"state": "begun", "tags": found.tags, "on_duplicate": found.on_duplicate, "kind": found.kind}
        await audit.record(conn, actor, "contacts.imported", object_id=id, name=found.file, after=told)
    return found


async def has_file(conn: Connection, actor: Actor, *, id: UUID) -> bool:
    """True until the import's file is erased."""
    return bool(await conn.fetchval(HAS_FILE, actor.organization_id, id))


STOP = f"""
UPDATE contact_imports SET state = 'stopped' WHERE organization_id = $1 AND mode = $2 AND id = $3 AND state = 'running'
RETURNING {COLUMNS}
"""


async def stop(conn: Connection, actor: Actor, *, id: UUID) -> Draft:
    """Stop an import; contacts already imported stay. Raises ImportMoved."""
    async with conn.transaction():
        found = _moved(await conn.fetchrow(STOP, actor.organization_id, actor.mode, id))
        told = {"state": "stopped", "rows": found.rows}
        await audit.record(conn, actor, "contacts.imported", object_id=id, name=found.file, after=told)
    return found


UNDO = f"""
UPDATE contact_imports SET state = 'undoing'
 WHERE organization_id = $1 AND mode = $2 AND id = $3 AND state IN ('finished', 'stopped')
   AND coalesce(finished_at, started_at) > now() - $4::interval
RETURNING {COLUMNS}
"""


async def undo(conn: Connection, actor: Actor, *, id: UUID) -> Draft:
    """Have a worker undo an import. Raises ImportMoved, also after 24 hours."""
    async with conn.transaction():
        found = _moved(await conn.fetchrow(UNDO, actor.organization_id, actor.mode, id, UNDONE_FOR))
        told = {"state": "undoing"}
        await audit.record(conn, actor, "contacts.import_undone", object_id=id, name=found.file, after=told)
    return found


def draft(row: asyncpg.Record) -> Draft:
    """An import from a row that has COLUMNS."""
    values: dict[str, Any] = {name: row[name] for name in Draft.__struct_fields__}
    values["fields"] = msgspec.json.decode(row["fields"], type=dict[str, int])
    values["columns"] = msgspec.json.decode(row["columns"], type=list[str])
    values["survey"] = None if row["survey"] is None else msgspec.json.decode(row["survey"], type=Survey)
    return Draft(**values)


def _moved(row: asyncpg.Record | None) -> Draft:
    if row is None:
        raise ImportMoved
    return draft(row)


def sample(head: bytes, layout: Layout, count: int) -> list[list[str]]:
    """The first rows below the header, from a file's beginning."""
    reader = sheets.Reader(io.BytesIO(head), layout)
    try:
        rows = reader.take(count)
    finally:
        reader.close()
    return [row.cells for row in rows]
