"""A change of routes before it is made, and after: what it would move, and how an earlier state comes back.

The rule nobody may break: a preview does what the change does, in a transaction that is taken back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from heliograph.audit import reading
from heliograph.audit.reading import Filter, Recorded
from heliograph.base.actor import SYSTEM, Who
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from heliograph.routes.rules import StoredRoute
from heliograph.sms.dispatch import routing
from heliograph.sms.management import shifts
from heliograph.sms.management.shifts import Moved

T = TypeVar("T")
#: Actions of the audit log that can be taken back.
ACTIONS = ("route.changed", "route.removed")
#: Entries of a route, or of all of them, that are looked through for one.
HISTORY = 200


async def tried(conn: Connection, work: Callable[[Connection], Awaitable[T]]) -> tuple[T, Moved]:
    """Do it, see what it would have moved of yesterday's traffic, and take it back. Raises what `work` raises."""
    before = await shifts.in_force(conn)
    transaction = conn.transaction()
    await transaction.start()
    try:
        done = await work(conn)
        after = await shifts.in_force(conn)
    finally:
        await transaction.rollback()
    return done, await shifts.moved(conn, before, after)


def mark(one: StoredRoute) -> str:
    """What is another one once somebody has changed the route; shares that move are no such change."""
    told = msgspec.json.encode((msgspec.to_builtins(one.route), one.note, one.state), order="deterministic")
    return hashlib.sha256(told).hexdigest()[:32]


def check_mark(one: StoredRoute, seen: str) -> None:
    """Raises Invalid if the route is not as it was when somebody looked at it."""
    if mark(one) != seen:
        raise Invalid(
            ("name", "moved", "Somebody has changed this route in the meantime. Review the difference again.")
        )


async def history(conn: Connection, *, route_id: UUID | None = None, limit: int = HISTORY) -> list[Recorded]:
    """What was done to a route, or to all of them, newest first."""
    wanted = Filter(object=str(route_id)) if route_id is not None else Filter(action="route")
    return (await reading.list_page(conn, wanted, limit=limit)).entries


async def entry_of(conn: Connection, *, entry_id: UUID, route_id: UUID | None = None) -> Recorded:
    """An entry that can be taken back; `route_id`: of this route. Raises NotFound."""
    for one in await history(conn, route_id=route_id):
        if one.id == entry_id and one.action in ACTIONS and one.before:
            return one
    raise NotFound("There is no such change of this route, or it cannot be taken back.")


async def take_back(conn: Connection, entry: Recorded, *, seen: str | None = None, by: Who = SYSTEM) -> UUID:
    """Give a route back what an entry of the audit log says that it had before; a removed one is added anew. Returns
    its id. `seen`: its mark when the difference was looked at; None: it does not matter.

    Raises NotFound (it was removed since) and Invalid.
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
    """A route with what was recorded of it. Raises Invalid."""
    values = {("traffic_class" if name == "class" else name): value for name, value in told.items()}
    known = {name: values[name] for name in Route.__struct_fields__ if name in values and name != "id"}
    try:
        if "choices" in known:
            known["choices"] = msgspec.convert(known["choices"], tuple[Choice, ...])
        if known.get("organization_id") is not None:
            known["organization_id"] = UUID(known["organization_id"])
    except (msgspec.ValidationError, ValueError):
        raise Invalid(("supplier", "unknown", "Not all of what it had was recorded.")) from None
    there = {one.id for one in await routing.load(conn)}
    if any(one.supplier_id not in there for one in known.get("choices", ())):
        raise Invalid(("supplier", "removed", "A supplier that it had then has been removed."))
    return msgspec.structs.replace(route, **known)


def differences(before: StoredRoute | None, after: StoredRoute) -> list[tuple[str, Any, Any]]:
    """(field, before, after) of what differs; of a new route, all that is set."""
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
