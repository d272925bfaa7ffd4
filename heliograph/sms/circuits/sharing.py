"""State of suppliers shared by workers, in one row each: that its circuit is open, and that it throttles.

    a worker's breaker ── opens ──► supplier_health ── once a second ──► every other worker's breaker and rate

It is exchanged when each worker reads the suppliers, every second. A worker that opens a circuit opens it for all. One
worker at a time may send a probe, and its success closes the circuit for all.

If another worker's probe closes a worker's circuit and that worker opens it again, only that worker is affected: for a
while it does not share its state.

The rule nobody may break: rows are written when something changed, never per message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.base.database import clock
from heliograph.base.database.pool import BRIEFLY, Connection
from heliograph.base.process import measures
from heliograph.sms.circuits.breaker import Breaker
from heliograph.sms.dispatch.routing import Supplier
from heliograph.suppliers.contract import Connector, Health

log = structlog.get_logger()

#: Seconds for which a worker does not share its circuit after it was contradicted.
ALONE = 300.0
#: Seconds after which a worker ignores another one's throttling, unless a pause is still in effect.
RECENT = 5.0
#: The longest pause that a supplier can ask for, in seconds.
LONGEST = 60.0

# A probe that is further ahead than one can be was put off before the clock was set back: it is due.
_PROBE_DUE = f"(probe_at <= now() OR probe_at > now() + interval '{Breaker.PROBE + 60} seconds')"
# Findings from before the settings last changed are ignored, unless that was before the clock was set back.
_CHANGED = f"CASE WHEN s.changed_at <= {clock.LATEST} THEN s.changed_at ELSE '-infinity' END"
# Throttling of times to come was before the clock was set back.
_NOT_AHEAD = f"h.throttled_at <= {clock.LATEST}"
READ = f"""
SELECT h.supplier_id, CASE WHEN h.opened_at >= {_CHANGED} THEN h.opened_at END AS opened_at,
       extract(epoch FROM now() - h.opened_at)::float8 AS open_for, {_PROBE_DUE} AS probe_due, h.probed_by,
       h.closed_by, h.throttled_by,
       CASE WHEN h.throttled_at >= {_CHANGED} AND {_NOT_AHEAD} THEN h.throttled_at END AS throttled_at,
       extract(epoch FROM now() - h.throttled_at)::float8 AS throttled_for,
       extract(epoch FROM h.paused_until - now())::float8 AS pause
  FROM supplier_health h JOIN suppliers s ON s.id = h.supplier_id WHERE s.state <> 'removed'
"""
# The periods in which it was open are kept for charts.
OPEN = f"""
WITH opened AS (
    INSERT INTO supplier_health AS known (supplier_id, opened_at, opened_by, probe_at)
    SELECT id, now() - make_interval(secs => since), $1, now() + interval '{Breaker.PROBE} seconds'
      FROM unnest($2::uuid[], $3::float8[]) AS item (id, since) ORDER BY id
    ON CONFLICT (supplier_id) DO UPDATE
       SET opened_at = excluded.opened_at, opened_by = excluded.opened_by, probe_at = excluded.probe_at,
           probed_by = NULL, closed_by = NULL
     WHERE known.opened_at IS NULL
        OR known.opened_at < (SELECT {_CHANGED} FROM suppliers s WHERE s.id = known.supplier_id)
    RETURNING supplier_id, opened_at
), kept AS (
    INSERT INTO supplier_circuits (supplier_id, opened_at)
    SELECT supplier_id, opened_at FROM opened ORDER BY supplier_id ON CONFLICT DO NOTHING
)
SELECT supplier_id, opened_at FROM opened
"""
PROBE = f"""
UPDATE supplier_health SET probe_at = now() + interval '{Breaker.PROBE} seconds', probed_by = $1
 WHERE supplier_id IN (SELECT supplier_id FROM supplier_health
                        WHERE supplier_id = ANY ($2) AND opened_at IS NOT NULL AND {_PROBE_DUE}
                        ORDER BY supplier_id FOR UPDATE SKIP LOCKED)
RETURNING supplier_id
"""
CLOSE = """
WITH found AS (
    SELECT h.supplier_id, h.opened_at FROM supplier_health h
      JOIN unnest($2::uuid[], $3::timestamptz[]) AS item (supplier_id, opened_at) USING (supplier_id, opened_at)
     ORDER BY h.supplier_id FOR UPDATE OF h
), kept AS (
    UPDATE supplier_circuits known SET closed_at = now()
      FROM found WHERE (known.supplier_id, known.opened_at) = (found.supplier_id, found.opened_at)
)
UPDATE supplier_health known SET opened_at = NULL, closed_by = $1, probed_by = NULL
  FROM found WHERE known.supplier_id = found.supplier_id
"""
# A pause that is longer than one can be was agreed before the clock was set back.
THROTTLED = f"""
INSERT INTO supplier_health AS known (supplier_id, throttled_at, throttled_by, paused_until)
SELECT id, now(), $1, now() + make_interval(secs => pause)
  FROM unnest($2::uuid[], $3::float8[]) AS item (id, pause) ORDER BY id
ON CONFLICT (supplier_id) DO UPDATE
   SET throttled_at = excluded.throttled_at, throttled_by = excluded.throttled_by,
       paused_until = greatest(CASE WHEN known.paused_until <= now() + interval '{LONGEST} seconds'
                                    THEN known.paused_until END, excluded.paused_until)
"""


class SharedCircuit(msgspec.Struct):
    """What a worker last shared or learned about a supplier."""

    #: When its circuit opened for all, according to the row; None: it is not open.
    opened_at: datetime | None = None
    #: Until this time, by its event loop's clock, it does not share its own circuit.
    alone_until: float = 0.0
    #: How often its own connector was throttled, and when another worker's was.
    throttles: int = 0
    throttled_at: datetime | None = None


class SupplierLike(Protocol):
    """A supplier as used by a worker."""

    supplier: Supplier
    connector: Connector
    breaker: Breaker
    told: SharedCircuit


async def read(conn: Connection) -> dict[UUID, asyncpg.Record]:
    """The shared state, by supplier."""
    return {row["supplier_id"]: row for row in await conn.fetch(READ)}


async def exchange(
    conn: Connection, worker_id: UUID, accounts: Mapping[UUID, SupplierLike], rows: Mapping[UUID, asyncpg.Record]
) -> None:
    """Share what changed here, and apply what changed elsewhere. `accounts`: this worker's suppliers; `rows`: the
    result of `read`."""
    at = asyncio.get_running_loop().time()
    opened: list[SupplierLike] = []
    closed: list[tuple[UUID, datetime]] = []
    probes: list[UUID] = []
    for id, one in accounts.items():
        row = rows.get(id)
        if row is not None and row["opened_at"] is not None:
            _hear_open(one, row, worker_id, closed, probes)
        elif one.breaker.open:
            _hear_closed(one, row, worker_id, opened, at)
        else:
            one.told.opened_at = None
    if closed:
        columns = [id for id, _ in closed], [since for _, since in closed]
        if await _write(conn, CLOSE, worker_id, *columns) is not None:
            for id, _ in closed:
                accounts[id].told.opened_at = None
    if opened:
        since = [one.breaker.open_for() for one in opened]
        for row in await _write(conn, OPEN, worker_id, [one.supplier.id for one in opened], since) or ():
            account = accounts[row["supplier_id"]]
            account.told.opened_at = row["opened_at"]
            account.breaker.share()
    if probes:
        for row in await conn.fetch(PROBE, worker_id, probes):
            accounts[row["supplier_id"]].breaker.grant()
    await _throttles(conn, worker_id, accounts, rows)


def _hear_open(
    one: SupplierLike, row: asyncpg.Record, worker_id: UUID, closed: list[tuple[UUID, datetime]], probes: list[UUID]
) -> None:
    """Handle a circuit that is open for all."""
    breaker, told = one.breaker, one.told
    if told.opened_at == row["opened_at"] and not breaker.open:
        # This worker's probe was accepted.
        closed.append((one.supplier.id, row["opened_at"]))
        return
    if told.opened_at != row["opened_at"]:
        if not breaker.open:
            breaker.trip(since=row["open_for"])
            log.warning("supplier circuit", supplier=one.supplier.name, open=True, elsewhere=True)
        told.opened_at = row["opened_at"]
        breaker.share()
    if row["probed_by"] != worker_id or not breaker.shared:
        breaker.share()  # a grant that was not used has passed to another worker
    if row["probe_due"] and one.connector.capacity() > 0:
        probes.append(one.supplier.id)


def _hear_closed(
    one: SupplierLike, row: asyncpg.Record | None, worker_id: UUID, opened: list[SupplierLike], at: float
) -> None:
    """Handle a circuit that is open here but not for all."""
    told = one.told
    if told.opened_at is not None:
        told.opened_at = None
        if row is not None and row["closed_by"] not in (None, worker_id):
            told.alone_until = at + ALONE
        one.breaker.close()
        log.warning("supplier circuit", supplier=one.supplier.name, open=False, elsewhere=True)
    elif at >= told.alone_until:
        opened.append(one)


async def _throttles(
    conn: Connection, worker_id: UUID, accounts: Mapping[UUID, SupplierLike], rows: Mapping[UUID, asyncpg.Record]
) -> None:
    """Share that a supplier throttled this worker; slow down if it throttled another."""
    told: list[tuple[SupplierLike, Health]] = []
    for id, one in accounts.items():
        health, row = one.connector.health(), rows.get(id)
        if health.throttles > one.told.throttles:
            told.append((one, health))
        else:
            one.told.throttles = health.throttles
        if row is None or row["throttled_at"] in (None, one.told.throttled_at):
            continue
        one.told.throttled_at = row["throttled_at"]
        pause = min(row["pause"], LONGEST)
        if row["throttled_by"] != worker_id and (pause > 0 or row["throttled_for"] < RECENT):
            one.connector.slow(max(0.0, pause))
            one.breaker.put_off()
    columns = [one.supplier.id for one, _ in told], [min(health.pause, LONGEST) for _, health in told]
    if not told or await _write(conn, THROTTLED, worker_id, *columns) is None:
        return
    for one, health in told:
        measures.THROTTLES.add(one.supplier.name, by=health.throttles - one.told.throttles)
        one.told.throttles = health.throttles


async def _write(conn: Connection, statement: str, *given: object) -> list[asyncpg.Record] | None:
    """The rows that a statement returns; None: a supplier's row stays locked, as by an open session, and the next
    exchange tries again. If this one waited, the leases of the worker's slots would end meanwhile."""
    try:
        async with conn.transaction():
            await conn.execute(BRIEFLY)
            return await conn.fetch(statement, *given)
    except asyncpg.LockNotAvailableError:
        return None


SAID = f"""
SELECT h.supplier_id, CASE WHEN h.opened_at >= {_CHANGED} THEN h.opened_at END AS opened_at,
       CASE WHEN {_NOT_AHEAD}
             AND (h.throttled_at >= greatest({_CHANGED}, now() - interval '60 seconds') OR h.paused_until > now())
            THEN h.throttled_at END AS throttled_at
  FROM supplier_health h JOIN suppliers s ON s.id = h.supplier_id WHERE s.state <> 'removed'
"""


class CircuitState(msgspec.Struct, frozen=True):
    """The shared state of a supplier, for operators."""

    opened_at: datetime | None
    #: Set if within the last minute, or if its pause is still in effect.
    throttled_at: datetime | None


async def avoided(conn: Connection) -> dict[UUID, CircuitState]:
    """The suppliers that are avoided or throttle, by id."""
    rows: Iterable[asyncpg.Record] = await conn.fetch(SAID)
    return {
        row["supplier_id"]: CircuitState(row["opened_at"], row["throttled_at"])
        for row in rows
        if row["opened_at"] is not None or row["throttled_at"] is not None
    }
