"""What an entry of the audit log changed, in the reader's words: value by value, never as stored."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from heliograph.audit import reading
from heliograph.audit.reading import AuditEntry
from heliograph.pages.lists import field_names
from heliograph.pages.requests import Request
from heliograph.pages.templates import brief
from heliograph.why.words import why

#: A time as the log stores it (`clock.iso`).
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


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
    if one.action in field_names.OF_MONEY:
        currency = {**before, **after}.get("currency")
        if "currency" not in before:  # it is that of the amounts, and has not changed
            after = {name: value for name, value in after.items() if name != "currency"}
        before, after = (_with_money(request, values, currency) for values in (before, after))
    return [
        Change(
            field_names.name_of(request, one.action, name),
            _value(request, one.action, name, before[name]) if before.get(name) is not None else None,
            _value(request, one.action, name, after[name]) if name in after else None,
        )
        for name in {**before, **after}
        # For a new object, the absence of earlier values is not a change.
        if not (_is_empty(before.get(name)) and _is_empty(after.get(name)))
    ]


def _with_money(request: Request, values: dict[str, Any], currency: str | None) -> dict[str, Any]:
    """A wallet's values with amounts in words."""
    said = {name: Decimal(values[name]) for name in field_names.AMOUNTS if values.get(name) is not None}
    return values | {
        name: request.locale.money(int(amount * 1_000_000), currency)
        if currency
        else request.locale.number(float(amount), 2)
        for name, amount in said.items()
    }


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _value(request: Request, action: str, field: str, value: Any) -> str:
    if _is_empty(value):
        return "–"
    if isinstance(value, bool):
        return request.text("yes") if value else request.text("no")
    if isinstance(value, list):
        return ", ".join(_value(request, action, field, one) for one in value)
    if isinstance(value, dict):
        values = ((name, _value(request, action, name, one)) for name, one in value.items())
        return ", ".join(f"{field_names.name_of(request, action, name)}: {said}" for name, said in values)
    if field in field_names.SHOWN:
        return field_names.SHOWN[field](request, value)
    # Numbers without a name belong to a supplier's settings, such as its port: they are shown as they are set.
    if isinstance(value, int) and field in field_names.FIELDS:
        return request.locale.number(value)
    return _text(request, field, str(value))


def _text(request: Request, field: str, value: str) -> str:
    if (known := field_names.CODES.get(field, {}).get(value)) is not None:
        return request.text(known)
    if field in field_names.EXPLAINED and (found := why(field_names.EXPLAINED[field], value)) is not None:
        return found.words(request.locale.language).customer
    if _TIME.fullmatch(value):
        return request.locale.moment(datetime.fromisoformat(value))
    return brief(value)
