"""Describes routes, changes to them and their effects in the reader's language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from heliograph.audit.reading import AuditEntry
from heliograph.base.sentences import said
from heliograph.networks import plan
from heliograph.pages.requests import Request
from heliograph.routes.rules import StoredRoute
from heliograph.sms.management import rerouting
from heliograph.sms.management.shifts import TrafficShift

#: Names of a route's fields on pages.
FIELDS: Mapping[str, str] = {
    "name": "Name",
    "prefix": "Prefix",
    "country": "Country",
    "network": "Network",
    "organization": "Organization",
    "organization_id": "Organization",
    "sender": "Sender",
    "traffic_class": "Class",
    "class": "Class",
    "priority": "Priority",
    "adaptive": "Adaptive",
    "rated": "Only with a price",
    "choices": "Suppliers",
    "state": "State",
    "note": "Note",
}
STATES: Mapping[str, str] = {"active": "active", "paused": "paused"}
#: Flows and refusals listed.
MOST = 12


def network_error(text: str) -> str:
    """A form's error for a text that is not a network; the one that it means is named."""
    if known := plan.meant(text):
        return said("There is no such network: did you mean %(network)s? Zeros count.", network=known)
    return said("A network is written MCC-MNC with its zeros, such as 643-04 or 334-020.")


class Changed(msgspec.Struct, frozen=True):
    """A changed field; both values in words."""

    field: str
    before: str
    after: str


class Entry(msgspec.Struct, frozen=True):
    """An entry of the history."""

    entry: AuditEntry
    changes: Sequence[Changed]
    #: The state before it can be restored.
    is_undoable: bool


class RoutedShift(msgspec.Struct, frozen=True):
    """Part of yesterday's traffic that would go elsewhere; empty names: nobody."""

    source: str
    target: str
    messages: int


def differences(
    request: Request, before: StoredRoute | None, after: StoredRoute, names: Mapping[UUID, str]
) -> list[Changed]:
    """The differences, in words."""
    return [
        Changed(request.text(FIELDS[field]), _said(request, field, old, names), _said(request, field, new, names))
        for field, old, new in rerouting.differences(before, after)
    ]


def entry(request: Request, one: AuditEntry, names: Mapping[UUID, str]) -> Entry:
    """An entry of the audit log, in words."""
    before, after = (msgspec.json.decode(text) if text else {} for text in (one.before, one.after))
    fields = [field for field in FIELDS if field in before or field in after]
    changes = [
        Changed(
            request.text(FIELDS[field]),
            _said(request, field, before.get(field), names),
            _said(request, field, after.get(field), names),
        )
        for field in fields
        if before.get(field) or after.get(field)
    ]
    return Entry(one, changes, one.action in rerouting.ACTIONS and bool(one.before))


def preview(found: TrafficShift, names: Mapping[UUID, str]) -> dict[str, Any]:
    """What a change would shift, for its page."""
    goes = [
        RoutedShift(
            names.get(one.source, "") if one.source else "", names.get(one.target, "") if one.target else "", count
        )
        for one in found.flows
        if (count := round(one.messages))
    ]
    return {
        "moved": found,
        "goes": goes[:MOST],
        "refused": found.refused[:MOST],
        "refused_total": sum(one.messages for one in found.refused),
    }


def _said(request: Request, field: str, value: Any, names: Mapping[UUID, str]) -> str:
    if value is None or value == "" or value == []:
        return ""
    if field in ("adaptive", "rated"):
        return request.text("yes") if value else request.text("no")
    if field == "state":
        return request.text(STATES.get(value, value))
    if field == "country":
        return f"{request.locale.country(value)} ({value})"
    if field == "choices":
        listed = sorted(msgspec.to_builtins(value), key=lambda one: (one["priority"], -one["weight"]))
        removed = request.text("a removed supplier")
        return ", ".join(
            request.text(
                "%(name)s (priority %(priority)s, weight %(weight)s)",
                name=names.get(UUID(one["supplier_id"]), removed),
                priority=one["priority"],
                weight=one["weight"],
            )
            for one in listed
        )
    return str(value)
