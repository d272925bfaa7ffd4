"""Writing the audit log: in the transaction of the change, or not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from heliograph.audit import reasons
from heliograph.audit.actions import ACTIONS
from heliograph.base.actor import Actor, Principal
from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.phones import digits, masked
from heliograph.base.process.logs import DROPPED, NUMBERS

#: Stands in for a secret: the log says that it changed, never what it is.
SECRET = "(secret)"  # noqa: S105
#: Characters kept of one value, and of names, addresses and other texts about who acted.
LONGEST, LONGEST_SAID = 500, 300
#: Elements kept of a list or a mapping.
MOST = 50
#: Values under these names are addresses whose query may hold a token.
ADDRESSES = frozenset({"url", "base_url"})
_PHONES = NUMBERS - {"sender", "source"}
#: A number that somebody typed into a reason: entries cannot be changed, so erasing its person could not remove it.
#: Only with its plus sign, as tickets and invoices have numbers too.
_TYPED = re.compile(r"\+\d[\d ().-]{5,}\d")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One action to be recorded."""

    #: One of ACTIONS.
    action: str
    #: The object's id if it has one, otherwise whatever identifies it.
    object_id: str
    #: Its name at that time.
    name: str = ""
    #: The organization that it belongs to; None: the installation.
    organization_id: UUID | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    #: The reason; empty: the one in `Principal`.
    reason: str = ""
    #: How many times it happened in the minute that the entry covers.
    count: int = 1


INSERT = """
INSERT INTO audit_log (id, organization_id, at, who, who_id, who_name, action, object_id, object_name, before, after,
                       reason, address, device, request_id, count)
SELECT e.id, e.organization_id, $2, $3, $4, $5, e.action, e.object_id, e.object_name, e.before, e.after,
       coalesce(nullif(e.reason, ''), $6), $7, $8, $9, e.count
  FROM unnest($1::uuid[], $10::uuid[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[],
              $17::integer[])
    AS e (id, organization_id, action, object_id, object_name, before, after, reason, count)
"""


async def record(
    conn: Connection,
    who: Actor | Principal,
    action: str,
    *,
    object_id: UUID | str,
    name: str = "",
    organization_id: UUID | None = None,
    before: Mapping[str, Any] | msgspec.Struct | None = None,
    after: Mapping[str, Any] | msgspec.Struct | None = None,
    reason: str = "",
) -> None:
    """Record one action, in the caller's transaction, which makes the change.

    `who`: an actor, to whose organization the entry then belongs, or somebody who acts outside of organizations.
    `before` and `after`: the relevant attributes of the object; if both are given, only differences are kept. Secrets
    are blanked, phone numbers masked.
    """
    if isinstance(who, Actor):
        organization_id, who = who.organization_id, who.principal
    entry = Entry(
        action=action,
        object_id=str(object_id),
        name=name,
        organization_id=organization_id,
        before=_plain(before),
        after=_plain(after),
        reason=reason,
    )
    await record_many(conn, who, [entry])


async def record_many(conn: Connection, who: Principal, entries: Sequence[Entry]) -> None:
    """Record actions of one author, in the caller's transaction."""
    if not entries:
        return
    for entry in entries:
        assert entry.action in ACTIONS, entry.action
        reasons.check_optional(entry.reason)
    reasons.check_optional(who.reason)
    changes = [_changes(entry.before, entry.after) for entry in entries]
    await conn.execute(
        INSERT,
        [uuid7() for _ in entries],
        clock.now(),
        who.kind,
        who.id,
        _cut(who.name),
        _reason(who.reason),
        _cut(who.address),
        _cut(who.device),
        _cut(who.request_id),
        [entry.organization_id for entry in entries],
        [entry.action for entry in entries],
        [_cut(entry.object_id) for entry in entries],
        [_cut(entry.name) for entry in entries],
        [before for before, _ in changes],
        [after for _, after in changes],
        [_reason(entry.reason) for entry in entries],
        [entry.count for entry in entries],
    )


def _plain(values: Mapping[str, Any] | msgspec.Struct | None) -> Mapping[str, Any] | None:
    if isinstance(values, msgspec.Struct):
        return {name: getattr(values, name) for name in values.__struct_fields__}
    return values


def _changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> tuple[str | None, str | None]:
    """The differences, as JSON; if only one side is given, all of it. Changed secrets are shown only as changed."""
    if before is not None and after is not None:
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        before = {name: before[name] for name in names if name in before}
        after = {name: after[name] for name in names if name in after}
    return _written(before), _written(after)


def _written(values: Mapping[str, Any] | None) -> str | None:
    return None if not values else msgspec.json.encode(_safe("", values)).decode()


def _safe(name: str, value: Any) -> Any:
    """A value for JSON: limited in size, without anything that must not be kept."""
    if name in DROPPED and value is not None:
        return SECRET
    if isinstance(value, msgspec.Struct):
        return _safe(name, _plain(value))
    if isinstance(value, Mapping):
        return {str(key): _safe(str(key), each) for key, each in list(value.items())[:MOST]}
    if isinstance(value, list | tuple | set | frozenset):
        listed = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
        return [_safe(name, each) for each in listed[:MOST]]
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, bytes):
        return SECRET
    if isinstance(value, bool | int | float) or value is None:
        return value
    text = str(value)
    if name in _PHONES:
        return masked(text)
    if name in ADDRESSES:
        text, query, _ = text.partition("?")
        text += f"{query}(secret)" if query else ""
    return _cut(text, LONGEST)


def _reason(text: str) -> str:
    return _cut(_TYPED.sub(lambda found: masked(digits(found[0])), text), LONGEST)


def _cut(text: str, most: int = LONGEST_SAID) -> str:
    # A client's description of itself may contain characters that PostgreSQL's text type does not accept.
    text = text.replace("\0", "").encode(errors="replace").decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"
