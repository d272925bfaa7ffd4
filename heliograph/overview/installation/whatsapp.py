"""WhatsApp accounts of all organizations, for operators, and callbacks from Meta that wait or could not be applied."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from heliograph.base.crypto import Key
from heliograph.base.database.pool import Connection
from heliograph.whatsapp.callbacks import dead_letters

#: Callbacks that are counted, and items that are shown.
COUNTED, LETTERS = 10_000, 100
#: What of an item is shown as it is: kinds, states, codes, ids of accounts and times. The rest may be what people
#: wrote, or hold a number, as Meta's ids of messages do.
_SAFE = frozenset(
    {
        *("type", "status", "event", "kind", "category", "previous_category", "future_category", "language", "quality"),
        *("waba_id", "phone_number_id", "template_id", "opaque", "at"),
    }
)


class Waiting(msgspec.Struct, frozen=True):
    """Callbacks that are stored and not processed: how many (at most COUNTED), and since when the oldest."""

    count: int
    oldest_at: datetime | None


WAITING = f"""
SELECT (SELECT count(*) FROM (SELECT FROM whatsapp_callbacks LIMIT {COUNTED}) counted) AS count,
       (SELECT received_at FROM whatsapp_callbacks ORDER BY id LIMIT 1) AS oldest_at
"""


async def waiting(conn: Connection) -> Waiting:
    """What waits now."""
    row = await conn.fetchrow(WAITING)
    assert row is not None
    return Waiting(**row)


class Letter(msgspec.Struct, frozen=True):
    """An item that could not be applied, without what people wrote and without whole numbers."""

    id: str
    received_at: datetime
    reason: str
    #: What kind of item it is; "": it could not be parsed.
    kind: str
    facts: list[tuple[str, str]]
    #: Bytes of the whole.
    size: int


async def letters(conn: Connection, key: Key) -> list[Letter]:
    """The newest LETTERS. Raises Unsealable."""
    return [_letter(one) for one in await dead_letters.list_all(conn, key, limit=LETTERS)]


def _letter(one: dead_letters.StoredDeadLetter) -> Letter:
    item = one.item
    facts = [] if item is None else _facts(msgspec.to_builtins(item))
    kind = "" if item is None else type(item).__name__.removesuffix("Item").lower()
    return Letter(str(one.id), one.received_at, one.reason, kind, facts, len(one.raw))


def _facts(values: dict[str, Any]) -> list[tuple[str, str]]:
    """What of an item can be shown: plain values under names that hold nobody's words."""
    return [(name, str(value)[:200]) for name, value in values.items() if name in _SAFE and value not in ("", None)]
