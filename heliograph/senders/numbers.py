"""The table `number_rules`: the number formats that suppliers expect.

The rule nobody may break: a rule changes what is sent to a supplier, never the message's own recipient.
"""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.senders import versions
from heliograph.senders.book import NumberRule
from heliograph.senders.rules import MAX_NOTE

#: Digits to prepend, such as a trunk digit, 00 or a supplier's own routing digits.
_is_prepended = re.compile(r"[0-9]{0,10}").fullmatch
_is_prefix = re.compile(r"(?:[1-9][0-9]{0,14})?").fullmatch

_COLUMNS = "id, supplier_id, prefix, strip, prepend, ton, npi, sender_ton, sender_npi, note"
LOAD = f"SELECT {_COLUMNS} FROM number_rules ORDER BY supplier_id, prefix"


async def load(conn: Connection) -> list[NumberRule]:
    """All rules."""
    return [_rule(row) for row in await conn.fetch(LOAD)]


BEFORE = f"SELECT {_COLUMNS} FROM number_rules WHERE supplier_id = $1 AND prefix = $2"
PUT = """
INSERT INTO number_rules (id, supplier_id, prefix, strip, prepend, ton, npi, sender_ton, sender_npi, note, changed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, now())
ON CONFLICT (supplier_id, prefix) DO UPDATE
   SET strip = excluded.strip, prepend = excluded.prepend, ton = excluded.ton, npi = excluded.npi,
       sender_ton = excluded.sender_ton, sender_npi = excluded.sender_npi, note = excluded.note, changed_at = now()
RETURNING id
"""


async def put(conn: Connection, rule: NumberRule, *, by: Principal = SYSTEM) -> UUID:
    """Create a rule, or replace the one for the same prefix, keeping its id. Raises Invalid."""
    check(rule)
    async with conn.transaction():
        await versions.move(conn, numbers=True)
        before = await conn.fetchrow(BEFORE, rule.supplier_id, rule.prefix)
        id: UUID = await conn.fetchval(
            PUT,
            uuid7(),
            rule.supplier_id,
            rule.prefix,
            rule.strip,
            rule.prepend,
            *(rule.numbering or (None, None)),
            *(rule.sender_numbering or (None, None)),
            rule.note,
        )
        known = None if before is None else _audit_values(_rule(before))
        await audit.record(conn, by, "number_rule.changed", object_id=id, before=known, after=_audit_values(rule))
    return id


REMOVE = f"DELETE FROM number_rules WHERE id = $1 RETURNING {_COLUMNS}"


async def remove(conn: Connection, id: UUID, *, by: Principal = SYSTEM) -> None:
    """Remove a rule. Raises NotFound."""
    async with conn.transaction():
        await versions.move(conn, numbers=True)
        row = await conn.fetchrow(REMOVE, id)
        if row is None:
            raise NotFound("There is no such number rule.", resource="number_rule", id=str(id))
        before = _audit_values(_rule(row))
        await audit.record(conn, by, "number_rule.removed", object_id=id, before=before, after=None)


def check(rule: NumberRule) -> None:
    """Check a rule. Raises Invalid with all errors."""
    wrong: list[tuple[str, str, str]] = []
    for field, value in (("prefix", rule.prefix), ("strip", rule.strip)):
        if not _is_prefix(value):
            wrong.append((field, "pattern", f"`{field}` is up to 15 digits of a calling code and what follows, no +"))
    if not _is_prepended(rule.prepend):
        wrong.append(("prepend", "pattern", "`prepend` is up to 10 digits"))
    if not (rule.strip.startswith(rule.prefix) or rule.prefix.startswith(rule.strip)):
        wrong.append(("strip", "never", f"no number that begins with {rule.prefix} begins with {rule.strip}"))
    for field, pair in (("ton", rule.numbering), ("sender_ton", rule.sender_numbering)):
        if pair is not None and not all(0 <= one <= 255 for one in pair):
            wrong.append((field, "range", "TON and NPI are 0 to 255"))
    if not (rule.strip or rule.prepend or rule.numbering or rule.sender_numbering):
        wrong.append(("prepend", "required", "the rule changes nothing: give strip, prepend, or TON and NPI"))
    if len(rule.note) > MAX_NOTE:
        wrong.append(("note", "length", f"`note` may have up to {MAX_NOTE} characters"))
    if wrong:
        raise Invalid(*wrong)


def _rule(row: asyncpg.Record) -> NumberRule:
    return NumberRule(
        id=row["id"],
        supplier_id=row["supplier_id"],
        prefix=row["prefix"],
        strip=row["strip"],
        prepend=row["prepend"],
        numbering=None if row["ton"] is None else (row["ton"], row["npi"]),
        sender_numbering=None if row["sender_ton"] is None else (row["sender_ton"], row["sender_npi"]),
        note=row["note"],
    )


def _audit_values(rule: NumberRule) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(rule).items() if name != "id"}
