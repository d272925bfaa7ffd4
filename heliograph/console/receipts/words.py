"""Unknown states and error codes in receipts, and the forms to say what they mean."""

from __future__ import annotations

from typing import Any

from heliograph.base.errors import Invalid
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import TRAFFIC_CHANGE
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.reports import words

HERE = "/console/receipts/words"


async def show(request: Request) -> Answer:
    """Unknown states and codes of the last seven days."""
    return await _page(request)


async def say_state(request: Request) -> Answer:
    """Set the meaning of a state, from now on."""
    form = request.form
    key = suppliers.seal_key(request.services.settings)
    try:
        async with request.writing() as conn:
            await words.say_state(
                conn,
                key,
                supplier=form.get("supplier", ""),
                word=form.get("word", ""),
                meaning=form.get("meaning", ""),
                by=request.principal,
            )
    except Invalid as refusal:
        return await _page(request, refusal)
    return Redirect(location=HERE, notice=request.text("It applies from the next receipt on."))


async def say_error(request: Request) -> Answer:
    """Add a note to an error code, for its readers."""
    form = request.form
    try:
        async with request.writing() as conn:
            await words.say_error(
                conn,
                supplier=form.get("supplier", ""),
                word=form.get("word", ""),
                meaning=form.get("meaning", ""),
                by=request.principal,
            )
    except Invalid as refusal:
        return await _page(request, refusal)
    return Redirect(location=HERE, notice=request.text("It is noted."))


async def _page(request: Request, problem: Invalid | None = None) -> Page:
    async with request.reading() as conn:
        known, simulators = await routing.load(conn), await routing.simulators(conn)
        states = await words.unknown_states(conn)
        codes = await words.error_codes(conn)
    values: dict[str, Any] = {
        "simulators": simulators,
        "states": [(one.name, words.state_setting(one), states[one.id]) for one in known if one.id in states],
        "codes": [(one.name, codes[one.id]) for one in known if one.id in codes],
        "meanings": words.MEANINGS,
        "longest": words.LONGEST_MEANING,
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
    return Page(template="receipts/words.html", values=values, status=422 if problem else 200, refusal=problem)
