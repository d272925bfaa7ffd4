"""The tables `routes` and `route_suppliers`: operators add, change, pause, resume and remove routes. Workers notice
within a second.

The rule nobody may break: a change and its entry in the audit log are one commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming, phones
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.base.sentences import Sentence, packed, unpacked
from heliograph.classes import kinds
from heliograph.networks.plan import no_network
from heliograph.routes import adaptive
from heliograph.routes.lookup import Choice, Route

#: Classes of messages.
CLASSES = kinds.NAMES
MAX_NAME, MAX_NOTE = 64, 500
_is_prefix = re.compile(r"[1-9][0-9]{0,14}").fullmatch


class Share(msgspec.Struct, frozen=True):
    """The share of a supplier in an adaptive route, in points of a hundred, and why it has it."""

    supplier_id: UUID
    points: int
    #: Number of consecutive evaluations in which it beat the supplier with the most points.
    streak: int
    reason: Sentence
    #: No supplier of the route is within the bounds of its class; the one that delivers best carries most.
    degraded: bool = False
    #: At the last evaluation it was not found to be within the bounds.
    is_outside: bool = False
    #: Its position among the stand-ins for a supplier that cannot be used; all 0: none was judged.
    place: int = 0
    #: In a route for a country: its share by network, where that differs from the country's.
    networks: Mapping[str, Share] = {}


class StoredRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A route as stored."""

    route: Route
    state: str
    #: Name of its organization; None: it applies to all.
    organization: str | None
    note: str
    changed_at: datetime
    #: Shares by supplier; empty: the route is not adaptive, or nothing has been measured yet.
    shares: Mapping[UUID, Share] = {}


LOAD = """
SELECT r.id, r.name, r.state, r.prefix, r.country, r.network, r.organization_id, r.sender, r.class, r.priority,
       r.adaptive, r.rated, r.note, r.changed_at, o.name AS organization, c.ids, c.places, c.weights, c.shares
  FROM routes r LEFT JOIN organizations o ON o.id = r.organization_id
       LEFT JOIN (SELECT route_id, array_agg(supplier_id ORDER BY supplier_id) AS ids,
                         array_agg(priority ORDER BY supplier_id) AS places,
                         array_agg(weight ORDER BY supplier_id) AS weights,
                         (json_agg(json_build_array(supplier_id, points, streak, reason,
                                                    json_build_array(degraded, outside, place), networks, seen))
                             FILTER (WHERE points IS NOT NULL))::text AS shares
                    FROM route_suppliers GROUP BY route_id) c ON c.route_id = r.id
 ORDER BY r.name
"""


async def load(conn: Connection) -> list[StoredRoute]:
    """All routes, by name."""
    return [_stored(row) for row in await conn.fetch(LOAD)]


async def active(conn: Connection) -> tuple[Route, ...]:
    """The active routes; in adaptive ones, shares replace priorities and weights."""
    return tuple(adapted(one) for one in await load(conn) if one.state == "active")


def adapted(one: StoredRoute) -> Route:
    """A route as workers use it: once an adaptive one was evaluated, shares replace priorities and weights."""
    choices = one.route.choices
    if not one.shares or any(choice.supplier_id not in one.shares for choice in choices):
        return one.route
    networks = {network for share in one.shares.values() for network in share.networks}
    return msgspec.structs.replace(
        _shared(one.route, one.shares),
        apart=tuple(
            msgspec.structs.replace(_shared(one.route, there), shared_for=network)
            for network in sorted(networks)
            if (there := of_network(one.shares, network)).keys() == one.shares.keys()
        ),
    )


def of_network(shares: Mapping[UUID, Share], network: str) -> dict[UUID, Share]:
    """Suppliers' shares in this network; empty: those of the country apply."""
    return {id: there for id, share in shares.items() if (there := share.networks.get(network)) is not None}


def _shared(route: Route, shares: Mapping[UUID, Share]) -> Route:
    return msgspec.structs.replace(
        route,
        choices=tuple(Choice(one.supplier_id, 0, shares[one.supplier_id].points) for one in route.choices),
        degraded=any(share.degraded for share in shares.values()),
        outside=tuple(sorted(id for id, share in shares.items() if share.is_outside)),
        stand_ins=tuple(sorted(shares, key=lambda id: (shares[id].place, id)))
        if any(share.place for share in shares.values())
        else (),
    )


# Workers reload changed routes, so changed_at is set only if points changed, or what a decision says.
SHARE = """
WITH given AS (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::smallint[], $5::text[], $6::boolean[],
                         $7::boolean[], $8::smallint[], $9::text[], $10::text[])
        AS given (route_id, supplier_id, points, streak, reason, degraded, outside, place, networks, seen)
), moved AS (
    SELECT DISTINCT known.route_id FROM route_suppliers known JOIN given USING (route_id, supplier_id)
     WHERE (known.points, known.degraded, known.outside, known.place, known.networks)
            IS DISTINCT FROM (given.points, given.degraded, given.outside, given.place, given.networks::jsonb)
), told AS (
    UPDATE routes SET changed_at = clock_timestamp() WHERE id IN (SELECT route_id FROM moved)
)
UPDATE route_suppliers known SET points = given.points, streak = given.streak, reason = given.reason,
                                 degraded = given.degraded, outside = given.outside, place = given.place,
                                 networks = given.networks::jsonb, seen = given.seen::jsonb
  FROM given WHERE known.route_id = given.route_id AND known.supplier_id = given.supplier_id
"""


async def store_shares(conn: Connection, shares: Mapping[UUID, Sequence[Share]]) -> None:
    """Store the shares of routes, by route."""
    rows = [
        (route, one.supplier_id, one.points, one.streak, packed(one.reason), *_judged(one), *_of_networks(one))
        for route, some in shares.items()
        for one in some
    ]
    if rows:
        await conn.execute(SHARE, *(list(column) for column in zip(*rows, strict=True)))


# A sum, so that a change that commits after a later one is noticed as well.
VERSION = "SELECT count(*) || ' ' || coalesce(sum(hashtextextended(id::text || changed_at, 0)), 0) FROM routes"


async def version(conn: Connection) -> str:
    """A version that differs after every change of any route."""
    said: str = await conn.fetchval(VERSION)
    return said


INSERT = """
INSERT INTO routes (id, name, prefix, country, network, organization_id, sender, class, priority, adaptive, rated, note,
                    created_at, changed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, now(), clock_timestamp())
ON CONFLICT DO NOTHING RETURNING id
"""
CHOOSE = """
INSERT INTO route_suppliers (route_id, supplier_id, priority, weight)
SELECT $1, supplier_id, priority, weight
  FROM unnest($2::uuid[], $3::smallint[], $4::smallint[]) AS given (supplier_id, priority, weight)
"""


async def add(conn: Connection, route: Route, *, note: str = "", by: Principal = SYSTEM) -> Route:
    """Add a route; its id is assigned here. Raises Invalid."""
    made = msgspec.structs.replace(checked(route, note), id=uuid7())
    async with conn.transaction():
        if await conn.fetchval(INSERT, *_values(made, note)) is None:
            raise _taken(made.name)
        await _choose(conn, made)
        told = _audit_values(made, note)
        await audit.record(conn, by, "route.added", object_id=made.id, name=made.name, after=told)
    return made


ID = f"SELECT id FROM routes WHERE {naming.IS_CALLED} ORDER BY {naming.ID_FIRST}"
LOCK = f"{ID} FOR UPDATE"


async def lock(conn: Connection, *, route: str) -> StoredRoute:
    """The route with this name or id, locked until the end of the transaction. Raises NotFound."""
    return await find(conn, route=route, query=LOCK)


async def find(conn: Connection, *, route: str, query: str = ID) -> StoredRoute:
    """The route with this name or id. Raises NotFound."""
    id: UUID | None = await conn.fetchval(query, route)
    found = next((one for one in await load(conn) if one.route.id == id), None)
    if found is None:
        raise NotFound("There is no such route.", resource="route", id=route)
    return found


CHANGE = f"""
UPDATE routes SET name = $2, prefix = $3, country = $4, network = $5, organization_id = $6, sender = $7, class = $8,
       priority = $9, adaptive = $10, rated = $11, note = $12, changed_at = clock_timestamp()
 WHERE id = $1 AND {naming.IS_FREE.format(table="routes")} RETURNING id
"""
FORGET = "DELETE FROM route_suppliers WHERE route_id = $1"


async def change(
    conn: Connection, before: StoredRoute, after: Route, *, note: str | None = None, by: Principal = SYSTEM
) -> None:
    """Change a route returned by `lock`, if it differs. `note`: None leaves it unchanged. Raises Invalid."""
    said = before.note if note is None else note
    after = checked(after, said)
    if (after, said) == (before.route, before.note):
        return
    try:
        async with conn.transaction():
            if await conn.fetchval(CHANGE, *_values(after, said)) is None:
                raise _taken(after.name)
            await conn.execute(FORGET, after.id)
            await _choose(conn, after)
            await audit.record(
                conn,
                by,
                "route.changed",
                object_id=after.id,
                name=after.name,
                before=_audit_values(before.route, before.note),
                after=_audit_values(after, said),
            )
    except asyncpg.UniqueViolationError:
        raise _taken(after.name) from None


STATE = "UPDATE routes SET state = $2, changed_at = clock_timestamp() WHERE id = $1"


async def set_state(conn: Connection, before: StoredRoute, state: str, *, by: Principal = SYSTEM) -> None:
    """Pause ("paused") or resume ("active") a route returned by `lock`. A paused route is ignored."""
    if state == before.state:
        return
    async with conn.transaction():
        one, was, becomes = before.route, {"state": before.state}, {"state": state}
        await conn.execute(STATE, one.id, state)
        await audit.record(conn, by, "route.changed", object_id=one.id, name=one.name, before=was, after=becomes)


REMOVE = "DELETE FROM routes WHERE id = $1"


async def remove(conn: Connection, before: StoredRoute, *, by: Principal = SYSTEM) -> None:
    """Delete a route returned by `lock`. Stored decisions keep their wording."""
    async with conn.transaction():
        await conn.execute(FORGET, before.route.id)
        await conn.execute(REMOVE, before.route.id)
        told = _audit_values(before.route, before.note) | {"state": before.state}
        await audit.record(
            conn, by, "route.removed", object_id=before.route.id, name=before.route.name, before=told, after=None
        )


def checked(route: Route, note: str = "") -> Route:
    """The route, with its name trimmed and in NFC. Raises Invalid with all errors."""
    wrong: list[tuple[str, str, str]] = []
    name = route.name
    try:
        name = naming.checked(name, "name", longest=MAX_NAME)
    except Invalid as refusal:
        wrong += [(one["field"], one["issue"], one["message"]) for one in refusal.details["fields"]]
    if len(note) > MAX_NOTE:
        wrong.append(("note", "length", f"`note` may have up to {MAX_NOTE} characters"))
    if route.prefix is not None and not _is_prefix(route.prefix):
        wrong.append(("prefix", "pattern", f"a prefix is 1 to 15 digits without +, not {route.prefix!r}"))
    if route.country is not None and (said := phones.no_country(route.country)):
        wrong.append(("country", "unknown", said))
    if route.network is not None and (said := no_network(route.network)):
        wrong.append(("network", "pattern", said))
    if sum(one is not None for one in (route.prefix, route.country, route.network)) > 1:
        wrong.append(("prefix", "several", "a route has one destination: a prefix, a country or a network"))
    if route.traffic_class is not None and route.traffic_class not in CLASSES:
        wrong.append(("class", "enum", f"a class is one of {', '.join(CLASSES)}"))
    if not route.choices:
        wrong.append(("supplier", "required", "a route needs a supplier"))
    if route.adaptive and len(route.choices) > adaptive.MOST:
        wrong.append(("supplier", "many", f"an adaptive route has at most {adaptive.MOST} suppliers"))
    if len({one.supplier_id for one in route.choices}) < len(route.choices):
        wrong.append(("supplier", "twice", "a supplier is in this route twice"))
    if not 0 <= route.priority <= 1000 or any(not 0 <= one.priority <= 1000 for one in route.choices):
        wrong.append(("priority", "range", "a priority is 0 to 1000"))
    if any(not 1 <= one.weight <= 1000 for one in route.choices):
        wrong.append(("weight", "range", "a weight is 1 to 1000"))
    if wrong:
        raise Invalid(*wrong)
    return msgspec.structs.replace(route, name=name)


def _taken(name: str) -> Invalid:
    return Invalid(("name", "taken", f"there is already a route {name!r}"))


async def _choose(conn: Connection, route: Route) -> None:
    await conn.execute(
        CHOOSE,
        route.id,
        [one.supplier_id for one in route.choices],
        [one.priority for one in route.choices],
        [one.weight for one in route.choices],
    )


def _values(route: Route, note: str) -> Sequence[Any]:
    return (
        route.id,
        route.name,
        route.prefix,
        route.country,
        route.network,
        route.organization_id,
        route.sender,
        route.traffic_class,
        route.priority,
        route.adaptive,
        route.rated,
        note,
    )


def _audit_values(route: Route, note: str) -> dict[str, Any]:
    return {
        ("class" if name == "traffic_class" else name): value
        for name, value in (msgspec.to_builtins(route) | {"note": note}).items()
        if name not in ("id", "degraded", "outside", "stand_ins", "apart", "shared_for")
    }


def _stored(row: asyncpg.Record) -> StoredRoute:
    choices = zip(row["ids"] or (), row["places"] or (), row["weights"] or (), strict=True)
    return StoredRoute(
        route=Route(
            id=row["id"],
            name=row["name"],
            prefix=row["prefix"],
            country=row["country"],
            network=row["network"],
            organization_id=row["organization_id"],
            sender=row["sender"],
            traffic_class=row["class"],
            priority=row["priority"],
            adaptive=row["adaptive"],
            rated=row["rated"],
            choices=tuple(Choice(*one) for one in choices),
        ),
        state=row["state"],
        organization=row["organization"],
        note=row["note"],
        changed_at=row["changed_at"],
        shares={one.supplier_id: one for one in _shares(row["shares"])} if row["adaptive"] else {},
    )


def _shares(text: str | None) -> list[Share]:
    given = msgspec.json.decode(text or "[]", type=list[_Given])
    return [
        Share(id, points, streak, unpacked(why), *judged, _there(id, networks, seen))
        for id, points, streak, why, judged, networks, seen in given
    ]


def _there(id: UUID, networks: _Networks, seen: _Seen) -> dict[str, Share]:
    return {
        name: Share(id, points, seen[name][0], unpacked(seen[name][1]), *judged)
        for name, (points, judged) in networks.items()
    }


#: (degraded, outside, place); the columns `networks` and `seen` hold (points, judged) and (streak, reason).
_Judged: TypeAlias = tuple[bool, bool, int]
_Networks: TypeAlias = dict[str, tuple[int, _Judged]]
_Seen: TypeAlias = dict[str, tuple[int, str]]
_Given: TypeAlias = tuple[UUID, int, int, str, _Judged, _Networks, _Seen]


def _judged(one: Share) -> _Judged:
    return one.degraded, one.is_outside, one.place


def _of_networks(share: Share) -> tuple[str, str]:
    networks: _Networks = {name: (one.points, _judged(one)) for name, one in share.networks.items()}
    seen: _Seen = {name: (one.streak, packed(one.reason)) for name, one in share.networks.items()}
    return msgspec.json.encode(networks).decode(), msgspec.json.encode(seen).decode()
