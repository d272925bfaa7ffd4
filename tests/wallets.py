"""Wallet movements without the statuses that cause them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.whatsapp.money import wallet
from heliograph.whatsapp.money.wallet import Movement

# In the order of ids, so that two transactions that settle the same messages cannot deadlock.
CHARGES = """
SELECT item.organization_id, item.id, m.charge, m.reserved, m.consumed, m.billing_category
  FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id) CROSS JOIN LATERAL (
       SELECT charge, reserved, consumed, billing_category FROM whatsapp_messages
        WHERE organization_id = item.organization_id AND id = item.id LIMIT 1 FOR UPDATE) m
"""

CHARGE = """
UPDATE whatsapp_messages m SET charge = v.charge, reserved = v.reserved, consumed = v.consumed
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[])
       AS v (organization_id, id, charge, reserved, consumed)
 WHERE m.organization_id = v.organization_id AND m.id = v.id
"""


class Charged(msgspec.Struct):
    """A row of CHARGES."""

    organization_id: UUID
    id: UUID
    charge: str
    reserved: int
    consumed: int
    billing_category: str | None


async def settle(conn: Connection, movements: Sequence[Movement]) -> set[tuple[UUID, str]]:
    """Move money as `status.move_many` does; returns the (message id, kind) of movements that changed something."""
    keys = sorted({(one.organization_id, one.message_id) for one in movements}, key=lambda key: key[1].int)
    if not keys:
        return set()
    rows = await conn.fetch(CHARGES, [key[0] for key in keys], [key[1] for key in keys])
    made = await wallet.judge(conn, movements, [Charged(*row) for row in rows])
    changed = {(one.organization_id, one.message_id) for one, *_ in made.entries}
    if changed:
        charges = [(*key, *made.charges[key]) for key in keys if key in changed]
        await conn.execute(CHARGE, *(list(column) for column in zip(*charges, strict=True)))
    await wallet.book(conn, made)
    return {(movement.message_id, movement.kind) for movement, *_ in made.entries}
