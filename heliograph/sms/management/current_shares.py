"""The current share of each supplier of a route, next to the configured one: takes into account adaptive shares,
circuits, pauses, lost sessions, rates, and prices on routes that require one.

The rule nobody may break: shares are computed from the choices that workers compile, never from what was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.networks import plan
from heliograph.prices.book import Book
from heliograph.prices.tariff import CLASSES, Rate
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route, group_of
from heliograph.routes.rules import StoredRoute
from heliograph.sms.circuits import sharing
from heliograph.sms.dispatch import adapting, explaining, routing
from heliograph.sms.dispatch.explaining import Obstacle
from heliograph.sms.dispatch.routing import Supplier

#: Obstacles of suppliers that a worker's table leaves out of a route. A route with no others is skipped.
NEVER = ("removed", "simulator", "elsewhere")


class CurrentShare(msgspec.Struct, frozen=True, kw_only=True):
    """One supplier of a route, or of traffic without a route."""

    supplier_id: UUID
    name: str
    is_simulated: bool
    priority: int
    weight: int
    #: Points out of a hundred and their reason, for an adaptive route that has been evaluated.
    points: int | None
    reason: str
    #: Shares of messages that are handed to it first, 0 to 1: if all suppliers could be used, and now.
    configured: float
    now: float
    #: Why it is not used now: an `Obstacle`, with the additional codes "simulator" (there are others), "elsewhere" (it
    #: does not carry there), "unrated" (the route requires a price, and its rate card has none there) and "removed";
    #: None: it is used.
    obstacle: Obstacle | None
    #: True if it throttled within the last minute.
    is_throttled: bool
    #: Its maximum rate in messages per second, over all sessions; None: no limit is set.
    limit: float | None

    @property
    def is_left_out(self) -> bool:
        """Whether it never carries this route's messages, so that they do not wait for it."""
        return self.obstacle is not None and self.obstacle.code in NEVER


class UnroutedShares(msgspec.Struct, frozen=True):
    """Numbers that the same suppliers carry to, and the shares of these where no route applies."""

    #: The first digits of the numbers; empty: all other numbers.
    prefixes: tuple[str, ...]
    places: Sequence[CurrentShare]


class CurrentShares(msgspec.Struct, frozen=True):
    """The current state of suppliers."""

    suppliers: Sequence[Supplier]
    obstacles: Mapping[UUID, Obstacle]
    throttled: frozenset[UUID]
    #: For routes that require a price.
    book: Book

    def of(self, one: StoredRoute) -> list[CurrentShare]:
        """The suppliers of a route, in the order in which they are tried."""
        known = {two.id: two for two in self.suppliers}
        why = {choice.supplier_id: self._why(known.get(choice.supplier_id), one.route) for choice in one.route.choices}
        return self._placed(one.route.choices, rules.adapted(one), why, one)

    @property
    def without_route(self) -> list[UnroutedShares]:
        """The suppliers by their own prefixes, priorities and weights, as used where no route applies; last, those of
        numbers with none of the prefixes."""
        scopes: dict[tuple[UUID, ...], list[str]] = {}
        for prefix in sorted({prefix for one in self.suppliers for prefix in one.prefixes}):
            there = tuple(one.id for one in self.suppliers if not one.prefixes or prefix.startswith(one.prefixes))
            scopes.setdefault(there, []).append(prefix)
        others = tuple(one.id for one in self.suppliers if not one.prefixes)
        found = [(tuple(prefixes), ids) for ids, prefixes in scopes.items() if ids != others]
        return [UnroutedShares(prefixes, self._own(ids)) for prefixes, ids in (*found, ((), others))]

    def _own(self, ids: Sequence[UUID]) -> list[CurrentShare]:
        there = [one for one in self.suppliers if one.id in ids]
        choices = [Choice(one.id, one.priority, one.weight) for one in there]
        return self._placed(choices, None, {one.id: self._why(one, None) for one in there}, None)

    def _why(self, one: Supplier | None, route: Route | None) -> Obstacle | None:
        never = _left_out(one, self.suppliers, route)
        if one is None or never is not None:
            return never
        if route is not None and route.rated and not _has_rate(route, one.id, self.book, clock.now()):
            return Obstacle("unrated")
        return self.obstacles.get(one.id)

    def _placed(
        self,
        configured: Sequence[Choice],
        adapted: Route | None,
        why: Mapping[UUID, Obstacle | None],
        stored: StoredRoute | None,
    ) -> list[CurrentShare]:
        # Suppliers that never carry there are not among the choices in a worker's table.
        able = {id for id, one in why.items() if one is None or one.code not in NEVER}
        rest = shares(one for one in configured if one.supplier_id in able)
        asked = [id for id, one in why.items() if one is None]
        if adapted is not None and adapted.stand_ins:
            there = group_of([one for one in adapted.choices if one.supplier_id in able], adapted.stand_ins)
            now = there.shares(asked)
        else:
            choices = configured if adapted is None else adapted.choices
            now = shares(one for one in choices if one.supplier_id in asked)
        known = {one.id: one for one in self.suppliers}
        measured = {} if stored is None else stored.shares
        found = []
        for one in sorted(configured, key=lambda choice: (choice.priority, -choice.weight)):
            supplier, share = known.get(one.supplier_id), measured.get(one.supplier_id)
            found.append(
                CurrentShare(
                    supplier_id=one.supplier_id,
                    name="" if supplier is None else supplier.name,
                    is_simulated=supplier is not None and supplier.simulated,
                    priority=one.priority,
                    weight=one.weight,
                    points=None if share is None else share.points,
                    reason="" if share is None else share.reason,
                    configured=rest.get(one.supplier_id, 0.0),
                    now=now.get(one.supplier_id, 0.0),
                    obstacle=why[one.supplier_id],
                    is_throttled=one.supplier_id in self.throttled,
                    limit=None if supplier is None else limit(supplier),
                )
            )
        return found


async def of_routes(conn: Connection, routes: Iterable[StoredRoute], book: Book) -> CurrentShares:
    """The current state of all suppliers. `routes`: those whose shares are wanted; if one of them requires a price,
    `book` is refreshed."""
    known = await routing.load(conn)
    avoided = await sharing.avoided(conn)
    throttled = frozenset(id for id, one in avoided.items() if one.throttled_at is not None)
    if any(one.route.rated for one in routes):
        await book.refresh(conn)
    return CurrentShares(known, await explaining.find_obstacles(conn, known), throttled, book)


def is_skipped(route: Route, suppliers: Sequence[Supplier]) -> bool:
    """Whether workers skip a route, because none of its suppliers ever carries its messages."""
    known = {one.id: one for one in suppliers}
    return all(_left_out(known.get(one.supplier_id), suppliers, route) for one in route.choices)


def shares(choices: Iterable[Choice]) -> dict[UUID, float]:
    """The shares, by weight, of the suppliers that are tried first."""
    listed = list(choices)
    first = min((one.priority for one in listed), default=0)
    group = [one for one in listed if one.priority == first]
    total = sum(one.weight for one in group)
    return {one.supplier_id: one.weight / total for one in group}


def limit(one: Supplier) -> float | None:
    """A supplier's maximum rate in messages per second."""
    each = one.settings.get("submits_per_second") or one.settings.get("requests_per_second")
    return None if not each else float(each) * one.sessions


def _left_out(one: Supplier | None, suppliers: Sequence[Supplier], route: Route | None) -> Obstacle | None:
    """Why it never carries the messages of a route, or of traffic without a route: an obstacle of `NEVER`."""
    if one is None:
        return Obstacle("removed")
    if one not in routing.serving(suppliers):
        return Obstacle("simulator")
    return Obstacle("elsewhere") if route is not None and not _carries(one, route) else None


def _carries(one: Supplier, route: Route) -> bool:
    """Whether its own prefixes cover any part of the route's destination."""
    if not one.prefixes:
        return True
    if route.prefix is not None:
        heads = [route.prefix]
    elif route.country is not None:
        heads = [code for code, region in phones.REGIONS.items() if region == route.country]
    else:
        return True
    return any(head.startswith(mine) or mine.startswith(head) for head in heads for mine in one.prefixes)


def _has_rate(route: Route, supplier_id: UUID, book: Book, at: datetime) -> bool:
    """Whether a supplier has a rate for some of a route's messages: their numbers, networks, senders and classes may
    differ, so that it need not have one for all of them."""
    card = book.card(supplier_id)
    if card is None:
        return False
    names = CLASSES if route.traffic_class is None else (route.traffic_class,)
    if any(adapting.comparable_rates(route, (supplier_id,), book, at, message_class=name) for name in names):
        return True
    heads, common = _heads(route), adapting.destination(route).country
    there = frozenset(country for head in heads for country in plan.countries(head))
    parts = card.parts(at, message_class=route.traffic_class or "")
    return any(_lies_within(one, heads, there, common) for one in parts)


def _lies_within(rate: Rate, heads: tuple[str, ...], there: frozenset[str], common: str) -> bool:
    """Whether a rate is for some of a route's numbers, which have these first digits and are in the countries `there`.
    A rate for `common`, the country that they share, is not: whether it applies to them depends on the card's other
    rates."""
    if rate.prefix and not rate.mnc:
        return rate.prefix.startswith(heads)
    if not rate.mnc and rate.country == common:
        return False
    country = rate.country or plan.country_of(rate.network)
    # If unknown, the network is in a country of which no network is listed.
    return not there <= plan.listed() if country is None else country in there


def _heads(route: Route) -> tuple[str, ...]:
    """First digits of a route's numbers. Where countries share a calling code, a route to any of them is for the whole
    code."""
    if route.prefix is not None:
        return (route.prefix,)
    country = adapting.country_of(route)
    return ("",) if country is None else plan.calling_codes(country)
