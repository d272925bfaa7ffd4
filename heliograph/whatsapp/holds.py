"""Holds: what a refused send stops, until a send succeeds.

The rule nobody may break: a hold is never shortened by another one; what ends it is a success, a new token, or time,
after which one message tries.
"""

from __future__ import annotations

from uuid import UUID

from heliograph.base.db import Connection
from heliograph.whatsapp import numbers

HOLD_ACCOUNT = """
UPDATE whatsapp_accounts
   SET held_until = greatest(held_until, now() + make_interval(secs => $3)), held_reason = $4,
       credential_status = CASE WHEN $5 THEN 'invalid' ELSE credential_status END,
       credential_checked_at = CASE WHEN $5 THEN now() ELSE credential_checked_at END
 WHERE organization_id = $1 AND id = $2 AND state <> 'removed'
"""


async def hold_account(
    conn: Connection,
    organization_id: UUID,
    account_id: UUID,
    *,
    seconds: float,
    reason: str,
    credential_invalid: bool = False,
) -> int:
    """Send nothing of the account for `seconds`. `credential_invalid`: Meta refused the credential itself (INVALID),
    which counts more than any check before it. Returns the deliveries queued."""
    async with conn.transaction():
        before = await numbers.of_account(conn, organization_id, account_id) if credential_invalid else {}
        await conn.execute(HOLD_ACCOUNT, organization_id, account_id, seconds, reason, credential_invalid)
        if not credential_invalid:
            return 0
        return await numbers.announce(conn, organization_id, account_id, before)


HOLD_NUMBER = """
UPDATE whatsapp_numbers
   SET held_until = greatest(held_until, now() + make_interval(secs => $3)), held_reason = $4
 WHERE organization_id = $1 AND id = $2
"""


async def hold_number(conn: Connection, organization_id: UUID, number_id: UUID, *, seconds: float, reason: str) -> None:
    """Send nothing from the number for `seconds`."""
    await conn.execute(HOLD_NUMBER, organization_id, number_id, seconds, reason)


CLEAR_ACCOUNT = """
UPDATE whatsapp_accounts
   SET held_until = NULL, held_reason = NULL,
       credential_status = CASE credential_status WHEN 'invalid' THEN 'ok' ELSE credential_status END
 WHERE organization_id = $1 AND id = $2 AND (held_until IS NOT NULL OR credential_status = 'invalid')
RETURNING credential_status
"""
CLEAR_NUMBER = """
UPDATE whatsapp_numbers SET held_until = NULL, held_reason = NULL
 WHERE organization_id = $1 AND id = $2 AND held_until IS NOT NULL
"""


async def clear_holds(conn: Connection, organization_id: UUID, account_id: UUID, number_id: UUID) -> int:
    """A send succeeded: nothing is held, and the credential is good. Returns the deliveries queued."""
    async with conn.transaction():
        before = await numbers.of_account(conn, organization_id, account_id)
        cleared = await conn.fetchval(CLEAR_ACCOUNT, organization_id, account_id)
        await conn.execute(CLEAR_NUMBER, organization_id, number_id)
        return await numbers.announce(conn, organization_id, account_id, before) if cleared else 0


# Of all organizations: what waits for these is late by no fault of workers.
HELD = """
SELECT n.id FROM whatsapp_numbers n
  JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
 WHERE n.state = 'active' AND (n.held_until IS NOT NULL OR a.held_until IS NOT NULL)
"""


async def held(conn: Connection) -> list[UUID]:
    """Ids of the numbers that are held, or were until one message tries."""
    return [row["id"] for row in await conn.fetch(HELD)]
