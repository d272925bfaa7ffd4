"""`heliograph route history` and `undo`: changes to routes, and restoring an earlier state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from heliograph.audit import reading
from heliograph.audit.reading import AuditEntry
from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import shell as who
from heliograph.cli.terminal.printing import as_plain
from heliograph.routes import rules
from heliograph.sms.dispatch import routing
from heliograph.sms.management import rerouting

COLUMNS = ("id", "at", "who", "route", "action", "changes", "undoable")


async def listed(conn: Connection, which: str | None, limit: int) -> list[dict[str, Any]]:
    """Changes of a route, by name or id, or of all of them (None), newest first. Raises NotFound."""
    route_id = None if which is None else (await rules.find(conn, route=which)).route.id
    names = {str(one.id): one.name for one in await routing.load(conn)}
    found = await rerouting.history(conn, route_id=route_id, limit=limit)
    return [_display(one, names) for one in found]


async def undone(conn: Connection, entry_id: UUID) -> str:
    """Restore a route to its state before a change. Returns its id. Raises NotFound, Invalid."""
    entry = await rerouting.entry_of(conn, entry_id=entry_id)
    return str(await rerouting.take_back(conn, entry, by=who()))


def _display(one: AuditEntry, names: Mapping[str, str]) -> dict[str, Any]:
    shown = reading.as_values(one)
    before, after = shown["before"] or {}, shown["after"] or {}
    fields = [name for name in {**before, **after} if before.get(name) or after.get(name)]
    return {
        "id": str(one.id),
        "at": as_plain(one.at),
        "who": one.who_name or one.who,
        "route": one.object_name,
        "action": one.action.partition(".")[2],
        "changes": [
            f"{name}: {_format_value(before.get(name), names)} → {_format_value(after.get(name), names)}"
            for name in fields
        ],
        "undoable": one.action in rerouting.ACTIONS and bool(one.before),
    }


def _format_value(value: Any, names: Mapping[str, str]) -> str:
    if value is None or value in ("", []):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        ordered = sorted(value, key=lambda one: (one["priority"], -one["weight"]))
        return ", ".join(
            f"{names.get(one['supplier_id'], '(removed)')}:{one['priority']}:{one['weight']}" for one in ordered
        )
    return str(value)
