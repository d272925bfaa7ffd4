"""What handsets sent before, as far as a batch of the inbox depends on it: messages that one of the batch repeats, and
the parts that belong together with its own.

The rule nobody may break: however much a handset has sent, and however many are in a batch, what is looked at has a
bound. One that floods a number must not keep everybody's STOP waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from heliograph.base.database.bounded_scan import LOOK
from heliograph.base.database.pool import Connection
from heliograph.sms.received import at_rest
from heliograph.sms.received.assembly import AGAIN, LATEST, Row

#: How many parts under one reference are examined: two messages with the maximum number of parts. How many for a batch,
#: divided among its references.
MOST_PARTS, MOST_OF_ALL = 510, 20_000
#: How many earlier messages are compared with one, if they have to be opened for that.
MOST_SAME = 100
#: How many earlier messages and parts are searched for a batch, divided among those that they are searched for: half a
#: second.
MOST_LOOKED = 20 * LOOK

# Earlier messages to which our answer may not have got through: an identical one, and those that must be opened to be
# compared.
SAME = """
SELECT item.id, earlier.* FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[],
                                      $7::timestamptz[], $8::timestamptz[])
       AS item (id, supplier_id, sender, recipient, form, body, after, until) CROSS JOIN LATERAL (
       SELECT id AS earlier_id, organization_id, CASE WHEN sealed THEN body END AS body,
              coalesce(message_id, id) AS message_id FROM (
              SELECT * FROM inbound_messages
               WHERE sender = item.sender AND recipient = item.recipient
                 AND received_at BETWEEN item.after AND item.until AND concatenation IS NULL AND NOT acknowledged
               ORDER BY received_at DESC LIMIT $10) recent
        WHERE id < item.id AND supplier_id = item.supplier_id AND form = item.form
          AND (sealed AND body <> '' OR body = item.body)
        ORDER BY received_at DESC LIMIT $9) earlier
"""


async def repeated(conn: Connection, rows: Sequence[Row]) -> Mapping[UUID, UUID]:
    """The messages that a supplier repeated because our answer was lost, each with the message that it repeats."""
    if not rows:
        return {}
    found = await conn.fetch(
        SAME,
        [row.id for row in rows],
        [row.supplier_id for row in rows],
        [row.sender for row in rows],
        [row.recipient for row in rows],
        [row.form for row in rows],
        [row.body for row in rows],
        [row.received_at - AGAIN for row in rows],
        [row.received_at for row in rows],
        MOST_SAME,
        MOST_LOOKED // len(rows),
    )
    equal = {row["id"]: row["message_id"] for row in found if row["body"] is None}
    sealed = [row for row in found if row["body"] is not None and row["id"] not in equal]
    if sealed:
        bodies = {row.id: row.body for row in rows}
        said = await at_rest.bodies(conn, [(row["organization_id"], row["earlier_id"], row["body"]) for row in sealed])
        pairs = zip(sealed, said, strict=True)
        equal |= {row["id"]: row["message_id"] for row, body in pairs if body == bodies[row["id"]]}
    for id in sorted(equal):  # of several that came together, some repeat repetitions, which are older
        equal[id] = equal.get(equal[id], equal[id])
    return equal


# A part may belong to the newest message under its reference.
PARTS = """
SELECT part.* FROM unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::timestamptz[])
       AS item (supplier_id, sender, recipient, reference, total, after) CROSS JOIN LATERAL (
       SELECT id, supplier_id, sender, recipient, form, body, concatenation, received_at, state, message_id,
              sender_ton, recipient_ton, organization_id, sealed, asked
         FROM (SELECT * FROM inbound_messages
                WHERE sender = item.sender AND recipient = item.recipient AND concatenation[1] = item.reference
                  AND received_at > item.after AND concatenation IS NOT NULL
                ORDER BY received_at DESC LIMIT $8) recent
        WHERE supplier_id = item.supplier_id AND concatenation[2] = item.total
          AND state IN ('waiting', 'received', 'unassigned')
        ORDER BY received_at DESC LIMIT $7) part
"""


async def parts(conn: Connection, rows: Sequence[Row]) -> list[Row]:
    """The known parts of these parts' messages, in order of arrival."""
    oldest: dict[tuple[UUID, str, str, int, int], datetime] = {}
    for row in rows:
        assert row.concatenation is not None
        key = (row.supplier_id, row.sender, row.recipient, *row.concatenation[:2])
        oldest[key] = min(row.received_at, oldest.get(key, row.received_at))
    if not oldest:
        return []
    columns = [list(column) for column in zip(*oldest, strict=True)]
    most = min(MOST_PARTS, MOST_OF_ALL // len(oldest))
    after = [at - LATEST for at in oldest.values()]
    found = await conn.fetch(PARTS, *columns, after, most, MOST_LOOKED // len(oldest))
    parts = await at_rest.opened(conn, list(map(at_rest.row_of, found)))
    # This includes those whose time is up, however much has arrived since.
    known = {row.id: row for row in [*parts, *(row for row in rows if row.state == "waiting")]}
    return [known[id] for id in sorted(known)]
