"""The history of webhook attempts: of an organization's own endpoints, or of all for operators.

The rule nobody may break: `detail` is for operators. It may contain what our name servers said about private names.
"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery.attempts import DELIVERED
from heliograph.webhooks.delivery.evidence import Kept
from heliograph.webhooks.recording import successes
from heliograph.webhooks.recording.feed import Recorded
from heliograph.webhooks.recording.successes import SPAN


class Tried(msgspec.Struct, frozen=True):
    """One attempt, with the kind of its event; `kind` is None once retention took the event."""

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


# Newest first, from a position on. A row of first successes covers up to SPAN seconds ($7). `near` are the newest of
# those that end before the position, enough to fill the page, so no entry of the page is older than the oldest of
# theirs. Every row that reaches into that time is opened.
ATTEMPTS = f"""
WITH near AS MATERIALIZED (
    SELECT started_from, sum(cardinality(status)) OVER (ORDER BY started_to DESC, first_event) - cardinality(status)
           AS newer
      FROM (SELECT * FROM webhook_successes
             WHERE organization_id = $1 AND endpoint_id = $2 AND started_to < $3
             ORDER BY started_to DESC LIMIT $6) newest
), tried AS MATERIALIZED (
    (SELECT event_id, attempt, started_at, duration_ms, status, result, detail FROM webhook_attempts
      WHERE organization_id = $1 AND endpoint_id = $2 AND started_at <= $3
        AND (started_at, event_id, attempt) < ($3, $4, $5)
      ORDER BY started_at DESC, event_id DESC, attempt DESC LIMIT $6)
    UNION ALL
    SELECT one.event_id, 1, one.at, one.took, one.answer, '{DELIVERED}', ''
      FROM webhook_successes s
           CROSS JOIN LATERAL (
           SELECT event_id, s.started_from + ms * interval '1 millisecond' AS at, took, answer
             FROM unnest(s.events, s.started_ms, s.duration_ms, s.status) AS made (event_id, ms, took, answer)) one
     WHERE s.organization_id = $1 AND s.endpoint_id = $2 AND s.started_from <= $3
       AND s.started_to <= $3 + make_interval(secs => $7)
       AND s.started_to >= (SELECT coalesce(min(started_from), $3) FROM near WHERE newer < $6)
       AND (one.at, one.event_id, 1) < ($3, $4, $5)
)
SELECT w.event_id, e.kind, e.message_id, w.attempt, w.started_at, w.duration_ms, w.status, w.result, w.detail
  FROM (SELECT * FROM tried ORDER BY started_at DESC, event_id DESC, attempt DESC LIMIT $6) w
  LEFT JOIN LATERAL (SELECT kind, message_id FROM events WHERE organization_id = $1 AND id = w.event_id) e ON true
 ORDER BY w.started_at DESC, w.event_id DESC, w.attempt DESC
"""
#: After every attempt.
NEWEST = (datetime(9999, 1, 1, tzinfo=UTC), UUID(int=0), 0)


#: Attempts that are kept one by one, looked at for those that failed.
LOOK = 5_000

# Most successes stand elsewhere, so what failed is found soon; what is rare, within LOOK ($7).
FAILED = f"""
SELECT w.event_id, e.kind, e.message_id, w.attempt, w.started_at, w.duration_ms, w.status, w.result, w.detail
  FROM (SELECT * FROM (
            SELECT event_id, attempt, started_at, duration_ms, status, result, detail FROM webhook_attempts
             WHERE organization_id = $1 AND endpoint_id = $2 AND started_at <= $3
               AND (started_at, event_id, attempt) < ($3, $4, $5)
             ORDER BY started_at DESC, event_id DESC, attempt DESC LIMIT $7) looked
         WHERE result <> '{DELIVERED}' ORDER BY started_at DESC, event_id DESC, attempt DESC LIMIT $6) w
  LEFT JOIN LATERAL (SELECT kind, message_id FROM events WHERE organization_id = $1 AND id = w.event_id) e ON true
 ORDER BY w.started_at DESC, w.event_id DESC, w.attempt DESC
"""


async def attempts(
    conn: Connection,
    actor: Actor,
    *,
    endpoint_id: UUID,
    before: tuple[datetime, UUID, int] | None = None,
    limit: int = 50,
    only_failed: bool = False,
) -> list[Tried]:
    """Up to `limit` attempts of an endpoint, newest first; `before`: beginning, event and number of the last one seen.
    `only_failed`: those among the latest LOOK that are kept one by one.

    Raises NotFound.
    """
    await endpoints.get(conn, actor, id=endpoint_id)
    if only_failed:
        failed = await conn.fetch(FAILED, actor.organization_id, endpoint_id, *(before or NEWEST), limit, LOOK)
        return [Tried(*row.values()) for row in failed]
    rows = await conn.fetch(ATTEMPTS, actor.organization_id, endpoint_id, *(before or NEWEST), limit, float(SPAN))
    return [Tried(*row.values()) for row in rows]


#: Attempts of one event that are shown, the newest ones.
MOST_OF_EVENT = 50


class Delivery(msgspec.Struct, frozen=True):
    """An event and one endpoint: the attempts, newest first, and when the next one is due."""

    event: Recorded
    attempts: list[Tried]
    #: What attempts left that failed or were tests, by their beginning.
    evidence: dict[datetime, Kept]
    next_at: datetime | None
    #: A worker has it at this moment.
    is_under_way: bool


EVENT = """
SELECT e.id, e.kind, e.request_id, e.data, e.created_at, e.message_id, q.due_at, q.lease_until > now() AS held
  FROM events e LEFT JOIN queue q ON q.id = e.id AND q.line IS NOT DISTINCT FROM $3
 WHERE e.organization_id = $1 AND e.id = $2 AND e.mode = $4
"""
# $4: `successes.since` of the event.
OF_EVENT = f"""
SELECT attempt, started_at, duration_ms, status, result, detail FROM (
    (SELECT attempt, started_at, duration_ms, status, result, detail FROM webhook_attempts
      WHERE organization_id = $1 AND event_id = $2 AND endpoint_id = $3 ORDER BY attempt DESC LIMIT $5)
    UNION ALL
    SELECT 1, {successes.STARTED.format(at="s.at")}, s.duration_ms[s.at], s.status[s.at], '{DELIVERED}', ''
      FROM (SELECT *, array_position(events, $2) AS at FROM webhook_successes s
             WHERE {successes.HOLDING.format(organization="$1", since="$4", id="$2")}
               AND s.endpoint_id IS NOT DISTINCT FROM $3) s) tried
 ORDER BY started_at DESC, attempt DESC LIMIT $5
"""


EVIDENCE = """
SELECT started_at, url, sent, head, body, address, dns_ms, connect_ms, tls_ms, first_byte_ms
  FROM webhook_attempt_evidence
 WHERE organization_id = $1 AND event_id = $2 AND endpoint_id = $3 AND started_at = ANY ($4)
   AND begun_on = ANY (ARRAY(SELECT DISTINCT (at AT TIME ZONE 'UTC')::date FROM unnest($4) AS at))
"""


async def reveal(conn: Connection, actor: Actor, *, endpoint_id: UUID, event_id: UUID) -> Delivery:
    """As `delivery`, for who sees texts and whole numbers one at a time: it is recorded. Raises NotFound."""
    async with conn.transaction():
        found = await delivery(conn, actor, endpoint_id=endpoint_id, event_id=event_id)
        await audit.record(conn, actor, "event.revealed", object_id=event_id, name=found.event.kind)
    return found


async def delivery(conn: Connection, actor: Actor, *, endpoint_id: UUID, event_id: UUID) -> Delivery:
    """What became of one event at one of the actor's endpoints. Raises NotFound, also once the event is deleted."""
    endpoint = await endpoints.get(conn, actor, id=endpoint_id)
    row = await conn.fetchrow(EVENT, actor.organization_id, event_id, endpoint_id, endpoint.mode)
    if row is None:
        raise NotFound(resource="event", id=str(event_id))
    *event, message_id, next_at, is_under_way = row.values()
    tried = await conn.fetch(
        OF_EVENT, actor.organization_id, event_id, endpoint_id, successes.since(event_id), MOST_OF_EVENT
    )
    begun = [one["started_at"] for one in tried]
    kept = await conn.fetch(EVIDENCE, actor.organization_id, event_id, endpoint_id, begun)
    return Delivery(
        Recorded(*event),
        [Tried(event_id, row["kind"], message_id, *one.values()) for one in tried],
        {one["started_at"]: Kept(*list(one.values())[1:]) for one in kept},
        next_at,
        bool(is_under_way),
    )
