"""Catching: events for catchers (`webhooks/catcher.py`) are stored in batches by the worker that would otherwise post
them.

The rule nobody may break: no connection is made for a catcher, so its address is never checked, and an organization
keeps at most MOST caught events, however many are sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.database.batching import Batcher
from heliograph.base.database.pool import Pool, is_down
from heliograph.http.answers import Answer, Failure
from heliograph.sealing.text_keys import Sealing
from heliograph.webhooks.recording.at_rest import sealed_body

#: Caught events that an organization keeps, both modes together.
MOST = 200
BATCH = 512


class Caught(msgspec.Struct, frozen=True, gc=False):
    """One attempt at a catcher. `headers`: lines, as they would have been sent."""

    organization_id: UUID
    endpoint_id: UUID
    event_id: UUID
    at: datetime
    headers: str
    body: str


# Events after the end of their catcher are not kept.
STORE = """
INSERT INTO webhook_caught (organization_id, endpoint_id, event_id, caught_at, headers, body)
SELECT item.*
  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::timestamptz[], $5::text[], $6::text[])
       AS item (organization_id, endpoint_id, event_id, caught_at, headers, body)
 WHERE EXISTS (SELECT FROM webhook_endpoints e
                WHERE e.organization_id = item.organization_id AND e.id = item.endpoint_id
                  AND e.status = 'active' AND e.catches_until > now())
ON CONFLICT DO NOTHING
"""
# Rows that another worker is deleting are skipped.
TRIM = """
WITH old AS MATERIALIZED (
    SELECT c.ctid AS place
      FROM unnest($1::uuid[]) AS one (organization_id)
           CROSS JOIN LATERAL (
           SELECT caught_at, event_id FROM webhook_caught WHERE organization_id = one.organization_id
            ORDER BY caught_at DESC, event_id DESC OFFSET $2 LIMIT 1) newest
           JOIN webhook_caught c ON c.organization_id = one.organization_id
            AND (c.caught_at, c.event_id) <= (newest.caught_at, newest.event_id)
       FOR UPDATE OF c SKIP LOCKED
)
DELETE FROM webhook_caught WHERE ctid = ANY (ARRAY(SELECT place FROM old))
"""


class Catching:
    """Stores caught events within one worker, and answers as a receiver would."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._sealing = Sealing()
        self._batches: Batcher[Caught, None] = Batcher(self._store, limit=BATCH, indivisible=is_down)

    async def take(self, caught: Caught) -> Answer | Failure:
        """204 once it is stored. While the database is unavailable, the attempt fails as if the receiver were."""
        try:
            await self._batches.put(caught)
        except Exception as error:
            if not is_down(error):
                raise
            return Failure("connect", f"not stored: {type(error).__name__}", 0.0)
        return Answer(204, b"", None, 0.0)

    async def _store(self, items: list[Caught]) -> Sequence[None]:
        by_organization: dict[UUID, list[Caught]] = defaultdict(list)
        for one in items:
            by_organization[one.organization_id].append(one)
        kept = [one for id in sorted(by_organization) for one in by_organization[id][-MOST:]]
        async with self._pool.acquire() as conn, conn.transaction():
            await self._sealing.refresh(conn)
            await conn.execute(
                STORE,
                [one.organization_id for one in kept],
                [one.endpoint_id for one in kept],
                [one.event_id for one in kept],
                [one.at for one in kept],
                [one.headers for one in kept],
                [sealed_body(self._sealing, one.organization_id, one.event_id, one.body) for one in kept],
            )
            await conn.execute(TRIM, sorted(by_organization), MOST)
        return [None] * len(items)
