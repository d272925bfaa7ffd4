"""The newest messages from handsets, part by part, for all organizations: shows whether anything arrives at all.

The rule nobody may break: neither texts nor complete handset numbers are read here.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection


class NewestPart(msgspec.Struct, frozen=True):
    """A part of a message."""

    id: UUID
    received_at: datetime
    supplier: str
    #: The last digits of the handset's number; the number that it wrote to, in the supplier's form.
    tail: str
    recipient: str
    #: inbound_messages.state
    state: str
    organization_id: UUID | None
    organization: str | None


# By primary key, since ids contain times.
PARTS = """
SELECT m.id, m.received_at, coalesce(s.name, '') AS supplier, right(m.sender, 4) AS tail, m.recipient, m.state,
       m.organization_id, o.name AS organization
  FROM (SELECT * FROM inbound_messages WHERE id < $1 ORDER BY id DESC LIMIT $2) m
       LEFT JOIN suppliers s ON s.id = m.supplier_id
       LEFT JOIN organizations o ON o.id = m.organization_id
 ORDER BY m.id DESC
"""
_LAST = UUID(int=2**128 - 1)


async def list_parts(conn: Connection, *, after: UUID | None = None, limit: int) -> list[NewestPart]:
    """Received parts, from all suppliers and for all organizations, newest first, older than `after`."""
    return [NewestPart(**row) for row in await conn.fetch(PARTS, after or _LAST, limit)]
