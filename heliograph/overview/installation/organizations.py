"""All organizations, for operators: what each has left, and who belongs to it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection

#: Of one page.
MOST = 50


class Listed(msgspec.Struct, frozen=True):
    """One of a list."""

    id: UUID
    name: str
    state: str
    plan: str | None
    country: str | None
    created_at: datetime
    total: int
    used: int
    resets_at: datetime | None
    members: int
    keys: int

    @property
    def remaining(self) -> int:
        """Messages that are left."""
        return self.total - self.used


# Newest first; members and keys are counted of the rows of one page alone.
LIST = """
SELECT o.id, o.name, o.state, o.plan, o.country, o.created_at, q.total, q.used, q.resets_at,
       (SELECT count(*) FROM (SELECT FROM memberships m WHERE m.organization_id = o.id LIMIT 1000) counted) AS members,
       (SELECT count(*) FROM (SELECT FROM api_keys k WHERE k.organization_id = o.id AND k.status = 'active'
                               LIMIT 1000) counted) AS keys
  FROM (SELECT * FROM organizations
         WHERE ($1::uuid IS NULL OR id < $1) AND ($2 = '' OR lower(name) LIKE $2 || '%' OR id::text = $2)
           AND ($3 = '' OR state = $3)
         ORDER BY id DESC LIMIT $4) o
       CROSS JOIN LATERAL (SELECT * FROM quotas WHERE organization_id = o.id LIMIT 1) q
 ORDER BY o.id DESC
"""


async def listed(
    conn: Connection, *, after: UUID | None = None, search: str = "", state: str = "", limit: int = MOST
) -> list[Listed]:
    """Organizations, newest first. `search`: how a name begins, or an id; `state`: organizations.state, "" for all;
    `after`: the last one of the page before."""
    typed = search.strip().lower()[:200].replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return [Listed(**row) for row in await conn.fetch(LIST, after, typed, state, limit)]


STOPS = """
SELECT (SELECT count(*) FROM (SELECT FROM api_keys WHERE organization_id = $1 AND status = 'active'
                               LIMIT 1000) k) AS keys,
       (SELECT count(*) FROM (SELECT FROM queue WHERE kind IN ('sms', 'whatsapp') AND organization_id = $1
                               LIMIT 100000) waiting) AS waiting,
       (SELECT count(*) FROM (SELECT FROM campaigns WHERE organization_id = $1
                                 AND status IN ('scheduled', 'staging', 'running') LIMIT 1000) c) AS campaigns
"""


class Stopped(msgspec.Struct, frozen=True):
    """What a suspension stops: keys that could send, messages on their way out, campaigns under way."""

    keys: int
    waiting: int
    campaigns: int


async def stops(conn: Connection, *, id: UUID) -> Stopped:
    """What suspending an organization would stop."""
    row = await conn.fetchrow(STOPS, id)
    assert row is not None
    return Stopped(**row)


NAMES = "SELECT id, name FROM organizations WHERE id = ANY ($1)"


async def names(conn: Connection, ids: Iterable[UUID]) -> dict[UUID, str]:
    """What organizations are called."""
    return {row["id"]: row["name"] for row in await conn.fetch(NAMES, list(set(ids)))}
