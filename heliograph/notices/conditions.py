"""Notices that no action triggers: quotas and wallets that run low, days above their alert, keys that expire soon,
campaigns that stall again, and endpoints that fail again. Checked every five minutes, for all organizations at once.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import asyncpg

from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import BRIEFLY, Connection
from heliograph.base.money import decimal
from heliograph.notices.recording import IS_RECENT, Notice, record_many
from heliograph.notices.recording import QUIET as AGAIN

#: The timer, and its interval in seconds.
TIMER, EVERY = "notices", 300.0
#: How long a cause is not reported again: a quota refilled and used up again within it rings once.
QUIET = timedelta(days=7)
#: A key that expires within SOON is reported, once per ONCE.
SOON, ONCE = timedelta(days=7), timedelta(days=30)
#: How long after its end a day is looked at: three checks.
LOOKED_BACK = timedelta(seconds=3 * EVERY)
#: An endpoint is reported after this many failures in a row.
FAILURES = 3

QUOTAS = """
SELECT q.organization_id, q.total, q.total - q.used AS remaining,
       CASE WHEN q.used >= q.total THEN 100 WHEN q.used >= 0.95 * q.total THEN 95 ELSE 80 END AS share
  FROM quotas q CROSS JOIN LATERAL (SELECT state FROM organizations WHERE id = q.organization_id LIMIT 1) o
 WHERE q.total > 0 AND q.used >= 0.8 * q.total AND o.state <> 'closed'
"""
# Locked, so that one that is revoked or suspended meanwhile, which withdraws its notice, waits for that notice.
KEYS = """
SELECT organization_id, id, name, mode, expires_at FROM api_keys
 WHERE status = 'active' AND expires_at > now() AND expires_at <= now() + $1::interval
   FOR SHARE SKIP LOCKED
"""
# Days are in UTC, as on bills. For a while after midnight also the day before: its last messages came after its last
# check. A day rings once for each limit: it may have been raised since.
DAYS = """
SELECT q.organization_id, q.alert_above, used.messages, used.day
  FROM quotas q CROSS JOIN LATERAL (
       SELECT day, sum(messages)::bigint AS messages FROM usage_days
        WHERE organization_id = q.organization_id AND day <= ($1::timestamptz AT TIME ZONE 'UTC')::date
          AND day >= (($1::timestamptz - $2::interval) AT TIME ZONE 'UTC')::date
        GROUP BY day) used
 WHERE q.alert_above IS NOT NULL AND used.messages > q.alert_above
   AND NOT EXISTS (SELECT FROM notices known
                    WHERE known.organization_id = q.organization_id AND known.kind = 'usage.day'
                      AND known.object = to_char(used.day, 'YYYY-MM-DD')
                      AND (known.facts::jsonb ->> 'above')::bigint >= q.alert_above OFFSET 0)
 ORDER BY used.day
"""
# A campaign that stalls again within an hour is not reported at once. One that stalled at a time to come did so before
# the clock was set back. Locked like keys: one that goes on meanwhile withdraws its notice.
STALLED = f"""
SELECT organization_id, id, name, mode, channel, status_reason FROM campaigns c
 WHERE stalled_at < {clock.LATEST}
   AND NOT EXISTS (SELECT FROM notices known
                    WHERE known.organization_id = c.organization_id AND known.kind = 'campaign.paused'
                      AND known.object = c.id::text AND known.created_at >= c.stalled_at OFFSET 0)
 ORDER BY organization_id, id LIMIT 1000 FOR SHARE SKIP LOCKED
"""
# Likewise an endpoint that succeeded for a moment: `failing_since` moves with each pause. Not locked: none of its
# notices is withdrawn.
FAILING = f"""
SELECT organization_id, id, url AS name, mode FROM webhook_endpoints e
 WHERE status = 'active' AND failing_since IS NOT NULL AND consecutive_failures >= $1
   AND last_success_at < {clock.LATEST}
   AND NOT EXISTS (SELECT FROM notices known
                    WHERE known.organization_id = e.organization_id AND known.kind = 'webhook.failing'
                      AND known.object = e.id::text AND known.created_at >= e.last_success_at OFFSET 0)
 ORDER BY organization_id, id LIMIT 1000
"""
# Reported once when the balance falls below its alert, and again only after it was above. If another was reported
# within the hour, it is reported later, not dropped. Wallets are locked in the same order as by sends. OFFSET 0: asked
# for each wallet, instead of once for all organizations.
WALLETS = f"""
WITH crossed AS (
    SELECT organization_id FROM wallets w
     WHERE CASE WHEN available < alert_below
                THEN NOT is_alerted AND NOT EXISTS (
                     SELECT FROM notices known
                      WHERE known.organization_id = w.organization_id AND known.kind = 'wallet.low'
                        AND known.object = 'wallet' AND {IS_RECENT.format("$1::interval")} OFFSET 0)
                ELSE is_alerted END
     ORDER BY organization_id FOR NO KEY UPDATE
)
UPDATE wallets w SET is_alerted = NOT w.is_alerted FROM crossed WHERE w.organization_id = crossed.organization_id
RETURNING w.organization_id, w.is_alerted, w.currency, w.available, w.alert_below
"""
# One that stays locked, as in an open session, is reported at a later check: the others would wait for it, locked.
WALLETS_FREE = WALLETS.replace("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED")


async def report(conn: Connection, *, at: datetime | None = None) -> None:
    """Report quotas of which 80, 95 or 100 % are used, wallets below and days above their alert, keys that expire soon,
    campaigns that stalled again and endpoints that fail again, in the caller's transaction. `at`: None: now."""
    low = [
        Notice(
            row["organization_id"],
            "quota.used",
            str(row["share"]),
            facts={"left": row["remaining"], "total": row["total"]},
        )
        for row in await conn.fetch(QUOTAS)
    ]
    await record_many(conn, low, quiet=QUIET)
    days = [
        Notice(
            row["organization_id"],
            "usage.day",
            row["day"].isoformat(),
            facts={"messages": row["messages"], "above": row["alert_above"]},
        )
        for row in await conn.fetch(DAYS, at or clock.now(), LOOKED_BACK)
    ]
    await record_many(conn, days, quiet=None)
    ending = [_about(row, "key.ending", until=iso(row["expires_at"])) for row in await conn.fetch(KEYS, SOON)]
    await record_many(conn, ending, quiet=ONCE)
    standing = [
        _about(row, "campaign.paused", channel=row["channel"], reason=row["status_reason"])
        for row in await conn.fetch(STALLED)
    ]
    standing += [_about(row, "webhook.failing") for row in await conn.fetch(FAILING, FAILURES)]
    await record_many(conn, standing)
    async with conn.transaction():
        await _look_at_wallets(conn)


def _about(row: asyncpg.Record, kind: str, **facts: str) -> Notice:
    """A notice about an object that has a name and a mode."""
    return Notice(row["organization_id"], kind, str(row["id"]), row["name"], row["mode"], facts)


async def _look_at_wallets(conn: Connection) -> None:
    fallen = [
        Notice(
            row["organization_id"],
            "wallet.low",
            "wallet",
            facts={
                "left": decimal(row["available"]),
                "below": decimal(row["alert_below"]),
                "currency": row["currency"],
            },
        )
        for row in await _crossed(conn)
        if row["is_alerted"]
    ]
    await record_many(conn, fallen, quiet=AGAIN)


async def _crossed(conn: Connection) -> list[asyncpg.Record]:
    try:
        async with conn.transaction():
            await conn.execute(BRIEFLY)
            return await conn.fetch(WALLETS, AGAIN)
    except asyncpg.LockNotAvailableError:
        return await conn.fetch(WALLETS_FREE, AGAIN)
