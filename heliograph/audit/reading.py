"""Reading the audit log: newest first, for one organization or all, complete or filtered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from heliograph.audit.actions import ACTIONS, TOLD_CUSTOMERS
from heliograph.base import naming
from heliograph.base.database import bounded_scan
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid_in

#: Who may have acted; see `Principal.kind`.
KINDS = ("person", "key", "operator", "cli", "system", "unknown")
#: Those who run the installation: customers read that the operator acted, but not which person, or from where.
OPERATORS = ("operator", "cli")
#: Entries read at once by an export.
PAGE = 1000


class AuditEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry. `before` and `after` are JSON."""

    id: UUID
    organization_id: UUID | None
    at: datetime
    who: str
    who_id: UUID | None
    who_name: str
    action: str
    object_id: str
    object_name: str
    before: str | None
    after: str | None
    reason: str
    address: str
    device: str
    request_id: str
    count: int


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for; None matches anything."""

    #: Whose entries; None: all organizations' and the installation's own. Must be set when a customer reads.
    organization_id: UUID | None = None
    #: One of KINDS, an id, or a name.
    who: str | None = None
    #: An action, or the object before its dot.
    action: str | None = None
    #: An object's id, or its name.
    object: str | None = None
    date_from: datetime | None = None
    date_to: datetime | None = None


class AuditPage(msgspec.Struct, frozen=True):
    """A page. `seen`: the id at which the scan ended; None: nothing is left."""

    entries: list[AuditEntry]
    seen: UUID | None


_COLUMNS = ", ".join(AuditEntry.__struct_fields__)
# Evaluated row by row without an index: an organization has few entries in the range, and the scan is bounded.
# $6 kinds, $7 who, $8 action, $9 object's kind, $10 object.
_FITS = """
(looked_at.who = ANY ($6::text[]) OR $6 IS NULL)
 AND (looked_at.who_id::text = $7 OR looked_at.who_name = $7 OR $7 IS NULL)
 AND (looked_at.action = $8 OR $8 IS NULL) AND (starts_with(looked_at.action, $9 || '.') OR $9 IS NULL)
 AND (looked_at.object_id = $10 OR lower(normalize(looked_at.object_name)) = lower($10) OR $10 IS NULL)
"""
OF_ORGANIZATION = bounded_scan.statement("audit_log", _COLUMNS, fits=_FITS)
OF_EVERYBODY = bounded_scan.statement("audit_log", _COLUMNS, fits=_FITS, whose="$1::uuid IS NULL")
# An object has few entries, which an index finds.
OF_OBJECT = bounded_scan.statement(
    "audit_log", _COLUMNS, fits=_FITS, whose="(organization_id = $1 OR $1 IS NULL)", where="object_id = $10"
)


LAST = "SELECT max(at) FROM audit_log WHERE object_id = $1 AND action = $2"


async def last(conn: Connection, *, object_id: UUID, action: str) -> datetime | None:
    """When this was last done to an object; None: never, as far as the log goes back."""
    found: datetime | None = await conn.fetchval(LAST, str(object_id), action)
    return found


async def list_page(
    conn: Connection,
    wanted: Filter,
    *,
    after: UUID | None = None,
    limit: int,
    look: int = bounded_scan.LOOK,
    is_for_customers: bool = False,
) -> AuditPage:
    """Up to `limit` entries, newest first, older than `after`. Raises Invalid (who, action).

    `is_for_customers`: which operator acted is hidden and cannot be searched for, as are parts of a change that concern
    only Meta or the operator.
    """
    who, kinds = wanted.who and naming.sought(wanted.who), None
    if who in KINDS:
        kinds = list(OPERATORS) if is_for_customers and who in OPERATORS else [who]
        who = None
    action, object_kind = wanted.action, None
    if action is not None and action not in ACTIONS:
        if not any(known.startswith(f"{action}.") for known in ACTIONS):
            raise Invalid(("action", "enum", f"`action` must be one of {', '.join(ACTIONS)}"))
        action, object_kind = None, action
    statement = OF_EVERYBODY if wanted.organization_id is None else OF_ORGANIZATION
    if wanted.object is not None and uuid_in(wanted.object) is not None:
        statement = OF_OBJECT
    upper, lower = bounded_scan.bounds(after, date_from=wanted.date_from, date_to=wanted.date_to)
    rows = await conn.fetch(
        statement,
        wanted.organization_id,
        upper,
        lower,
        limit + 1,
        look,
        kinds,
        who,
        action,
        object_kind,
        wanted.object and naming.sought(wanted.object),
    )
    found, seen = bounded_scan.judged(rows, limit=limit, look=look)
    listed = [AuditEntry(**{name: row[name] for name in AuditEntry.__struct_fields__}) for row in found]
    kept = [one for one in listed if _within(one.at, wanted)]
    if is_for_customers:
        kept = [_hidden(one) for one in kept if who is None or one.who not in OPERATORS]
    if len(kept) > limit:
        return AuditPage(kept[:limit], kept[limit - 1].id)
    return AuditPage(kept, listed[-1].id if len(listed) > limit else seen)


async def everything(
    conn: Connection, wanted: Filter, *, limit: int | None = None
) -> AsyncIterator[Sequence[AuditEntry]]:
    """All matching entries, newest first, page by page, at most `limit` of them. Raises Invalid."""
    after, left = None, limit
    while left is None or left > 0:
        looked = await list_page(conn, wanted, after=after, limit=PAGE if left is None else min(PAGE, left))
        if looked.entries:
            yield looked.entries
        if left is not None:
            left -= len(looked.entries)
        if looked.seen is None:
            return
        after = looked.seen


# One look-up each: an object has few entries, which an index finds.
LATEST = f"""
SELECT {", ".join(f"entry.{name}" for name in AuditEntry.__struct_fields__)}
  FROM unnest($3::text[]) AS asked (object_id)
 CROSS JOIN LATERAL (
       SELECT * FROM audit_log
        WHERE object_id = asked.object_id AND organization_id = $1 AND action = $2
        ORDER BY id DESC LIMIT 1) entry
"""


async def latest(
    conn: Connection, organization_id: UUID, *, action: str, object_ids: Sequence[UUID]
) -> dict[str, AuditEntry]:
    """The latest entry of an action on each object, by the object's id; objects without one are omitted."""
    rows = await conn.fetch(LATEST, organization_id, action, [str(id) for id in object_ids])
    return {row["object_id"]: AuditEntry(*row.values()) for row in rows}


def as_values(one: AuditEntry) -> dict[str, Any]:
    """An entry as lists and exports show it: its changes as values."""
    values: dict[str, Any] = {name: getattr(one, name) for name in AuditEntry.__struct_fields__}
    for name in ("before", "after"):
        text = values[name]
        values[name] = None if text is None else msgspec.json.decode(text)
    return values


def _hidden(one: AuditEntry) -> AuditEntry:
    told = TOLD_CUSTOMERS.get(one.action.partition(".")[0])
    if told is not None:
        one = msgspec.structs.replace(one, before=_only(one.before, told), after=_only(one.after, told))
    if one.who not in OPERATORS:
        return one
    return msgspec.structs.replace(one, who="operator", who_id=None, who_name="", address="", device="")


def _only(stored: str | None, names: frozenset[str]) -> str | None:
    if stored is None:
        return None
    kept = {name: value for name, value in msgspec.json.decode(stored).items() if name in names}
    return msgspec.json.encode(kept).decode() if kept else None


def _within(at: datetime, wanted: Filter) -> bool:
    # Bounds on ids are approximate; the exact time decides.
    return (wanted.date_from is None or at >= wanted.date_from) and (wanted.date_to is None or at < wanted.date_to)
