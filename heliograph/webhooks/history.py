"""Webhook attempts as operators look back on them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.db import Connection
from heliograph.base.errors import NotFound


class Tried(msgspec.Struct, frozen=True):
    """One row of `webhook_attempts`, with the kind of its event; `kind` is None once retention took the event."""

    event_id: UUID
    kind: str | None
    message_id: UUID | None
    attempt: int
    started_at: datetime
    duration_ms: int
    #: HTTP status of the answer, if there was one.
    status: int | None
    result: str
    detail: str


OWNER = "SELECT organization_id FROM webhook_endpoints WHERE id = $1"

ATTEMPTS = """
SELECT w.event_id, e.kind, e.message_id, w.attempt, w.started_at, w.duration_ms, w.status, w.result, w.detail
  FROM (SELECT * FROM webhook_attempts WHERE organization_id = $1 AND endpoint_id = $2
         ORDER BY started_at DESC LIMIT $3) w
  LEFT JOIN LATERAL (SELECT kind, message_id FROM events WHERE organization_id = $1 AND id = w.event_id) e ON true
 ORDER BY w.started_at DESC
"""


async def attempts(conn: Connection, *, endpoint_id: UUID, limit: int = 50) -> Sequence[Tried]:
    """The last attempts of an endpoint of any organization, newest first. Raises NotFound."""
    organization_id = await conn.fetchval(OWNER, endpoint_id)
    if organization_id is None:
        raise NotFound("There is no such webhook endpoint.", id=str(endpoint_id))
    return [Tried(*row.values()) for row in await conn.fetch(ATTEMPTS, organization_id, endpoint_id, limit)]
