"""Texts in events: some quote a message that somebody wrote or a campaign's text; stored sealed if the organization
wants that.

Only the value of the text is sealed, so that code that erases texts, or finds the events that have one, reads the same
JSON for every organization. The rule nobody may break: `data` is given to nobody before it has passed through `opened`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import Item, Sealing

#: Where events of a kind quote a text: the object in their data, and the name in it.
QUOTING = {"message.received": ("message", "text"), "campaign.completed": ("campaign", "message_template")}


class Stored(msgspec.Struct, frozen=True, gc=False):
    """An event's data as it is stored."""

    organization_id: UUID
    id: UUID
    kind: str
    data: str


async def sealed(conn: Connection, events: Collection[Stored]) -> list[str]:
    """Plain data as it is to be stored, in order. Where the key cannot be opened here, the text is left out: it is
    stored sealed or not at all."""
    whose = {one.organization_id for one in events if one.kind in QUOTING}
    if not whose:
        return [one.data for one in events]
    sealing = await Sealing.of(conn, whose)
    return [_sealed(one, sealing) if one.kind in QUOTING else one.data for one in events]


async def opened(conn: Connection, events: Sequence[Stored]) -> list[str]:
    """Stored data in plain text, in order; a text whose key was destroyed, or cannot be opened here, is null."""
    found, _ = await read(conn, events)
    return found


async def read(conn: Connection, events: Sequence[Stored]) -> tuple[list[str], frozenset[UUID]]:
    """Like `opened`, plus the ids of events whose text exists but cannot be opened now."""
    found = [one.data for one in events]
    marked = [n for n, one in enumerate(events) if one.kind in QUOTING and _is_marked(one)]
    if not marked:
        return found, frozenset()
    documents: list[Any] = [msgspec.json.decode(events[n].data) for n in marked]
    items = [
        Item(events[n].organization_id, events[n].id, _place(events[n], document)[0])
        for n, document in zip(marked, documents, strict=True)
    ]
    texts = await text_keys.read(conn, "events", items)
    shut = set()
    for n, document, text in zip(marked, documents, texts.texts, strict=True):
        _, write = _place(events[n], document)
        write(text)
        found[n] = msgspec.json.encode(document).decode()
        if text is None and events[n].organization_id in texts.locked:
            shut.add(events[n].id)
    return found, frozenset(shut)


def _is_marked(one: Stored) -> bool:
    """Whether its text is sealed. A quotation mark within a string would be escaped."""
    _, name = QUOTING[one.kind]
    return f'"{name}":"{text_keys.MARK}' in one.data


def _place(one: Stored, document: Any) -> tuple[str | None, Callable[[str | None], None]]:
    """The text quoted in data, and a function that replaces it."""
    holder, name = QUOTING[one.kind]

    def write(text: str | None) -> None:
        document[holder][name] = text

    return document[holder].get(name), write


def _sealed(one: Stored, sealing: Sealing) -> str:
    if not sealing.seals(one.organization_id) and not _is_marked(one):
        return one.data
    document = msgspec.json.decode(one.data)
    text, write = _place(one, document)
    if text is None:
        return one.data
    locked = sealing.is_locked(one.organization_id)
    write(None if locked else sealing.sealed(one.organization_id, "events", one.id, text))
    return msgspec.json.encode(document).decode()
