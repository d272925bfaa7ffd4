"""Adaptive least-cost routing: which supplier of a route should carry most, by price and measured quality. Pure.

Each evaluation compares every supplier's last full hour with its own week. The lowest expected cost among suppliers
within the class's bounds wins; after three wins in a row, shares move by ten points at a time. Every supplier keeps a
trickle, so that all continue to be measured.

The rule nobody may break: shares are whole points that add up to a hundred, no supplier falls below the trickle, and no
evaluation moves more than ten points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import sqrt
from typing import Generic, TypeVar

import msgspec

from heliograph.base.sentences import Sentence, joined, quoted, said

Id = TypeVar("Id")

#: Weight of the prior, in messages, and the delivery rate assumed without measurements.
PRIOR_COUNT, PRIOR = 20, 0.80
#: Minimum number of messages for a supplier to count as proven.
PROVEN = 50
#: With fewer messages, nothing is concluded at all.
FEW = 10
#: A supplier takes over if its cost is at most this fraction of the incumbent's, this many times in a row.
BETTER, IN_A_ROW = 0.92, 3
#: Points that one evaluation moves at most.
STEP = 10
#: Maximum suppliers of an adaptive route: each needs a point.
MOST = 100
#: Quantile of the normal distribution for a one-sided bound of 95 %.
Z = 1.645


class Bounds(msgspec.Struct, frozen=True):
    """Quality requirements of a message class."""

    #: Minimum delivery rate, and how far it may be below that of the supplier's own week.
    floor: float
    drop: float
    #: Maximum 95th percentile of the time to a receipt, in seconds (None: no bound) and as a multiple of the supplier's
    #: own week.
    slowest: float | None
    slower: float
    #: Cost of an undelivered message in addition to its price, in millionths.
    loss: int
    #: Points that every supplier keeps.
    trickle: int
    #: A message without a receipt after this time counts as undelivered.
    matures: timedelta


BOUNDS: Mapping[str, Bounds] = {
    "otp": Bounds(0.85, 0.05, 30.0, 3.0, 150_000, 1, timedelta(minutes=5)),
    "transactional": Bounds(0.75, 0.10, None, 3.0, 50_000, 3, timedelta(minutes=15)),
    "marketing": Bounds(0.60, 0.15, None, 3.0, 10_000, 5, timedelta(minutes=60)),
}


class QualitySample(msgspec.Struct, frozen=True):
    """Messages handed to a supplier in a period, all of them old enough to have a receipt."""

    count: int = 0
    delivered: int = 0
    #: 95th percentile of the time to a receipt, in seconds; None: there were no receipts.
    p95: float | None = None

    @property
    def rate(self) -> float:
        """The fraction delivered; PRIOR if nothing was measured."""
        return self.delivered / self.count if self.count else PRIOR


class SupplierQuality(msgspec.Struct, Generic[Id], frozen=True):
    """What is known about one supplier of the route."""

    id: Id
    #: Millionths for a message of the route's usual length, in the currency that all share; None: it has no rate there.
    price: int | None
    hour: QualitySample = QualitySample()
    week: QualitySample = QualitySample()
    #: Its points now, and at rest.
    share: int = 0
    rest: int = 0
    #: Number of consecutive evaluations in which it beat the incumbent.
    streak: int = 0

    @property
    def quality(self) -> float:
        """The expected delivery rate: as measured, shrunk toward its own week if little was measured."""
        return estimate(self.hour.delivered, self.hour.count, self.usual)

    @property
    def usual(self) -> float:
        """The delivery rate of its week."""
        return estimate(self.week.delivered, self.week.count, PRIOR)


class Outcome(msgspec.Struct, Generic[Id], frozen=True):
    """The result of an evaluation."""

    shares: Mapping[Id, int]
    streaks: Mapping[Id, int]
    #: For operators: what was observed of each supplier.
    reasons: Mapping[Id, Sentence]
    #: No supplier is within the bounds of the class.
    degraded: bool = False
    #: Suppliers not found to be within bounds: outside, unproven, or without a rate. Empty: none was judged.
    outside: frozenset[Id] = frozenset()
    #: The order in which they stand in for a supplier that cannot be used: those within bounds by expected cost, then
    #: proven ones by delivery rate, then the rest. Empty: none was judged.
    stand_ins: tuple[Id, ...] = ()


def estimate(delivered: int, count: int, prior: float) -> float:
    """A rate, shrunk toward the expected one if it is based on few messages."""
    return (delivered + PRIOR_COUNT * prior) / (count + PRIOR_COUNT)


def wilson(delivered: int, count: int, z: float = Z) -> tuple[float, float]:
    """Bounds of a measured rate (Wilson score interval); (0, 1) if nothing was measured."""
    if count == 0:
        return 0.0, 1.0
    rate, square = delivered / count, z * z
    middle = (rate + square / (2 * count)) / (1 + square / count)
    half = z * sqrt(rate * (1 - rate) / count + square / (4 * count * count)) / (1 + square / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def contradicts(few: QualitySample, expected: float) -> bool:
    """True if messages too few to prove anything nevertheless have a delivery rate significantly below this one."""
    return few.count >= FEW and wilson(few.delivered, few.count)[1] < expected


def expected_cost(price: int, quality: float, loss: int) -> float:
    """The cost of a message including the expected cost of its failure, in millionths."""
    return price + loss * (1 - quality)


def outside(one: SupplierQuality[Id], bounds: Bounds) -> Sentence:
    """Why a supplier is outside the bounds; empty: it is within them."""
    quality, slow = one.quality, one.hour.p95
    if quality < bounds.floor:
        return said(
            "delivers %(share)s, under the class's %(floor)s", share=f"{quality:.0%}", floor=f"{bounds.floor:.0%}"
        )
    if one.week.count >= PROVEN and quality < one.usual - bounds.drop:
        return said("delivers %(share)s, its week %(usual)s", share=f"{quality:.0%}", usual=f"{one.usual:.0%}")
    if slow is not None and bounds.slowest is not None and slow > bounds.slowest:
        return said("receipts take %(seconds)s s, over %(most)s s", seconds=round(slow), most=round(bounds.slowest))
    if slow is not None and one.week.p95 and one.hour.count >= PROVEN and slow > bounds.slower * one.week.p95:
        return said("receipts take %(seconds)s s, its week %(usual)s s", seconds=round(slow), usual=round(one.week.p95))
    return quoted("")


def evaluate(route: Sequence[SupplierQuality[Id]], bounds: Bounds) -> Outcome[Id]:
    """Judge a route's suppliers and move their shares. Ties go to the lower price, then to the first supplier."""
    incumbent = max(route, key=lambda one: (one.share, one.rest))
    told = {one.id: _seen(one) for one in route}

    def more(id: Id, sentence: Sentence, by: str = "; ") -> None:
        told[id] = joined([told[id], sentence], by)

    priced = [one for one in route if one.price is not None]
    proven = [one for one in priced if one.hour.count >= PROVEN]
    if len(priced) < 2 or not proven:
        for one in route:
            more(
                one.id,
                said("prices of two suppliers are needed, shares return to rest")
                if len(priced) < 2
                else said("too little was sent to judge, shares return to rest"),
            )
        return _moved(route, bounds, None, {}, told)
    why_not = {one.id: outside(one, bounds) for one in proven}
    within = [one for one in proven if not why_not[one.id]]
    for one in route:
        unproven = said("has no rate") if one.price is None else said("unproven")
        more(one.id, why_not[one.id] or said("within bounds") if one.id in why_not else unproven)
    if not within:
        best = max(proven, key=lambda one: one.quality)
        more(best.id, said("degraded: none is within bounds, it delivers best"))
        return _judged(_moved(route, bounds, best.id, {}, told), route, [], proven, degraded=True)

    def cost(one: SupplierQuality[Id]) -> float:
        return expected_cost(one.price or 0, one.quality, bounds.loss)

    within.sort(key=lambda one: (cost(one), one.price or 0))
    best = within[0]
    for one in within:
        more(one.id, said("expected cost %(amount)s", amount=f"{cost(one) / 1_000_000:.6f}"), ", ")
    if best.id == incumbent.id:
        more(best.id, said("cheapest"))
        return _judged(_moved(route, bounds, best.id, {}, told), route, within, proven)
    if incumbent not in within:
        more(best.id, said("takes over at once: the incumbent is outside of its bounds"))
        return _judged(_moved(route, bounds, best.id, {}, told), route, within, proven)
    if cost(best) > BETTER * cost(incumbent):
        ratio = f"{cost(best) / cost(incumbent):.3f}"
        more(best.id, said("not cheap enough: %(ratio)s of the incumbent's cost", ratio=ratio))
        return _judged(_moved(route, bounds, incumbent.id, {}, told), route, within, proven)
    streak = min(best.streak + 1, IN_A_ROW)
    more(best.id, said("cheaper %(count)s of %(all)s times in a row", count=streak, all=IN_A_ROW))
    target = best.id if streak >= IN_A_ROW else incumbent.id
    return _judged(_moved(route, bounds, target, {best.id: streak}, told), route, within, proven)


def kept(trickle: int, suppliers: int) -> int:
    """Points that each of `suppliers` (at most MOST) keeps: the class's trickle, or less where that would exceed a
    hundred in total."""
    return min(trickle, 100 // suppliers)


def at_rest(weights: Sequence[tuple[Id, int, int]], trickle: int) -> dict[Id, int]:
    """Points of suppliers configured as (id, priority, weight): those of the lowest priority share, by weight, whatever
    the trickle leaves."""
    trickle = kept(trickle, len(weights))
    first = min(priority for _, priority, _ in weights)
    total = sum(weight for _, priority, weight in weights if priority == first)
    free = 100 - trickle * len(weights)
    points = {id: trickle + (free * weight // total if priority == first else 0) for id, priority, weight in weights}
    left = 100 - sum(points.values())
    leader = next(id for id, priority, _ in weights if priority == first)
    return points | {leader: points[leader] + left}


def towards(shares: Mapping[Id, int], wanted: Mapping[Id, int]) -> dict[Id, int]:
    """The shares, moved at most STEP points toward the wanted ones."""
    moved = dict(shares)
    for _ in range(STEP):
        most = max(moved, key=lambda id: moved[id] - wanted[id])
        least = min(moved, key=lambda id: moved[id] - wanted[id])
        if moved[most] <= wanted[most]:
            break
        moved[most] -= 1
        moved[least] += 1
    return moved


def _moved(
    route: Sequence[SupplierQuality[Id]],
    bounds: Bounds,
    target: Id | None,
    streaks: Mapping[Id, int],
    reasons: Mapping[Id, Sentence],
) -> Outcome[Id]:
    rest = {one.id: one.rest for one in route}
    wanted = rest
    if target is not None:
        trickle = kept(bounds.trickle, len(route))
        wanted = {one.id: trickle for one in route}
        wanted[target] = 100 - trickle * (len(route) - 1)
    shares = towards({one.id: one.share for one in route}, wanted)
    return Outcome(shares, {one.id: streaks.get(one.id, 0) for one in route}, reasons)


def _judged(
    moved: Outcome[Id],
    route: Sequence[SupplierQuality[Id]],
    within: Sequence[SupplierQuality[Id]],
    proven: Sequence[SupplierQuality[Id]],
    *,
    degraded: bool = False,
) -> Outcome[Id]:
    """The outcome, with the judgement of each supplier added. `within`: by expected cost."""
    rest = sorted((one for one in route if one not in within), key=lambda one: (one not in proven, -one.quality))
    return msgspec.structs.replace(
        moved,
        degraded=degraded,
        outside=frozenset(one.id for one in rest),
        stand_ins=tuple(one.id for one in (*within, *rest)),
    )


def _seen(one: SupplierQuality[Id]) -> Sentence:
    hour, week = one.hour, one.week
    return said(
        "%(hour)s of %(hour_all)s delivered in the hour, %(week)s of %(week_all)s in its week",
        hour=hour.delivered,
        hour_all=hour.count,
        week=week.delivered,
        week_all=week.count,
    )
