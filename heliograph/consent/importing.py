"""Suppression lists: numbers that must not be written to, by the file. Files are read as those of contacts are.

The rule nobody may break: whoever had opted out already stays as they were, so that an undo takes back only what the
file has added.
"""

from __future__ import annotations

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.consent import optouts
from heliograph.consent.optouts import ORGANIZATION, OptOut
from heliograph.contacts.importing import Batch, Result
from heliograph.contacts.imports.drafts import Draft


class OptOutImports:
    """Opt-outs as a kind of import. Implements `contacts.imports.running.Kind`."""

    async def __call__(self, conn: Connection, actor: Actor, *, draft: Draft, batch: Batch) -> Result:
        """Opt the numbers of a batch out, in the caller's transaction."""
        pairs = [(actor.organization_id, phone) for phone in batch.entries]
        had = await optouts.current(conn, pairs)
        # The time that all of them have is what an undo finds them by.
        wanted = [
            OptOut(organization_id, phone, draft.started_at, ORGANIZATION)
            for organization_id, phone in pairs
            if (organization_id, phone) not in had
        ]
        await optouts.suppress(conn, wanted)
        return Result(len(wanted), 0, batch.rejected)

    async def undo(self, conn: Connection, actor: Actor, *, draft: Draft) -> None:
        """Lift what a file has added."""
        async with conn.transaction():
            lifted = await conn.fetchval(UNDO, actor.organization_id, draft.started_at)
            await conn.execute(UNDONE, actor.organization_id, draft.id)
            await audit.record(
                conn, actor, "contacts.import_undone", object_id=draft.id, name=draft.file, after={"lifted": lifted}
            )


UNDO = """
WITH gone AS (
    DELETE FROM opt_outs WHERE organization_id = $1 AND source <> '' AND since = $2 AND source = 'organization'
    RETURNING 1
)
SELECT count(*)::int FROM gone
"""
UNDONE = "UPDATE contact_imports SET undone_at = now(), state = 'undone' WHERE organization_id = $1 AND id = $2"
