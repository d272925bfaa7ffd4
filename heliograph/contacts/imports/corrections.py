"""Rejected rows of an import: downloaded as a file, or corrected and imported in place.

The rule nobody may break: a row is either rejected or imported, never both, and the import's counts agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.contacts import importing
from heliograph.contacts.imports import drafts
from heliograph.contacts.imports.drafts import ImportMoved
from heliograph.contacts.imports.running import keep_rejects, options_of
from heliograph.contacts.sheets import Row

#: Maximum rows corrected on a page.
MOST = 500


class Reject(msgspec.Struct, frozen=True):
    """A row that was not imported."""

    #: Row number as in a spreadsheet.
    row: int
    reason: str
    cells: list[str]


LIST = """
SELECT row, reason, cells FROM contact_import_rejects
 WHERE organization_id = $1 AND import_id = $2 AND row > $3 ORDER BY row LIMIT $4
"""


async def rejects(conn: Connection, actor: Actor, *, id: UUID, after: int = 0, limit: int = MOST) -> list[Reject]:
    """Rejected rows in the order of the file."""
    rows = await conn.fetch(LIST, actor.organization_id, id, after, limit)
    return [Reject(row["row"], row["reason"], msgspec.json.decode(row["cells"], type=list[str])) for row in rows]


LOCK = f"""
SELECT {drafts.COLUMNS} FROM contact_imports
 WHERE organization_id = $1 AND mode = $2 AND id = $3 AND state IN ('finished', 'stopped') FOR UPDATE
"""
CHOSEN = """
SELECT row, reason, cells FROM contact_import_rejects
 WHERE organization_id = $1 AND import_id = $2 AND row = ANY ($3) ORDER BY row
"""
GONE = """
DELETE FROM contact_import_rejects WHERE organization_id = $1 AND import_id = $2 AND row = ANY ($3)
"""
MENDED = """
UPDATE contact_imports SET created = created + $3, updated = updated + $4, unchanged = unchanged + $5,
                           rejected = rejected - $3 - $4 - $5
 WHERE organization_id = $1 AND id = $2
"""


class Mended(msgspec.Struct, frozen=True):
    """The result for rejected rows that somebody corrected."""

    imported: int
    left: int


async def mend(conn: Connection, actor: Actor, *, id: UUID, cells: Mapping[int, Mapping[str, str]]) -> Mended:
    """Import rejected rows with corrected cells, by row and field. Rows that are still wrong stay rejected, with their
    new cells.

    Runs in the caller's transaction. Raises ImportMoved.
    """
    row = await conn.fetchrow(LOCK, actor.organization_id, actor.mode, id)
    if row is None:
        raise ImportMoved
    draft = drafts.draft(row)
    if draft.kind != "contacts":
        raise ImportMoved
    known = await conn.fetch(CHOSEN, actor.organization_id, id, sorted(cells))
    layout, changed = draft.layout, []
    for one in known:
        kept = msgspec.json.decode(one["cells"], type=list[str])
        mended = kept + [""] * (len(layout.columns) - len(kept))
        for field, text in cells[one["row"]].items():
            if field in layout.fields:
                mended[layout.fields[field]] = text
        # Cells beyond the header may have been the problem; a person has looked at the row now.
        changed.append(Row(one["row"], mended[: len(layout.columns)]))
    if not changed:
        return Mended(0, 0)
    batch = importing.batch_of(changed, layout, options_of(draft), 0)
    result = await importing.write(conn, actor, id=id, batch=batch, options=options_of(draft))
    wrong = {one.number for one, _ in result.rejected}
    right = [one.number for one in changed if one.number not in wrong]
    await conn.execute(GONE, actor.organization_id, id, right)
    await keep_rejects(conn, actor, id=id, rejected=result.rejected)
    unchanged = len(right) - result.created - result.updated
    await conn.execute(MENDED, actor.organization_id, id, result.created, result.updated, unchanged)
    told = {"state": "mended", "rows": len(right), "created": result.created, "updated": result.updated}
    await audit.record(conn, actor, "contacts.imported", object_id=id, name=draft.file, after=told)
    return Mended(len(right), len(wrong))
