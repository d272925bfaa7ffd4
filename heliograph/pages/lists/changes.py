"""What an entry of the audit log changed, in the reader's words: value by value, never as stored."""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.audit import reading
from heliograph.audit.reading import AuditEntry
from heliograph.pages.requests import Request


class Change(msgspec.Struct, frozen=True):
    """One changed value, before and after; None: there was no value, or there no longer is."""

    name: str
    before: str | None
    after: str | None


class EntryWithChanges(msgspec.Struct, frozen=True):
    """An entry with its changes."""

    entry: AuditEntry
    changes: list[Change]


def with_changes(request: Request, entries: list[AuditEntry]) -> list[EntryWithChanges]:
    """Entries with the changes of each."""
    return [EntryWithChanges(one, changes(request, one)) for one in entries]


def changes(request: Request, one: AuditEntry) -> list[Change]:
    """The changes recorded in an entry."""
    shown = reading.as_values(one)
    before, after = shown["before"] or {}, shown["after"] or {}
    return [
        Change(
            name.replace("_", " "),
            _value(request, before[name]) if before.get(name) is not None else None,
            _value(request, after[name]) if name in after else None,
        )
        for name in {**before, **after}
        # For a new object, the absence of earlier values is not a change.
        if not (_is_empty(before.get(name)) and _is_empty(after.get(name)))
    ]


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _value(request: Request, value: Any) -> str:
    if _is_empty(value):
        return "–"
    if isinstance(value, bool):
        return request.text("yes") if value else request.text("no")
    if isinstance(value, list):
        return ", ".join(_value(request, one) for one in value)
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_value(request, one)}" for name, one in value.items())
    return str(value)
