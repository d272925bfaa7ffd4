"""One organization as a whole; suspend, resume, rename, grant quota."""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.accounts import organizations, quota
from heliograph.accounts.organizations import Organization, StateKept
from heliograph.accounts.quota import QuotaExceeded
from heliograph.audit import reading as audit
from heliograph.audit import reasons
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Problems
from heliograph.console import typed
from heliograph.console.acting import acting_for, organization
from heliograph.overview.installation import organizations as overview
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.requests import Request
from heliograph.people import memberships
from heliograph.people.operators.roles import MONEY_CHANGE, ORGANIZATIONS_CHANGE
from heliograph.sms.accepting import sender_ids

#: Audit log entries shown, and members and sender IDs, which have pages of their own.
HISTORY, FEW = 20, 50


async def show(request: Request) -> Answer:
    """The organization's overview."""
    return Page(template="organizations/one.html", values=await _values(request))


async def show_suspend(request: Request) -> Answer:
    """What suspending it will stop, before it does."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        stops = await overview.stops(conn, id=one.id)
    values = {"one": one, "stops": stops, "reason": request.form.get("reason", "")}
    return Page(template="organizations/suspend.html", values=values)


async def suspend(request: Request) -> Answer:
    """Suspend it: its keys and its people can only read from now on."""
    id, reason = request.id(), reasons.normalized(request.form.get("reason", ""))
    try:
        if reason is None:
            raise Invalid(("reason", "length", "Give a reason of at most 500 characters: it is kept in the audit log."))
        by = msgspec.structs.replace(request.principal, reason=reason)
        async with request.writing() as conn:
            await organizations.set_state(conn, id=id, state="suspended", unless=("closed",), by=by)
    except (Invalid, StateKept) as refusal:
        async with request.reading() as conn:
            one = await organization(conn, request, "id")
            stops = await overview.stops(conn, id=one.id)
        values = {"one": one, "stops": stops, "reason": request.form.get("reason", "")}
        # A page opened before it was closed must not reopen it: a suspended organization is renewed.
        closed = Invalid(("reason", "state", "It was closed in the meantime."))
        wrong = refusal if isinstance(refusal, Invalid) else closed
        return refused("organizations/suspend.html", wrong, values)
    said = request.text("It is suspended: its keys and its people can only read now.")
    return Redirect(location=f"/console/organizations/{id}", notice=said)


async def resume(request: Request) -> Answer:
    """Return it to the state it was in before it was suspended or closed."""
    id = request.id()
    # A page that showed it suspended must not reopen it once it was closed.
    unless = ("closed",) if request.form.get("state") == "suspended" else ()
    try:
        async with request.writing() as conn:
            resumed = await organizations.resume(conn, id=id, unless=unless, by=request.principal)
    except StateKept:
        said = request.text("It was closed in the meantime.")
        return Redirect(location=f"/console/organizations/{id}", notice=said, is_refusal=True)
    state = request.text(words.ORGANIZATION_STATES[resumed.state])
    said = request.text("It is resumed. Its state is: %(state)s.", state=state)
    return Redirect(location=f"/console/organizations/{id}", notice=said)


async def rename(request: Request) -> Answer:
    """Rename it; names are unique."""
    try:
        async with request.writing() as conn:
            one = await organization(conn, request, "id")
            await organizations.rename(conn, id=one.id, name=request.form.get("name", ""), by=request.principal)
    except Invalid as refusal:
        return refused("organizations/one.html", form_errors(refusal, typed.WRONG), await _values(request))
    return Redirect(location=f"/console/organizations/{one.id}", notice=request.text("Saved."))


async def grant(request: Request) -> Answer:
    """Grant quota, or reduce it by a negative number, with a reason that the organization reads."""
    form = request.form
    async with request.reading() as conn:
        one = await organization(conn, request, "id")

    async def work(conn: Connection) -> int:
        wrong, amount = Problems(), None
        with wrong.gathering():
            amount = typed.amount(form.get("amount", ""), "amount", is_signed=True)
        if amount is None:
            wrong.add("amount", "format", typed.AMOUNT)
        change = quota.adjust if form.get("kind") == "adjustment" else quota.grant
        with wrong.gathering():
            balance = await change(
                conn, one.id, amount=amount or 0, reason=form.get("reason", ""), by=request.principal
            )
        wrong.report()
        return balance.remaining

    try:
        left = await request.once(work, actor=acting_for(request, one))
    except Invalid as refusal:
        return refused("organizations/one.html", form_errors(refusal, typed.WRONG), await _values(request))
    except QuotaExceeded:
        wrong = Invalid(("amount", "range", "This would subtract more than is left."))
        return refused("organizations/one.html", wrong, await _values(request))
    said = request.locale.count("%(num)s message is left.", "%(num)s messages are left.", left)
    return Redirect(location=f"/console/organizations/{one.id}", notice=said)


async def _values(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        one: Organization = await organization(conn, request, "id")
        actor = acting_for(request, one)
        return {
            "one": one,
            "balance": await quota.get(conn, one.id),
            "members": await memberships.list_page(conn, actor, limit=FEW),
            "senders": await sender_ids.list_page(conn, actor, limit=FEW),
            "few": FEW,
            "history": await _history(conn, one),
            "name": request.form.get("name", one.name),
            "amount": request.form.get("amount", ""),
            "kinds": [(name, request.text(words.USAGE_ENTRIES[name])) for name in ("grant", "adjustment")],
            "kind": request.form.get("kind", "grant"),
            "reason": request.form.get("reason", ""),
            "may_change": request.may(permission=ORGANIZATIONS_CHANGE),
            "may_grant": request.may(permission=MONEY_CHANGE),
        }


async def _history(conn: Connection, one: Organization) -> list[audit.AuditEntry]:
    return (await audit.list_page(conn, audit.Filter(organization_id=one.id), limit=HISTORY)).entries
