"""Where would this go? The routing decision for a message now, in the words of `heliograph route explain`."""

from __future__ import annotations

from typing import Any

from heliograph.accounts import organizations
from heliograph.base import phones
from heliograph.base.errors import Invalid, NotFound
from heliograph.console.routing.descriptions import network_error
from heliograph.networks.plan import no_network
from heliograph.pages.answers import Answer, Page, refused
from heliograph.pages.requests import Request
from heliograph.routes import rules
from heliograph.sms.dispatch import explaining, routing

#: The default class.
USUAL = "transactional"


async def show(request: Request) -> Answer:
    """The form, and the decision for its values."""
    typed = {name: request.query.get(name, "").strip() for name in ("to", "organization", "sender", "class", "network")}
    typed["class"] = typed["class"] if typed["class"] in rules.CLASSES else USUAL
    values: dict[str, Any] = {"typed": typed, "classes": rules.CLASSES, "found": None}
    if not typed["to"]:
        return Page(template="routing/explain.html", values=values)
    wrong: list[tuple[str, str, str]] = []
    number = phones.international(typed["to"])
    if number is None:
        wrong.append(("to", "format", "Enter a number with + and country code, such as +258841234567."))
    network = typed["network"]
    if network and no_network(network):
        wrong.append(("network", "pattern", network_error(network)))
    async with request.reading() as conn:
        try:
            one = await organizations.find(conn, reference=typed["organization"] or None)
        except (NotFound, Invalid):
            wrong.append(("organization", "unknown", "Choose an organization, by its name or id."))
        if wrong or number is None:
            return refused("routing/explain.html", Invalid(*wrong), values)
        found = await explaining.explain(
            conn,
            number,
            organization_id=one.id,
            organization=one.name,
            sender=typed["sender"],
            traffic_class=typed["class"],
            network=network or None,
        )
        stored = await rules.find(conn, route=found.route) if found.route else None
        simulators = await routing.simulators(conn)
    values["simulated_only"] = bool(found.suppliers) and simulators.issuperset(found.suppliers)
    values |= {"simulators": simulators, "found": found, "number": number, "asked": one, "stored": stored}
    return Page(template="routing/explain.html", values=values)
