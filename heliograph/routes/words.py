"""A decision in words, for operators: what decided, who comes before whom, and who is skipped and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from heliograph.routes.lookup import Candidates, Group, Route


def matched(route: Route, how: str) -> str:
    """What decided about the destination: "prefix 258"."""
    match how:
        case "prefix":
            return f"prefix {route.prefix}"
        case "network":
            return f"network {route.network}"
        case "range":
            return f"network {route.network} by the number's range"
        case "country":
            return f"country {route.country}"
    return "any destination"


def asked(route: Route, organization: Callable[[UUID], str]) -> list[str]:
    """Its conditions: "class otp"."""
    given = (
        ("organization", None if route.organization_id is None else organization(route.organization_id)),
        ("sender", route.sender),
        ("class", route.traffic_class),
    )
    return [f"{what} {value}" for what, value in given if value is not None]


def explained(
    found: Candidates,
    *,
    names: Mapping[UUID, str],
    organization: Callable[[UUID], str] = str,
    facts: Mapping[UUID, str] | None = None,
    skipped: Mapping[UUID, str] | None = None,
) -> str:
    """One sentence: "prefix 258, class otp (route codes): main before backup; cheap skipped: paused".

    `names`: of suppliers. `facts`: what to say of them in brackets, such as price and quality. `skipped`: why some of
    them are not asked now.
    """
    skipped = skipped or {}

    def named(id: UUID) -> str:
        fact = (facts or {}).get(id)
        return names.get(id, str(id)) + (f" ({fact})" if fact else "")

    def together(group: Group) -> str:
        asked_now = [one for one in group.choices if one.supplier_id not in skipped]
        total = sum(one.weight for one in asked_now)
        if len(asked_now) == 1:
            return named(asked_now[0].supplier_id)
        shares = [f"{named(one.supplier_id)} {one.weight * 100 / total:.0f} %" for one in asked_now]
        return " beside ".join(shares)

    route = found.route
    if found.matched == "owner":
        head = "the sender's number belongs to its supplier"
    elif route is None:
        head = "no route: the suppliers' own prefixes, priorities and weights"
    else:
        head = ", ".join([matched(route, found.matched), *asked(route, organization)]) + f" (route {route.name})"
    able = [said for group in found.groups if (said := together(group))]
    parts = [" before ".join(able) or "nobody can be asked now"]
    if not found.suppliers:
        parts = ["nobody carries there"]
    if route is not None and route.degraded:
        parts.append("degraded: no supplier is within the bounds of its class")
    parts += [f"{names.get(id, str(id))} skipped: {skipped[id]}" for id in found.suppliers if id in skipped]
    return f"{head}: {'; '.join(parts)}"
