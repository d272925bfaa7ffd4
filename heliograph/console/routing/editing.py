"""A route's form, with the fields of `heliograph route add` and `set`: how it would shift yesterday's traffic is
shown before it is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts import organizations
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.console.routing.changing import previewed
from heliograph.console.routing.descriptions import network_error
from heliograph.console.routing.listing import HERE
from heliograph.networks import plan
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.forms import figures, leaving
from heliograph.pages.requests import Request
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from heliograph.routes.rules import StoredRoute
from heliograph.sms.dispatch import routing
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.management import rerouting

#: Fields of the form apart from those of suppliers, by the command's options.
FIELDS: Mapping[str, str] = {
    "name": "name",
    "prefix": "prefix",
    "country": "country",
    "network": "network",
    "org": "organization",
    "sender": "sender",
    "traffic_class": "class",
    "priority": "priority",
    "adaptive": "adaptive",
    "rated": "rated",
    "note": "note",
}
EMPTY: dict[str, str] = dict.fromkeys(FIELDS.values(), "") | {"priority": "10", "adaptive": "no", "rated": "no"}
#: Prefixes of a supplier's id in field names: its place (empty: not in the route), and its weight.
PLACE, WEIGHT = "place-", "weight-"
#: The rules' refusals in the form's wording, by field and issue.
WRONG: dict[tuple[str, str], str] = {
    ("name", "length"): "A name must have 1 to 64 characters.",
    ("name", "pattern"): "A name must not contain control characters.",
    ("name", "taken"): "There is already a route with this name.",
    ("note", "length"): "A note can have at most 500 characters.",
    ("prefix", "pattern"): "A prefix is 1 to 15 digits without +, such as 25884.",
    ("prefix", "several"): "A route has one destination: a prefix, a country or a network.",
    ("country", "unknown"): "Enter a two-letter country code, such as MZ.",
    ("class", "enum"): "Choose one of those that are offered.",
    ("supplier", "required"): "A route needs a supplier: give one of them a priority.",
    ("priority", "range"): "A priority is a whole number from 0 to 1000.",
    ("weight", "range"): "A weight is a whole number from 1 to 1000.",
}

Given = Mapping[str, str]


async def show_new(request: Request) -> Answer:
    """An empty form, or one for a destination in the address."""
    async with request.reading() as conn:
        known = await routing.load(conn)
    asked = ("prefix", "country", "network", "organization")
    given = EMPTY | {name: request.query[name] for name in asked if name in request.query}
    return Page(template="routing/form.html", values=_values(None, given, known))


async def add(request: Request) -> Answer:
    """Show what it would shift; once confirmed, add it."""
    return await _submit(request, None)


async def show(request: Request) -> Answer:
    """The form with the route's current values."""
    async with request.reading() as conn:
        one = await rules.find(conn, route=str(request.id()))
        known = await routing.load(conn)
    return Page(template="routing/form.html", values=_values(one, _shown(one), known))


async def change(request: Request) -> Answer:
    """Show the difference and what it would shift; once confirmed, save it."""
    async with request.reading() as conn:
        one = await rules.find(conn, route=str(request.id()))
    return await _submit(request, one)


async def _submit(request: Request, one: StoredRoute | None) -> Answer:
    form = request.form
    async with request.writing() as conn:
        known = await routing.load(conn)
        names = [*FIELDS.values(), *(part + str(two.id) for two in known for part in (PLACE, WEIGHT))]
        given = (_shown(one) if one else EMPTY) | {name: form[name].strip() for name in names if name in form}
        given |= leaving.current_values(form, _fields(one, known))
        values = _values(one, given, known)
        if form.get("do") == "again":
            return Page(template="routing/form.html", values=values)
        try:
            wanted = await _read(conn, one, given, known)

            async def work(conn: Connection) -> UUID:
                return await _write(conn, request, one, wanted, given.get("note", ""))

            if form.get("do") == "save":
                async with conn.transaction():
                    if one is not None:
                        rerouting.check_mark(await rules.lock(conn, route=str(one.route.id)), form.get("seen", ""))
                    id = await work(conn)
                return await _saved(request, conn, one, id)
            values |= await previewed(request, conn, work, one)
            values["unlisted"] = plan.unlisted([wanted.network or ""])
        except Invalid as refusal:
            said = WRONG | {("network", "pattern"): network_error(given.get("network", ""))}
            return refused("routing/form.html", form_errors(refusal, said), values)
    if one is not None and not values["differences"]:
        return Redirect(location=f"{HERE}/{one.route.id}", notice=request.text("Nothing was changed."))
    return Page(template="routing/preview.html", values=values)


async def _saved(request: Request, conn: Connection, one: StoredRoute | None, id: UUID) -> Answer:
    if one is None:
        said = request.text("The route is added: workers apply it within a second.")
        return Redirect(location=f"{HERE}/{id}", notice=said)
    (entry,) = await rerouting.history(conn, route_id=id, limit=1)
    said = request.text("Saved: workers apply it within a second.")
    return Redirect(location=f"{HERE}/{id}", notice=said, undo=f"{HERE}/{id}/undo/{entry.id}" if entry.before else "")


async def _write(conn: Connection, request: Request, one: StoredRoute | None, wanted: Route, note: str) -> UUID:
    if one is None:
        return (await rules.add(conn, wanted, note=note, by=request.principal)).id
    await rules.change(conn, await rules.lock(conn, route=str(wanted.id)), wanted, note=note, by=request.principal)
    return wanted.id


async def _read(conn: Connection, one: StoredRoute | None, given: Given, known: Sequence[Supplier]) -> Route:
    """The route as typed. Raises Invalid with everything that is wrong."""
    wrong = Problems()
    choices = []
    for two in known:
        place, weight = (given.get(part + str(two.id), "") for part in (PLACE, WEIGHT))
        if not place:
            continue
        at, share = _number(place, 0), _number(weight or "1", 1)
        if at is None:
            wrong.add(PLACE + str(two.id), "range", WRONG["priority", "range"])
        if share is None:
            wrong.add(WEIGHT + str(two.id), "range", WRONG["weight", "range"])
        choices.append(Choice(two.id, at or 0, share or 1))
    priority = _number(given.get("priority", ""), 0)
    if priority is None:
        wrong.add("priority", "range", WRONG["priority", "range"])
    organization_id = None
    if given.get("organization"):
        try:
            organization_id = (await organizations.find(conn, reference=given["organization"])).id
        except (NotFound, Invalid):
            wrong.add("organization", "unknown", "There is no organization with this name or id.")
    route = Route(
        id=one.route.id if one else UUID(int=0),
        name=given.get("name", ""),
        prefix=given.get("prefix", "").removeprefix("+") or None,
        country=given.get("country", "").upper() or None,
        network=given.get("network") or None,
        organization_id=organization_id,
        sender=given.get("sender") or None,
        traffic_class=given.get("class") or None,
        priority=priority if priority is not None else 10,
        adaptive=given.get("adaptive") == "yes",
        rated=given.get("rated") == "yes",
        choices=tuple(sorted(choices, key=lambda choice: choice.supplier_id)),
    )
    if one is not None and set(route.choices) == set(one.route.choices):
        route = msgspec.structs.replace(route, choices=one.route.choices)
    with wrong.gathering():
        rules.checked(route, given.get("note", ""))
    wrong.report()
    return route


def _number(text: str, least: int) -> int | None:
    """A whole number from `least` to 1000; otherwise None."""
    try:
        return figures.within(text, Invalid(("number", "range", "")), least=least, most=1000)
    except Invalid:
        return None


def _shown(one: StoredRoute) -> dict[str, str]:
    """Every field's current value."""
    route = one.route
    shown = {
        "name": route.name,
        "prefix": route.prefix or "",
        "country": route.country or "",
        "network": route.network or "",
        "organization": one.organization or "",
        "sender": route.sender or "",
        "class": route.traffic_class or "",
        "priority": str(route.priority),
        "adaptive": "yes" if route.adaptive else "no",
        "rated": "yes" if route.rated else "no",
        "note": one.note,
    }
    for choice in route.choices:
        shown[PLACE + str(choice.supplier_id)] = str(choice.priority)
        shown[WEIGHT + str(choice.supplier_id)] = str(choice.weight)
    return shown


def _fields(one: StoredRoute | None, known: Sequence[Supplier]) -> dict[str, str]:
    """The current values of all fields, including those of suppliers that are not in the route."""
    places = {part + str(two.id): "" for two in known for part in (PLACE, WEIGHT)}
    return places | (_shown(one) if one else EMPTY)


def _values(one: StoredRoute | None, given: Given, known: Sequence[Supplier]) -> dict[str, Any]:
    return {
        "one": one,
        "given": given,
        "was": leaving.written(_fields(one, known) if one else {}),
        "suppliers": known,
        "classes": rules.CLASSES,
        "action": f"{HERE}/{one.route.id}/edit" if one else f"{HERE}/new",
        "back": f"{HERE}/{one.route.id}" if one else HERE,
    }
