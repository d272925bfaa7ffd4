"""How a supplier does now, for operators: its sessions, its circuit, and its last hours, from facts that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.sms.circuits import sharing
from heliograph.sms.circuits.sharing import Avoided
from heliograph.traffic import reconciliation
from heliograph.traffic.reconciliation import Line, Query

#: Sums are by the hour: those of the hour that runs and of the one before it say how it goes.
RECENT = timedelta(hours=1)


class Session(msgspec.Struct, frozen=True):
    """The sessions of one worker at an account."""

    worker: str
    leased: int
    bound: int
    #: Since when the one that is bound longest is; None: none is.
    since: datetime | None
    in_flight: int
    error: str


class Watched(msgspec.Struct, frozen=True):
    """A supplier's last hours."""

    #: Of what is in `line`.
    since: datetime
    #: None: nothing was handed to it, and nothing heard of it.
    line: Line | None
    #: Of all that was handed to suppliers; None: nothing was.
    share: float | None
    avoided: Avoided | None

    @property
    def busy(self) -> float | None:
        """The share of submits that were answered "later"."""
        return self.line["busy"] / self.line.submitted if self.line and self.line.submitted else None


async def watch(conn: Connection) -> Mapping[UUID, Watched]:
    """By supplier, those of which there is something to say."""
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


SESSIONS = """
SELECT w.name AS worker, count(*)::int AS leased, (count(*) FILTER (WHERE s.bound))::int AS bound,
       min(s.bound_at) FILTER (WHERE s.bound) AS since, sum(s.in_flight)::int AS in_flight, max(s.detail) AS error
  FROM supplier_sessions s JOIN workers w ON w.id = s.worker_id
 WHERE s.supplier_id = $1 AND s.lease_until > now() GROUP BY w.id, w.name ORDER BY w.name, w.id
"""


async def sessions(conn: Connection, supplier_id: UUID) -> list[Session]:
    """Of each worker that has any."""
    return [Session(*row) for row in await conn.fetch(SESSIONS, supplier_id)]


async def hours(conn: Connection, supplier_id: UUID, *, since: datetime, until: datetime) -> list[Line]:
    """The hours of a supplier of which something is kept, oldest first."""
    query = Query(date_from=reconciliation.hour_of(since), date_to=until, by=("hour",), supplier_id=supplier_id)
    return await reconciliation.read(conn, query)
