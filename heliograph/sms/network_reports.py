"""Networks' reports about a message, as shown to its organization: time, part and state, without the supplier and
without raw text."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection

#: Maximum number of reports shown for a message.
MOST = 20

# The first one is recorded in the message's row.
REPORTS = """
SELECT receipt_at AS at, receipt_state AS state, 1 AS part FROM messages
 WHERE organization_id = $1 AND id = $2 AND receipt IS NOT NULL
UNION ALL
(SELECT received_at, state, part FROM receipts
  WHERE message_id = $2 AND received_on >= $3 AND organization_id = $1 ORDER BY received_at LIMIT $4)
 ORDER BY at LIMIT $4
"""


class Report(msgspec.Struct, frozen=True):
    """A report. `state`: a name of `suppliers.contract.ReceiptState`; `part`: the part of a text that was sent segment
    by segment, from 1; None: the whole."""

    at: datetime
    state: str
    part: int | None


async def reports(conn: Connection, organization_id: UUID, *, id: UUID, accepted_at: datetime) -> list[Report]:
    """The reports about a message, in order, up to MOST."""
    since = (accepted_at - timedelta(days=1)).date()
    rows = await conn.fetch(REPORTS, organization_id, id, since, MOST)
    is_whole = all(row["part"] in (None, 1) for row in rows)
    return [Report(row["at"], row["state"], None if is_whole else row["part"]) for row in rows]
