"""Quota: how many messages an organization may still send.

The balance is a maintained row, `quotas`, and each change of it is a row of `usage_ledger`, in the same transaction.
The rule nobody may break: the ledger is append-only, and the sum of its quantities is what remains.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base import clock
from heliograph.base.db import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7


class QuotaExceeded(Refusal):
    """The remaining quota does not cover this request."""

    code, status = "quota_exceeded", 409


class Quota(msgspec.Struct, frozen=True):
    """An organization's balance, in messages."""

    total: int
    used: int
    resets_at: datetime | None

    @property
    def remaining(self) -> int:
        return self.total - self.used


# The CHECK used <= total is the guard against taking away what is already spent; the WHERE says it beforehand.
GRANT = """
UPDATE quotas SET total = total + $2
 WHERE organization_id = $1 AND total + $2 >= used
RETURNING total, used, resets_at
"""

RECORD = """
INSERT INTO usage_ledger (organization_id, id, type, channel, quantity, balance_after, reason, created_at)
VALUES ($1, $2, $3, 'sms', $4, $5, $6, $7)
"""


async def grant(conn: Connection, organization_id: UUID, *, amount: int, reason: str) -> Quota:
    """Add `amount` messages to the quota; a negative amount takes away, never below what is used."""
    if amount == 0 or abs(amount) > 10**15:
        raise Invalid(("amount", "range", "`amount` must be a number of messages other than 0, up to 10^15"))
    async with conn.transaction():
        row = await conn.fetchrow(GRANT, organization_id, amount)
        if row is None:
            remaining = (await get(conn, organization_id)).remaining
            raise QuotaExceeded(remainingQuota=remaining, requested=-amount)
        quota = Quota(**row)
        kind = "grant" if amount > 0 else "adjustment"
        at = clock.now()
        await conn.execute(RECORD, organization_id, uuid7(), kind, amount, quota.remaining, reason, at)
    return quota


SELECT = "SELECT total, used, resets_at FROM quotas WHERE organization_id = $1"


async def get(conn: Connection, organization_id: UUID) -> Quota:
    """The organization's balance. NotFound if there is no such organization."""
    row = await conn.fetchrow(SELECT, organization_id)
    if row is None:
        raise NotFound(resource="organization", id=str(organization_id))
    return Quota(**row)
