"""First successes: what an endpoint took at the first attempt, many deliveries in one row.

Nearly every delivery ends so, and a row of its own for each cost more than all the rest of recording it (decision
0069). A row holds deliveries of one endpoint whose events were made within the same second, so an event is found among
the few rows of that second, and whose attempts began within the same ten seconds, so a list by time reads few rows too.

The rule nobody may break: a delivery stands here or in `webhook_attempts`, never in both as the first attempt. It comes
here only in the statement that deletes its queue row under a first lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from heliograph.base.db import Connection
from heliograph.webhooks.attempts import DELIVERED, Ended

#: The attempts of a row began within so many seconds.
SPAN = 10


def is_first(ended: Ended) -> bool:
    """Whether this is a success at the first attempt of a row that nobody held before: it has no earlier attempt."""
    attempt, lease = ended.attempt, ended.lease
    return attempt is not None and attempt.result == DELIVERED and lease.tries == 0 and not lease.again


def since(event_id: UUID) -> UUID:
    """The lower bound of `first_event` for rows that may hold this event: the beginning of its second."""
    return UUID(int=(event_id.int >> 80) // 1000 * 1000 << 80)


#: Rows that may hold an event: `{since}` is `since(id)`. To be followed by a condition on `s.endpoint_id`, if wanted.
HOLDING = """s.organization_id = {organization} AND s.first_event >= {since} AND s.first_event <= {id}
          AND {id} = ANY (s.events)"""

# All of it or, when one of the leases was lost, nothing: then each result is stored by itself.
STORE = """
WITH held AS MATERIALIZED (
    SELECT mine.place
      FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS item (id, line, token)
           CROSS JOIN LATERAL (
           SELECT ctid AS place FROM queue
            WHERE queue.id = item.id AND queue.line = item.line AND queue.lease_token = item.token FOR UPDATE) mine
), whole AS MATERIALIZED (
    SELECT count(*) = cardinality($1::uuid[]) AS yes FROM held
), gone AS (
    DELETE FROM queue WHERE ctid = ANY (ARRAY(SELECT place FROM held WHERE (SELECT yes FROM whole)))
), stored AS (
    INSERT INTO webhook_successes (organization_id, endpoint_id, first_event, events, started_at, duration_ms, status,
                                   started_from, started_to)
    SELECT part.organization_id, part.endpoint_id, ($1::uuid[])[part.low], ($1::uuid[])[part.low:part.high],
           starts.at, ($5::integer[])[part.low:part.high], ($6::smallint[])[part.low:part.high],
           (SELECT min(at) FROM unnest(starts.at) AS at), (SELECT max(at) FROM unnest(starts.at) AS at)
      FROM unnest($7::uuid[], $8::uuid[], $9::integer[], $10::integer[])
           AS part (organization_id, endpoint_id, low, high)
           CROSS JOIN LATERAL (SELECT ($4::timestamptz[])[part.low:part.high] AS at) starts
     WHERE (SELECT yes FROM whole)
), told AS (
    UPDATE webhook_endpoints e SET last_success_at = now(), consecutive_failures = 0, failing_since = NULL
      FROM unnest($11::uuid[], $12::uuid[]) AS well (organization_id, id)
     WHERE e.organization_id = well.organization_id AND e.id = well.id AND e.status = 'active'
       AND (SELECT yes FROM whole)
)
SELECT yes FROM whole
"""


async def store(conn: Connection, ended: Sequence[Ended], well: Sequence[tuple[UUID, UUID]]) -> bool:
    """Finish deliveries for which `is_first` holds, in one statement; False: nothing was done, since a lease was lost.

    `well`: endpoints, as (organization, id) in one order for all workers, of which it is noted that they are well.
    """
    parts: dict[tuple[UUID, UUID, int, int], list[tuple[int, Ended]]] = {}
    for one in ended:
        lease, number = one.lease, one.lease.id.int
        assert one.attempt is not None
        second, span = (number >> 80) // 1000, int(one.attempt.started_at.timestamp()) // SPAN
        parts.setdefault((lease.organization_id, lease.line, second, span), []).append((number, one))
    ordered: list[Ended] = []
    low: list[int] = []
    for part in parts.values():
        low.append(len(ordered) + 1)
        part.sort(key=_number)
        ordered += [one for _, one in part]
    attempts = [one.attempt for one in ordered if one.attempt is not None]
    whole: bool = await conn.fetchval(
        STORE,
        [one.lease.id for one in ordered],
        [one.lease.line for one in ordered],
        [one.lease.token for one in ordered],
        [attempt.started_at for attempt in attempts],
        [round(attempt.duration * 1000) for attempt in attempts],
        [attempt.status for attempt in attempts],
        [organization_id for organization_id, *_ in parts],
        [endpoint_id for _, endpoint_id, *_ in parts],
        low,
        [*(start - 1 for start in low[1:]), len(ordered)],
        [organization_id for organization_id, _ in well],
        [id for _, id in well],
    )
    return whole


def _number(one: tuple[int, Ended]) -> int:
    return one[0]
