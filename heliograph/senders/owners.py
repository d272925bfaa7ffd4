"""Which suppliers a number belongs to: those that deliver handsets' messages to it, as learned from such messages.

The rule nobody may break: an owner is forgotten if nothing came in for KEPT, so that a number that has moved is not
used forever with a supplier that no longer has it.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.senders import versions

#: How long a number belongs to a supplier after the last message that came in through it.
KEPT = timedelta(days=90)

# Written once per day and number, not with each message.
NOTE = """
INSERT INTO sender_owners AS known (sender, supplier_id, seen_at)
SELECT sender, supplier_id, now() FROM unnest($1::text[], $2::uuid[]) AS item (sender, supplier_id)
 ORDER BY sender, supplier_id
ON CONFLICT (sender, supplier_id) DO UPDATE SET seen_at = excluded.seen_at
 WHERE known.seen_at < excluded.seen_at - interval '1 day'
RETURNING sender
"""


async def note(conn: Connection, seen: Collection[tuple[str, UUID]]) -> None:
    """Record that messages came in for these of our senders from these suppliers, in the caller's transaction. Handsets
    cannot write to a name: what comes in for one is a receipt that its supplier did not mark as such, and says nothing
    about who may carry it."""
    numbers = sorted({one for one in seen if one[0].isdecimal()})
    if not numbers:
        return
    columns = [list(column) for column in zip(*numbers, strict=True)]
    if await conn.fetch(NOTE, *columns):
        await versions.move(conn)


RECENT = """
SELECT o.sender, o.supplier_id FROM sender_owners o JOIN suppliers s ON s.id = o.supplier_id
 WHERE o.seen_at > now() - $1::interval AND s.state <> 'removed' ORDER BY o.sender, o.seen_at DESC, o.supplier_id
"""


async def recent(conn: Connection) -> list[tuple[str, UUID]]:
    """(number, supplier) pairs; per number, the supplier of the most recent message comes first."""
    return [(row["sender"], row["supplier_id"]) for row in await conn.fetch(RECENT, KEPT)]
