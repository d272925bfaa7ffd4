"""An organization's rules for the guard: how findings are treated, what is never held, an announced event, and how
many messages of a class are not suspicious; shown with the countries that it may send to."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from heliograph.base.database import clock
from heliograph.base.errors import Invalid, Problems
from heliograph.classes import kinds
from heliograph.console import typed
from heliograph.console.acting import organization
from heliograph.guard import rules
from heliograph.guard.rules import Rules
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.forms import guard_rules, leaving
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import ORGANIZATIONS_CHANGE

TEMPLATE = "guard/rules.html"
#: Choices for the days of an announced event; the form also has "": none, and "same": unchanged.
EVENTS = ("1", "3", "7", str(rules.EVENT.days))
#: Fields of the form.
FIELDS = (*guard_rules.FIELDS, "event")


async def show(request: Request) -> Answer:
    """Its rules, or the defaults."""
    return Page(template=TEMPLATE, values=await _values(request))


async def save(request: Request) -> Answer:
    """Save all rules at once."""
    try:
        async with request.writing() as conn, conn.transaction():
            one = await organization(conn, request)
            known = await rules.rules_of(conn, one.id)
            form = leaving.typed(request.form, FIELDS, _shown(known))
            event = form["event"]
            wrong, limits = Problems(), dict[str, int | None]()
            if event not in ("", "same", *EVENTS):
                wrong.add("event", "enum", "Choose one of those that are offered.")
            for name in kinds.NAMES:
                with wrong.gathering():
                    limits[name] = typed.amount(form[f"limit_{name}"], f"limit_{name}")
            until = msgspec.UNSET if event == "same" else None
            with wrong.gathering():
                await rules.configure(
                    conn,
                    one.id,
                    policy=form["policy"] or None,
                    safe=guard_rules.ranges(form["safe"]),
                    event_until=clock.now() + timedelta(days=int(event)) if event in EVENTS else until,
                    limits=limits,
                    by=request.principal,
                )
            wrong.report()
    except Invalid as refusal:
        return refused(TEMPLATE, _form_refusal(refusal), await _values(request))
    return Redirect(location=f"/console/guard/rules/{one.id}", notice=request.text("Saved."))


def _form_refusal(refusal: Invalid) -> Invalid:
    """The rules' refusals in the form's wording."""
    return Invalid(
        *(
            (field, one["issue"], words.LIMITS_FORM.get((field, one["issue"]), one["message"]))
            for one in refusal.details["fields"]
            for field in [one["field"].replace("limits.", "limit_")]
        )
    )


def _shown(known: Rules) -> dict[str, str]:
    """The current values of the fields."""
    return guard_rules.shown(known) | {"event": "same" if known.event_until else ""}


async def _values(request: Request) -> dict[str, Any]:
    text = request.text
    async with request.reading() as conn:
        one = await organization(conn, request)
        known = await rules.rules_of(conn, one.id)
    shown = _shown(known)
    form = leaving.typed(request.form, FIELDS, shown) if request.method == "POST" else shown
    days = [(day, request.locale.count("for %(num)s day", "for %(num)s days", int(day))) for day in EVENTS]
    stays = [("same", text("as announced"))] if known.event_until else []
    return {
        "one": one,
        "known": known,
        "policies": [(name, text(called), text(more)) for name, called, more in words.GUARD_POLICIES],
        "was": leaving.written(shown),
        "policy": form["policy"],
        "safe": form["safe"],
        "events": [*stays, ("", text("none")), *days],
        "event": form["event"],
        "limits": [(f"limit_{name}", text(words.GUARD_CLASSES[name]), form[f"limit_{name}"]) for name in kinds.NAMES],
        "labels": guard_rules.labels(request),
        "may_change": request.may(permission=ORGANIZATIONS_CHANGE),
    }
