"""What a change of suppliers or routes would do with yesterday's traffic, before it is made.

The rule nobody may break: it is judged by the look-up that workers use, from sums that are kept; no message is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.routes import rules
from heliograph.routes.lookup import Candidates, Route, Table
from heliograph.sms.dispatch import routing
from heliograph.sms.dispatch.routing import Supplier

# Of the installation as a whole: operators ask.
YESTERDAY = """
SELECT organization_id, country, sender, sum(count)::bigint AS messages
  FROM traffic
 WHERE organization_id IN (SELECT id FROM organizations) AND channel = 'sms' AND mode = 'live'
   AND hour >= date_trunc('day', now(), 'UTC') - interval '1 day' AND hour < date_trunc('day', now(), 'UTC')
 GROUP BY 1, 2, 3 HAVING sum(count) > 0
"""


class Flow(msgspec.Struct, frozen=True):
    """Messages that one supplier would have had, and another one would have; None: nobody."""

    giver: UUID | None
    taker: UUID | None
    messages: float


class Moved(msgspec.Struct, frozen=True):
    """What a change would do with yesterday's traffic. Counts are of messages by country, so what depends on a number's
    further digits, its network or the class is a range."""

    messages: int
    #: Shares of them that go elsewhere, 0 to 1.
    least: float
    most: float
    #: From whom to whom, the most first; of countries whose cases differ, by their calling code alone.
    flows: Sequence[Flow] = ()

    @property
    def said(self) -> str:
        """In one sentence."""
        if not self.messages:
            return "there was no traffic yesterday"
        return f"these rules move {self.share} of yesterday's traffic ({self.messages:,} messages)"

    @property
    def share(self) -> str:
        """Such as "41%", or "0% to 41%"."""
        low, high = f"{self.least:.0%}", f"{self.most:.0%}"
        return low if low == high else f"{low} to {high}"


class Carriage(msgspec.Struct, frozen=True):
    """Who carries, and by which routes."""

    suppliers: Sequence[Supplier]
    routes: Sequence[Route]
    #: Suppliers that are not asked; while they are there, simulators are not asked either.
    paused: frozenset[UUID] = frozenset()

    def pausing(self, id: UUID) -> Carriage:
        """Were a supplier paused."""
        return msgspec.structs.replace(self, paused=self.paused | {id})

    def without(self, id: UUID) -> Carriage:
        """Were a supplier removed."""
        routes = [
            msgspec.structs.replace(one, choices=tuple(two for two in one.choices if two.supplier_id != id))
            for one in self.routes
        ]
        return Carriage([one for one in self.suppliers if one.id != id], routes, self.paused)

    @property
    def table(self) -> Table:
        """The look-up of workers. Simulators carry only while there is nothing else."""
        return Table([one for one in routing.serving(self.suppliers) if one.id not in self.paused], self.routes)


async def in_force(conn: Connection) -> Carriage:
    """As it is configured now, whoever is paused."""
    return Carriage(await routing.load(conn), await rules.active(conn))


async def now(conn: Connection) -> Carriage:
    """As it is now, without those that are paused or drain."""
    known = await in_force(conn)
    return msgspec.structs.replace(known, paused=frozenset(one.id for one in known.suppliers if one.state != "active"))


async def moved(conn: Connection, before: Carriage, after: Carriage) -> Moved:
    """What would have gone elsewhere of yesterday's messages, from the roll-ups."""
    old, new = before.table, after.table
    total, least, most = 0, 0.0, 0.0
    flows: dict[tuple[UUID | None, UUID | None], float] = defaultdict(float)
    for row in await conn.fetch(YESTERDAY):
        shares = []
        for place, (number, traffic_class, network) in enumerate(cases(old, new, row["country"])):
            was, becomes = (
                _first(
                    table.candidates(
                        number,
                        organization_id=row["organization_id"],
                        sender=row["sender"],
                        traffic_class=traffic_class,
                        network=network,
                        is_certain=True,
                    )
                )
                for table in (old, new)
            )
            shares.append(_share(was, becomes))
            if not place:
                for pair, share in _flows(was, becomes).items():
                    flows[pair] += share * row["messages"]
        total += row["messages"]
        least += row["messages"] * min(shares)
        most += row["messages"] * max(shares)
    listed = [Flow(*pair, messages) for pair, messages in flows.items()]
    listed.sort(key=lambda one: -one.messages)
    return Moved(total, least / total if total else 0.0, most / total if total else 0.0, listed)


def cases(old: Table, new: Table, country: str) -> list[tuple[str, str, str | None]]:
    """Numbers, classes and networks of a country that either table may tell apart, the plainest first."""
    codes = [code for code, region in phones.REGIONS.items() if region == country] or ["0"]
    heads = {head for code in codes for head in {code, *old.under(code), *new.under(code)}}
    networks: set[str | None] = {None, *old.networks, *new.networks}
    return [
        ("+" + head, traffic_class, network)
        for head in sorted(heads)
        for traffic_class in ("transactional", *(one for one in rules.CLASSES if one != "transactional"))
        for network in sorted(networks, key=lambda one: one or "")
    ]


Shares = Mapping[UUID | None, float]


def _share(before: Shares, after: Shares) -> float:
    """The share of messages whose first supplier is another one."""
    return sum(abs(before.get(id, 0.0) - after.get(id, 0.0)) for id in before.keys() | after.keys()) / 2


def _flows(before: Shares, after: Shares) -> dict[tuple[UUID | None, UUID | None], float]:
    """What each one that has less gives to each one that has more, by their shares of what moves."""
    change = {id: after.get(id, 0.0) - before.get(id, 0.0) for id in before.keys() | after.keys()}
    gains = {id: value for id, value in change.items() if value > 0}
    total = sum(gains.values())
    return {
        (giver, taker): -less * more / total
        for giver, less in change.items()
        if less < 0
        for taker, more in gains.items()
    }


def _first(found: Candidates) -> Shares:
    if not found.groups:
        return {None: 1.0}
    group = found.groups[0]
    return {one.supplier_id: one.weight / group.ends[-1] for one in group.choices}
