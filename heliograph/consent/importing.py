"""Suppression lists: numbers that must not be written to, imported from files. Files are read like contact files.

The rule nobody may break: an undo reverts what this file recorded and nothing else. A person who was also recorded by
hand or by another file, or who opted out themselves, stays opted out.
"""

from __future__ import annotations

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.consent import history, optouts
from heliograph.consent.history import Statement
from heliograph.consent.optouts import ORGANIZATION, OptOut
from heliograph.contacts.importing import Batch, Result
from heliograph.contacts.imports.drafts import Draft
from heliograph.contacts.undoing import UNDONE
from heliograph.queue import leases

#: People per transaction of an undo.
STEP = 2_000


class OptOutImports:
    """The import of opt-outs. Implements `contacts.imports.running.Kind`."""

    async def __call__(self, conn: Connection, actor: Actor, *, draft: Draft, batch: Batch) -> Result:
        """Opt out the numbers of a batch, in the caller's transaction."""
        pairs = [(actor.organization_id, phone) for phone in batch.entries]
        had = await optouts.current(conn, pairs)
        wanted = [
            OptOut(organization_id, phone, draft.started_at, ORGANIZATION, import_id=draft.id)
            for organization_id, phone in pairs
        ]
        await optouts.suppress(conn, wanted, by=actor.principal)
        return Result(len(wanted) - len(had), 0, batch.rejected)

    async def undo(self, conn: Connection, actor: Actor, *, draft: Draft) -> None:
        """Lift the opt-outs that a file added, batch by batch; a run that was killed is simply repeated."""
        last = ""
        while True:
            async with conn.transaction():
                await conn.execute(leases.PATIENCE)  # others wait for their turn
                rows = await conn.fetch(THEIRS, actor.organization_id, draft.id, last, STEP)
                if not rows:
                    break
                people = [row["person"] for row in rows]
                await _take_back(conn, actor, draft, people)
            last = people[-1]
        async with conn.transaction():
            lifted = await conn.fetchval(LIFTED, actor.organization_id, draft.id)
            if await conn.fetchval(UNDONE, actor.organization_id, draft.id):
                await audit.record(
                    conn, actor, "contacts.import_undone", object_id=draft.id, name=draft.file, after={"lifted": lifted}
                )


async def _take_back(conn: Connection, actor: Actor, draft: Draft, people: list[str]) -> None:
    place = (actor.organization_id, draft.id, people)
    await conn.execute(HOLD, *place)
    await conn.execute(END, *place)
    gone = [(actor.organization_id, row["recipient"]) for row in await conn.fetch(LIFT, *place)]
    still = await optouts.restore(conn, gone)
    at = now()
    lifted = [Statement(*pair, at, ORGANIZATION, import_id=draft.id) for pair in gone if pair not in still]
    await history.record(conn, history.IN, lifted, by=actor.principal)


THEIRS = """
SELECT DISTINCT person FROM (
       SELECT person FROM consent_history
        WHERE organization_id = $1 AND import_id = $2 AND person > $3 AND said = 'out' AND ended_at IS NULL
        ORDER BY person LIMIT $4) batch
 ORDER BY person
"""
# Waits for anyone who is saying STOP at this moment: see `optouts.HOLD`.
HOLD = """
SELECT 1 FROM opt_outs WHERE organization_id = $1 AND import_id = $2 AND person = ANY ($3)
 ORDER BY person FOR UPDATE
"""
END = """
UPDATE consent_history SET ended_at = now()
 WHERE organization_id = $1 AND import_id = $2 AND person = ANY ($3) AND said = 'out' AND ended_at IS NULL
"""
LIFT = """
DELETE FROM opt_outs WHERE organization_id = $1 AND import_id = $2 AND person = ANY ($3) RETURNING recipient
"""
LIFTED = "SELECT count(*)::int FROM consent_history WHERE organization_id = $1 AND import_id = $2 AND said = 'in'"
