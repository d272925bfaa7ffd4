"""Changes of routes, before and after: what traffic they would move, and how to undo them.

The rule nobody may break: a preview performs the same change in a transaction that is rolled back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from heliograph.audit import reading
from heliograph.audit.reading import AuditEntry, Filter
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from heliograph.routes.rules import StoredRoute
from heliograph.sms.dispatch import routing
from heliograph.sms.management import shifts
from heliograph.sms.management.shifts import TrafficShift

T = TypeVar("T")
#: Actions in the audit log that can be undone.
ACTIONS = ("route.changed", "route.removed")
#: Maximum number of entries, of one route or of all, to search.
HISTORY = 200


async def tried(conn: Connection, work: Callable[[Connection], Awaitable[T]]) -> tuple[T, TrafficShift]:
    """Perform `work`, determine how much of yesterday's traffic it would have moved, and roll back. Raises what `work`
    raises."""
    before = await shifts.in_force(conn)
    transaction = conn.transaction()
    await transaction.start()
    try:
        done = await work(conn)
        after = await shifts.in_force(conn)
    finally:
        await transaction.rollback()
    return done, await shifts.compare(conn, before, after)


def mark(one: StoredRoute) -> str:
    """A value that differs once somebody has changed the route; adjusted shares do not count as changes."""
    told = msgspec.json.encode((msgspec.to_builtins(one.route), one.note, one.state), order="deterministic")
    return hashlib.sha256(told).hexdigest()[:32]


def check_mark(one: StoredRoute, seen: str) -> None:
    """Raises Invalid if the route has changed since it was displayed."""
    if mark(one) != seen:
        raise Invalid(
            ("name", "moved", "Somebody has changed this route in the meantime. Review the difference again.")
        )


async def history(conn: Connection, *, route_id: UUID | None = None, limit: int = HISTORY) -> list[AuditEntry]:
    """The audit log of a route, or of all routes, newest first."""
    wanted = Filter(object=str(route_id)) if route_id is not None else Filter(action="route")
    return (await reading.list_page(conn, wanted, limit=limit)).entries


async def entry_of(conn: Connection, *, entry_id: UUID, route_id: UUID | None = None) -> AuditEntry:
    """An entry that can be undone; `route_id`: it must belong to this route. Raises NotFound."""
    for one in await history(conn, route_id=route_id):
        if one.id == entry_id and one.action in ACTIONS and one.before:
            return one
    raise NotFound("There is no such change of this route, or it cannot be undone.")


async def take_back(conn: Connection, entry: AuditEntry, *, seen: str | None = None, by: Principal = SYSTEM) -> UUID:
    """Restore a route to its state before an entry of the audit log; a removed route is added again. Returns its id.
    `seen`: its mark when the difference was reviewed; None: not checked.

    Raises NotFound (it has since been removed) and Invalid.
    """
    told: Mapping[str, Any] = msgspec.json.decode(entry.before or "{}")
    async with conn.transaction():
        if entry.action == "route.removed":
            empty = Route(id=UUID(entry.object_id), name=entry.object_name)
            made = await rules.add(conn, await _restored(conn, empty, told), note=str(told.get("note", "")), by=by)
            if told.get("state", "active") != "active":
                await rules.set_state(conn, await rules.lock(conn, route=str(made.id)), told["state"], by=by)
            return made.id
        before = await rules.lock(conn, route=entry.object_id)
        if seen is not None:
            check_mark(before, seen)
        if "state" in told:
            await rules.set_state(conn, before, told["state"], by=by)
        else:
            after = await _restored(conn, before.route, told)
            await rules.change(conn, before, after, note=told.get("note"), by=by)
        return before.route.id


async def _restored(conn: Connection, route: Route, told: Mapping[str, Any]) -> Route:
    """A route with its recorded values. Raises Invalid."""
    values = {("traffic_class" if name == "class" else name): value for name, value in told.items()}
    known = {name: values[name] for name in Route.__struct_fields__ if name in values and name != "id"}
    try:
        if "choices" in known:
            known["choices"] = msgspec.convert(known["choices"], tuple[Choice, ...])
        if known.get("organization_id") is not None:
            known["organization_id"] = UUID(known["organization_id"])
    except (msgspec.ValidationError, ValueError):
        raise Invalid(("supplier", "unknown", "Not all of its previous state was recorded.")) from None
    there = {one.id for one in await routing.load(conn)}
    if any(one.supplier_id not in there for one in known.get("choices", ())):
        raise Invalid(("supplier", "removed", "A supplier that it had then has been removed."))
    return msgspec.structs.replace(route, **known)


def differences(before: StoredRoute | None, after: StoredRoute) -> list[tuple[str, Any, Any]]:
    """(field, before, after) for each difference; for a new route, all fields that are set."""
    empty = Route(id=after.route.id, name="", priority=-1)
    old = empty if before is None else before.route
    pairs = [
        (name, getattr(old, name), getattr(after.route, name))
        for name in Route.__struct_fields__
        if name not in ("id", "degraded", "outside", "stand_ins")
    ]
    pairs = [("organization" if name == "organization_id" else name, one, two) for name, one, two in pairs]
    said = {"organization": (None if before is None else before.organization, after.organization)}
    pairs = [(name, *said.get(name, (one, two))) for name, one, two in pairs]
    if before is not None:
        pairs.append(("state", before.state, after.state))
    pairs.append(("note", "" if before is None else before.note, after.note))
    return [(name, None if one == -1 else one, two) for name, one, two in pairs if one != two]
