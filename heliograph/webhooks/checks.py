"""Detects organizations that no event reaches, because all of their endpoints fail.

The rule nobody may break: no event, attempt or delivery is counted, and healthy endpoints are not read.
"""

from __future__ import annotations

from datetime import timedelta

from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check, joined, said
from heliograph.webhooks.endpoints import WORTH_A_LOOK

#: For how long endpoints must have failed.
FOR = timedelta(minutes=15)
#: Maximum number of failing endpoints examined, and of organizations named.
MOST, NAMED = 1_000, 3

# Waiting deliveries show that there are events to deliver: an endpoint without any keeps the outcome of its last
# attempt. With EXISTS, all waiting deliveries would be read into a hash table.
UNREACHED = """
WITH failing AS (
    SELECT DISTINCT organization_id FROM (
        SELECT organization_id FROM webhook_endpoints
         WHERE status = 'active' AND failing_since <= now() - $1::interval
           AND mode = 'live' AND catches_until IS NULL AND consecutive_failures >= $2
         ORDER BY failing_since LIMIT $3) oldest
)
SELECT o.name, found.since
  FROM failing JOIN organizations o ON o.id = failing.organization_id
       CROSS JOIN LATERAL (
       SELECT max(e.failing_since) AS since,
              bool_and(coalesce(e.failing_since <= now() - $1::interval, false) AND e.consecutive_failures >= $2)
                  AS fails,
              bool_or((SELECT true FROM queue WHERE kind = 'webhook' AND line = e.id LIMIT 1)) AS waits
         FROM webhook_endpoints e
        WHERE e.organization_id = failing.organization_id AND e.status = 'active' AND e.mode = 'live'
          AND e.catches_until IS NULL) found
 WHERE found.fails AND found.waits
 ORDER BY found.since, o.name
"""
REACHED = "SELECT EXISTS (SELECT FROM webhook_endpoints WHERE last_success_at > now() - $1::interval)"


async def run(conn: Connection, settings: Settings) -> list[Check]:
    """Check whether events reach at least one live endpoint of each organization that has any."""
    name, rows = said("webhooks"), await conn.fetch(UNREACHED, FOR, WORTH_A_LOOK, MOST)
    if not rows:
        return [Check(name, "ok", said("no organization's endpoints all fail"))]
    # If several organizations fail at once, and no endpoint is reached, the cause is on our side.
    if len(rows) > 1 and not await conn.fetchval(REACHED, FOR):
        detail = said(
            "no endpoint has been reached for %(minutes)s minutes; those of %(count)s organizations fail",
            minutes=round(FOR.total_seconds() / 60),
            count=len(rows),
        )
        remedy = said(
            "Check this machine's network, proxy and resolver: `heliograph webhook list` and `webhook show ID` say how"
            " they fail. Events are tried again for three days."
        )
        return [Check(name, "failed", detail, remedy)]
    named = [said("%(name)s (since %(since)s)", name=row["name"], since=row["since"]) for row in rows[:NAMED]]
    if len(rows) > NAMED:
        named.append(said("and %(count)s more", count=len(rows) - NAMED))
    detail = said("all endpoints of %(organizations)s are failing", organizations=joined(named))
    remedy = said(
        "It is usually their receiver: they see it on their page of webhooks, and events are tried again for three"
        " days. `heliograph webhook show ID` says how it fails."
    )
    return [Check(name, "warning", detail, remedy)]
