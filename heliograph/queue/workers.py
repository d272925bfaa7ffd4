"""The workers: the row that each writes about itself, through which operators also send it instructions.

A worker that is told to drain takes no more work, finishes what it has as on SIGTERM, and then either exits, so that
its supervisor restarts it, or stays idle until it is told to resume. It reads its instructions with each heartbeat. The
rule nobody may break: a worker that was told to drain does not count as working, or sessions would be reserved for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal
from uuid import UUID

import structlog

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.errors import NotFound
from heliograph.base.process import memory
from heliograph.base.process.heartbeat import IS_ALIVE, IS_LISTED
from heliograph.queue.runner import note_unavailable

log = structlog.get_logger()

Drain = Literal["end", "stay"]
#: Seconds between two heartbeats of an idle, drained worker.
STAYING = 1.0
#: An SQL condition: this row of `workers` belongs to one that takes work, if it was seen recently.
WORKS = "drain IS NULL"
#: How many workers take work.
LIVE_WORKERS = f"SELECT count(*) FROM workers WHERE {IS_ALIVE} AND {WORKS}"

BEATS = """
INSERT INTO workers (id, name, started_at, seen_at, clock_ahead, version, memory, secret_keys)
VALUES ($1, $2, now(), now(), $3, $4, $5, $6)
ON CONFLICT (id) DO UPDATE SET seen_at = now(), clock_ahead = excluded.clock_ahead, memory = excluded.memory
RETURNING drain
"""


async def beat(
    pool: Pool, id: UUID, *, name: str, clock_ahead: float, version: str, secret_keys: list[bytes]
) -> Drain | None:
    """Write a heartbeat; returns the worker's instructions. `secret_keys`: their fingerprints."""
    told: Drain | None = await pool.fetchval(BEATS, id, name, clock_ahead, version, memory.resident(), secret_keys)
    return told


async def end(pool: Pool, id: UUID) -> None:
    """Record that the worker ends."""
    await pool.execute("DELETE FROM workers WHERE id = $1", id)


# The worker has nothing left: everything it held was given back or answered.
DRAINED = """
UPDATE workers SET drained_at = coalesce(drained_at, now()), seen_at = now(), memory = $2 WHERE id = $1 RETURNING drain
"""


async def stay(pool: Pool, id: UUID, *, stop: asyncio.Event) -> bool:
    """Stay idle; returns True once it is told to resume, False if it is to exit or `stop` is set."""
    told: Drain | None = "stay"
    while told == "stay" and not stop.is_set():
        try:
            told = await pool.fetchval(DRAINED, id, memory.resident())
        except Exception as error:
            if not is_down(error):
                raise
            note_unavailable(error, step="stay drained")
        if told == "stay":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STAYING):
                    await stop.wait()
    try:
        await end(pool, id)
    except Exception as error:
        if not is_down(error):
            raise
        log.warning("stopped without reaching the database", error=type(error).__name__)
    return told is None and not stop.is_set()


FIND = f"""
SELECT id, name, drain FROM workers
 WHERE id = (SELECT id FROM workers WHERE (id::text = $1 OR name = $1) AND {IS_LISTED}
              ORDER BY seen_at DESC LIMIT 1)
   FOR UPDATE
"""
TELL = "UPDATE workers SET drain = $2 WHERE id = $1"


async def drain(conn: Connection, worker: str, *, then: Drain, by: Principal = SYSTEM) -> str:
    """Tell a worker, by name or id, to finish what it has and take nothing more. Returns its name. Raises NotFound."""
    return await _tell(conn, worker, then, "worker.drained", by)


async def resume(conn: Connection, worker: str, *, by: Principal = SYSTEM) -> str:
    """Tell a drained worker to resume. Returns its name. Raises NotFound."""
    return await _tell(conn, worker, None, "worker.resumed", by)


async def _tell(conn: Connection, worker: str, told: Drain | None, action: str, by: Principal) -> str:
    async with conn.transaction():
        row = await conn.fetchrow(FIND, worker)
        # A worker that was told to exit is about to.
        if row is None or (told is None and row["drain"] == "end"):
            raise NotFound(
                "There is no such worker, or it has ended; `heliograph workers list` shows the running ones."
            )
        if row["drain"] != told:
            await conn.execute(TELL, row["id"], told)
            await audit.record(
                conn,
                by,
                action,
                object_id=row["id"],
                name=row["name"],
                before={"drain": row["drain"]},
                after={"drain": told},
            )
    name: str = row["name"]
    return name
