"""The work of exports: a worker writes them page by page, each page in its own commit.

One worker at a time holds an export, under a lease that each page renews; if it is killed, its successor continues
after the last committed page. The rule nobody may break: a page and the progress are one commit, made only while the
row says that the export belongs to this worker and is still running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from datetime import timedelta
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph import notices
from heliograph.base.actor import Actor, Principal
from heliograph.base.database.pool import Connection, Pool, is_down, plan_by_key
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.base.process.crash import crash_point
from heliograph.base.process.measures import Gauge
from heliograph.base.standby.readers import Readers
from heliograph.overview.exports import changes, jobs, kinds
from heliograph.overview.exports.jobs import Export
from heliograph.people.roles import RoleRequired
from heliograph.queue import leases
from heliograph.queue.work import Loop, Work

log = structlog.get_logger()

#: Pages after which it is another organization's turn.
STEPS = 20
#: Pause after a page that failed, and after how many failures an export is given up.
FAILED, TRIES = timedelta(seconds=10), 10
#: Maximum rows and bytes of a file; then it ends, marked as cut.
MOST_ROWS, MOST_BYTES = 5_000_000, 512 * 1024 * 1024

DUE = "state = 'running' AND (lease_until IS NULL OR lease_until < now())"
ANY = f"EXISTS (SELECT FROM exports WHERE {DUE})"
#: How often a lease is doubled, at most, by workers that take an export over from each other: 4 minutes.
DOUBLED = 4
# The organizations take turns, beginning after the last one served. A page that takes longer than the lease would be
# lost each time another worker begins it anew: whoever takes over has twice the time.
TAKE = f"""
UPDATE exports SET worker = $1, tries = tries + (worker IS NOT NULL)::int,
                   lease_until = now() + $2::interval * (1 << least(tries + (worker IS NOT NULL)::int, {DOUBLED}))
 WHERE (organization_id, id) IN (
       SELECT organization_id, id FROM exports WHERE {DUE}
        ORDER BY organization_id <= $3, organization_id, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING organization_id, {jobs.COLUMNS}
"""
LET_GO = """
UPDATE exports SET worker = NULL, lease_until = NULL WHERE organization_id = $1 AND id = $2 AND worker = $3
"""
LATER = """
UPDATE exports SET worker = NULL, lease_until = now() + $4::interval, tries = tries + 1,
                   state = CASE WHEN tries + 1 >= $5 THEN 'failed' ELSE state END,
                   finished_at = CASE WHEN tries + 1 >= $5 THEN now() END
 WHERE organization_id = $1 AND id = $2 AND worker = $3 AND state = 'running'
RETURNING state
"""
# One that waits for a row that somebody keeps locked, as in an open session, is not given up.
WAITS = """
UPDATE exports SET worker = NULL, lease_until = now() + $4::interval
 WHERE organization_id = $1 AND id = $2 AND worker = $3 AND state = 'running'
"""
CHUNK = "INSERT INTO export_chunks (organization_id, export_id, number, bytes) VALUES ($1, $2, $3, $4)"
# Stopping an export waits for this commit, or else this finds no row to update.
ADVANCE = """
UPDATE exports SET rows = rows + $4, size = size + $5, chunks = chunks + $6, place = $7, tries = 0,
                   lease_until = CASE WHEN $8 THEN NULL ELSE now() + $9::interval END,
                   is_cut = $10, state = CASE WHEN $8 THEN 'finished' ELSE state END,
                   finished_at = CASE WHEN $8 THEN now() END
 WHERE organization_id = $1 AND id = $2 AND worker = $3 AND state = 'running'
RETURNING true
"""


# Otherwise nobody can download it any more: the person has left the organization, or the key was revoked or expired.
HAS_READER = """
SELECT EXISTS (SELECT FROM memberships WHERE organization_id = $1 AND user_id = $2)
    OR EXISTS (SELECT FROM api_keys WHERE organization_id = $1 AND id = $2 AND status <> 'revoked'
                                      AND (expires_at IS NULL OR expires_at > now()))
"""
#: Without a standby.
NOWHERE = Readers("")


class ExportWork(Work):
    """The exports processed by one worker."""

    def __init__(self, pool: Pool, *, readers: Readers = NOWHERE, lease: timedelta = timedelta(seconds=15)) -> None:
        """`readers`: where pages of a file are read from."""
        self._pool, self._lease = pool, lease
        self._readers = readers
        self._me = uuid7()
        self._served = UUID(int=0)
        self._wake = asyncio.Event()

    def loops(self) -> Sequence[Loop]:
        return (Loop("exports", self.round, self._wake, when=ANY),)

    def background(self) -> Sequence[Awaitable[None]]:
        return (self._readers.watch(self._pool),)

    def gauges(self) -> Iterable[Gauge]:
        return self._readers.gauges()

    async def stop(self, *, grace: float) -> None:
        """Close what it holds."""
        await self._readers.close()

    async def round(self) -> int:
        """Some pages of one export; returns 0 if none was due."""
        async with self._pool.acquire() as conn:
            row = await conn.fetchrow(TAKE, self._me, self._lease, self._served)
            if row is None:
                return 0
            self._served = row["organization_id"]
            await plan_by_key(conn)
            place = (row["organization_id"], row["id"], self._me)
            try:
                await self._go_on(conn, row)
                await conn.execute(LET_GO, *place)
            except _Gone:
                pass
            except asyncpg.LockNotAvailableError:
                log.warning("export waits for a locked row", export_id=str(row["id"]), kind=row["kind"])
                await conn.execute(WAITS, *place, FAILED)
            except Exception as error:
                if is_down(error):
                    raise
                # Invalid filters and missing permissions would fail again the next time.
                tries = 1 if isinstance(error, Invalid | NotFound | RoleRequired) else TRIES
                log.exception("export failed", export_id=str(row["id"]), kind=row["kind"])
                async with conn.transaction():
                    if await conn.fetchval(LATER, *place, FAILED, tries) == "failed":
                        await notices.record(conn, _failed(row))
        return 1

    async def _go_on(self, conn: Connection, row: asyncpg.Record) -> None:
        export = jobs.of_row(row)
        actor = Actor(
            organization_id=row["organization_id"],
            key_id=None,
            mode=export.mode,
            scopes=frozenset(),
            state="active",
            by=Principal("person", export.user_id, name=export.author),
        )
        if not await conn.fetchval(HAS_READER, actor.organization_id, export.user_id):
            await conn.execute(jobs.STOP, actor.organization_id, export.id)
            raise _Gone
        for _ in range(STEPS):
            wanted, after, is_first = export.wanted, export.place, export.chunks == 0
            if isinstance(wanted, kinds.Change):
                async with conn.transaction():
                    await conn.execute(leases.PATIENCE)  # other exports wait for their turn
                    found = await changes.step(conn, actor, wanted, after=after, is_first=is_first)
                    export = await self._keep(conn, actor, export, found)
            else:
                async with (
                    self._readers.read(conn) as from_,
                    from_.transaction(isolation="repeatable_read", readonly=True),
                ):
                    found = await kinds.page(from_, actor, wanted, after=after, is_first=is_first)
                async with conn.transaction():
                    export = await self._keep(conn, actor, export, found)
            crash_point("export.after_commit")
            if export.is_final:
                return

    async def _keep(self, conn: Connection, actor: Actor, export: Export, found: kinds.Page) -> Export:
        """Store a page and the progress, in the caller's transaction. Returns the updated export. Raises _Gone."""
        piece = found.text.encode()
        rows, size, added = export.rows + found.rows, export.size + len(piece), int(bool(piece))
        is_cut = found.after is not None and (rows >= MOST_ROWS or size >= MOST_BYTES)
        ends = found.after is None or is_cut
        moved = await conn.fetchval(
            ADVANCE,
            actor.organization_id,
            export.id,
            self._me,
            found.rows,
            len(piece),
            added,
            found.after,
            ends,
            self._lease,
            is_cut,
        )
        if moved is None:  # stopped, erased, or taken over by another worker
            raise _Gone
        if piece:
            await conn.execute(CHUNK, actor.organization_id, export.id, export.chunks, piece)
        if ends:
            await notices.record(conn, _ready(actor, export, rows))
        crash_point("export.before_commit")
        return msgspec.structs.replace(
            export,
            state="finished" if ends else "running",
            place=found.after,
            rows=rows,
            size=size,
            chunks=export.chunks + added,
        )


def _ready(actor: Actor, export: Export, rows: int) -> notices.Notice:
    return notices.Notice(
        actor.organization_id,
        "export.ready",
        str(export.id),
        export.file,
        mode=export.mode,
        facts={"rows": rows},
        user_id=export.user_id,
    )


def _failed(row: asyncpg.Record) -> notices.Notice:
    export = jobs.of_row(row)
    return notices.Notice(
        row["organization_id"],
        "export.failed",
        str(export.id),
        export.file,
        mode=export.mode,
        user_id=export.user_id,
    )


class _Gone(Exception):
    """The export was stopped, or another worker has it."""
