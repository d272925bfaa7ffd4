"""Webhook attempts as one looks back on them: an organization on its own endpoints, operators on all.

The rule nobody may break: `detail` is for operators. It may hold what our name servers answered about private names.
"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.db import Connection
from heliograph.webhooks import endpoints


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


# Newest first, from a position on: the index gives the order of the beginnings, the rest decides among equal ones.
ATTEMPTS = """
SELECT w.event_id, e.kind, e.message_id, w.attempt, w.started_at, w.duration_ms, w.status, w.result, w.detail
  FROM (SELECT * FROM webhook_attempts
         WHERE organization_id = $1 AND endpoint_id = $2 AND started_at <= $3
           AND (started_at, event_id, attempt) < ($3, $4, $5)
         ORDER BY started_at DESC, event_id DESC, attempt DESC LIMIT $6) w
  LEFT JOIN LATERAL (SELECT kind, message_id FROM events WHERE organization_id = $1 AND id = w.event_id) e ON true
 ORDER BY w.started_at DESC, w.event_id DESC, w.attempt DESC
"""
#: Behind every attempt.
NEWEST = (datetime(9999, 1, 1, tzinfo=UTC), UUID(int=0), 0)


async def attempts(
    conn: Connection,
    actor: Actor,
    *,
    endpoint_id: UUID,
    before: tuple[datetime, UUID, int] | None = None,
    limit: int = 50,
) -> list[Tried]:
    """Up to `limit` attempts of an endpoint, newest first; `before`: beginning, event and number of the last one seen.

    Raises NotFound.
    """
    await endpoints.get(conn, actor, id=endpoint_id)
    rows = await conn.fetch(ATTEMPTS, actor.organization_id, endpoint_id, *(before or NEWEST), limit)
    return [Tried(*row.values()) for row in rows]
