"""Suggestions for a partly typed name or number: a few of the newest contacts."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import msgspec

from heliograph.base import naming
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.phones import in_turns, spellings

#: Contacts scanned, newest first: about 5 ms. Names have no index.
LOOK = 5_000
#: Minimum characters for suggestions, and maximum contacts suggested.
SHORTEST, MOST = 2, 8


class Suggestion(msgspec.Struct, frozen=True):
    """A contact's name and number."""

    name: str
    phone: str


NAMES = "SELECT phone, name FROM contacts WHERE organization_id = $1 AND phone = ANY ($2) AND mode = $3"


async def names(conn: Connection, actor: Actor, *, phones: Collection[str]) -> dict[str, str]:
    """Names by number, of those numbers that are contacts, in any spelling: Meta writes some in another one."""
    numbers = list(phones)
    forms = dict(zip(numbers, await in_turns(spellings, numbers), strict=True))
    wanted = list({form for each in forms.values() for form in each})
    rows = await conn.fetch(NAMES, actor.organization_id, wanted, actor.mode) if wanted else []
    known = {row["phone"]: row["name"] for row in rows}
    return {number: known[form] for number, each in forms.items() for form in reversed(each) if form in known}


BY_NUMBER = """
SELECT id, name FROM contacts WHERE organization_id = $1 AND phone = ANY ($2) AND mode = $3 ORDER BY id LIMIT 1
"""


async def by_number(conn: Connection, actor: Actor, *, phones: Collection[str]) -> tuple[UUID, str] | None:
    """(id, name) of the contact with one of these spellings of a number."""
    row = await conn.fetchrow(BY_NUMBER, actor.organization_id, list(phones), actor.mode)
    return None if row is None else (row["id"], row["name"])


SUGGEST = """
SELECT name, phone FROM (
    SELECT id, name, phone FROM contacts WHERE organization_id = $1 AND mode = $2 ORDER BY id DESC LIMIT $3) looked_at
 WHERE strpos(lower(name), lower($4)) > 0 OR ($5 <> '' AND strpos(phone, $5) > 0)
 ORDER BY lower(name) <> lower($4), id DESC LIMIT $6
"""


async def suggest(conn: Connection, actor: Actor, *, text: str) -> list[Suggestion]:
    """Contacts with `text` in their name, or its digits in their number; exact names come first."""
    text = naming.sought(text)
    if len(text) < SHORTEST:
        return []
    digits = "".join(one for one in text if one.isascii() and one.isdigit())
    if len(digits) < SHORTEST:
        digits = ""
    rows = await conn.fetch(SUGGEST, actor.organization_id, actor.mode, LOOK, text, digits, MOST)
    return [Suggestion(*row.values()) for row in rows]
