"""The table `sender_rules`: what suppliers do with senders, as recorded by operators.

The rule nobody may break: a change and its entry in the audit log are one commit.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import phones
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.senders import versions
from heliograph.senders.book import ACTIONS, SenderRule

#: Maximum characters of a sender (3GPP 23.040 §9.1.2.5: 11 septets, or digits) and of a note.
MAX_SENDER, MAX_NOTE = 15, 500

_COLUMNS = "id, supplier_id, country, sender, kind, action, replacement, note"
LOAD = f"SELECT {_COLUMNS} FROM sender_rules ORDER BY supplier_id, country NULLS FIRST, sender NULLS FIRST, kind, id"


async def load(conn: Connection) -> list[SenderRule]:
    """All rules."""
    return [SenderRule(**row) for row in await conn.fetch(LOAD)]


# One rule per supplier, country, sender and kind: setting it again replaces it.
BEFORE = f"""
SELECT {_COLUMNS} FROM sender_rules
 WHERE supplier_id = $1 AND country IS NOT DISTINCT FROM $2 AND lower(sender) IS NOT DISTINCT FROM lower($3)
   AND kind IS NOT DISTINCT FROM $4
"""
PUT = """
INSERT INTO sender_rules AS known (id, supplier_id, country, sender, kind, action, replacement, note, changed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now())
ON CONFLICT (supplier_id, coalesce(country, ''), coalesce(lower(sender), ''), coalesce(kind, '')) DO UPDATE
   SET action = excluded.action, replacement = excluded.replacement, note = excluded.note, changed_at = now()
RETURNING id
"""


async def put(conn: Connection, rule: SenderRule, *, by: Principal = SYSTEM) -> UUID:
    """Create a rule, or replace the one with the same conditions, keeping its id. Raises Invalid."""
    check(rule)
    async with conn.transaction():
        await versions.move(conn)
        before = await conn.fetchrow(BEFORE, rule.supplier_id, rule.country, rule.sender, rule.kind)
        id: UUID = await conn.fetchval(PUT, uuid7(), *msgspec.structs.astuple(rule)[1:])
        known = None if before is None else _audit_values(SenderRule(**before))
        await audit.record(conn, by, "sender_rule.changed", object_id=id, before=known, after=_audit_values(rule))
    return id


REMOVE = f"DELETE FROM sender_rules WHERE id = $1 RETURNING {_COLUMNS}"


async def remove(conn: Connection, id: UUID, *, by: Principal = SYSTEM) -> None:
    """Remove a rule. Raises NotFound."""
    async with conn.transaction():
        await versions.move(conn)
        row = await conn.fetchrow(REMOVE, id)
        if row is None:
            raise NotFound("There is no such sender rule.", resource="sender_rule", id=str(id))
        before = _audit_values(SenderRule(**row))
        await audit.record(conn, by, "sender_rule.removed", object_id=id, before=before, after=None)


def check(rule: SenderRule) -> None:
    """Check a rule. Raises Invalid with all errors."""
    wrong: list[tuple[str, str, str]] = []
    if rule.country is not None and (said := phones.no_country(rule.country)):
        wrong.append(("country", "unknown", said))
    if rule.action not in ACTIONS:
        wrong.append(("action", "enum", f"an action is one of {', '.join(ACTIONS)}"))
    for field, value in (("sender", rule.sender), ("replacement", rule.replacement)):
        if value is not None and not (value.isascii() and value.isprintable() and 1 <= len(value) <= MAX_SENDER):
            wrong.append((field, "pattern", f"`{field}` must have 1 to {MAX_SENDER} ASCII characters"))
    if rule.action == "replace" and rule.replacement is None:
        wrong.append(("replacement", "required", "to replace senders, give the replacement"))
    if rule.action in ("allow", "refuse") and rule.replacement is not None:
        wrong.append(("replacement", "unexpected", f"a rule to {rule.action} senders takes no replacement"))
    if rule.sender is not None and rule.kind is not None:
        wrong.append(("kind", "unexpected", "a rule is for one sender or for a kind of senders"))
    if len(rule.note) > MAX_NOTE:
        wrong.append(("note", "length", f"`note` may have up to {MAX_NOTE} characters"))
    if wrong:
        raise Invalid(*wrong)


def _audit_values(rule: SenderRule) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(rule).items() if name != "id"}
