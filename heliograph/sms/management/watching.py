"""A supplier's current condition, for operators: its sessions, its circuit, and its last hours, from stored facts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.sentences import Sentence, unpacked
from heliograph.sms.circuits import sharing
from heliograph.sms.circuits.sharing import CircuitState
from heliograph.sms.watched import sessions as wires
from heliograph.suppliers.contract import WireActivity
from heliograph.suppliers.slots import IS_HELD
from heliograph.traffic import reconciliation
from heliograph.traffic.reconciliation import Line, Query

#: Sums are hourly: those of the current hour and the one before it show the current condition.
RECENT = timedelta(hours=1)


class Session(msgspec.Struct, frozen=True):
    """A session that a worker may have with an account."""

    worker: str
    number: int
    is_bound: bool
    since: datetime | None
    #: Open submits: of this session if it has a connection of its own, otherwise of all sessions of its worker, shown
    #: with the first.
    in_flight: int
    error: Sentence
    wire: WireActivity | None


class Watched(msgspec.Struct, frozen=True):
    """A supplier's last hours."""

    #: Beginning of the period covered by `line`.
    since: datetime
    #: None: nothing was handed to it, and nothing was received from it.
    line: Line | None
    #: Its share of everything handed to suppliers; None: nothing was.
    share: float | None
    avoided: CircuitState | None

    @property
    def busy(self) -> float | None:
        """The share of submits that were answered "later"."""
        return self.line["busy"] / self.line.submitted if self.line and self.line.submitted else None


async def watch(conn: Connection) -> Mapping[UUID, Watched]:
    """By supplier; those without any facts are left out."""
    since = reconciliation.hour_of(clock.now() - RECENT)
    until = since + 3 * RECENT
    lines = {
        one.supplier_id: one for one in await reconciliation.read(conn, Query(date_from=since, date_to=until, by=()))
    }
    avoided = await sharing.avoided(conn)
    total = sum(one.submitted for one in lines.values())
    return {
        id: Watched(since, line, line.submitted / total if line and total else None, avoided.get(id))
        for id in lines.keys() | avoided.keys()
        for line in [lines.get(id)]
    }


SESSIONS = f"""
SELECT w.name AS worker, s.slot + 1 AS number, s.bound AS is_bound, s.bound_at AS since, s.in_flight,
       CASE WHEN s.bound THEN '' ELSE s.detail END AS error, s.wire
  FROM supplier_sessions s JOIN workers w ON w.id = s.worker_id
 WHERE s.supplier_id = $1 AND {IS_HELD} ORDER BY s.slot
"""


async def sessions(conn: Connection, supplier_id: UUID) -> list[Session]:
    """The sessions held by workers, in order."""
    found = []
    for row in await conn.fetch(SESSIONS, supplier_id):
        wire = wires.read(row["wire"])
        in_flight = row["in_flight"] if wire is None else wire.in_flight
        found.append(Session(**dict(row) | {"error": unpacked(row["error"]), "wire": wire, "in_flight": in_flight}))
    return found


async def hours(conn: Connection, supplier_id: UUID, *, since: datetime, until: datetime) -> list[Line]:
    """The hours of a supplier with any stored facts, oldest first."""
    query = Query(date_from=reconciliation.hour_of(since), date_to=until, by=("hour",), supplier_id=supplier_id)
    return await reconciliation.read(conn, query)
