"""Events marked in traffic charts: when campaigns began, were paused and resumed, which may explain dips and peaks."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection

#: Maximum campaigns examined, newest first, and events returned, latest first.
LOOK, MOST = 50, 20


class ChartEvent(msgspec.Struct, frozen=True):
    """A campaign began, was paused or was resumed."""

    at: datetime
    name: str
    kind: Literal["begun", "paused", "running"]


# Pauses and resumptions are in the organization's own log; its index by object finds the few entries.
EVENTS = """
WITH newest AS MATERIALIZED (
    SELECT id, name, started_at, completed_at FROM campaigns
     WHERE organization_id = $1 AND mode = $2 ORDER BY id DESC LIMIT $5
), near AS MATERIALIZED (
    SELECT * FROM newest WHERE started_at < $4 AND coalesce(completed_at, $4) >= $3
)
(SELECT started_at AS at, name, 'begun' AS kind FROM near WHERE started_at >= $3)
UNION ALL
(SELECT moved.at, near.name, moved.status
   FROM near CROSS JOIN LATERAL (
        SELECT at, after::jsonb ->> 'status' AS status FROM audit_log
         WHERE object_id = near.id::text AND organization_id = $1 AND action = 'campaign.moved'
           AND at >= $3 AND at < $4
         ORDER BY id DESC LIMIT $6) moved
  WHERE moved.status IN ('paused', 'running') AND moved.at > near.started_at)
ORDER BY at DESC LIMIT $6
"""


async def between(conn: Connection, actor: Actor, *, since: datetime, until: datetime) -> list[ChartEvent]:
    """Events in the actor's mode, in [since, until), oldest first."""
    rows = await conn.fetch(EVENTS, actor.organization_id, actor.mode, since, until, LOOK, MOST)
    return [ChartEvent(*row) for row in reversed(rows)]
