"""First successes: deliveries that succeeded at the first attempt, many to a row.

Nearly every delivery ends like this, and one row for each cost more than everything else about recording it (decision
0069). A row holds deliveries to one endpoint whose events were created within the same second, so an event is found
among the few rows of that second; their attempts began within the same ten seconds, so a list by time reads few rows
too.

The rule nobody may break: a first attempt is recorded here or in `webhook_attempts`, never in both. It is recorded here
only in the statement that deletes its queue row under a first lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from heliograph.base.database.clock import MILLISECOND
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.webhooks.delivery.attempts import DELIVERED, Attempt, Ended
from heliograph.webhooks.recording import traffic

#: The attempts of a row began within this many seconds.
SPAN = 10
#: Whether a success is news to the row `e` of its endpoint. A healthy one's is rewritten at most once a second, not
#: with every batch. Whether it is healthy, only the row knows: another worker may have recorded a failure.
NEWS = """(e.failing_since IS NOT NULL OR e.consecutive_failures > 0 OR e.last_success_at IS NULL
           OR e.last_success_at NOT BETWEEN now() - interval '1 second' AND now())"""


def is_first(ended: Ended) -> bool:
    """Whether this is a success at the first attempt of a row that no worker held before, and leaves no evidence."""
    attempt, lease = ended.attempt, ended.lease
    return (
        attempt is not None
        and attempt.result == DELIVERED
        and lease.tries == 0
        and not lease.again
        and attempt.evidence is None
    )


def since(event_id: UUID) -> UUID:
    """The lower bound of `first_event` for rows that may hold this event: the start of its second."""
    return UUID(int=(event_id.int >> 80) // 1000 * 1000 << 80)


#: Rows that may hold an event: `{since}` is `since(id)`. A condition on `s.endpoint_id` is written so that no index
#: matches it (IS NOT DISTINCT FROM): the look-up has to go by the second, not through all rows of an endpoint.
HOLDING = """s.organization_id = {organization} AND s.first_event >= {since} AND s.first_event <= {id}
          AND {id} = ANY (s.events)"""

#: When the attempt at element `at` of a row `s` began.
STARTED = "s.started_from + s.started_ms[{at}] * interval '1 millisecond'"

# All or nothing: if one of the leases was lost, each result is then stored separately. Each part becomes one row: it is
# elements $7 to $8 of the arrays.
STORE = f"""
WITH part AS MATERIALIZED (
    SELECT * FROM unnest($4::uuid[], $5::uuid[], $6::uuid[], $7::integer[], $8::integer[], $9::timestamptz[],
                         $10::timestamptz[])
        AS part (organization_id, endpoint_id, token, low, high, started_from, started_to)
), held AS MATERIALIZED (
    SELECT mine.place
      FROM part CROSS JOIN LATERAL unnest(($1::uuid[])[low:high]) AS item (id)
           CROSS JOIN LATERAL (
           SELECT ctid AS place FROM queue
            WHERE queue.id = item.id AND queue.line IS NOT DISTINCT FROM part.endpoint_id
              AND queue.lease_token = part.token
              FOR UPDATE) mine
), whole AS MATERIALIZED (
    SELECT count(*) = cardinality($1::uuid[]) AS yes FROM held
), gone AS (
    DELETE FROM queue WHERE ctid = ANY (ARRAY(SELECT place FROM held WHERE (SELECT yes FROM whole)))
), stored AS (
    INSERT INTO webhook_successes (organization_id, endpoint_id, first_event, events, started_ms, duration_ms, status,
                                   started_from, started_to)
    SELECT organization_id, endpoint_id, ($1::uuid[])[low], ($1::uuid[])[low:high], ($2::integer[])[low:high],
           ($3::integer[])[low:high], ($11::smallint[])[low:high], started_from, started_to
      FROM part WHERE (SELECT yes FROM whole)
), counted AS ({traffic.ROWS.format(*range(14, 21))} WHERE (SELECT yes FROM whole)
), told AS (
    UPDATE webhook_endpoints e SET last_success_at = now(), consecutive_failures = 0, failing_since = NULL
      FROM unnest($12::uuid[], $13::uuid[]) AS well (organization_id, id)
     WHERE e.organization_id = ANY ($12) AND e.id = ANY ($13)  -- otherwise all endpoints might be scanned
       AND e.organization_id = well.organization_id AND e.id = well.id AND e.status = 'active'
       AND {NEWS} AND (SELECT yes FROM whole)
)
SELECT yes FROM whole
"""


async def store(conn: Connection, ended: Sequence[Ended], well: Sequence[tuple[UUID, UUID]]) -> bool:
    """Finish deliveries for which `is_first` holds, in one statement; False if a lease was lost and so nothing was
    done.

    `well`: their endpoints, to mark as healthy, as (organization, id) in an order that is the same in all workers.
    """
    parts: dict[tuple[UUID, UUID, UUID, int, int], list[tuple[int, Attempt, UUID]]] = {}
    for one in ended:
        lease, attempt = one.lease, one.attempt
        assert attempt is not None
        number = lease.id.int
        key = (
            lease.organization_id,
            lease.line,
            lease.token,
            (number >> 80) // 1000,
            int(attempt.started_at.timestamp()) // SPAN,
        )
        part = parts.get(key)
        if part is None:
            part = parts[key] = []
        part.append((number, attempt, lease.id))
    ids: list[UUID] = []
    started_ms: list[int] = []
    duration_ms: list[int] = []
    status: list[int | None] = []
    low: list[int] = []
    first: list[datetime] = []
    last: list[datetime] = []
    tally = traffic.Tally()
    for key, part in parts.items():
        part.sort(key=_number)
        starts = [attempt.started_at for _, attempt, _ in part]
        begun = min(starts)
        low.append(len(ids) + 1)
        first.append(begun)
        last.append(max(starts))
        ids += [id for *_, id in part]
        started_ms += [(at - begun) // MILLISECOND for at in starts]
        took = [round(attempt.duration * 1000) for _, attempt, _ in part]
        duration_ms += took
        tally.add(key[0], key[1], begun, DELIVERED, took)
        status += [attempt.status for _, attempt, _ in part]
    whole: bool = await conn.fetchval(
        STORE,
        ids,
        started_ms,
        duration_ms,
        [key[0] for key in parts],
        [key[1] for key in parts],
        [key[2] for key in parts],
        low,
        [*(start - 1 for start in low[1:]), len(ids)],
        first,
        last,
        status,
        [organization_id for organization_id, _ in well],
        [id for _, id in well],
        uuid7(),
        *tally.columns(),
    )
    return whole


def _number(one: tuple[int, Attempt, UUID]) -> int:
    return one[0]
