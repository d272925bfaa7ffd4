"""The last step of adding a supplier: its rank among the others, and its routes.

How this would shift yesterday's traffic is shown first; it is found by making the change and rolling it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.console.routing import descriptions
from heliograph.console.suppliers import wizard
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.requests import Request
from heliograph.routes import rules
from heliograph.routes.lookup import Choice
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.dispatch.suppliers import SupplierExists
from heliograph.sms.management import drafts, forms, rerouting
from heliograph.sms.management.drafts import Draft

#: Prefix of a route's id in field names: the supplier is added to this route.
ROUTE = "route-"
PAUSE = "pause_simulators"


async def show(request: Request) -> Answer:
    """The form for its rank and routes."""
    draft = await wizard.read(request)
    return Page(template="suppliers/wizard_place.html", values=await _values(request, draft, wizard.kept(draft)))


async def finish(request: Request) -> Answer:
    """Put the supplier into service; pauses simulators if this is ticked and it is not one itself. The traffic that
    this would shift is shown first."""
    draft, form = await wizard.read(request), request.form
    given = wizard.kept(draft) | {name: form[name] for name in forms.ROW if name in form}
    if form.get("do") == "again":
        return Page(template="suppliers/wizard_place.html", values=await _values(request, draft, given))
    key = suppliers.seal_key(request.services.settings)
    try:
        place = wizard.placed(draft, given)

        async def work(conn: Connection) -> tuple[UUID, list[str]]:
            await drafts.save(conn, key, place)
            made = await drafts.finish(conn, key, draft.id, by=request.principal)
            joined = await _join(conn, request, made, place.place)
            if form.get(PAUSE) and not place.place["simulated"]:
                for one in await routing.load(conn):
                    if one.simulated and one.state == "active":
                        await suppliers.set_state(conn, supplier=str(one.id), state="paused", by=request.principal)
            return made, joined

        if form.get("do") != "save":
            async with request.writing() as conn:
                (made, _), found = await rerouting.tried(conn, work)
                names = {one.id: one.name for one in await routing.load(conn)} | {made: place.name}
            if found.most or found.refused or found.lookups:
                chosen = {name: value for name, value in form.items() if name.startswith(ROUTE) or name == PAUSE}
                typed = {name: given[name] for name in forms.ROW if name in given}
                values = wizard.steps(draft, "place") | descriptions.preview(found, names) | {"given": typed | chosen}
                return Page(template="suppliers/wizard_preview.html", values=values)
        async with request.writing() as conn, conn.transaction():
            made, joined = await work(conn)
    except SupplierExists:
        wrong = Invalid(("name", "taken", "There is already a supplier with this name."))
        return refused("suppliers/wizard_place.html", wrong, await _values(request, draft, given))
    except Invalid as refusal:
        return refused("suppliers/wizard_place.html", refusal, await _values(request, draft, given))
    said = request.text("%(name)s is added: workers connect to it within a second.", name=place.name)
    if joined:
        said += " " + request.text("Added to these routes: %(routes)s.", routes=", ".join(joined))
    return Redirect(location=f"{wizard.LIST}/{made}", notice=said)


async def _join(conn: Connection, request: Request, made: UUID, place: Mapping[str, Any]) -> list[str]:
    """Add it to the ticked routes, with its priority and weight; returns their names. Raises Invalid."""
    chosen = []
    for one in await rules.load(conn):
        if request.form.get(f"{ROUTE}{one.route.id}") == "yes":
            before = await rules.lock(conn, route=str(one.route.id))
            choices = [*before.route.choices, Choice(made, place["priority"], place["weight"])]
            after = msgspec.structs.replace(
                before.route, choices=tuple(sorted(choices, key=lambda choice: choice.supplier_id))
            )
            await rules.change(conn, before, after, by=request.principal)
            chosen.append(after.name)
    return chosen


async def _values(request: Request, draft: Draft, given: Mapping[str, str]) -> dict[str, Any]:
    async with request.reading() as conn:
        others, routes = await routing.load(conn), await rules.load(conn)
    return wizard.steps(draft, "place") | {
        "given": given,
        "routes": [(one, request.form.get(f"{ROUTE}{one.route.id}") == "yes") for one in routes],
        "prefix": ROUTE,
        "others": others,
        "simulators": [one for one in others if one.simulated and one.state == "active"],
        # Ticked in the initial form.
        "pauses": bool(request.form.get(PAUSE)) or not request.form,
    }
