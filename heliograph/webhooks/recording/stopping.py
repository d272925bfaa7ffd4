"""What happens to deliveries waiting for an endpoint that is paused or disabled: they leave the queue, and the endpoint
records how many there were and since when it has been missing events.

The rule nobody may break: code that stops an endpoint calls `stop` in the same transaction, after writing its status.
Events recorded from then on are not queued for it, so a single moment identifies all that the endpoint missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM
from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of

#: Events whose transaction had begun when the endpoint stopped may still be queued: a worker drops those.
MARGIN = timedelta(minutes=5)

# A row that a worker is just finishing or putting back is skipped: waiting for it here could deadlock. If it is put
# back, the next worker to claim it sees that the endpoint is not active and drops it; it is counted here.
FORGET_QUEUED = """
WITH seen AS MATERIALIZED (
    SELECT line, count(*) AS count, min(id::text) AS oldest, min(id::text) FILTER (WHERE lane = 1) AS replayed
      FROM queue WHERE kind = 'webhook' AND line = ANY ($1) GROUP BY line
), held AS MATERIALIZED (
    SELECT ctid AS place FROM queue WHERE kind = 'webhook' AND line = ANY ($1) FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM queue WHERE ctid = ANY (ARRAY(SELECT place FROM held))
)
SELECT line, count, oldest::uuid, replayed::uuid FROM seen
"""
# If an earlier recovery is still running, the next one starts over from its beginning.
REMEMBER = """
UPDATE webhook_endpoints e
   SET dropped = e.dropped + item.count,
       waits_from = least(e.waits_from, greatest(now() - $5::interval, e.created_at, e.enabled_at), e.failing_since,
                          item.oldest,
                          (SELECT min(r.from_at) FROM webhook_replays r
                            WHERE r.organization_id = e.organization_id AND r.endpoint_id = e.id
                              AND r.status = 'running' AND r.cause = 'return'))
  FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::timestamptz[]) AS item (organization_id, id, count, oldest)
 WHERE e.organization_id = ANY ($1) AND e.id = ANY ($2)  -- otherwise all endpoints might be scanned
   AND e.organization_id = item.organization_id AND e.id = item.id
"""


async def stop(conn: Connection, keys: Sequence[tuple[UUID, UUID]]) -> dict[UUID, UUID]:
    """Drop the queued deliveries of endpoints, given as (organization, id) ordered by id, that were just paused or
    disabled. Returns the oldest replayed event among them, for each endpoint that has one."""
    ids = [id for _, id in keys]
    found = {row["line"]: row for row in await conn.fetch(FORGET_QUEUED, ids)}
    seen = [found.get(id) for id in ids]
    await conn.execute(
        REMEMBER,
        [organization_id for organization_id, _ in keys],
        ids,
        [0 if row is None else row["count"] for row in seen],
        [None if row is None else time_of(row["oldest"]) for row in seen],
        MARGIN,
    )
    return {id: row["replayed"] for id, row in found.items() if row["replayed"] is not None}


async def stop_disabled(conn: Connection, reasons: Mapping[tuple[UUID, UUID], str]) -> None:
    """The same for endpoints that a worker has just disabled, given by (organization, id) with the reason, and record
    that in the audit log."""
    keys = sorted(reasons)
    if keys:
        await stop(conn, keys)
        told = [
            audit.Entry(
                action="webhook.disabled",
                object_id=str(key[1]),
                organization_id=key[0],
                before={"status": "active"},
                after={"status": "disabled", "disabled_reason": reasons[key]},
            )
            for key in keys
        ]
        await audit.record_many(conn, SYSTEM, told)
