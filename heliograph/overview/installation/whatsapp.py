"""For operators: WhatsApp accounts of all organizations, and callbacks from Meta that wait or could not be applied."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.crypto import Key
from heliograph.base.database.pool import Connection
from heliograph.base.sentences import Sentence, kept
from heliograph.whatsapp.callbacks import dead_letters

#: Maximum callbacks counted.
COUNTED = 10_000
#: Fields of an item that are shown as is: kinds, states, codes, account ids and times. Others may contain what people
#: wrote, or a number, as Meta's message ids do.
_SAFE = frozenset(
    {
        *("type", "status", "event", "kind", "category", "previous_category", "future_category", "language", "quality"),
        *("waba_id", "phone_number_id", "template_id", "opaque", "at"),
    }
)
#: Characters of an item shown, and the digit count below which a value cannot be a phone number.
SHOWN, SHORT = 20_000, 6
_NAME = re.compile(r"[A-Za-z_]{1,60}")


class Waiting(msgspec.Struct, frozen=True):
    """Callbacks stored but not processed: how many (COUNTED + 1: more than COUNTED), and since when the oldest."""

    count: int
    oldest_at: datetime | None


WAITING = f"""
SELECT (SELECT count(*) FROM (SELECT FROM whatsapp_callbacks LIMIT {COUNTED + 1}) counted) AS count,
       (SELECT received_at FROM whatsapp_callbacks ORDER BY id LIMIT 1) AS oldest_at
"""


async def waiting(conn: Connection) -> Waiting:
    """What waits now."""
    row = await conn.fetchrow(WAITING)
    assert row is not None
    return Waiting(**row)


class DeadLetterLine(msgspec.Struct, frozen=True):
    """An item that could not be applied, without what people wrote and without whole numbers."""

    id: str
    received_at: datetime
    reason: Sentence
    #: The kind of item; "": it could not be parsed.
    kind: str
    facts: list[tuple[str, str]]
    #: Size of the whole item in bytes; 0: its key is not available here.
    size: int


async def list_dead_letters(conn: Connection, key: Key, *, after: UUID | None, limit: int) -> list[DeadLetterLine]:
    """Items after one with an id, newest first."""
    found = await dead_letters.list_all(conn, key, limit=limit, below=after or dead_letters.NEWEST)
    return [_dead_letter(one) for one in found]


class OpenDeadLetter(msgspec.Struct, frozen=True):
    """One item with its content. `masked`: as JSON, see `masked`; "": it is not JSON."""

    line: DeadLetterLine
    app: UUID
    masked: str


async def get_dead_letter(conn: Connection, key: Key, *, id: UUID) -> OpenDeadLetter:
    """One item. Raises NotFound."""
    one = await dead_letters.get(conn, key, id=id)
    try:
        shown = json.dumps(masked(json.loads(one.raw)), indent=2, ensure_ascii=False)[:SHOWN]
    except (ValueError, RecursionError):
        shown = ""
    return OpenDeadLetter(_dead_letter(one), one.app, shown)


def masked(value: Any, name: str = "") -> Any:
    """A received item, masked: values under names that never contain what people wrote are kept, numbers are cut to
    the last four digits, and every other text is replaced with its length in brackets."""
    if isinstance(value, dict):
        return {_name(each): masked(one, each) for each, one in value.items()}
    if isinstance(value, list):
        return [masked(one, name) for one in value]
    if isinstance(value, bool) or value is None or name in _SAFE:
        return value if not isinstance(value, str) else value[:200]
    text = str(value)
    digits = text.removeprefix("+")
    if digits.isdigit():
        return value if len(digits) <= SHORT else phones.masked(digits)
    return f"[{len(text)}]"


def _name(text: str) -> str:
    """A field's name if it looks like one of Meta's; any other text is replaced with its length."""
    return text if _NAME.fullmatch(text) else f"[{len(text)}]"


def _dead_letter(one: dead_letters.StoredDeadLetter) -> DeadLetterLine:
    item = one.item
    facts = [] if item is None else _facts(msgspec.to_builtins(item))
    kind = "" if item is None else type(item).__name__.removesuffix("Item").lower()
    return DeadLetterLine(str(one.id), one.received_at, kept(one.reason), kind, facts, len(one.raw))


def _facts(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts of an item that can be shown: plain values under names that never contain what people wrote."""
    return [(name, str(value)[:200]) for name, value in values.items() if name in _SAFE and value not in ("", None)]
