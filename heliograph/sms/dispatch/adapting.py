"""Shares of adaptive routes: based on quality from suppliers' reports and on prices from their rate cards, adjusted by
one timer.

A route's state is stored in `route_suppliers`, so all workers share it; they use shares as weights (`rules.active`).
The rule nobody may break: only hours old enough for their receipts are measured, and only sums are read, never
messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.histogram import percentile
from heliograph.base.money import decimal
from heliograph.base.sentences import Sentence, joined, quoted, said
from heliograph.networks import plan
from heliograph.prices.book import Book
from heliograph.prices.tariff import SENDER_TYPES, Destination, Rate, sender_type
from heliograph.routes import adaptive, rules
from heliograph.routes.adaptive import BOUNDS, Bounds, QualitySample, SupplierQuality
from heliograph.routes.lookup import Candidates, Route
from heliograph.routes.rules import Share, StoredRoute
from heliograph.sms.charges import everywhere

#: Seconds between two evaluations, and an SQL condition: there is something to evaluate.
EVERY = 300.0
ANY = "EXISTS (SELECT FROM routes WHERE adaptive AND state = 'active')"
#: The period for a supplier's own average, and how many individual hours are read.
WEEK, HOURS = timedelta(days=7), 3
#: The class assumed for routes without one.
CLASS = "transactional"
TOO_LITTLE = said("too little was sent to this network, shares return to the country's")

# A week by supplier, country and network, with its last hours individually.
MEASURED = """
SELECT supplier_id, country, network, CASE WHEN hour >= $3 THEN hour END AS hour, what, sum(count)::bigint AS count,
       sum(segments)::bigint AS segments, histogram_sum(to_receipt) AS to_receipt
  FROM reconciliation
 WHERE day >= ($2::timestamptz AT TIME ZONE 'UTC')::date AND hour >= $2 AND supplier_id = ANY ($1)
   AND what IN ('accepted', 'delivered', 'recipient')
 GROUP BY 1, 2, 3, 4, 5
"""

#: The period of full hours for which workers report a supplier's quality, and the seconds until it is refreshed.
SAID_OF, SAID_EVERY = timedelta(hours=24), 300.0

# The hour before the current one is excluded too: its receipts may still be on their way.
QUALITY = """
SELECT supplier_id, country, network,
       coalesce(sum(CASE what WHEN 'accepted' THEN count WHEN 'recipient' THEN -count END), 0)::bigint AS count,
       coalesce(sum(count) FILTER (WHERE what = 'delivered'), 0)::bigint AS delivered,
       histogram_sum(to_receipt) FILTER (WHERE what = 'delivered') AS to_receipt
  FROM reconciliation
 WHERE day >= ($1::timestamptz AT TIME ZONE 'UTC')::date AND hour >= $1 AND hour < $2
   AND what IN ('accepted', 'delivered', 'recipient') AND ($3::uuid[] IS NULL OR supplier_id = ANY ($3))
 GROUP BY GROUPING SETS ((supplier_id, country), (supplier_id, country, network))
"""


class _Sum(msgspec.Struct):
    count: int = 0
    delivered: int = 0
    to_receipt: list[int] = []

    def add(self, row: asyncpg.Record) -> None:
        if row["what"] != "delivered":
            # A failure caused by the recipient says nothing about the supplier.
            self.count += row["count"] if row["what"] == "accepted" else -row["count"]
            return
        self.delivered += row["count"]
        longest = max(len(self.to_receipt), len(row["to_receipt"]))
        sums = [0] * longest
        for one in (self.to_receipt, row["to_receipt"]):
            for place, number in enumerate(one):
                sums[place] += number
        self.to_receipt = sums

    def measured(self) -> QualitySample:
        # Receipts may be counted an instant before their answer.
        return QualitySample(max(self.count, self.delivered), self.delivered, percentile(self.to_receipt, 0.95))


class Facts:
    """Facts about suppliers that a worker records next to their names with each routing decision: "0.021 USD, 97 % in 6
    s".

    The price is that of a segment, or of a message, to the route's destination in the supplier's rate card; the
    quality is the share of messages to the route's country that were delivered in SAID_OF, and the time within which
    95 % of the receipts arrived. Prices that are not known, and quality measured on fewer than `adaptive.PROVEN`
    messages, are left out.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        #: By supplier, country and network; None: the whole country.
        self._quality: dict[tuple[UUID, str, str | None], Sentence] = {}
        self._refreshed_at = float("-inf")

    async def refresh(self, conn: Connection | Pool, *, suppliers: Collection[UUID] | None = None) -> bool:
        """Load new measurements, unless that was done within SAID_EVERY; returns True if they were loaded. `suppliers`:
        only these; None: all."""
        if monotonic() - self._refreshed_at < SAID_EVERY:
            return False
        at = monotonic()
        until = clock.now().astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
        rows = await conn.fetch(QUALITY, until - SAID_OF, until, suppliers if suppliers is None else list(suppliers))
        self._quality = {
            (row["supplier_id"], row["country"], row["network"]): told for row in rows if (told := _delivered(row))
        }
        self._refreshed_at = at
        return True

    def of(self, found: Candidates) -> dict[UUID, Sentence]:
        """The facts about each candidate; empty if no route chose them."""
        route = found.route
        if route is None:
            return {}
        country, found_of = _counted_in(route) or "", {}
        rates = comparable_rates(
            route, found.suppliers, self._book, clock.now(), message_class=route.traffic_class or ""
        )
        for id in found.suppliers:
            price = _said(rates[id]) if id in rates else quoted("")
            quality = self._quality.get((id, country, route.network or route.shared_for), "")
            if facts := joined([price, quality or self._quality.get((id, country, None), "")]):
                found_of[id] = facts
        return found_of


def _delivered(row: asyncpg.Record) -> Sentence:
    # Receipts may be counted an instant before their answer.
    count = max(row["count"], row["delivered"])
    if count < adaptive.PROVEN:
        return quoted("")
    share = f"{row['delivered'] * 100 / count:.0f} %"
    p95 = percentile(row["to_receipt"] or (), 0.95)
    return quoted(share) if p95 is None else said("%(share)s in %(seconds)s s", share=share, seconds=max(1, round(p95)))


def _said(rate: Rate) -> Sentence:
    price = f"{_short(rate.price)} {rate.currency}"
    return quoted(price) if rate.unit == "segment" else said("%(price)s per message", price=price)


def _short(amount: int) -> str:
    """Millionths as a decimal without trailing zeros: "0.021", "1"."""
    return decimal(amount).rstrip("0").rstrip(".")


async def step(conn: Connection) -> int:
    """Evaluate every adaptive route and adjust its shares; returns how many changed. Runs in the caller's
    transaction."""
    routes = [one for one in await rules.load(conn) if one.route.adaptive and one.state == "active"]
    if not routes:
        return 0
    at = clock.now().astimezone(UTC)
    hour = at.replace(minute=0, second=0, microsecond=0)
    suppliers = {choice.supplier_id for one in routes for choice in one.route.choices}
    rows = await conn.fetch(MEASURED, list(suppliers), hour - WEEK, hour - timedelta(hours=HOURS))
    by_supplier: dict[UUID, list[asyncpg.Record]] = defaultdict(list)
    for row in rows:
        by_supplier[row["supplier_id"]].append(row)
    book = Book()
    await book.refresh(conn)
    moved: dict[UUID, list[Share]] = {}
    for one in routes:
        shares = _evaluated(one, by_supplier, book, at)
        if {share.supplier_id: share for share in shares} != one.shares:
            moved[one.route.id] = shares
    await rules.store_shares(conn, moved)
    return len(moved)


def country_of(route: Route) -> str | None:
    """The ISO region of a route; None if it covers several."""
    if route.country is not None:
        return route.country
    if route.network is not None:
        return plan.country_of(route.network)
    if route.prefix is not None:
        return next((region for code, region in phones.REGIONS.items() if route.prefix.startswith(code)), None)
    return None


def _counted_in(route: Route) -> str | None:
    """The ISO region under which a route's messages are measured; None if it covers several."""
    country = country_of(route)
    return None if country is None else plan.counted_as(country)


def destination(route: Route) -> Destination:
    """The destination whose rate is the cost of a route's messages."""
    network = route.network or route.shared_for or ""
    return everywhere(country=country_of(route) or "", network=network, prefix=route.prefix or "")


def comparable_rates(
    route: Route, suppliers: Iterable[UUID], book: Book, at: datetime, *, message_class: str, segments: float = 1
) -> dict[UUID, Rate]:
    """The rates of suppliers for a route's messages, of `segments` segments on average. Suppliers without a rate, or
    whose rate card rejects the destination, are left out.

    All are for the same type of sender: that of the route's sender; for a route of any sender, the first of
    SENDER_TYPES for which most suppliers have a rate.
    """
    to, those = destination(route), list(suppliers)
    kinds = SENDER_TYPES if route.sender is None else (sender_type(route.sender),)
    best: dict[UUID, Rate] = {}
    for kind in kinds:
        found = {
            id: book.rate(id, to, at, message_class=message_class, sender_type=kind, segments=segments) for id in those
        }
        rates = {id: rate for id, rate in found.items() if rate is not None}
        if len(rates) > len(best):
            best = rates
    return best


def _evaluated(
    one: StoredRoute, measured: Mapping[UUID, list[asyncpg.Record]], book: Book, at: datetime
) -> list[Share]:
    """The new shares of a route's suppliers, in its country and in those networks where they differ."""
    country = _counted_in(one.route)
    rows = {
        choice.supplier_id: [row for row in measured.get(choice.supplier_id, ()) if country in (None, row["country"])]
        for choice in one.route.choices
    }
    whole = _judged(one.route, one.shares, rows, book, at)
    if one.route.country is None:
        return whole
    apart: dict[UUID, dict[str, Share]] = defaultdict(dict)
    stored = {network for share in one.shares.values() for network in share.networks}
    for network in sorted(stored | {row["network"] for some in rows.values() for row in some if row["network"]}):
        known = rules.of_network(one.shares, network)
        if known.keys() != one.shares.keys():
            known = dict(one.shares)
        there = _there(one.route, network, known, whole, rows, book, at)
        if any(_state(one) != _state(two) for one, two in zip(there, whole, strict=True)):
            for share in there:
                apart[share.supplier_id][network] = share
    return [msgspec.structs.replace(share, networks=apart[share.supplier_id]) for share in whole]


def _state(share: Share) -> tuple[int, int, bool, bool]:
    return share.points, share.streak, share.degraded, share.is_outside


def _there(
    route: Route,
    network: str,
    known: Mapping[UUID, Share],
    whole: Sequence[Share],
    rows: Mapping[UUID, list[asyncpg.Record]],
    book: Book,
    at: datetime,
) -> list[Share]:
    """The suppliers' shares in one network of the route's country: judged by its own traffic if there is enough,
    otherwise moving back toward those of the country."""
    hour = _hour(at, BOUNDS[route.traffic_class or CLASS])
    sent = (_sums([row for row in some if row["network"] == network], hour)[0].count for some in rows.values())
    if max(sent, default=0) >= adaptive.PROVEN:
        return _judged(msgspec.structs.replace(route, country=None, network=network), known, rows, book, at)
    if not known:
        return list(whole)
    points = adaptive.towards(
        {id: one.points for id, one in known.items()}, {one.supplier_id: one.points for one in whole}
    )
    return [
        msgspec.structs.replace(one, points=points[one.supplier_id], reason=TOO_LITTLE, networks={}) for one in whole
    ]


def _hour(at: datetime, bounds: Bounds) -> datetime:
    """The last full hour that is old enough for its receipts."""
    return (at - bounds.matures).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)


def _judged(
    route: Route,
    known: Mapping[UUID, Share],
    rows: Mapping[UUID, list[asyncpg.Record]],
    book: Book,
    at: datetime,
) -> list[Share]:
    """`known`: the current shares; `rows`: each supplier's measurements in the route's country."""
    name = route.traffic_class or CLASS
    bounds = BOUNDS[name]
    hour = _hour(at, bounds)
    rest = adaptive.at_rest([(one.supplier_id, one.priority, one.weight) for one in route.choices], bounds.trickle)
    prices = _prices(route, name, book, at, _length([row for some in rows.values() for row in some], route.network))
    judged = []
    for id in rest:
        last, week = _sums(rows[id], hour)
        if route.network is not None:
            # For the network of the route, unless too little was sent there to judge it.
            here = [row for row in rows[id] if row["network"] == route.network]
            there = _sums(here, hour)
            few = _sums([row for row in here if row["hour"] is not None and row["hour"] <= hour], None)[0].measured()
            if there[0].count >= adaptive.PROVEN:
                last, week = there
            elif adaptive.contradicts(few, last.measured().rate):
                last = there[0]
        share = known.get(id)
        judged.append(
            SupplierQuality(
                id,
                prices.get(id),
                last.measured(),
                week.measured(),
                share.points if share else rest[id],
                rest[id],
                share.streak if share else 0,
            )
        )
    outcome = adaptive.evaluate(judged, bounds)
    return [
        Share(
            id,
            outcome.shares[id],
            outcome.streaks[id],
            outcome.reasons[id],
            outcome.degraded,
            id in outcome.outside,
            outcome.stand_ins.index(id) if outcome.stand_ins else 0,
        )
        for id in rest
    ]


def _sums(rows: Iterable[asyncpg.Record], hour: datetime | None) -> tuple[_Sum, _Sum]:
    """The sums of the judged hour (None: all hours), and of the supplier's week before it."""
    last, week = _Sum(), _Sum()
    for row in rows:
        if hour is not None and (row["hour"] is None or row["hour"] < hour):
            week.add(row)
        elif hour is None or row["hour"] == hour:
            last.add(row)
    return last, week


def _length(rows: Sequence[asyncpg.Record], network: str | None) -> float:
    """The average segments of the messages that suppliers accepted, in this network if any went there; 1 without
    messages."""
    taken = [row for row in rows if row["what"] == "accepted" and row["count"] > 0]
    some = [row for row in taken if row["network"] == network] or taken
    return sum(row["segments"] for row in some) / sum(row["count"] for row in some) if some else 1.0


def _prices(route: Route, message_class: str, book: Book, at: datetime, length: float) -> dict[UUID, int]:
    """Suppliers' charges for a message of `length` segments; empty if they are in different currencies, which cannot be
    compared."""
    suppliers = [choice.supplier_id for choice in route.choices]
    rates = comparable_rates(route, suppliers, book, at, message_class=message_class, segments=length)
    if len({rate.currency for rate in rates.values()}) > 1:
        return {}
    return {id: round(rate.price * length) if rate.unit == "segment" else rate.price for id, rate in rates.items()}
