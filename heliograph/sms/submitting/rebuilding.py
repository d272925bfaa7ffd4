"""Rebuilds what suppliers were sent for a message, octet by octet, for operators: with the code that built it for
sending, from the message, its attempts, and the suppliers' settings.

The rule nobody may break: possible differences are pointed out, and texts and complete numbers are shown only to those
who may see them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import reading as audit
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import SettingsError
from heliograph.base.sentences import Sentence, joined, said
from heliograph.sealing import text_keys
from heliograph.senders import loading, numbers
from heliograph.senders.book import Book
from heliograph.sending.attempts import WORKER_DIED
from heliograph.sms.intervening import deciding
from heliograph.sms.submitting import written
from heliograph.suppliers import kinds
from heliograph.suppliers.contract import RebuiltRequest
from heliograph.webhooks.timeline import Entry, known

#: Maximum number of attempts to rebuild, the latest ones; most messages have one.
MOST = 20
#: Workers learn of a change a few seconds later.
MARGIN = timedelta(minutes=1)

#: Why an attempt may have been built differently, or cannot be rebuilt.
SETTINGS = said("the supplier's settings have changed since")
NUMBERS = said("rules for numbers have changed since")
SENDER = said("its worker ended: it may have used another sender")
REST = said("segments after one that was not accepted may not have been sent")
NO_TEXT = said("its text was erased, or cannot be opened")
NO_SETTINGS = said("the supplier's current settings are incomplete")

MESSAGE = """
SELECT recipient, sender, encoding, class, expires_at, body FROM messages WHERE organization_id = $1 AND id = $2
"""
# An unreachable supplier was sent nothing, or took nothing. A removed supplier's settings are kept.
ATTEMPTS = f"""
SELECT a.attempt, a.state, a.detail, a.started_at, a.reference, a.continues, a.parts, a.sent_as, a.target_id,
       s.name AS supplier, s.kind, s.settings::text
  FROM (SELECT * FROM attempts WHERE organization_id = $1 AND message_id = $2 AND state <> 'unreachable'
         ORDER BY attempt DESC LIMIT {MOST}) a
  JOIN suppliers s ON s.id = a.target_id
 WHERE s.kind = ANY ($3)
 ORDER BY a.attempt
"""
# The parts that a series had when another attempt continued it.
TAKEN = "SELECT attempt, part, created_at FROM sms_parts WHERE message_id = $1 AND organization_id = $2 AND parts > 1"


async def of_message(conn: Connection, organization_id: UUID, id: UUID, *, whole: bool) -> list[Entry]:
    """An entry for each segment sent to suppliers, for kinds that can be rebuilt. `whole`: with phone numbers, and with
    all octets."""
    tried = await conn.fetch(ATTEMPTS, organization_id, id, list(kinds.REBUILT))
    message = await conn.fetchrow(MESSAGE, organization_id, id) if tried else None
    if message is None:
        return []
    text = (await text_keys.opened_of(conn, organization_id, "messages", [(id, message["body"])]))[id]
    continued = any(one["continues"] is not None for one in tried)
    taken = await conn.fetch(TAKEN, id, organization_id) if continued else []
    # The sender actually used is stored, so only the book's rules for numbers are needed, which are few.
    book, numbers_at = Book(numbers=await numbers.load(conn)), await loading.numbers_changed_at(conn)
    changed_at = {
        supplier: await audit.last(conn, object_id=supplier, action="supplier.changed")
        for supplier in {one["target_id"] for one in tried}
    }
    entries: list[Entry] = []
    for one in map(dict, tried):
        doubts = list(_doubts(one, changed_at[one["target_id"]], numbers_at))
        entries += _entries(id, dict(message), one, text, book, _held(one, taken), doubts, whole=whole)
    return entries


def _entries(
    id: UUID,
    message: Mapping[str, Any],
    one: Mapping[str, Any],
    text: str | None,
    book: Book,
    held: Collection[int],
    doubts: Sequence[Sentence],
    *,
    whole: bool,
) -> Iterable[Entry]:
    which = {"attempt": one["attempt"], "supplier": one["supplier"]}
    if text is None:
        return [Entry(one["started_at"], "submit", which | {"because": NO_TEXT})]
    submission = written.submission(
        id,
        one["attempt"],
        recipient=message["recipient"],
        sender=one["sent_as"] or message["sender"],
        address=book.address(one["target_id"], message["recipient"]),
        body=text,
        coding=message["encoding"],
        traffic_class=message["class"],
        reference=one["reference"] or 0,
        expires_at=message["expires_at"],
        at=one["started_at"],
        held=sorted(held),
    )
    try:
        found = kinds.rebuilt(one["kind"], msgspec.json.decode(one["settings"]), submission)
    except SettingsError:
        return [Entry(one["started_at"], "submit", which | {"because": NO_SETTINGS})]
    return [_entry(one["started_at"], which, segment, doubts, whole=whole) for segment in found]


def _entry(
    at: datetime, which: dict[str, Any], segment: RebuiltRequest, doubts: Sequence[Sentence], *, whole: bool
) -> Entry:
    shown = segment.whole if whole else segment.masked
    values = {
        "part": f"{segment.number}/{segment.total}",
        "written": " ".join(f"{name}={value}" for name, value in shown.items()),
        "octets": segment.octets if whole else None,
        "doubt": joined(doubts, "; ") if doubts else None,
    }
    return Entry(at, "submit", known(which | values))


def _doubts(one: Mapping[str, Any], changed_at: datetime | None, numbers_at: datetime | None) -> Iterable[Sentence]:
    known_by_all = one["started_at"] - MARGIN
    if changed_at is not None and changed_at >= known_by_all:
        yield SETTINGS
    if numbers_at is not None and numbers_at >= known_by_all:
        yield NUMBERS
    # The outcome of such an attempt was not reported by the worker that made it.
    if one["detail"] in (WORKER_DIED, deciding.SAID) and one["sent_as"] is None:
        yield SENDER
    if one["parts"] > 1 and one["state"] != "accepted":
        yield REST


def _held(one: Mapping[str, Any], taken: Sequence[asyncpg.Record]) -> set[int]:
    """Segments that the supplier already had when the attempt began."""
    if one["continues"] is None:
        return set()
    return {
        part["part"] for part in taken if part["attempt"] == one["continues"] and part["created_at"] < one["started_at"]
    }
