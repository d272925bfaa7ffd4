"""A decision in words, for operators: what decided, the order of suppliers, and which were skipped and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import reduce
from uuid import UUID

from heliograph.base.sentences import Sentence, joined, quoted, said
from heliograph.routes.lookup import Candidates, Group, Route

#: Why a candidate is not given a message now.
REFUSED_IT, UNRATED = said("it refused the message"), said("it has no rate there")
BARRED, AVOIDED = said("its rules refuse the sender there"), said("it refuses the sender")
FULL, HELD = said("full, and slow for too long"), said("held by an operator")
PASSED_OVER, PUT_OFF = said("excluded by an operator"), said("it deferred the message")
UNBOUND = said("no session")


def circuit_open(since: datetime) -> Sentence:
    """The supplier failed too often and is not used: "circuit open since 10:02 UTC"."""
    return said("circuit open since %(time)s UTC", time=f"{since:%H:%M}")


def matched(route: Route, how: str) -> Sentence:
    """What determined the destination: "prefix 258"."""
    match how:
        case "prefix":
            return said("prefix %(digits)s", digits=route.prefix or "")
        case "network":
            return said("network %(network)s", network=route.network or "")
        case "range":
            return said("network %(network)s by the number's range", network=route.network or "")
        case "country":
            return said("country %(country)s", country=route.country or "")
    return said("any destination")


def asked(route: Route, organization: Callable[[UUID], str]) -> list[Sentence]:
    """The route's conditions: "class otp"."""
    found = []
    if route.organization_id is not None:
        found.append(said("organization %(name)s", name=organization(route.organization_id)))
    if route.sender is not None:
        found.append(said("sender %(name)s", name=route.sender))
    if route.traffic_class is not None:
        found.append(said("class %(name)s", name=route.traffic_class))
    return found


def explained(
    found: Candidates,
    *,
    names: Mapping[UUID, str],
    organization: Callable[[UUID], str] = str,
    facts: Mapping[UUID, str] | None = None,
    skipped: Mapping[UUID, str] | None = None,
) -> Sentence:
    """One sentence: "prefix 258, class otp (route codes): main before backup; cheap skipped: paused".

    `names`: suppliers' names. `facts`: what to add in brackets, such as price and quality. `skipped`: why some are not
    tried now.
    """
    skipped = skipped or {}

    def named(id: UUID) -> Sentence:
        fact, name = (facts or {}).get(id), quoted(names.get(id, str(id)))
        return Sentence.of("%(name)s (%(fact)s)", {"name": name, "fact": fact}) if fact else name

    def together(group: Group) -> Sentence:
        asked_now = group.shares([one.supplier_id for one in group.choices if one.supplier_id not in skipped])
        if len(asked_now) == 1:
            return named(next(iter(asked_now)))
        shares = [
            Sentence.of("%(name)s %(share)s %%", {"name": named(id), "share": round(share * 100)})
            for id, share in asked_now.items()
        ]
        return (
            reduce(lambda some, one: said("%(some)s beside %(other)s", some=some, other=one), shares)
            if shares
            else quoted("")
        )

    route = found.route
    if found.matched == "owner":
        head = said("the sender's number belongs to its supplier")
    elif route is None:
        head = said("no route: the suppliers' own prefixes, priorities and weights")
    else:
        conditions = joined([matched(route, found.matched), *asked(route, organization)])
        head = said("%(conditions)s (route %(name)s)", conditions=conditions, name=route.name)
        if route.shared_for is not None:
            head = said("%(head)s, shares of network %(network)s", head=head, network=route.shared_for)
    able = [one for group in found.groups if (one := together(group))]
    if not found.suppliers:
        parts = [said("no supplier carries there")]
    elif not able:
        parts = [said("no supplier is available now")]
    else:
        parts = [reduce(lambda first, then: said("%(first)s before %(then)s", first=first, then=then), able)]
    if route is not None and route.degraded:
        parts.append(said("degraded: no supplier is within the bounds of its class"))
    elif route is not None and able and all(id in route.outside for id in found.suppliers if id not in skipped):
        parts.append(said("degraded: no available supplier is within the bounds of its class"))
    parts += [
        said("%(name)s skipped: %(why)s", name=names.get(id, str(id)), why=skipped[id])
        for id in found.suppliers
        if id in skipped
    ]
    return Sentence.of("%(head)s: %(parts)s", {"head": head, "parts": joined(parts, "; ")})
