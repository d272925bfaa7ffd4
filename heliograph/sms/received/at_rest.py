"""Parts at rest: stored as delivered by the supplier, and sealed once their organization is known, if it wants that.
The rule nobody may break: `inbound_messages.body` is read through `opened`.

A part whose organization is not yet known is stored unsealed, as is one that belongs to several or to none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import Sealing
from heliograph.sms.received.assembly import Row

_BODY, _RAW = "inbound_messages/body", "inbound_messages/raw"


def row_of(row: Any) -> Row:
    """A row of `inbound_messages`, not yet opened."""
    parts = row["concatenation"]
    return Row(
        row["id"],
        row["supplier_id"],
        row["sender"],
        row["recipient"],
        row["form"],
        row["body"],
        (parts[0], parts[1], parts[2]) if parts else None,
        row["received_at"],
        row["state"],
        row["message_id"],
        row["sender_ton"],
        row["recipient_ton"],
        row["organization_id"],
        row["sealed"],
        asked=row["asked"],
    )


async def opened(conn: Connection, rows: Sequence[Row]) -> list[Row]:
    """Rows with their octets opened: empty if the key was destroyed, and `is_locked` if it does not open them."""
    shut = [row for row in rows if row.is_sealed]
    if not shut:
        return list(rows)
    found, locked = await text_keys.read_octets(conn, _BODY, [(_whose(row), row.id, row.body) for row in shut])
    known = {
        row.id: msgspec.structs.replace(row, body=body or b"", is_locked=body is None and row.organization_id in locked)
        for row, body in zip(shut, found, strict=True)
    }
    return [known.get(row.id, row) for row in rows]


async def bodies(conn: Connection, items: Sequence[tuple[UUID, UUID, bytes]]) -> list[bytes | None]:
    """Open sealed octets, given as (organization, id, octets); None: they cannot be opened."""
    return (await text_keys.read_octets(conn, _BODY, items))[0]


RAW = "SELECT id, raw FROM inbound_messages WHERE id = ANY ($1)"
KEEP = """
UPDATE inbound_messages SET body = v.body, raw = v.raw, sealed = v.sealed
  FROM unnest($1::uuid[], $2::bytea[], $3::bytea[], $4::boolean[]) AS v (id, body, raw, sealed)
 WHERE inbound_messages.id = v.id
"""


async def keep(conn: Connection, rows: Sequence[tuple[Row, UUID | None]], sealing: Sealing) -> None:
    """Store opened parts in the form that their current organizations want, if that differs: sealed or not, or empty if
    a key cannot be opened."""
    changed = [(row, whose) for row, whose in rows if not row.is_locked and _is_other(row, whose, sealing)]
    if not changed:
        return
    raw = {row["id"]: row["raw"] for row in await conn.fetch(RAW, [row.id for row, _ in changed])}
    shut = [row for row, _ in changed if row.is_sealed]
    found, _ = await text_keys.read_octets(conn, _RAW, [(_whose(row), row.id, raw[row.id]) for row in shut])
    raw |= {row.id: one or b"" for row, one in zip(shut, found, strict=True)}
    stored: list[tuple[UUID, bytes, bytes, bool]] = []
    for row, whose in changed:
        if whose is None or not sealing.seals(whose):
            stored.append((row.id, row.body, raw[row.id], False))
        elif sealing.is_locked(whose):
            stored.append((row.id, b"", b"", False))
        else:
            body = sealing.sealed_octets(whose, _BODY, row.id, row.body)
            stored.append((row.id, body, sealing.sealed_octets(whose, _RAW, row.id, raw[row.id]), True))
    await conn.execute(KEEP, *(list(column) for column in zip(*stored, strict=True)))


def _is_other(row: Row, whose: UUID | None, sealing: Sealing) -> bool:
    if whose is None or not sealing.seals(whose):
        return row.is_sealed
    return not (row.is_sealed and row.organization_id == whose)


def _whose(row: Row) -> UUID:
    assert row.organization_id is not None, "a sealed part belongs to somebody"
    return row.organization_id
