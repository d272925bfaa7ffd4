"""The work of imports: a worker checks uploaded files, imports them, and undoes imports.

One worker at a time holds a file, under a lease that each step renews; a step is one transaction, which commits the
progress with the rows it wrote. So a kill at any moment loses only an uncommitted step, and the next worker rereads the
file up to there. The rule nobody may break: nothing is written for a file unless its row says that it belongs to this
worker and is still to be continued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph import notices
from heliograph.audit import recording as audit
from heliograph.base.actor import Actor, Principal
from heliograph.base.database.pool import ROW_LOCKED, Connection, Pool, is_down, plan_by_key
from heliograph.base.ids import uuid7
from heliograph.base.process import measures
from heliograph.base.process.crash import crash_point
from heliograph.contacts import importing, undoing
from heliograph.contacts.importing import Batch, Options, Result
from heliograph.contacts.imports import drafts
from heliograph.contacts.imports.drafts import Draft
from heliograph.contacts.imports.spool import Spool
from heliograph.contacts.imports.survey import Numbers, Survey, judge_batch
from heliograph.contacts.sheets import Reader
from heliograph.notices import Notice
from heliograph.queue import leases

log = structlog.get_logger()

#: How long a worker that makes no progress keeps a file.
LEASE = timedelta(seconds=15)
#: Steps after which it is another file's turn, and files that a worker keeps open in the meantime.
STEPS, OPEN = 20, 4
#: Rows per step.
ROWS = 2_000
#: Maximum size of a rejected row that is stored whole: its characters, plus PER_CELL for each cell. In a larger row,
#: cells are cut to LONGEST_CELL characters, and those that still exceed the maximum are omitted.
LARGEST_REJECT, PER_CELL, LONGEST_CELL = 16_384, 8, 1_000
#: Pause after a failed step.
FAILED = timedelta(seconds=10)

DUE = "state IN ('checking', 'running', 'undoing') AND is_uploaded"
ANY = f"EXISTS (SELECT FROM contact_imports WHERE {DUE} AND (lease_until IS NULL OR lease_until < now()))"
# The organizations take turns, beginning after the last one served.
TAKE = f"""
UPDATE contact_imports SET worker = $1, lease_until = now() + $2::interval
 WHERE (organization_id, id) IN (
       SELECT organization_id, id FROM contact_imports
        WHERE {DUE} AND (lease_until IS NULL OR lease_until < now() OR worker = $1)
        ORDER BY organization_id <= $3, organization_id, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING organization_id, user_id, {drafts.COLUMNS}
"""
HOLD = f"""
UPDATE contact_imports SET lease_until = now() + $4::interval
 WHERE organization_id = $1 AND id = $2 AND worker = $3 AND {DUE}
RETURNING organization_id, user_id, {drafts.COLUMNS}
"""
LATER = """
UPDATE contact_imports SET worker = NULL, lease_until = now() + $4::interval
 WHERE organization_id = $1 AND id = $2 AND worker = $3
"""


class Kind(Protocol):
    """A kind of import other than contacts: what to do with a file's numbers."""

    async def __call__(self, conn: Connection, actor: Actor, *, draft: Draft, batch: Batch) -> Result:
        """Write a batch, in the caller's transaction."""

    async def undo(self, conn: Connection, actor: Actor, *, draft: Draft) -> None:
        """Undo what an import wrote."""


class Runner:
    """Advances imports; one per worker."""

    def __init__(self, pool: Pool, kinds: Mapping[str, Kind], *, rows: int = ROWS, lease: timedelta = LEASE) -> None:
        """`kinds`: kinds other than contacts, by name."""
        self._pool, self._kinds, self._rows, self._lease = pool, kinds, rows, lease
        self._me = uuid7()
        self._served = UUID(int=0)
        self._open: dict[UUID, _File] = {}

    async def round(self) -> int:
        """Do some steps of one import; returns 0 if none was due."""
        async with self._pool.acquire() as conn:
            row = await conn.fetchrow(TAKE, self._me, self._lease, self._served)
            if row is None:
                self._forget(set())
                return 0
            organization_id: UUID = row["organization_id"]
            self._served = organization_id
            try:
                for _ in range(STEPS):
                    if not await self._step(conn, row):
                        break
                    row = await conn.fetchrow(HOLD, organization_id, row["id"], self._me, self._lease)
                    if row is None:  # stopped, or taken over by another worker
                        break
            except Exception as error:
                if row is not None:
                    # It has been read further than was counted: a check would miss those rows.
                    self._close(row["id"])
                if isinstance(error, ROW_LOCKED):  # others would wait for each of its turns
                    waits = {"import_id": str(row and row["id"]), "error": type(error).__name__}
                    log.warning("import waits for a locked row", **waits)
                elif is_down(error):
                    raise
                else:
                    log.exception("import step failed", import_id=str(row and row["id"]))
                    measures.FAILURES.add("imports")
                if row is not None:
                    await conn.execute(LATER, organization_id, row["id"], self._me, FAILED)
        return 1

    async def close(self) -> None:
        """Close all files."""
        self._forget(set())

    async def _step(self, conn: Connection, row: asyncpg.Record) -> bool:
        """Do one step; False: there is nothing more to do."""
        draft = drafts.draft(row)
        actor = Actor(
            organization_id=row["organization_id"],
            key_id=None,
            mode=draft.mode,
            scopes=frozenset(),
            state="active",
            by=Principal("person" if row["user_id"] else "system", row["user_id"], name=draft.author),
        )
        if draft.state == "undoing":
            return await self._undo(conn, actor, draft)
        file = self._open.get(draft.id)
        if file is None or not file.fits(draft):
            file = await self._reopen(conn, actor, draft)
        if file is None:
            log.warning("import stopped: its file was erased", import_id=str(draft.id))
            await conn.execute(ERASED, actor.organization_id, draft.id, self._me)
            return False
        batch = await asyncio.to_thread(file.next, self._rows)
        step = self._check if draft.state == "checking" else self._run
        ended = await step(conn, actor, draft, file, batch)
        if ended:
            self._close(draft.id)
        return not ended

    async def _reopen(self, conn: Connection, actor: Actor, draft: Draft) -> _File | None:
        """The file at the import's progress; None if some of it was erased when somebody resumed the import."""
        self._close(draft.id)
        self._forget(set(list(self._open)[-(OPEN - 1) :]))
        await plan_by_key(conn)
        spool = await Spool.of(conn, actor.organization_id, draft.id)
        if draft.state == "running" and spool.size != draft.size:
            spool.close()
            return None
        file = _File(draft, spool)
        # An import skips imported rows; a check starts over, since its results were lost with its process.
        if draft.state == "running" and draft.rows:
            await asyncio.to_thread(file.skip, draft.rows)
        self._open[draft.id] = file
        return file

    async def _check(self, conn: Connection, actor: Actor, draft: Draft, file: _File, batch: Batch) -> bool:
        is_people = draft.kind == "contacts"
        if batch.rows:
            await judge_batch(
                conn,
                actor,
                batch=batch,
                column=draft.fields["phone"],
                survey=file.survey,
                numbers=file.numbers,
                updates=draft.on_duplicate == "update",
                is_people=is_people,
            )
        ended = not batch.rows
        told = msgspec.json.encode(file.survey).decode() if ended else None
        await conn.execute(CHECKED, actor.organization_id, draft.id, self._me, batch.position, told)
        return ended

    async def _run(self, conn: Connection, actor: Actor, draft: Draft, file: _File, batch: Batch) -> bool:
        if not batch.rows:
            await self._finish(conn, actor, draft)
            return True
        async with conn.transaction():
            await conn.execute(leases.PATIENCE)
            # The row is locked from here on: stopping the import waits for this step, and no other worker can do it.
            mine = await conn.fetchval(MINE, actor.organization_id, draft.id, self._me, draft.rows)
            if mine is None:
                file.is_stale = True
                return False
            if draft.kind == "contacts":
                result = await importing.write(conn, actor, id=draft.id, batch=batch, options=file.options)
            else:
                result = await self._kinds[draft.kind](conn, actor, draft=draft, batch=batch)
            await keep_rejects(conn, actor, id=draft.id, rejected=result.rejected)
            await importing.advance(conn, actor, id=draft.id, batch=batch, result=result)
            crash_point("import.before_commit")
        crash_point("import.after_commit")
        return False

    async def _finish(self, conn: Connection, actor: Actor, draft: Draft) -> None:
        async with conn.transaction():
            row = await conn.fetchrow(FINISH, actor.organization_id, draft.id, self._me)
            if row is None:
                return
            # Rejected rows are stored separately; the rest of the file is no longer needed.
            await conn.execute(drafts.FORGET, actor.organization_id, draft.id)
            ended = drafts.draft(row)
            told = {"state": "finished", "rows": ended.rows, "created": ended.created, "updated": ended.updated}
            told["rejected"] = ended.rejected
            await audit.record(conn, actor, "contacts.imported", object_id=draft.id, name=draft.file, after=told)
            facts = {"created": ended.created, "updated": ended.updated, "rejected": ended.rejected}
            await notices.record(
                conn,
                Notice(actor.organization_id, "import.finished", str(draft.id), draft.file, actor.mode, facts),
            )

    async def _undo(self, conn: Connection, actor: Actor, draft: Draft) -> bool:
        if draft.kind == "contacts":
            await undoing.undo(conn, actor, id=draft.id, others_wait=True)
        else:
            await self._kinds[draft.kind].undo(conn, actor, draft=draft)
        await conn.execute(drafts.FORGET, actor.organization_id, draft.id)
        return False

    def _close(self, id: UUID) -> None:
        file = self._open.pop(id, None)
        if file is not None:
            file.close()

    def _forget(self, kept: set[UUID]) -> None:
        for id in [one for one in self._open if one not in kept]:
            self._close(id)


CHECKED = """
UPDATE contact_imports SET position = $4, survey = $5::text, lease_until = CASE WHEN $5 IS NULL THEN lease_until END,
                           state = CASE WHEN $5 IS NULL THEN state ELSE 'checked' END
 WHERE organization_id = $1 AND id = $2 AND worker = $3 AND state = 'checking'
"""
MINE = """
SELECT id FROM contact_imports
 WHERE organization_id = $1 AND id = $2 AND worker = $3 AND rows = $4 AND state = 'running' FOR UPDATE
"""
# Otherwise the rest of the file would end at once, as if all of its rows had been imported.
ERASED = """
UPDATE contact_imports SET state = 'stopped', worker = NULL, lease_until = NULL
 WHERE organization_id = $1 AND id = $2 AND worker = $3 AND state = 'running'
"""
FINISH = f"""
UPDATE contact_imports SET state = 'finished', finished_at = now(), lease_until = NULL
 WHERE organization_id = $1 AND id = $2 AND worker = $3 AND state = 'running'
RETURNING {drafts.COLUMNS}
"""
REJECT = """
INSERT INTO contact_import_rejects (organization_id, import_id, row, reason, cells)
SELECT $1, $2, one.row, one.reason, one.cells FROM unnest($3::int[], $4::text[], $5::text[]) AS one (row, reason, cells)
    ON CONFLICT (organization_id, import_id, row) DO UPDATE SET reason = excluded.reason, cells = excluded.cells
"""


async def keep_rejects(conn: Connection, actor: Actor, *, id: UUID, rejected: list[tuple[importing.Row, str]]) -> None:
    """Store rejected rows, so that they can be corrected: by the hundred on a page, so very large ones are cut."""
    if rejected:
        await conn.execute(
            REJECT,
            actor.organization_id,
            id,
            [row.number for row, _ in rejected],
            [reason for _, reason in rejected],
            [msgspec.json.encode(_stored(row.cells)).decode() for row, _ in rejected],
        )


def _stored(cells: list[str]) -> list[str]:
    """The cells of a rejected row as they are stored."""
    if sum(map(len, cells)) + PER_CELL * len(cells) <= LARGEST_REJECT:
        return cells
    stored, left = [], LARGEST_REJECT
    for cell in cells:
        cell = cell[:LONGEST_CELL]
        left -= len(cell) + PER_CELL
        if left < 0:
            break
        stored.append(cell)
    return stored


class _File:
    """An import's file while it is being read."""

    def __init__(self, draft: Draft, spool: Spool) -> None:
        self._spool = spool
        self._layout = draft.layout
        self._reader = Reader(spool.open(), self._layout)
        self._state = draft.state
        #: Rows taken.
        self._rows = 0
        self.is_stale = False
        self.options = options_of(draft)
        self.survey, self.numbers = Survey(countries={}, reasons={}), Numbers()

    def fits(self, draft: Draft) -> bool:
        """True if its position matches the import's progress."""
        if self.is_stale or self._state != draft.state or self._layout != draft.layout:
            return False
        return self.options == options_of(draft) and (draft.state == "checking" or self._rows == draft.rows)

    def next(self, count: int) -> Batch:
        """The next rows. Runs in a thread."""
        rows = self._reader.take(count)
        self._rows += len(rows)
        return importing.batch_of(rows, self._layout, self.options, self._reader.position)

    def skip(self, count: int) -> None:
        """Skip rows. Runs in a thread."""
        while self._rows < count and (rows := self._reader.take(min(10_000, count - self._rows))):
            self._rows += len(rows)

    def close(self) -> None:
        self._reader.close()
        self._spool.close()


def options_of(draft: Draft) -> Options:
    """The options for reading an import's rows."""
    return Options(
        on_duplicate="skip" if draft.on_duplicate == "skip" else "update",
        tags=tuple(draft.tags),
        country=draft.country,
    )
