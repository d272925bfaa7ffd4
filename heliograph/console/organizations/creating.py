"""Creates an organization with plan, quota, sender ID and its first owner's invitation in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from heliograph.accounts import organizations, plans, quota
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Problems
from heliograph.console import typed
from heliograph.console.credentials.senders import shared_note
from heliograph.mail import outbox
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, form_errors, refused
from heliograph.pages.people import team
from heliograph.pages.requests import Request
from heliograph.people import invitations, users
from heliograph.sms.accepting import sender_ids
from heliograph.sms.received import unassigned

#: Initial states of an organization.
FIRST = ("active", "trial")
#: Rules' fields that the form calls differently.
NAMED = {"value": "sender", "allowance": "quota"}
WRONG: Mapping[str | tuple[str, str], str] = {**typed.WRONG, "sender": words.SENDER_FORM["value"]}


async def show(request: Request) -> Answer:
    """The form."""
    values = _typed(request)
    if begins_with := request.services.installation.last.new_quota:
        values["quota"] = str(begins_with)
    return Page(template="organizations/new.html", values=values)


async def create(request: Request) -> Answer:
    """Create it, and show the link of the first owner's invitation, once."""
    # Until it exists, what was done is stored under the operator's id, so that a double click gets the same link.
    operator = Actor(request.user_id, None, "live", frozenset(), "active", by=request.principal)
    try:
        made = await request.once(partial(_create, request), has_secret=True, actor=operator)
    except Invalid as refusal:
        return refused("organizations/new.html", form_errors(refusal, WRONG, fields=NAMED), _typed(request))
    token, sends = made.pop("token"), outbox.of(request.services.settings) is not None
    link = invitations.address(team.base(request), token) if token else ""
    return Page(template="organizations/made.html", values=made | {"link": link, "sends": sends})


async def _create(request: Request, conn: Connection) -> dict[str, Any]:
    """Values for `made.html`, and the invitation's token. Raises Invalid with all errors."""
    form = request.form
    country, plan, value, email = (form.get(name, "").strip() for name in ("country", "plan", "sender", "email"))
    wrong, amount, months = Problems(), None, None
    with wrong.gathering():
        amount = typed.amount(form.get("quota", ""), "quota")
    with wrong.gathering():
        months = typed.amount(form.get("months", ""), "months")
    terms = plans.Terms(plan, amount, 1 if months is None else months)
    if form.get("state", "active") not in FIRST:
        wrong.add("state", "enum", "Choose one of these states.")
    with wrong.gathering():
        if plan:
            plans.check(terms)
    with wrong.gathering():
        if value:
            sender_ids.check(value)
    with wrong.gathering():
        if email:
            users.checked_email(email)
    # Here too: whether the name is taken is known only once it is inserted, and the transaction undoes that.
    with wrong.gathering():
        made = await organizations.create(
            conn,
            name=form.get("name", ""),
            state=form.get("state", "active"),
            country=country or None,
            by=request.principal,
        )
    wrong.report()
    actor = Actor(made.id, None, "live", frozenset(), made.state, by=request.principal)
    if plan:
        await plans.subscribe(conn, made.id, terms, now=clock.now(), by=request.principal)
    elif amount:
        await quota.grant(conn, made.id, amount=amount, reason="initial", by=request.principal)
    sender, note = None, ""
    if value:
        asked = await sender_ids.request(conn, actor, value=value)
        sender = await sender_ids.review(conn, actor, id=asked.id, status="approved")
        note = shared_note(request, await unassigned.also_of(conn, actor, sender)).strip()
    token, is_mailed = "", False
    if email:
        box, language = outbox.of(request.services.settings), request.locale.language
        _, token, is_mailed = await invitations.invite(
            conn, actor, email=email, role="owner", box=box, language=language
        )
    return {
        "one": {"id": str(made.id), "name": made.name},
        "waits": sender is not None and sender.status != "approved",
        "sender": value,
        "note": note,
        "email": email,
        "is_mailed": is_mailed,
        "token": token,
    }


def _typed(request: Request) -> dict[str, Any]:
    names = ("name", "country", "plan", "quota", "sender", "email")
    return {
        "states": [(name, request.text(words.ORGANIZATION_STATES[name])) for name in FIRST],
        "state": request.form.get("state", "active"),
        "months": request.form.get("months", "1"),
        **{name: request.form.get(name, "") for name in names},
    }
