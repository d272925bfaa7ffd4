"""Where organizations' senders are registered, by country, network and supplier, and updating the status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from heliograph.accounts import organizations
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.console import typed as form_input
from heliograph.console.acting import acting_for
from heliograph.console.routing.descriptions import network_error
from heliograph.networks import plan
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import TRAFFIC_CHANGE
from heliograph.senders import registrations
from heliograph.senders.book import STATES
from heliograph.sms.accepting import sender_ids
from heliograph.sms.accepting.sender_ids import SenderId
from heliograph.sms.dispatch import routing

HERE = "/console/routes/registrations"
#: Registrations per page.
LISTED = 500
#: Fields of the form, as in `heliograph sender register`.
FIELDS = ("organization", "sender", "state", "country", "network", "supplier", "note")
#: The rules' refusals in the form's wording.
WRONG: dict[str, str] = {
    "country": "Enter a two-letter country code, such as MZ.",
    "state": "Choose one of those that are offered.",
    "note": "A note can have at most 500 characters.",
}


async def show(request: Request) -> Answer:
    """Registrations of all organizations, or of one, with the form."""
    return Page(template="routing/registrations.html", values=await _values(request, request.query))


async def register(request: Request) -> Answer:
    """Set the status of a registration; the organization sees it, without the supplier."""
    form = {name: request.form.get(name, "").strip() for name in FIELDS}
    wrong, country = Problems(), form["country"].upper()
    try:
        async with request.writing() as conn, conn.transaction():
            with wrong.gathering():
                one = await form_input.organization(conn, form["organization"])
                sender = await _sender(conn, acting_for(request, one), form["sender"])
            with wrong.gathering():
                registrations.check(country=country, state=form["state"], network=form["network"], note=form["note"])
            with wrong.gathering():
                supplier_id = await _supplier(request, form["supplier"])
            wrong.report()
            await registrations.put(
                conn,
                organization_id=one.id,
                sender_id=sender.id,
                sender=sender.value,
                country=country,
                network=form["network"],
                supplier_id=supplier_id,
                state=form["state"],
                note=form["note"],
                by=request.principal,
            )
    except Invalid as refusal:
        shown = form_errors(refusal, WRONG | {"network": network_error(form["network"])})
        return refused("routing/registrations.html", shown, await _values(request, form))
    state = request.text(words.REGISTRATIONS[form["state"]])
    said = request.text("Recorded: %(sender)s, %(state)s.", sender=sender.value, state=state)
    if warning := plan.unlisted([form["network"]]):
        said = f"{said} {request.locale.sentence(warning)}"
    return Redirect(location=request.to(HERE, organization=one.name), notice=said)


async def _sender(conn: Connection, actor: Actor, text: str) -> SenderId:
    """Its sender ID. Raises Invalid."""
    try:
        return await sender_ids.find(conn, actor, which=text)
    except NotFound:
        raise Invalid(("sender", "unknown", "The organization has no such sender ID.")) from None


async def _supplier(request: Request, text: str) -> UUID | None:
    """The chosen supplier; None: any. Raises Invalid."""
    if not text:
        return None
    async with request.reading() as conn:
        for one in await routing.load(conn):
            if str(one.id) == text:
                return one.id
    raise Invalid(("supplier", "unknown", "There is no such supplier."))


async def _values(request: Request, given: Mapping[str, str]) -> dict[str, Any]:
    typed = {name: given.get(name, "") for name in FIELDS}
    typed["state"] = typed["state"] or STATES[0]
    asked = request.query.get("organization", "").strip()
    async with request.reading() as conn:
        organization_id, is_unknown = None, False
        if asked:
            try:
                organization_id = (await organizations.find(conn, reference=asked)).id
            except (NotFound, Invalid):
                is_unknown = True
        found = (
            [] if is_unknown else await registrations.everywhere(conn, organization_id=organization_id, limit=LISTED)
        )
        suppliers = [(str(one.id), one.name) for one in await routing.load(conn)]
    return {
        "rows": found,
        "is_cut": len(found) == LISTED,
        "asked": asked,
        "typed": typed,
        "said": {name: request.text(words.REGISTRATIONS[name]) for name in STATES},
        "suppliers": suppliers,
        "ids": {name: id for id, name in suppliers},
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
