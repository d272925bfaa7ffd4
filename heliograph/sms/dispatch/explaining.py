"""Why a message would go to a supplier, said to operators before it is sent.

The rule nobody may break: what is said comes from the look-up that workers use, over the same tables.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.routes import rules, words
from heliograph.routes.lookup import Route, Table
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.dispatch.routing import Supplier


class Explanation(msgspec.Struct, frozen=True):
    """What would be done with a message now."""

    decision: str
    #: The route's name; None: the suppliers' own settings decide.
    route: str | None
    #: Names in the order in which they would be asked; those of equal priority by their share.
    suppliers: list[str]
    #: Routes that fit and lose to that one, in their order.
    passed_over: list[str]


async def explain(
    conn: Connection,
    to: str,
    *,
    organization_id: UUID,
    organization: str,
    sender: str,
    traffic_class: str,
    network: str | None = None,
) -> Explanation:
    """What would be done with a message to `to` (E.164). `network`: MCC-MNC, taken for certain."""
    known = await routing.load(conn)
    table = Table(routing.serving(known), await rules.active(conn))
    shares = {one.route.id: one.shares for one in await rules.load(conn)}
    found = table.candidates(
        to,
        organization_id=organization_id,
        sender=sender,
        traffic_class=traffic_class,
        network=network,
        is_certain=True,
    )
    fitting = table.fitting(
        to,
        organization_id=organization_id,
        sender=sender,
        traffic_class=traffic_class,
        network=network,
        is_certain=True,
    )
    held = await suppliers.sessions(conn)
    skipped = {one.id: why for one in known if (why := _unusable(one, held)) is not None}
    names = {one.id: one.name for one in known}
    seen = shares.get(found.route.id, {}) if found.route else {}
    facts = {id: one.reason for id, one in seen.items()}
    said = words.explained(found, names=names, organization=lambda _: organization, skipped=skipped, facts=facts)
    asked = [
        choice.supplier_id
        for group in found.groups
        for choice in sorted(group.choices, key=lambda one: -one.weight)
        if choice.supplier_id not in skipped
    ]
    return Explanation(
        said,
        found.route.name if found.route else None,
        [names[id] for id in asked],
        [route.name for _, route in fitting if route != found.route],
    )


def place(route: Route) -> tuple[int, str, int, int, str]:
    """Where a route stands in a list of all: the most specific destinations first."""
    level = 0 if route.network else 1 if route.prefix else 2 if route.country else 3
    where = route.network or route.prefix or route.country or ""
    return (level, where, route.priority, -route.conditions, route.name)


def _unusable(one: Supplier, held: dict[UUID, tuple[int, int, str]]) -> str | None:
    if one.state != "active":
        return one.state
    if one.held:
        return "held by an operator"
    _, bound, error = held.get(one.id, (0, 0, ""))
    return None if bound else "no session bound" + (f" ({error})" if error else "")
