"""Quota: how many more messages an organization may send.

The balance is a maintained row of `quotas`. Each change to it writes a row in the same transaction: a message, or an
entry of `usage_ledger`. The rule nobody may break: both are append-only, and their quantities (`usage_entries`) add up
to the remaining quota.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.audit import reasons
from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Actor, Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems, Refusal
from heliograph.base.ids import uuid7


class QuotaExceeded(Refusal):
    """The remaining quota does not cover this request."""

    code, status = "quota_exceeded", 409


class Quota(msgspec.Struct, frozen=True):
    """An organization's balance, in messages. `resets_at`: when a plan renews it; None: nothing does."""

    total: int
    used: int
    resets_at: datetime | None

    @property
    def remaining(self) -> int:
        return self.total - self.used

    @property
    def percent_used(self) -> int:
        """Whole percentage used: 0 only if nothing is, 100 only if everything is, or there is no quota. The rest is the
        percentage left, so that two pages never contradict each other."""
        if self.total <= 0:
            return 100
        return max(100 * self.used // self.total, 1 if self.used else 0)

    @property
    def is_hardly_used(self) -> bool:
        """Something is used, but less than the one percent that `percent_used` then is."""
        return 0 < 100 * self.used < self.total


#: Maximum number of messages in a grant or allowance.
MOST = 10**15


class Reset(msgspec.Struct, frozen=True):
    """The quota at the beginning of an organization's period, in messages, and when the next period begins."""

    organization_id: UUID
    allowance: int
    resets_at: datetime | None


# The CHECK used <= total prevents taking away quota that is already used; the WHERE catches it first.
CHANGE = """
UPDATE quotas SET total = total + $2
 WHERE organization_id = $1 AND total + $2 >= used
RETURNING total, used, resets_at
"""

# The month's counts are updated too: the balance's row is locked, so nobody else adds to them.
RECORD = """
WITH counted AS (
    INSERT INTO usage_counts AS known (organization_id, month, channel, type, quantity, segments)
    VALUES ($1, date_trunc('month', $7::timestamptz AT TIME ZONE 'UTC')::date, 'sms', $3, $4, 0)
    ON CONFLICT (organization_id, month, channel, type) DO UPDATE SET quantity = known.quantity + excluded.quantity
)
INSERT INTO usage_ledger (organization_id, id, type, channel, quantity, balance_after, reason, created_at)
VALUES ($1, $2, $3, 'sms', $4, $5, $6, $7)
"""


async def grant(conn: Connection, organization_id: UUID, *, amount: int, reason: str, by: Principal = SYSTEM) -> Quota:
    """Add `amount` messages to the quota; a negative amount is an adjustment, which never goes below what is used."""
    return await _change(conn, organization_id, "grant" if amount > 0 else "adjustment", amount, reason, by)


async def adjust(conn: Connection, organization_id: UUID, *, amount: int, reason: str, by: Principal = SYSTEM) -> Quota:
    """Adjust the quota by `amount` messages, up or down, but never below what is used."""
    return await _change(conn, organization_id, "adjustment", amount, reason, by)


async def _change(conn: Connection, organization_id: UUID, kind: str, amount: int, reason: str, by: Principal) -> Quota:
    wrong = Problems()
    if amount == 0 or abs(amount) > MOST:
        wrong.add("amount", "range", "`amount` must be a number of messages other than 0, up to 10^15")
    if (why := reasons.normalized(reason)) is None:
        wrong.add("reason", "length", f"`reason` must have 1 to {reasons.LONGEST} printable characters")
    wrong.report()
    assert why is not None
    async with conn.transaction():
        row = await conn.fetchrow(CHANGE, organization_id, amount)
        if row is None:
            remaining = (await get(conn, organization_id)).remaining
            raise QuotaExceeded(remainingQuota=remaining, requested=-amount)
        quota = Quota(**row)
        await conn.execute(RECORD, organization_id, uuid7(), kind, amount, quota.remaining, why, clock.now())
        await audit.record(
            conn,
            by,
            "quota.changed",
            object_id=organization_id,
            organization_id=organization_id,
            before={"total": quota.total - amount},
            after={"total": quota.total},
            reason=why,
        )
    return quota


# The plan of a closed organization stays, but is not renewed (`plans.DUE`).
SELECT = """
SELECT q.total, q.used, CASE WHEN o.state <> 'closed' THEN q.resets_at END AS resets_at
  FROM quotas q JOIN organizations o ON o.id = q.organization_id WHERE q.organization_id = $1
"""


async def get(conn: Connection, organization_id: UUID) -> Quota:
    """The organization's balance. Raises NotFound if there is no such organization."""
    row = await conn.fetchrow(SELECT, organization_id)
    if row is None:
        raise NotFound(resource="organization", id=str(organization_id))
    return Quota(**row)


ALERT = "SELECT alert_above FROM quotas WHERE organization_id = $1"
SET_ALERT = """
UPDATE quotas q SET alert_above = $2::bigint
  FROM (SELECT alert_above FROM quotas WHERE organization_id = $1 FOR UPDATE) known
 WHERE q.organization_id = $1 RETURNING known.alert_above
"""


async def alert(conn: Connection, organization_id: UUID) -> int | None:
    """The daily number of messages above which the organization is notified; None: it is not."""
    above: int | None = await conn.fetchval(ALERT, organization_id)
    return above


async def set_alert(
    conn: Connection, organization_id: UUID, *, above: int | None, by: Actor | Principal = SYSTEM
) -> None:
    """Notify the organization once a day (UTC) has more than `above` live messages; None: stop. Raises Invalid and
    NotFound."""
    if above is not None and not 1 <= above <= MOST:
        raise Invalid(("above", "range", "`above` must be a number of messages from 1 to 10^15"))
    async with conn.transaction():
        await get(conn, organization_id)
        before = await conn.fetchval(SET_ALERT, organization_id, above)
        await audit.record(
            conn,
            by,
            "usage.alert_changed",
            object_id=organization_id,
            organization_id=organization_id,
            before={"above": before},
            after={"above": above},
        )


# The rows are locked in the same order as when messages are accepted, so the two cannot deadlock.
LOCK = "SELECT FROM quotas WHERE organization_id = ANY ($1) ORDER BY organization_id FOR UPDATE"

# Only what was charged is refunded, and only once. A refund that exceeds the usage of a new period adds the difference
# to the total.
REFUND = """
WITH due AS MATERIALIZED (
    SELECT asked.*, paid.campaign_id, paid.country, paid.sender,
           row_number() OVER (PARTITION BY asked.organization_id ORDER BY asked.id) AS so_far
      FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::smallint[], $5::text[])
           AS asked (organization_id, id, message_id, segments, reason)
     CROSS JOIN LATERAL (
           SELECT campaign_id, mode, country, sender FROM messages
            WHERE organization_id = asked.organization_id AND id = asked.message_id LIMIT 1) paid
     WHERE paid.mode = 'live'
       AND NOT EXISTS (SELECT FROM usage_ledger refund
                        WHERE refund.organization_id = asked.organization_id AND refund.message_id = asked.message_id
                          AND refund.type = 'refund')
), credited AS MATERIALIZED (
    UPDATE quotas SET used = greatest(used - credit.units, 0), total = total + greatest(credit.units - used, 0)
      FROM (SELECT organization_id, count(*) AS units FROM due GROUP BY organization_id) credit
     WHERE quotas.organization_id = credit.organization_id
    RETURNING quotas.organization_id, total - used - credit.units AS before
), counted AS (
    INSERT INTO traffic_deltas (organization_id, batch, n, hour, channel, mode, country, sender, supplier_id, status,
                                count, segments, campaign_id, refunds, refunded)
    SELECT organization_id, (array_agg(id))[1], 0, date_trunc('hour', $6::timestamptz, 'UTC'), 'sms', 'live', country,
           sender, '00000000-0000-0000-0000-000000000000', 'accepted', 0, 0, campaign_id, count(*), sum(segments)
      FROM due GROUP BY organization_id, country, sender, campaign_id
)
INSERT INTO usage_ledger (organization_id, id, type, channel, quantity, balance_after, segments, message_id,
                          campaign_id, reason, created_at)
SELECT organization_id, id, 'refund', 'sms', 1, before + so_far, segments, message_id, campaign_id, reason, $6
  FROM due JOIN credited USING (organization_id)
RETURNING message_id
"""


async def refund_many(
    conn: Connection, messages: Sequence[tuple[UUID, UUID, int]], reason: str | Sequence[str]
) -> set[UUID]:
    """Refund what these messages cost, each given as (organization, message, segments). Returns those that were
    refunded.

    `reason`: one for all of them, or one for each; the organization can read it. Runs in the caller's transaction,
    which also makes sure that the messages are never sent, or never again: the balance rows stay locked until it ends.
    A message that cost nothing (a test key's) or was refunded before is left out.
    """
    reasons = [reason] * len(messages) if isinstance(reason, str) else reason
    asked = {
        message_id: (organization_id, segments, why)
        for (organization_id, message_id, segments), why in zip(messages, reasons, strict=True)
    }
    organizations = [organization_id for organization_id, _, _ in asked.values()]
    await conn.execute(LOCK, list(set(organizations)))
    rows = await conn.fetch(
        REFUND,
        organizations,
        [uuid7() for _ in asked],
        list(asked),
        [segments for _, segments, _ in asked.values()],
        [why for _, _, why in asked.values()],
        clock.now(),
    )
    return {row["message_id"] for row in rows}


# The remaining quota expires and the allowance is granted: one row for each in the ledger, so that its sum still equals
# the balance.
RESET = """
WITH item AS MATERIALIZED (
    SELECT asked.*, quotas.total - quotas.used AS remaining
      FROM unnest($1::uuid[], $2::bigint[], $3::timestamptz[], $4::uuid[], $5::uuid[])
           AS asked (organization_id, allowance, resets_at, ending, beginning)
      JOIN quotas USING (organization_id)
), reset AS (
    UPDATE quotas SET total = item.allowance, used = 0, resets_at = item.resets_at
      FROM item WHERE quotas.organization_id = item.organization_id
), entry AS MATERIALIZED (
    SELECT organization_id, ending AS id, 'adjustment' AS type, -remaining AS quantity, 0::bigint AS balance_after,
           $6 || ': remaining quota expired' AS reason
      FROM item WHERE remaining > 0
    UNION ALL
    SELECT organization_id, beginning, 'grant', allowance, allowance, $6 FROM item WHERE allowance > 0
), counted AS (
    INSERT INTO usage_counts AS known (organization_id, month, channel, type, quantity, segments)
    SELECT organization_id, date_trunc('month', $7::timestamptz AT TIME ZONE 'UTC')::date, 'sms', type, quantity, 0
      FROM entry
    ON CONFLICT (organization_id, month, channel, type) DO UPDATE SET quantity = known.quantity + excluded.quantity
)
INSERT INTO usage_ledger (organization_id, id, type, channel, quantity, balance_after, reason, created_at)
SELECT organization_id, id, type, 'sms', quantity, balance_after, reason, $7::timestamptz FROM entry
"""


async def reset_many(conn: Connection, resets: Sequence[Reset], *, reason: str) -> None:
    """Reset these quotas; the remaining messages expire. Runs in the caller's transaction."""
    organizations = [each.organization_id for each in resets]
    await conn.execute(LOCK, organizations)
    await conn.execute(
        RESET,
        organizations,
        [each.allowance for each in resets],
        [each.resets_at for each in resets],
        [uuid7() for _ in resets],
        [uuid7() for _ in resets],
        reason,
        clock.now(),
    )


SET_RESETS_AT = "UPDATE quotas SET resets_at = $2 WHERE organization_id = $1"


async def set_resets_at(conn: Connection, organization_id: UUID, at: datetime | None) -> None:
    """When the quota is next reset; None: never."""
    await conn.execute(SET_RESETS_AT, organization_id, at)
