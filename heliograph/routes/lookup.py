"""The compiled routing table: maps number, organization, sender and class to suppliers in order. Pure.

Among routes that match a message, the most specific destination wins: a network known for certain, then the longest
prefix, a network guessed from the number's range, a country, any destination. For one destination the lowest priority
wins, then the route with more conditions, then the older one. Its suppliers are tried by priority, and those of equal
priority by weight. A supplier's own prefixes limit what it is asked to carry, with or without a route.

The rule nobody may break: the same message and tables give the same order, on every worker and at every try.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from math import log
from typing import Literal, Protocol
from uuid import UUID

import msgspec

from heliograph.base import phones

#: What determined the destination, most specific first.
Matched = Literal["network", "prefix", "range", "country", "any", "suppliers", "owner"]
_LEVELS: dict[str, int] = {"network": 0, "prefix": 1, "range": 2, "country": 3, "any": 4}
#: How many results are memoized per prefix.
MEMO = 4_096
_BITS = 2**64 - 1
#: 2^128 divided by the golden ratio, odd: spreads consecutive ids evenly.
_GOLDEN = 0x9E3779B97F4A7C15F39CC0605CEDC835


class Carrier(Protocol):
    """What the look-up needs of a supplier."""

    @property
    def id(self) -> UUID:
        """Its id."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Prefixes (E.164 digits) that it carries to; empty: everywhere."""

    @property
    def priority(self) -> int:
        """Used without a route: the lowest number is tried first."""

    @property
    def weight(self) -> int:
        """Used without a route: its relative share among suppliers of equal priority."""


class Choice(msgspec.Struct, frozen=True):
    """A supplier of a route."""

    supplier_id: UUID
    priority: int = 10
    weight: int = 1


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A rule: destination, sender and class, and the suppliers that carry it. A condition of None matches anything."""

    id: UUID
    name: str
    #: E.164 digits. At most one of prefix, country and network is set.
    prefix: str | None = None
    #: ISO region.
    country: str | None = None
    #: MCC-MNC, such as "643-04".
    network: str | None = None
    organization_id: UUID | None = None
    #: Case does not matter.
    sender: str | None = None
    traffic_class: str | None = None
    priority: int = 10
    #: Its suppliers' weights are derived from measured quality and prices before the table is compiled.
    adaptive: bool = False
    #: Only suppliers whose rate card has a price for the number are tried.
    rated: bool = False
    #: Adaptive only, as last evaluated: none of its suppliers is within the bounds of its class.
    degraded: bool = False
    #: Adaptive only, as last evaluated: suppliers not found to be within the bounds.
    outside: tuple[UUID, ...] = ()
    #: Its suppliers in the order in which they stand in for one that cannot be used; empty: by weight.
    stand_ins: tuple[UUID, ...] = ()
    choices: tuple[Choice, ...] = ()
    #: Adaptive routes for a country only: variants for networks in which its suppliers have different shares.
    apart: tuple[Route, ...] = ()
    #: In one of `apart`: the network, MCC-MNC.
    shared_for: str | None = None

    @property
    def conditions(self) -> int:
        """How many of organization, sender and class it specifies."""
        return sum(one is not None for one in (self.organization_id, self.sender, self.traffic_class))


class Candidates(msgspec.Struct, frozen=True):
    """The suppliers for a message, and the route that named them; None: chosen by their own settings."""

    route: Route | None
    matched: Matched
    #: Suppliers grouped by priority, lowest first.
    groups: tuple[Group, ...]
    #: All suppliers; empty: none carries there.
    suppliers: tuple[UUID, ...]

    def order(self, message_id: UUID) -> Iterable[UUID]:
        """The suppliers in the order in which they are tried for this message.

        Among those of equal priority, each comes first in proportion to its weight. The messages of a supplier that
        cannot be used are divided among the rest, which keep their own; in an adaptive route, they go to the one judged
        best.
        """
        return self.suppliers if len(self.groups) == len(self.suppliers) else self._drawn(message_id)

    def first(self, message_id: UUID) -> UUID | None:
        """The first of `order`; None if there are no suppliers."""
        if not self.groups:
            return None
        group = self.groups[0]
        return group.first(message_id).supplier_id if len(group.choices) > 1 else group.choices[0].supplier_id

    def _drawn(self, message_id: UUID) -> Iterator[UUID]:
        for group in self.groups:
            first = group.first(message_id)
            yield first.supplier_id
            # Only reached when the first cannot be used, which is rare.
            rest = [one for one in group.choices if one is not first]
            for one in sorted(rest, key=lambda one: group.standing(message_id, one)):
                yield one.supplier_id


class Group(msgspec.Struct, frozen=True):
    """Suppliers of equal priority."""

    choices: tuple[Choice, ...]
    #: Cumulative sums of the weights.
    ends: tuple[int, ...]
    #: As in Route.
    stand_ins: tuple[UUID, ...] = ()

    def first(self, message_id: UUID) -> Choice:
        """The supplier that comes first: one multiplication and one binary search, however many there are."""
        return self.choices[bisect_right(self.ends, (message_id.int * _GOLDEN >> 64 & _BITS) % self.ends[-1])]

    def standing(self, message_id: UUID, choice: Choice) -> float:
        """The sort key among stand-ins when the first cannot be used: lowest comes first."""
        return self.stand_ins.index(choice.supplier_id) if self.stand_ins else -_draw(message_id, choice)

    def shares(self, able: Collection[UUID]) -> dict[UUID, float]:
        """The fraction of messages that each supplier in `able` gets: 1 in total, or empty if none of them is here."""
        asked = {one.supplier_id: one.weight for one in self.choices if one.supplier_id in able}
        if self.stand_ins and asked:
            asked[min(asked, key=self.stand_ins.index)] += self.ends[-1] - sum(asked.values())
        return {id: weight / sum(asked.values()) for id, weight in asked.items()}


def group_of(choices: Sequence[Choice], stand_ins: tuple[UUID, ...] = ()) -> Group:
    """A group of suppliers of equal priority."""
    return Group(tuple(choices), tuple(accumulate(one.weight for one in choices)), stand_ins)


def _mixed(value: int) -> int:
    """64 bits that each depend on every bit of `value`: the finalizer of MurmurHash3."""
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _BITS
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _BITS
    return value ^ value >> 33


def _draw(message_id: UUID, choice: Choice) -> float:
    # Weighted rendezvous hashing.
    pair = _mixed(message_id.int & _BITS ^ message_id.int >> 64) ^ choice.supplier_id.int
    return log((_mixed(pair & _BITS ^ pair >> 64) + 1) / 2**64) / choice.weight


class _Node:
    """Numbers for which this is the longest prefix that any rule names."""

    def __init__(
        self, routes: list[tuple[Matched, Route]], networks: Iterable[Route], carriers: Sequence[Carrier]
    ) -> None:
        self.routes = routes
        #: Suppliers that carry there, in any route.
        self.carriers = carriers
        self.carrier_ids = {one.id for one in carriers}
        fitting = [route for _, route in routes] + list(networks)
        #: Which attributes of a message matter here: the others are not part of the memo's key.
        self.asks_organization = any(route.organization_id for route in fitting)
        self.asks_sender = any(route.sender for route in fitting)
        self.asks_class = any(route.traffic_class for route in fitting)
        self.memo: dict[object, Candidates] = {}
        #: The only result, if it depends on nothing but the number.
        self.only: Candidates | None = None


class Table:
    """Suppliers and routes, compiled. Immutable except for its memo."""

    def __init__(self, carriers: Sequence[Carrier], routes: Sequence[Route] = ()) -> None:
        """`carriers`: suppliers that accept messages."""
        self._networks: dict[str, list[Route]] = defaultdict(list)
        by_prefix: dict[str, list[tuple[Matched, Route]]] = defaultdict(list)
        codes: dict[str, list[str]] = defaultdict(list)
        for code, region in phones.REGIONS.items():
            codes[region].append(code)
        self._apart = {(route.id, one.shared_for or ""): one for route in routes for one in route.apart}
        for _, network in self._apart:
            self._networks[network]  # must be distinguished, though no route is for it alone
        for route in routes:
            if route.network is not None:
                self._networks[route.network].append(route)
            elif route.prefix is not None:
                by_prefix[route.prefix].append(("prefix", route))
            elif route.country is not None:
                for code in codes[route.country]:
                    by_prefix[code].append(("country", route))
            else:
                by_prefix[""].append(("any", route))
        known = {"", *by_prefix, *(prefix for one in carriers for prefix in one.prefixes)}
        every = [route for some in self._networks.values() for route in some]
        self._nodes: dict[str, _Node] = {}
        for prefix in known:
            heads = [prefix[:end] for end in range(len(prefix) + 1)]
            fitting = [one for head in heads for one in by_prefix.get(head, ())]
            able = [one for one in carriers if not one.prefixes or prefix.startswith(one.prefixes)]
            self._nodes[prefix] = _Node(fitting, every, able)
        self._carriers = carriers
        self._any = self._nodes[""]
        #: Values hold a reference to the candidates in the key, so that no other object can have the same id().
        self._owned: dict[tuple[int, tuple[UUID, ...]], tuple[Candidates, Candidates]] = {}
        #: Lengths of prefixes, including the `+`, longest first.
        self._ends = sorted({len(prefix) + 1 for prefix in known if prefix}, reverse=True)

    @property
    def networks(self) -> Collection[str]:
        """Networks that routes name, or in which they have different shares."""
        return self._networks.keys()

    def under(self, prefix: str) -> list[str]:
        """Longer prefixes within `prefix` that are routed separately."""
        return [one for one in self._nodes if len(one) > len(prefix) and one.startswith(prefix)]

    def candidates(
        self,
        recipient: str,
        *,
        organization_id: UUID,
        sender: str,
        traffic_class: str,
        network: str | None = None,
        is_certain: bool = False,
    ) -> Candidates:
        """The suppliers for a message to `recipient` (E.164 with `+`).

        `network`: MCC-MNC of the number, if known; `is_certain`: known from a receipt or a look-up that is still fresh,
        not merely from the number's range.
        """
        node = self._any
        nodes = self._nodes
        for end in self._ends:
            found = nodes.get(recipient[1:end])
            if found is not None:
                node = found
                break
        if network is not None and network not in self._networks:
            network = None
        if network is None and node.only is not None:
            return node.only
        key = (
            organization_id if node.asks_organization else None,
            sender if node.asks_sender else None,
            traffic_class if node.asks_class else None,
            network,
            is_certain,
        )
        answer = node.memo.get(key)
        if answer is None:
            answer = self._resolve(node, organization_id, sender, traffic_class, network, is_certain)
            if len(node.memo) >= MEMO:
                node.memo.clear()
            node.memo[key] = answer
            if key == (None, None, None, None, is_certain):
                node.only = answer
        return answer

    def owned(self, found: Candidates, recipient: str, owners: Sequence[UUID]) -> Candidates:
        """The candidates for a message that own its sender's number. If a route names none of the owners, those of them
        that carry there replace its suppliers, in the given order; if none does, the candidates are unchanged."""
        key = id(found), tuple(owners)
        known = self._owned.get(key)
        if known is not None and known[0] is found:
            return known[1]
        kept = tuple(one for group in found.groups for one in group.choices if one.supplier_id in owners)
        if kept:
            answer = _candidates(found.route, found.matched, kept)
        else:
            able = {one.id for one in self._carriers if not one.prefixes or recipient.startswith(one.prefixes, 1)}
            kept = tuple(Choice(one, place) for place, one in enumerate(owners) if one in able)
            answer = _candidates(None, "owner", kept) if kept else found
        if len(self._owned) >= MEMO:
            self._owned.clear()
        self._owned[key] = found, answer
        return answer

    def fitting(
        self,
        recipient: str,
        *,
        organization_id: UUID,
        sender: str,
        traffic_class: str,
        network: str | None = None,
        is_certain: bool = False,
    ) -> list[tuple[Matched, Route]]:
        """The routes that match a message, in order of precedence: the first whose suppliers carry there determines the
        candidates."""
        ends = (recipient[1:end] for end in self._ends)
        node = next((self._nodes[head] for head in ends if head in self._nodes), self._any)
        return self._fitting(node, organization_id, sender, traffic_class, network, is_certain)

    def _fitting(
        self,
        node: _Node,
        organization_id: UUID,
        sender: str,
        traffic_class: str,
        network: str | None,
        is_certain: bool,
    ) -> list[tuple[Matched, Route]]:
        level: Matched = "network" if is_certain else "range"
        found = node.routes + [(level, route) for route in self._networks.get(network or "", ())]
        spelled = sender.casefold()
        fits = [
            (matched, route)
            for matched, route in found
            if route.organization_id in (None, organization_id)
            and route.traffic_class in (None, traffic_class)
            and (route.sender is None or route.sender.casefold() == spelled)
        ]
        return sorted(fits, key=_specific)

    def _resolve(
        self,
        node: _Node,
        organization_id: UUID,
        sender: str,
        traffic_class: str,
        network: str | None,
        is_certain: bool,
    ) -> Candidates:
        for matched, route in self._fitting(node, organization_id, sender, traffic_class, network, is_certain):
            choices = tuple(one for one in route.choices if one.supplier_id in node.carrier_ids)
            if choices:
                there = self._apart.get((route.id, network)) if network is not None else None
                if there is not None:
                    route, choices = there, tuple(one for one in there.choices if one.supplier_id in node.carrier_ids)
                return _candidates(route, matched, choices)
        own = tuple(Choice(one.id, one.priority, one.weight) for one in node.carriers)
        return _candidates(None, "suppliers", own)


def _specific(one: tuple[Matched, Route]) -> tuple[int, int, int, int, UUID]:
    matched, route = one
    return (_LEVELS[matched], -len(route.prefix or ""), route.priority, -route.conditions, route.id)


def _candidates(route: Route | None, matched: Matched, choices: tuple[Choice, ...]) -> Candidates:
    groups: dict[int, list[Choice]] = defaultdict(list)
    for choice in choices:
        groups[choice.priority].append(choice)
    ordered = [sorted(groups[priority], key=lambda one: one.supplier_id) for priority in sorted(groups)]
    return Candidates(
        route,
        matched,
        tuple(group_of(group, () if route is None else route.stand_ins) for group in ordered),
        tuple(one.supplier_id for group in ordered for one in group),
    )
