"""Messages from handsets, stored as they came before the supplier is told that we have them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from heliograph.base.clock import now
from heliograph.base.db import Connection
from heliograph.base.ids import uuid7
from heliograph.sms.receipts import clean
from heliograph.suppliers.contract import Inbound

STORE = """
INSERT INTO inbound_messages (id, supplier_id, sender, recipient, data_coding, body, raw, concatenation, received_at)
SELECT id, $1, sender, recipient, data_coding, body, raw,
       CASE WHEN total > 0 THEN ARRAY[reference, total, number] END, $2
  FROM unnest($3::uuid[], $4::text[], $5::text[], $6::smallint[], $7::bytea[], $8::bytea[], $9::integer[],
              $10::integer[], $11::integer[])
       AS item (id, sender, recipient, data_coding, body, raw, reference, total, number)
"""


async def store(conn: Connection, supplier_id: UUID, received: Sequence[Inbound]) -> None:
    """Store inbound messages of one supplier."""
    none = (0, 0, 0)
    await conn.execute(
        STORE,
        supplier_id,
        now(),
        [uuid7() for _ in received],
        [clean(one.sender) for one in received],
        [clean(one.recipient) for one in received],
        [one.data_coding for one in received],
        [one.body for one in received],
        [one.raw for one in received],
        [(one.concatenation or none)[0] for one in received],
        [(one.concatenation or none)[1] for one in received],
        [(one.concatenation or none)[2] for one in received],
    )
