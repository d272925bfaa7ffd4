"""How many requests an organization makes, compared with its limits.

The rule nobody may break: nothing is counted for this. Rate windows and hourly counts exist anyway, and are only read.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from heliograph.accounts import rate_limits
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings

#: Windows listed: those with the largest share of their limit.
MOST = 20


class Window(msgspec.Struct, frozen=True):
    """How much a key used of one of its limits in the current minute."""

    key_id: UUID
    #: Empty: the key no longer exists.
    key: str
    #: As in `accounts.rate_limits`, like the limit: the organization's own, or else the installation's.
    bucket: str
    taken: int
    limit: int

    @property
    def share(self) -> float:
        """The fraction of the limit used; above 1 once requests are refused."""
        return self.taken / self.limit


class Day(msgspec.Struct, frozen=True):
    """Requests with its keys in the last 24 hours, including the current one. `refused`: over a per-minute limit."""

    count: int
    refused: int
    #: Requests in the busiest hour.
    busiest: int

    @property
    def busiest_minute(self) -> float:
        """Average requests per minute in the busiest hour."""
        return self.busiest / 60


class Rates(msgspec.Struct, frozen=True):
    """Both."""

    now: list[Window]
    day: Day


# A key whose window belongs to an earlier minute has made no request in this one.
NOW = """
SELECT w.key_id, coalesce(k.name, '') AS key, w.bucket, w.taken, allowed.most AS limit
  FROM rate_windows w JOIN unnest($2::text[], $3::int[]) AS allowed (bucket, most) ON allowed.bucket = w.bucket
       LEFT JOIN api_keys k ON k.organization_id = w.organization_id AND k.id = w.key_id
 WHERE w.organization_id = $1 AND w.window_start = date_trunc('minute', now())
 ORDER BY w.taken::float8 / allowed.most DESC, w.key_id, w.bucket LIMIT $4
"""
# People's requests to the dashboard are counted with the route as the operation, and have no limit.
DAY = """
SELECT coalesce(sum(count), 0)::bigint AS count, coalesce(sum(refused), 0)::bigint AS refused,
       coalesce(max(count), 0)::bigint AS busiest
  FROM (SELECT sum(count) AS count, sum(count) FILTER (WHERE error_code = 'rate_limit_exceeded') AS refused
          FROM request_counts
         WHERE organization_id = $1 AND hour > now() - interval '24 hours' AND NOT starts_with(operation, '/')
         GROUP BY hour) hours
"""


async def read(conn: Connection, settings: Settings, organization_id: UUID) -> Rates:
    """The request rates of one organization. Raises NotFound."""
    limits = rate_limits.in_force(settings, await rate_limits.get(conn, organization_id=organization_id))
    rows = await conn.fetch(NOW, organization_id, list(limits), list(limits.values()), MOST)
    day = await conn.fetchrow(DAY, organization_id)
    assert day is not None
    return Rates([Window(**row) for row in rows], Day(**day))
