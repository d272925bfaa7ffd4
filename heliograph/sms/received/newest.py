"""What came from handsets lately, part by part, to whomever it came: whether anything comes at all, and what of it.

The rule nobody may break: no text and no whole number of a handset is read here.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection


class Heard(msgspec.Struct, frozen=True):
    """A part of a message."""

    id: UUID
    received_at: datetime
    supplier: str
    #: The last digits of the handset's number; the number that it wrote to, as the supplier writes it.
    tail: str
    recipient: str
    #: inbound_messages.state
    state: str
    organization_id: UUID | None
    organization: str | None


# By key: ids are times.
HEARD = """
SELECT m.id, m.received_at, coalesce(s.name, '') AS supplier, right(m.sender, 4) AS tail, m.recipient, m.state,
       m.organization_id, o.name AS organization
  FROM (SELECT * FROM inbound_messages WHERE id < $1 ORDER BY id DESC LIMIT $2) m
       LEFT JOIN suppliers s ON s.id = m.supplier_id
       LEFT JOIN organizations o ON o.id = m.organization_id
 ORDER BY m.id DESC
"""
_LAST = UUID(int=2**128 - 1)


async def heard(conn: Connection, *, after: UUID | None = None, limit: int) -> list[Heard]:
    """Parts that came, of all suppliers and to all organizations, newest first, older than `after`."""
    return [Heard(**row) for row in await conn.fetch(HEARD, after or _LAST, limit)]
