"""WhatsApp accounts of all organizations, for operators, and callbacks from Meta that wait or could not be applied."""

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
#: Characters of an item that are shown, and digits that are too few for a number.
SHOWN, SHORT = 20_000, 6
_NAME = re.compile(r"[A-Za-z_]{1,60}")


class Waiting(msgspec.Struct, frozen=True):
    """Callbacks that are stored and not processed: how many (COUNTED + 1: more than COUNTED), since when the oldest."""

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


class Letter(msgspec.Struct, frozen=True):
    """An item that could not be applied, without what people wrote and without whole numbers."""

    id: str
    received_at: datetime
    reason: Sentence
    #: What kind of item it is; "": it could not be parsed.
    kind: str
    facts: list[tuple[str, str]]
    #: Bytes of the whole.
    size: int


async def letters(conn: Connection, key: Key) -> list[Letter]:
    """The newest LETTERS. Raises Unsealable."""
    return [_letter(one) for one in await dead_letters.list_all(conn, key, limit=LETTERS)]


class OpenLetter(msgspec.Struct, frozen=True):
    """One of them with what it consists of. `masked`: as JSON, see `masked`; "": it is none."""

    letter: Letter
    app: UUID
    masked: str


async def letter(conn: Connection, key: Key, *, id: UUID) -> OpenLetter:
    """One of them. Raises NotFound, Unsealable."""
    one = await dead_letters.get(conn, key, id=id)
    try:
        shown = json.dumps(masked(json.loads(one.raw)), indent=2, ensure_ascii=False)[:SHOWN]
    except (ValueError, RecursionError):
        shown = ""
    return OpenLetter(_letter(one), one.app, shown)


def masked(value: Any, name: str = "") -> Any:
    """What came, with its names: plain values under names that hold nobody's words stay, digits are cut to the last
    four, and of every other text its length remains, in brackets."""
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
    """The name of a field, as Meta writes them; of any other text its length."""
    return text if _NAME.fullmatch(text) else f"[{len(text)}]"


def _letter(one: dead_letters.StoredDeadLetter) -> Letter:
    item = one.item
    facts = [] if item is None else _facts(msgspec.to_builtins(item))
    kind = "" if item is None else type(item).__name__.removesuffix("Item").lower()
    return Letter(str(one.id), one.received_at, kept(one.reason), kind, facts, len(one.raw))


def _facts(values: dict[str, Any]) -> list[tuple[str, str]]:
    """What of an item can be shown: plain values under names that hold nobody's words."""
    return [(name, str(value)[:200]) for name, value in values.items() if name in _SAFE and value not in ("", None)]
