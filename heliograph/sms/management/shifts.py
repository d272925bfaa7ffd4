"""The effect that a change of suppliers or routes would have had on yesterday's traffic.

The rule nobody may break: it is computed by the look-up that workers use, from stored sums; no message is read.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.sentences import with_noun
from heliograph.networks import plan
from heliograph.prices.book import Book as Prices
from heliograph.prices.tariff import Destination, sender_type
from heliograph.routes import rules
from heliograph.routes.lookup import Candidates, Route, Table
from heliograph.senders import loading
from heliograph.senders.book import Book
from heliograph.sms.dispatch import routing
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.lookups import accounts, asking
from heliograph.sms.lookups.accounts import Account

# For the installation as a whole: this is for operators.
YESTERDAY = """
SELECT organization_id, country, sender, sum(count)::bigint AS messages
  FROM traffic_days
 WHERE organization_id IN (SELECT id FROM organizations) AND channel = 'sms' AND mode = 'live'
   AND day = (now() AT TIME ZONE 'UTC')::date - 1
 GROUP BY 1, 2, 3 HAVING sum(count) > 0
"""

#: Stand for all organizations that no rule names, and for numbers outside the countries with a calling code.
NOBODY, NOWHERE = UUID(int=0), "+0"


class Flow(msgspec.Struct, frozen=True):
    """Messages that would move from one supplier to another; None: no supplier."""

    source: UUID | None
    target: UUID | None
    messages: float


class Unroutable(msgspec.Struct, frozen=True):
    """Messages from a sender to a country that could no longer be sent: none of the remaining suppliers accepts the
    sender, or has a price where a route requires one."""

    sender: str
    country: str
    messages: int


class LookedUp(msgspec.Struct, frozen=True):
    """A country whose numbers would now be looked up, or no longer."""

    country: str
    begins: bool
    #: Name of the look-up supplier.
    by: str
    #: At most this many numbers per day: each is looked up once in 90 days.
    numbers: int
    #: The cost of these, in millionths.
    cost: int
    currency: str


class TrafficShift(msgspec.Struct, frozen=True):
    """The effect of a change on yesterday's traffic. Messages are counted by country, so anything that depends on a
    number's further digits, its network or the class is a range."""

    messages: int
    #: Share of messages that would go elsewhere, 0 to 1.
    least: float
    most: float
    #: Largest first. Where the cases of a country differ, these are of the simplest one (`cases`).
    flows: Sequence[Flow] = ()
    refused: Sequence[Unroutable] = ()
    lookups: Sequence[LookedUp] = ()

    @property
    def said(self) -> str:
        """A one-sentence summary."""
        if not self.messages:
            return "there was no traffic yesterday"
        return f"these rules move {self.share} of yesterday's traffic ({with_noun(self.messages, 'message')})"

    @property
    def share(self) -> str:
        """The share, such as "41%" or "0% to 41%"."""
        low, high = f"{self.least:.0%}", f"{self.most:.0%}"
        return low if low == high else f"{low} to {high}"


class RoutingConfiguration(msgspec.Struct, frozen=True):
    """A configuration: which suppliers carry, and by which routes."""

    suppliers: Sequence[Supplier]
    routes: Sequence[Route]
    #: Suppliers that are not used; while they exist, simulators are not used either.
    paused: frozenset[UUID] = frozenset()
    #: The account that looks up numbers before sending, by country.
    lookups: Mapping[str, Account] = {}

    def pausing(self, id: UUID) -> RoutingConfiguration:
        """The configuration if a supplier were paused."""
        return msgspec.structs.replace(self, paused=self.paused | {id})

    def without(self, id: UUID) -> RoutingConfiguration:
        """The configuration if a supplier were removed."""
        routes = [
            msgspec.structs.replace(one, choices=tuple(two for two in one.choices if two.supplier_id != id))
            for one in self.routes
        ]
        return RoutingConfiguration([one for one in self.suppliers if one.id != id], routes, self.paused, self.lookups)

    @property
    def table(self) -> Table:
        """The look-up table that workers use. Simulators carry only while there are no other suppliers."""
        return Table([one for one in routing.serving(self.suppliers) if one.id not in self.paused], self.routes)


async def in_force(conn: Connection) -> RoutingConfiguration:
    """The current configuration, regardless of pauses."""
    routes = await rules.active(conn)
    where = asking.countries(routes)
    known = await accounts.load(conn) if where else []
    asked = {country: one for country in where if (one := accounts.serving(known, country)) is not None}
    return RoutingConfiguration(await routing.load(conn), routes, lookups=asked)


async def current(conn: Connection) -> RoutingConfiguration:
    """The current configuration, without suppliers that are paused or draining."""
    known = await in_force(conn)
    return msgspec.structs.replace(known, paused=frozenset(one.id for one in known.suppliers if one.state != "active"))


async def compare(conn: Connection, before: RoutingConfiguration, after: RoutingConfiguration) -> TrafficShift:
    """How much of yesterday's traffic would have gone elsewhere, according to the roll-ups."""
    book = await loading.load(conn)
    prices = Prices()
    if any(route.rated for one in (before, after) for route in one.routes):
        await prices.refresh(conn)
    rows = await conn.fetch(YESTERDAY)
    # Many prefixes and organizations take a while, so this runs in a thread while pages are served.
    return await asyncio.to_thread(_compared, before, after, book, prices, rows)


def _compared(
    before: RoutingConfiguration,
    after: RoutingConfiguration,
    book: Book,
    prices: Prices,
    rows: Iterable[asyncpg.Record],
) -> TrafficShift:
    old, new = _Judge(before, book, prices), _Judge(after, book, prices)
    total, least, most = 0, 0.0, 0.0
    flows: dict[tuple[UUID | None, UUID | None], float] = defaultdict(float)
    refused: dict[tuple[str, str], int] = defaultdict(int)
    countries: dict[str, int] = defaultdict(int)
    known: dict[str, list[tuple[str, str, str | None, bool]]] = {}
    for (country, organization_id, sender), messages_of in _grouped(rows, book, before, after).items():
        messages = sum(messages_of.values())
        if country not in known:
            known[country] = cases(old.table, new.table, country)
        shares = []
        for place, case in enumerate(known[country]):
            was, becomes = (one.asked(country, organization_id, sender, case) for one in (old, new))
            shares.append(_share(was.shares, becomes.shares))
            if not place:
                for pair, share in _flows(was.shares, becomes.shares).items():
                    flows[pair] += share * messages
                if becomes.is_refused and not was.is_refused:
                    for own, count in messages_of.items():
                        refused[own, country] += count
        total += messages
        countries[country] += messages
        least += messages * min(shares)
        most += messages * max(shares)
    return TrafficShift(
        total,
        least / total if total else 0.0,
        most / total if total else 0.0,
        sorted((Flow(*pair, messages) for pair, messages in flows.items()), key=lambda one: -one.messages),
        sorted((Unroutable(*pair, messages) for pair, messages in refused.items()), key=lambda one: -one.messages),
        _looked_up(before.lookups, after.lookups, countries),
    )


def _grouped(
    rows: Iterable[asyncpg.Record], book: Book, *configurations: RoutingConfiguration
) -> dict[tuple[str, UUID, str], dict[str, int]]:
    """Messages grouped by country, organization and sender that are treated alike: of thousands of organizations, few
    are named by any rule. Where a route requires a price, senders are told apart by type, on which rates may depend."""
    routes = [route for one in configurations for route in one.routes]
    organizations = {route.organization_id for route in routes}
    senders = {route.sender.casefold() for route in routes if route.sender is not None}
    found: dict[tuple[str, UUID, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    #: One sender of each type, among those that no rule names.
    kinds: dict[str, str] = {}
    is_rated = any(route.rated for route in routes)
    for row in rows:
        organization_id, sender = book.alike(row["organization_id"], row["sender"])
        if row["organization_id"] in organizations:
            organization_id = row["organization_id"]
        if row["sender"].casefold() in senders:
            sender = row["sender"]
        if is_rated and sender != row["sender"]:
            sender = kinds.setdefault(sender_type(row["sender"]), row["sender"])
        found[row["country"], organization_id or NOBODY, sender][row["sender"]] += row["messages"]
    return found


def cases(old: Table, new: Table, country: str) -> list[tuple[str, str, str | None, bool]]:
    """Numbers, classes and networks of a country that either table may distinguish, and whether the network is certain;
    the simplest case first."""
    codes = [code for code, region in phones.REGIONS.items() if region == country] or [NOWHERE[1:]]
    heads = {head for code in codes for head in {code, *old.under(code), *new.under(code)}}
    plans = plan.networks()
    named = [one for one in {*old.networks, *new.networks} if one not in plans or plans[one].country == country]
    networks = [(None, True), *((one, is_certain) for one in sorted(named) for is_certain in (True, False))]
    return [
        ("+" + head, traffic_class, network, is_certain)
        for head in sorted(heads)
        for traffic_class in ("transactional", *(one for one in rules.CLASSES if one != "transactional"))
        for network, is_certain in networks
    ]


Shares = Mapping[UUID | None, float]


def _share(before: Shares, after: Shares) -> float:
    """The share of messages whose first supplier changes."""
    return sum(abs(before.get(id, 0.0) - after.get(id, 0.0)) for id in before.keys() | after.keys()) / 2


def _flows(before: Shares, after: Shares) -> dict[tuple[UUID | None, UUID | None], float]:
    """How much each supplier that loses traffic passes to each one that gains, in proportion."""
    change = {id: after.get(id, 0.0) - before.get(id, 0.0) for id in before.keys() | after.keys()}
    gains = {id: value for id, value in change.items() if value > 0}
    total = sum(gains.values())
    return {
        (source, target): -less * more / total
        for source, less in change.items()
        if less < 0
        for target, more in gains.items()
    }


class _Asked(msgspec.Struct, frozen=True):
    """The suppliers tried first, by share."""

    shares: Shares
    #: True if none of the suppliers that carry there accepts this sender, or has a price that the route requires.
    is_refused: bool


class _Judge:
    """Computes what one configuration does with messages."""

    def __init__(self, configuration: RoutingConfiguration, book: Book, prices: Prices) -> None:
        self.table, self._book, self._prices = configuration.table, book, prices
        self._lookups, self._at = configuration.lookups, clock.now()
        #: By `id` of the candidates, which are kept alive so that no other object can get the same one.
        self._known: dict[int, tuple[Candidates, _Asked]] = {}

    def asked(
        self, country: str, organization_id: UUID, sender: str, case: tuple[str, str, str | None, bool]
    ) -> _Asked:
        """The suppliers tried first for such messages."""
        number, traffic_class, network, is_certain = case
        # As in look-ups and rate cards: the countries that share +1 or +7 are separate.
        there = country if number == NOWHERE else plan.country(number)
        # A network looked up before sending is certain.
        is_certain = is_certain or there in self._lookups
        found = self.table.candidates(
            number,
            organization_id=organization_id,
            sender=sender,
            traffic_class=traffic_class,
            network=network,
            is_certain=is_certain,
        )
        if owners := self._book.owners(sender):
            found = self.table.owned(found, number, owners)
        is_rated = found.route is not None and found.route.rated
        if not self._book.judges and not is_rated:
            known = self._known.get(id(found))
            if known is None:
                known = self._known[id(found)] = found, _Asked(_first(found, frozenset()), False)
            return known[1]
        place = Destination(number[1:], there, network or "", is_certain)
        spoken = self._book.spoken
        told = {
            id: spoken(id, number, organization_id=organization_id, sender=sender, network=network or "")
            for id in found.suppliers
        }
        silent = frozenset(
            id
            for id, one in told.items()
            if one is None or (is_rated and not self._has_price(id, place, traffic_class, one))
        )
        is_refused = bool(found.suppliers) and silent == set(found.suppliers)
        return _Asked(_first(found, frozenset() if is_refused else silent), is_refused)

    def _has_price(self, supplier_id: UUID, place: Destination, traffic_class: str, sender: str) -> bool:
        kind = sender_type(sender)
        rate = self._prices.rate(supplier_id, place, self._at, message_class=traffic_class, sender_type=kind)
        return rate is not None


def _first(found: Candidates, silent: frozenset[UUID]) -> Shares:
    for group in found.groups:
        speaking = group.shares([one.supplier_id for one in group.choices if one.supplier_id not in silent])
        if speaking:
            return dict(speaking.items())
    return {None: 1.0}


def _looked_up(
    before: Mapping[str, Account], after: Mapping[str, Account], messages: Mapping[str, int]
) -> list[LookedUp]:
    found = []
    for country in sorted(before.keys() ^ after.keys()):
        # Where countries share a calling code, all of its messages: an upper bound.
        one, numbers = after.get(country) or before[country], messages.get(plan.counted_as(country), 0)
        cost = numbers * one.settings.cost
        found.append(LookedUp(country, country in after, one.name, numbers, cost, one.settings.currency))
    return found
