"""All organizations, for operators: remaining quota, delivery of their messages, and members.

The rule nobody may break: no message is counted here; figures come from sums maintained by the roll-ups.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.accounts.quota import Quota
from heliograph.base import naming
from heliograph.base.database.pool import Connection
from heliograph.traffic import LOST

#: Organizations per page.
MOST = 50
#: Days of delivery and opt-outs, including today (UTC), and where counting an organization's opt-outs stops.
DAYS, MOST_OPT_OUTS = 7, 1000


class Listed(msgspec.Struct, frozen=True):
    """An organization in the list."""

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
    #: Live messages accepted today (UTC) and in the last DAYS, without canceled ones, and the outcome of the latter so
    #: far.
    today: int
    accepted: int
    delivered: int
    failed: int
    #: Recipients who opted out in these days, counted up to MOST_OPT_OUTS.
    opt_outs: int
    #: When a key was last used, a member active or a message accepted (to the hour); None: never.
    active_at: datetime | None

    @property
    def remaining(self) -> int:
        """Messages left in the quota."""
        return self.total - self.used

    @property
    def share_used(self) -> float:
        """The fraction of the quota used, 0 to 1; 1 without a quota."""
        return self.used / self.total if self.total > 0 else 1.0

    @property
    def percent_used(self) -> int:
        """As the organization's own pages show it."""
        return Quota(self.total, self.used, self.resets_at).percent_used

    @property
    def is_hardly_used(self) -> bool:
        """As shown to the organization itself."""
        return Quota(self.total, self.used, self.resets_at).is_hardly_used

    def percent(self, count: int) -> float | None:
        """`count` as a percentage of the messages of DAYS; None: there were none."""
        return 100 * count / self.accepted if self.accepted else None

    @property
    def opted_out(self) -> float | None:
        """Opt-outs per thousand messages of DAYS; None: there were none."""
        return 1000 * self.opt_outs / self.accepted if self.accepted else None


# Newest first. Everything except the organization itself is looked up only for the rows of one page: traffic in sums
# maintained for this, the last hour by its key, opt-outs by the index of their list, in its order. Sessions are looked
# up member by member: a join read all sessions of an organization once for each of its members.
TODAY = "(now() AT TIME ZONE 'UTC')::date"
SINCE = f"{TODAY} - {DAYS - 1}"
LIST = f"""
SELECT o.id, o.name, o.state, o.plan, o.country, o.created_at, q.total, q.used, q.resets_at,
       (SELECT count(*) FROM (SELECT FROM memberships m WHERE m.organization_id = o.id LIMIT 1000) counted) AS members,
       (SELECT count(*) FROM (SELECT FROM api_keys k WHERE k.organization_id = o.id AND k.status = 'active'
                               LIMIT 1000) counted) AS keys,
       coalesce(sums.today, 0)::bigint AS today, coalesce(sums.accepted, 0)::bigint AS accepted,
       coalesce(sums.delivered, 0)::bigint AS delivered, coalesce(sums.failed, 0)::bigint AS failed,
       (SELECT count(*) FROM (SELECT FROM opt_outs e WHERE e.organization_id = o.id AND e.source <> ''
                                 AND e.since >= ({SINCE})::timestamp AT TIME ZONE 'UTC'
                               ORDER BY e.since DESC LIMIT {MOST_OPT_OUTS}) counted) AS opt_outs,
       greatest((SELECT max(last_used_at) FROM api_keys k
                  WHERE k.organization_id = o.id AND k.status IN ('active', 'suspended')),
                (SELECT max(own.seen_at) FROM memberships m CROSS JOIN LATERAL (
                        SELECT max(seen_at) AS seen_at FROM sessions
                         WHERE user_id = m.user_id AND organization_id = o.id AND reason IS NULL) own
                  WHERE m.organization_id = o.id),
                (SELECT hour FROM traffic t WHERE t.organization_id = o.id ORDER BY hour DESC LIMIT 1)) AS active_at
  FROM (SELECT * FROM organizations
         WHERE ($1::uuid IS NULL OR id < $1) AND ($2 = '' OR lower(name) LIKE $2 || '%' OR id::text = $2)
           AND ($3 = '' OR state = $3)
         ORDER BY id DESC LIMIT $4) o
       CROSS JOIN LATERAL (SELECT * FROM quotas WHERE organization_id = o.id LIMIT 1) q
       CROSS JOIN LATERAL (
           SELECT sum(count) FILTER (WHERE day >= {TODAY}) AS today, sum(count) AS accepted,
                  sum(count) FILTER (WHERE status IN ('delivered', 'read')) AS delivered,
                  sum(count) FILTER (WHERE status = ANY ($5)) AS failed
             FROM traffic_organizations
            WHERE organization_id = o.id AND day >= {SINCE} AND status <> 'canceled') sums
 ORDER BY o.id DESC
"""


async def listed(
    conn: Connection, *, after: UUID | None = None, search: str = "", state: str = "", limit: int = MOST
) -> list[Listed]:
    """Organizations, newest first. `search`: the beginning of a name, or an id; `state`: organizations.state, "" for
    all; `after`: the last one of the previous page."""
    typed = naming.sought(search).lower()[:200].replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return [Listed(**row) for row in await conn.fetch(LIST, after, typed, state, limit, LOST)]


STOPS = """
SELECT (SELECT count(*) FROM (SELECT FROM api_keys WHERE organization_id = $1 AND status = 'active'
                               LIMIT 1000) k) AS keys,
       (SELECT count(*) FROM (SELECT FROM memberships WHERE organization_id = $1 LIMIT 1000) m) AS members,
       (SELECT count(*) FROM (SELECT FROM queue WHERE kind IN ('sms', 'whatsapp') AND organization_id = $1
                               LIMIT 100000) waiting) AS waiting,
       (SELECT count(*) FROM (SELECT FROM campaigns WHERE organization_id = $1
                                 AND status IN ('scheduled', 'staging', 'running') LIMIT 1000) c) AS campaigns
"""


class Stopped(msgspec.Struct, frozen=True):
    """What a suspension stops: keys and people that could send, queued messages, running campaigns."""

    keys: int
    members: int
    waiting: int
    campaigns: int


async def stops(conn: Connection, *, id: UUID) -> Stopped:
    """What suspending an organization would stop."""
    row = await conn.fetchrow(STOPS, id)
    assert row is not None
    return Stopped(**row)


NAMES = "SELECT id, name FROM organizations WHERE id = ANY ($1)"


async def names(conn: Connection, ids: Iterable[UUID]) -> dict[UUID, str]:
    """Names of organizations, by id."""
    return {row["id"]: row["name"] for row in await conn.fetch(NAMES, list(set(ids)))}
