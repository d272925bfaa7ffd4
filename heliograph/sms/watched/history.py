"""A supplier's history: when its circuit was open, when operators paused it, when it had no session. This may explain a
dip in its charts.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.sentences import said

#: Maximum number of entries returned, the latest; and how long circuits' history is kept: longer than charts go back.
MOST, KEPT = 30, timedelta(days=60)
Kind = Literal["opened", "closed", "active", "paused", "draining", "lost", "bound"]


class HistoryEvent(msgspec.Struct, frozen=True):
    """One entry in a supplier's history."""

    at: datetime
    kind: Kind


# Each part uses an index and reads only the latest rows: a circuit may open and close all day.
HISTORY = """
(SELECT opened_at AS at, 'opened' AS kind FROM supplier_circuits
  WHERE supplier_id = $1 AND opened_at >= $3 AND opened_at < $4 ORDER BY opened_at DESC LIMIT $5)
UNION ALL
(SELECT closed_at, 'closed' FROM (
    SELECT closed_at FROM supplier_circuits
     WHERE supplier_id = $1 AND opened_at < $4 ORDER BY opened_at DESC LIMIT $5) latest
  WHERE closed_at >= $3 AND closed_at < $4)
UNION ALL
(SELECT at, after::jsonb ->> 'state' FROM audit_log
  WHERE object_id = $1::text AND action = 'supplier.state_changed' AND at >= $3 AND at < $4
    AND after::jsonb ->> 'state' IN ('active', 'paused', 'draining') ORDER BY id DESC LIMIT $5)
UNION ALL
(SELECT since, 'lost' FROM findings WHERE name = $2 AND state = 'failed' AND over_at IS NULL AND since >= $3
    AND since < $4)
UNION ALL
(SELECT moved.at, moved.kind FROM (
    SELECT since, over_at FROM findings WHERE name = $2 AND state = 'failed' AND over_at >= $3
     ORDER BY over_at DESC LIMIT $5) over
  CROSS JOIN LATERAL (VALUES (over.since, 'lost'), (over.over_at, 'bound')) AS moved (at, kind)
  WHERE moved.at >= $3 AND moved.at < $4)
ORDER BY at DESC LIMIT $5
"""


async def between(conn: Connection, *, id: UUID, name: str, since: datetime, until: datetime) -> list[HistoryEvent]:
    """A supplier's history in [since, until), oldest first; the latest MOST entries."""
    check = str(said("supplier %(name)s", name=name))
    rows = await conn.fetch(HISTORY, id, check, since, until, MOST)
    return [HistoryEvent(*row) for row in reversed(rows)]


# For retention: deletes those before $1, at most $2 at once.
FORGET = """
DELETE FROM supplier_circuits WHERE (supplier_id, opened_at) IN (
    SELECT supplier_id, opened_at FROM supplier_circuits WHERE opened_at < $1 LIMIT $2)
"""
