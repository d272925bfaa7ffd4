"""The history of webhook attempts: of an organization's own endpoints, or of all endpoints for operators.

The rule nobody may break: `detail` is for operators. It may contain what our name servers said about private names.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, get_args
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.http.answers import FailureKind
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery.attempts import DELIVERED, GONE, REFUSED, UNSIGNED
from heliograph.webhooks.delivery.evidence import StoredEvidence
from heliograph.webhooks.recording import feed, successes
from heliograph.webhooks.recording.at_rest import opened_answers
from heliograph.webhooks.recording.feed import Recorded
from heliograph.webhooks.recording.successes import SPAN


class AttemptEntry(msgspec.Struct, frozen=True):
    """One attempt, with the kind of its event; `kind` is None once retention has deleted the event."""

    event_id: UUID
    kind: str | None
    message_id: UUID | None
    attempt: int
    started_at: datetime
    duration_ms: int
    #: HTTP status of the response, if there was one.
    status: int | None
    result: str
    detail: str


class Filters(msgspec.Struct, frozen=True):
    """Which attempts to list; None means all."""

    #: One of RESULTS, or FAILED.
    result: str | None = None
    #: One of `events.KINDS`; examples of any kind count as `webhook.test`.
    kind: str | None = None
    #: The attempt began within [date_from, date_to).
    date_from: datetime | None = None
    date_to: datetime | None = None
    #: Only attempts for these events, such as those of one message.
    events: Sequence[UUID] | None = None


class AttemptPage(msgspec.Struct, frozen=True):
    """Attempts, newest first. `seen`: start, event and number of the attempt where a scan stopped early."""

    attempts: list[AttemptEntry]
    seen: tuple[datetime, UUID, int] | None


#: The possible values of `AttemptEntry.result`.
RESULTS = (DELIVERED, REFUSED, GONE, UNSIGNED, *get_args(FailureKind))
#: Stands for all results but DELIVERED.
FAILED = "failed"
#: How many attempts are scanned for a filtered page.
LOOK = 5_000
#: Positions after and before every attempt.
NEWEST, OLDEST = (datetime(9999, 1, 1, tzinfo=UTC), UUID(int=0), 0), datetime(1971, 1, 1, tzinfo=UTC)

_KEPT = """
SELECT event_id, attempt, started_at, duration_ms, status, result, detail FROM webhook_attempts
 WHERE organization_id = $1 AND endpoint_id = $2 AND started_at <= $3 AND started_at >= $7
   AND (started_at, event_id, attempt) < ($3, $4, $5)
 ORDER BY started_at DESC, event_id DESC, attempt DESC LIMIT $6
"""
# Up to $6 are scanned; of those that match, up to $10 are returned, followed by the last one scanned. The kind of an
# event is looked up in this order, until the page is full.
_FITTING = """
(SELECT w.event_id, e.kind, e.message_id, w.attempt, w.started_at, w.duration_ms, w.status, w.result, w.detail,
        true AS fits
   FROM (SELECT * FROM tried ORDER BY started_at DESC, event_id DESC, attempt DESC LIMIT $6) w
   LEFT JOIN LATERAL (SELECT kind, message_id FROM events WHERE organization_id = $1 AND id = w.event_id) e ON true
  WHERE ($8::text[] IS NULL OR w.result = ANY ($8)) AND ($9::text IS NULL OR split_part(e.kind, ':', 1) = $9)
  ORDER BY w.started_at DESC, w.event_id DESC, w.attempt DESC LIMIT $10)
UNION ALL
(SELECT event_id, NULL, NULL, attempt, started_at, duration_ms, status, result, detail, false AS fits
   FROM tried ORDER BY started_at DESC, event_id DESC, attempt DESC OFFSET $6 - 1 LIMIT 1)
"""
# Newest first, from a position on. A row of first successes covers up to SPAN seconds ($11). `near` holds the newest
# rows that end before the position, enough to fill the page, so no entry of the page is older than the oldest of
# theirs. Every row that reaches into that time is unpacked.
ATTEMPTS = f"""
WITH near AS MATERIALIZED (
    SELECT started_from, sum(cardinality(status)) OVER (ORDER BY started_to DESC, first_event) - cardinality(status)
           AS newer
      FROM (SELECT * FROM webhook_successes
             WHERE organization_id = $1 AND endpoint_id = $2 AND started_to < $3 AND started_to >= $7
             ORDER BY started_to DESC LIMIT $6) newest
), tried AS MATERIALIZED (
    ({_KEPT})
    UNION ALL
    SELECT one.event_id, 1, one.at, one.took, one.answer, '{DELIVERED}', ''
      FROM webhook_successes s
           CROSS JOIN LATERAL (
           SELECT event_id, s.started_from + ms * interval '1 millisecond' AS at, took, answer
             FROM unnest(s.events, s.started_ms, s.duration_ms, s.status) AS made (event_id, ms, took, answer)) one
     WHERE s.organization_id = $1 AND s.endpoint_id = $2 AND s.started_from <= $3
       AND s.started_to <= $3 + make_interval(secs => $11)
       AND s.started_to >= (SELECT coalesce(min(started_from), $3) FROM near WHERE newer < $6)
       AND (one.at, one.event_id, 1) < ($3, $4, $5) AND one.at >= $7
)
{_FITTING}"""
# First-attempt successes are stored elsewhere, so failures are found quickly.
FAILURES = f"""
WITH tried AS MATERIALIZED ({_KEPT})
{_FITTING}"""

# The attempts for some events. $11: `successes.since` of each.
OF_EVENTS = f"""
WITH tried AS MATERIALIZED (
    (SELECT kept.event_id, kept.attempt, kept.started_at, kept.duration_ms, kept.status, kept.result, kept.detail
       FROM unnest($12::uuid[]) AS item (id) CROSS JOIN LATERAL (
            SELECT * FROM webhook_attempts
             WHERE organization_id = $1 AND event_id = item.id AND endpoint_id IS NOT DISTINCT FROM $2
            OFFSET 0) kept  -- otherwise all attempts at the endpoint might be scanned
      WHERE (started_at, event_id, attempt) < ($3, $4, $5) AND started_at >= $7
      ORDER BY started_at DESC, event_id DESC, attempt DESC LIMIT $6)
    UNION ALL
    SELECT one.id, 1, one.started_at, one.duration_ms, one.status, '{DELIVERED}', ''
      FROM (SELECT item.id, {successes.STARTED.format(at="at")} AS started_at, s.duration_ms[at] AS duration_ms,
                   s.status[at] AS status
              FROM unnest($12::uuid[], $11::uuid[]) AS item (id, since) CROSS JOIN LATERAL (
                   SELECT *, array_position(events, item.id) AS at FROM webhook_successes s
                    WHERE {successes.HOLDING.format(organization="$1", since="item.since", id="item.id")}
                      AND s.endpoint_id IS NOT DISTINCT FROM $2
                   OFFSET 0) s) one  -- otherwise all rows of the organization might be scanned
     WHERE (one.started_at, one.id, 1) < ($3, $4, $5) AND one.started_at >= $7
)
{_FITTING}"""


async def attempts(
    conn: Connection,
    actor: Actor,
    *,
    endpoint_id: UUID,
    filters: Filters = Filters(),
    before: tuple[datetime, UUID, int] | None = None,
    limit: int = 50,
    look: int = LOOK,
) -> AttemptPage:
    """Up to `limit` attempts of an endpoint, newest first; `before`: start, event and number of the last one seen.

    With a result or a kind, at most `look` attempts are scanned; for failures, only those stored individually.
    Raises NotFound, and Invalid for an unknown `result` or `kind`.
    """
    if filters.result not in (None, FAILED, *RESULTS):
        raise Invalid(("result", "enum", f"`result` must be one of {FAILED}, {', '.join(RESULTS)}"))
    if filters.kind is not None:
        endpoints.checked_kind(filters.kind)
    await endpoints.get(conn, actor, id=endpoint_id)
    results = None
    if filters.result is not None:
        results = [one for one in RESULTS if one != DELIVERED] if filters.result == FAILED else [filters.result]
    fails = results is not None and DELIVERED not in results
    position = before or NEWEST
    if filters.date_to is not None:
        position = min(position, (filters.date_to, UUID(int=0), 0))
    statement: str
    rest: tuple[Any, ...]
    if filters.events is not None:
        statement, rest = OF_EVENTS, ([successes.since(id) for id in filters.events], list(filters.events))
    else:
        statement, rest = (FAILURES, ()) if fails else (ATTEMPTS, (float(SPAN),))
    found = await conn.fetch(
        statement,
        actor.organization_id,
        endpoint_id,
        *position,
        limit if results is None and filters.kind is None else look,
        max(filters.date_from or OLDEST, OLDEST),
        results,
        filters.kind,
        limit,
        *rest,
    )
    listed = [AttemptEntry(*list(row.values())[:-1]) for row in found if row["fits"]]
    if len(listed) == limit or not found or found[-1]["fits"]:
        return AttemptPage(listed, None)
    last = found[-1]
    return AttemptPage(listed, (last["started_at"], last["event_id"], last["attempt"]))


#: How many attempts of one event are shown, newest first.
MOST_OF_EVENT = 50


class Delivery(msgspec.Struct, frozen=True):
    """One event at one endpoint: the attempts, newest first, and when the next one is due."""

    event: Recorded
    attempts: list[AttemptEntry]
    #: Evidence left by attempts that failed or were tests, by their start time.
    evidence: dict[datetime, StoredEvidence]
    next_at: datetime | None
    #: Whether a worker holds it at this moment.
    is_under_way: bool


# One row for each attempt, newest first; one row with NULLs before the first. One statement: an attempt may end between
# two, so that the event would be due and delivered, or over after a failure. $5: `successes.since` of the event.
OF_EVENT = f"""
SELECT e.id, e.kind, e.request_id, e.data, e.created_at, e.message_id, q.due_at, q.lease_until > now() AS held,
       tried.attempt, tried.started_at, tried.duration_ms, tried.status, tried.result, tried.detail
  FROM events e LEFT JOIN queue q ON q.id = e.id AND q.line IS NOT DISTINCT FROM $3
       LEFT JOIN LATERAL (
       SELECT attempt, started_at, duration_ms, status, result, detail FROM (
           (SELECT attempt, started_at, duration_ms, status, result, detail FROM webhook_attempts
             WHERE organization_id = $1 AND event_id = $2 AND endpoint_id = $3 ORDER BY attempt DESC LIMIT $6)
           UNION ALL
           SELECT 1, {successes.STARTED.format(at="s.at")}, s.duration_ms[s.at], s.status[s.at], '{DELIVERED}', ''
             FROM (SELECT *, array_position(events, $2) AS at FROM webhook_successes s
                    WHERE {successes.HOLDING.format(organization="$1", since="$5", id="$2")}
                      AND s.endpoint_id IS NOT DISTINCT FROM $3) s) made
        ORDER BY started_at DESC, attempt DESC LIMIT $6) tried ON true
 WHERE e.organization_id = $1 AND e.id = $2 AND e.mode = $4
 ORDER BY tried.started_at DESC, tried.attempt DESC
"""


EVIDENCE = """
SELECT started_at, url, sent, head, body, address, dns_ms, connect_ms, tls_ms, first_byte_ms
  FROM webhook_attempt_evidence
 WHERE organization_id = $1 AND event_id = $2 AND endpoint_id = $3 AND started_at = ANY ($4)
   AND begun_on = ANY (ARRAY(SELECT DISTINCT (at AT TIME ZONE 'UTC')::date FROM unnest($4) AS at))
"""


async def reveal(conn: Connection, actor: Actor, *, endpoint_id: UUID, event_id: UUID) -> Delivery:
    """Like `delivery`, for users who may see texts and full numbers one at a time: audits the access. Raises
    NotFound."""
    async with conn.transaction():
        found = await delivery(conn, actor, endpoint_id=endpoint_id, event_id=event_id)
        await audit.record(conn, actor, "event.revealed", object_id=event_id, name=found.event.kind)
    return found


async def delivery(conn: Connection, actor: Actor, *, endpoint_id: UUID, event_id: UUID) -> Delivery:
    """What became of one event at one of the actor's endpoints. Raises NotFound, also after the event is deleted."""
    endpoint = await endpoints.get(conn, actor, id=endpoint_id)
    rows = await conn.fetch(
        OF_EVENT,
        actor.organization_id,
        event_id,
        endpoint_id,
        endpoint.mode,
        successes.since(event_id),
        MOST_OF_EVENT,
    )
    if not rows:
        raise NotFound("There is no such event.", resource="event", id=str(event_id))
    *event, message_id, next_at, is_under_way = list(rows[0].values())[:8]
    (found,) = await feed.opened(conn, actor, [Recorded(*event)])
    tried = [list(row.values())[8:] for row in rows if row["attempt"] is not None]
    entries = [AttemptEntry(event_id, found.kind, message_id, *one) for one in tried]
    kept = await _evidence(conn, actor, event_id, endpoint_id, [one.started_at for one in entries])
    return Delivery(found, entries, kept, next_at, bool(is_under_way))


async def _evidence(
    conn: Connection, actor: Actor, event_id: UUID, endpoint_id: UUID, begun: Sequence[datetime]
) -> dict[datetime, StoredEvidence]:
    rows = await conn.fetch(EVIDENCE, actor.organization_id, event_id, endpoint_id, begun)
    answers = [one for row in rows for one in (row["head"], row["body"])]
    opened = iter(await opened_answers(conn, actor.organization_id, event_id, answers))
    found = {row["started_at"]: StoredEvidence(*list(row.values())[1:]) for row in rows}
    return {at: msgspec.structs.replace(one, head=next(opened), body=next(opened)) for at, one in found.items()}
