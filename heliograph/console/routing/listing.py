"""Routes: all of them with their suppliers and current shares, as a list and as a matrix; one with its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts import organizations
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.console.engine.console_cache import cache_of
from heliograph.console.routing import descriptions
from heliograph.pages.answers import Answer, Page
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import MONEY, TRAFFIC_CHANGE
from heliograph.prices import margins
from heliograph.routes import rules
from heliograph.routes.rules import StoredRoute
from heliograph.sms.dispatch import explaining
from heliograph.sms.management import current_shares, rerouting
from heliograph.sms.management.current_shares import CurrentShare, CurrentShares

HERE = "/console/routes"
#: Routes per page, and entries shown of a route's history.
LISTED, HISTORY = 50, 30
#: Days for which a route's page shows earnings.
EARNED = 7


class Row(msgspec.Struct, frozen=True):
    """A route with the current state of its suppliers."""

    stored: StoredRoute
    places: Sequence[CurrentShare]

    @property
    def by_supplier(self) -> Mapping[UUID, CurrentShare]:
        """Places by supplier, for one column each."""
        return {one.supplier_id: one for one in self.places}

    @property
    def is_skipped(self) -> bool:
        """Whether it is active and decides nothing, because none of its suppliers ever carries its messages: workers
        skip it."""
        return self.stored.state == "active" and all(one.is_left_out for one in self.places)

    @property
    def is_dead(self) -> bool:
        """Whether it decides, but none of its suppliers is available now: its messages wait."""
        return self.stored.state == "active" and not self.is_skipped and not any(one.now for one in self.places)


async def show(request: Request) -> Answer:
    """Routes that could decide for an organization and a class, the most specific destinations first."""
    return await _listed(request, "routing/routes.html")


async def show_matrix(request: Request) -> Answer:
    """The same, with a column for each supplier."""
    return await _listed(request, "routing/matrix_live.html" if request.is_fragment else "routing/matrix.html")


async def show_one(request: Request) -> Answer:
    """One route in full, with its history."""
    id = request.id()
    async with request.reading() as conn:
        one = await rules.find(conn, route=str(id))
        now = await current_shares.of_routes(conn, [one], cache_of(request).rates)
        history = await rerouting.history(conn, route_id=id, limit=HISTORY)
        earned = await _earned(conn, one) if request.may(permission=MONEY) else []
    names = {supplier.id: supplier.name for supplier in now.suppliers}
    values = {
        "one": one,
        "row": Row(one, now.of(one)),
        "earned": earned,
        "days": EARNED,
        "history": [descriptions.entry(request, entry, names) for entry in history],
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
    return Page(template="routing/route.html", values=values)


async def _earned(conn: Connection, one: StoredRoute) -> Sequence[margins.Line]:
    """Cost and revenue, by day, of the messages that it routed under its current name."""
    today = clock.now().date()
    return await margins.read(
        conn,
        first=today - timedelta(days=EARNED - 1),
        last=today + timedelta(days=1),
        by=("day", "supplier"),
        route=one.route.name,
    )


async def _listed(request: Request, template: str) -> Answer:
    typed = {name: request.query.get(name, "").strip() for name in ("organization", "class")}
    refusal, organization_id = None, None
    async with request.reading() as conn:
        if typed["organization"]:
            try:
                organization_id = (await organizations.find(conn, reference=typed["organization"])).id
            except (NotFound, Invalid):
                refusal = Invalid(("organization", "unknown", "There is no organization with this name or id."))
        chosen = typed["class"] if typed["class"] in rules.CLASSES else ""
        found = _fitting(await _sorted(conn), organization_id, chosen)
        now = await current_shares.of_routes(conn, found, cache_of(request).rates)
    values = _page(request, found, now) | {
        "organization": typed["organization"],
        "chosen": chosen,
        "classes": rules.CLASSES,
        "is_filtered": bool(organization_id or chosen),
        "without": (without := now.without_route),
        "beside": {one.supplier_id: one for one in without[-1].places},
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
    return Page(template=template, values=values, status=422 if refusal else 200, refusal=refusal)


def _page(request: Request, found: Sequence[StoredRoute], now: CurrentShares) -> dict[str, Any]:
    """A page of routes, beginning with the one in the address."""
    ids = [str(one.route.id) for one in found]
    begin = ids.index(request.query["from"]) if request.query.get("from") in ids else 0
    rows = [Row(one, now.of(one)) for one in found[begin : begin + LISTED]]
    used = {place.supplier_id for row in rows for place in row.places}
    more = ids[begin + LISTED] if len(ids) > begin + LISTED else None
    return {
        "rows": rows,
        "total": len(found),
        "begin": begin,
        "first": request.again(**{"from": None}) if begin else "",
        "more": request.again(**{"from": more}) if more else "",
        "suppliers": [one for one in now.suppliers if one.id in used or not rows],
    }


async def _sorted(conn: Connection) -> list[StoredRoute]:
    return sorted(await rules.load(conn), key=lambda one: explaining.place(one.route))


def _fitting(found: Sequence[StoredRoute], organization_id: UUID | None, traffic_class: str) -> list[StoredRoute]:
    return [
        one
        for one in found
        if (organization_id is None or one.route.organization_id in (None, organization_id))
        and (not traffic_class or one.route.traffic_class in (None, traffic_class))
    ]
