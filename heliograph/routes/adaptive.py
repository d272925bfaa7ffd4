"""Adaptive least cost: which supplier of a route should carry most, judged by price and measured quality. Pure.

Every evaluation judges each supplier by what it was handed in its last full hour against its own week: the cheapest
expected cost wins among those within the class's bounds, if it wins three times in a row, and then shares move ten
points at a time. A trickle stays with all of them, so that each goes on being measured.

The rule nobody may break: shares are whole points that add up to a hundred, nobody falls below the trickle, and no
evaluation moves more than ten of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import sqrt
from typing import Generic, TypeVar

import msgspec

from heliograph.base.sentences import Sentence, joined, quoted, said

Id = TypeVar("Id")

#: Messages that the prior counts as, and the rate that is assumed where nothing was measured.
PRIOR_COUNT, PRIOR = 20, 0.80
#: Fewer messages prove nothing.
PROVEN = 50
#: Fewer messages say nothing at all.
FEW = 10
#: A supplier takes over if it costs at most this much of the incumbent, so often in a row.
BETTER, IN_A_ROW = 0.92, 3
#: Points that one evaluation moves.
STEP = 10
#: Suppliers of an adaptive route: each has a point.
MOST = 100
#: Quantile of the normal distribution for a lower bound of 95 %.
Z = 1.645


class Bounds(msgspec.Struct, frozen=True):
    """What a class of messages demands."""

    #: Least delivery rate, and how much it may be below the supplier's own week.
    floor: float
    drop: float
    #: Seconds in which 95 % of receipts came, or so many times the supplier's own week; None: no bound.
    slowest: float | None
    slower: float
    #: What a message that does not arrive costs beside its price, millionths.
    loss: int
    #: Points that every supplier keeps.
    trickle: int
    #: Without a receipt after so long, a message counts as not delivered.
    matures: timedelta


BOUNDS: Mapping[str, Bounds] = {
    "otp": Bounds(0.85, 0.05, 30.0, 3.0, 150_000, 1, timedelta(minutes=5)),
    "transactional": Bounds(0.75, 0.10, None, 3.0, 50_000, 3, timedelta(minutes=15)),
    "marketing": Bounds(0.60, 0.15, None, 3.0, 10_000, 5, timedelta(minutes=60)),
}


class Measured(msgspec.Struct, frozen=True):
    """Messages that a supplier was handed in a time, all of them old enough for a receipt."""

    count: int = 0
    delivered: int = 0
    #: Seconds in which 95 % of the receipts came; None: there were none.
    p95: float | None = None

    @property
    def rate(self) -> float:
        """The share that was delivered; PRIOR where nothing was measured."""
        return self.delivered / self.count if self.count else PRIOR


class Judged(msgspec.Struct, Generic[Id], frozen=True):
    """What is known of a supplier of the route."""

    id: Id
    #: Millionths a segment, in the currency of all; None: it has no rate there.
    price: int | None
    hour: Measured = Measured()
    week: Measured = Measured()
    #: Points that it has now, and those that it has at rest.
    share: int = 0
    rest: int = 0
    #: Evaluations in a row in which it was better than the incumbent.
    streak: int = 0

    @property
    def quality(self) -> float:
        """The delivery rate to expect: measured, drawn towards its own week while little was measured."""
        return estimate(self.hour.delivered, self.hour.count, self.usual)

    @property
    def usual(self) -> float:
        """The delivery rate of its week."""
        return estimate(self.week.delivered, self.week.count, PRIOR)


class Outcome(msgspec.Struct, Generic[Id], frozen=True):
    """What an evaluation decides."""

    shares: Mapping[Id, int]
    streaks: Mapping[Id, int]
    #: For operators: of each supplier, what was seen of it.
    reasons: Mapping[Id, Sentence]
    #: None of them is within the bounds of the class.
    degraded: bool = False
    #: Those that were not found to be within them: outside, unproven, or without a rate. Empty: nobody was judged.
    outside: frozenset[Id] = frozenset()
    #: In which order they stand in for one that cannot be asked: those within bounds by expected cost, then those that
    #: were measured by what they deliver, then the rest. Empty: nobody was judged.
    stand_ins: tuple[Id, ...] = ()


def estimate(delivered: int, count: int, prior: float) -> float:
    """A rate of few messages, drawn towards what was expected of it."""
    return (delivered + PRIOR_COUNT * prior) / (count + PRIOR_COUNT)


def wilson(delivered: int, count: int, z: float = Z) -> tuple[float, float]:
    """Between which bounds a measured rate lies (Wilson's interval); (0, 1) where nothing was measured."""
    if count == 0:
        return 0.0, 1.0
    rate, square = delivered / count, z * z
    middle = (rate + square / (2 * count)) / (1 + square / count)
    half = z * sqrt(rate * (1 - rate) / count + square / (4 * count * count)) / (1 + square / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def contradicts(few: Measured, expected: float) -> bool:
    """Whether messages that are too few to prove anything were all the same delivered less than this rate would let
    one believe."""
    return few.count >= FEW and wilson(few.delivered, few.count)[1] < expected


def expected_cost(price: int, quality: float, loss: int, *, segments: int = 1) -> float:
    """What a message costs with what its failure costs, millionths."""
    return price * segments + loss * (1 - quality)


def outside(one: Judged[Id], bounds: Bounds) -> Sentence:
    """Why a supplier is outside of the bounds; empty: it is within."""
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


def evaluate(route: Sequence[Judged[Id]], bounds: Bounds, *, segments: int = 1) -> Outcome[Id]:
    """Judge a route's suppliers and move their shares. Ties go to the lower price, and then to the first of them."""
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

    def cost(one: Judged[Id]) -> float:
        return expected_cost(one.price or 0, one.quality, bounds.loss, segments=segments)

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
    """Points that each of so many suppliers keeps, MOST at most: less than the class's trickle where that would be more
    than there are."""
    return min(trickle, 100 // suppliers)


def at_rest(weights: Sequence[tuple[Id, int, int]], trickle: int) -> dict[Id, int]:
    """Points of suppliers as configured, (id, priority, weight): those of the lowest priority share by weight what the
    trickle leaves."""
    trickle = kept(trickle, len(weights))
    first = min(priority for _, priority, _ in weights)
    total = sum(weight for _, priority, weight in weights if priority == first)
    free = 100 - trickle * len(weights)
    points = {id: trickle + (free * weight // total if priority == first else 0) for id, priority, weight in weights}
    left = 100 - sum(points.values())
    leader = next(id for id, priority, _ in weights if priority == first)
    return points | {leader: points[leader] + left}


def towards(shares: Mapping[Id, int], wanted: Mapping[Id, int]) -> dict[Id, int]:
    """Shares that are at most STEP points nearer to the wanted ones."""
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
    route: Sequence[Judged[Id]],
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
    route: Sequence[Judged[Id]],
    within: Sequence[Judged[Id]],
    proven: Sequence[Judged[Id]],
    *,
    degraded: bool = False,
) -> Outcome[Id]:
    """With what was found of them. `within`: by expected cost."""
    rest = sorted((one for one in route if one not in within), key=lambda one: (one not in proven, -one.quality))
    return msgspec.structs.replace(
        moved,
        degraded=degraded,
        outside=frozenset(one.id for one in rest),
        stand_ins=tuple(one.id for one in (*within, *rest)),
    )


def _seen(one: Judged[Id]) -> Sentence:
    hour, week = one.hour, one.week
    return said(
        "%(hour)s of %(hour_all)s delivered in the hour, %(week)s of %(week_all)s in its week",
        hour=hour.delivered,
        hour_all=hour.count,
        week=week.delivered,
        week_all=week.count,
    )
