"""All of a supplier's options, changed in a form generated from the struct of its kind. The difference, and how it
would shift yesterday's traffic, is shown before saving. Its password has a separate form and is write-only."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.console.routing import descriptions
from heliograph.console.suppliers.listing import HERE, find
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.forms import leaving
from heliograph.pages.requests import Request
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.dispatch.suppliers import SupplierExists
from heliograph.sms.management import changing, forms, options, rerouting
from heliograph.sms.management.sections import sections

#: Groups of settings that have a section.
GROUPS = ("connection", "limits", "times", "protocol")
PARTS = ("all", "any", "first", "last")
#: Options that choose the supplier where no route does.
ROUTING = {"prefixes", "priority", "weight", "simulated"}


async def show(request: Request) -> Answer:
    """The form with the current values."""
    async with request.reading() as conn:
        one = await find(conn, request.id())
    return Page(template="suppliers/supplier_edit.html", values=_form(one, _shown(one)))


async def change(request: Request) -> Answer:
    """Show the difference; once confirmed, save it."""
    form, id = request.form, request.id()
    async with request.reading() as conn:
        one = await find(conn, id)
    given = _shown(one) | {name: form[name] for name in _shown(one) if name in form}
    given |= leaving.current_values(form, _shown(one))
    if form.get("do") == "again":
        return Page(template="suppliers/supplier_edit.html", values=_form(one, given))
    try:
        after = forms.changed(one, given)
        found = options.differences(one, after)
        if not found:
            return Redirect(location=f"{HERE}/{id}", notice=request.text("Nothing was changed."))
        seen = _shown_at(form.get("seen", "")) if form.get("do") == "save" else one.changed_at
        key = suppliers.seal_key(request.services.settings)

        async def work(conn: Connection) -> None:
            await changing.change(
                conn,
                key,
                supplier=str(id),
                wanted=lambda before: (forms.changed(before, given), {}),
                seen_at=seen,
                by=request.principal,
            )

        if form.get("do") != "save":
            values = _form(one, given) | {"differences": _differences(found), "seen": one.changed_at.isoformat()}
            if ROUTING & {each["setting"] for each in found}:
                values |= await _moves(request, work)
            return Page(template="suppliers/supplier_difference.html", values=values)
        async with request.writing() as conn:
            await work(conn)
    except SupplierExists:
        wrong = Invalid(("name", "taken", "There is already a supplier with this name."))
        return refused("suppliers/supplier_edit.html", wrong, _form(one, given))
    except Invalid as refusal:
        return refused("suppliers/supplier_edit.html", refusal, _form(one, given))
    return Redirect(location=f"{HERE}/{id}", notice=request.text("Saved: workers apply it within a second."))


async def show_password(request: Request) -> Answer:
    """An empty field for each secret of its kind."""
    async with request.reading() as conn:
        one = await find(conn, request.id())
    return Page(template="suppliers/supplier_password.html", values={"one": one, "secrets": changing.secrets(one.kind)})


async def replace_password(request: Request) -> Answer:
    """Replace secrets; those with an empty field stay."""
    id = request.id()
    async with request.reading() as conn:
        one = await find(conn, id)
    try:
        given = changing.given_secrets(one.kind, request.form)
        async with request.writing() as conn:
            await changing.change(
                conn,
                suppliers.seal_key(request.services.settings),
                supplier=str(id),
                wanted=lambda before: (before, given),
                by=request.principal,
            )
    except Invalid as refusal:
        return refused("suppliers/supplier_password.html", refusal, {"one": one, "secrets": changing.secrets(one.kind)})
    return Redirect(location=f"{HERE}/{id}", notice=request.text("Replaced: workers reconnect within a second."))


async def _moves(request: Request, work: Callable[[Connection], Awaitable[None]]) -> dict[str, Any]:
    """The traffic that the change would shift, found by making the change and rolling it back."""
    async with request.writing() as conn:
        _, found = await rerouting.tried(conn, work)
        names = {two.id: two.name for two in await routing.load(conn)}
    return descriptions.preview(found, names)


def _shown(one: Supplier) -> dict[str, str]:
    """The current value of every field, by its name in the form."""
    settings = {forms.OPTION + name: text for name, text in forms.shown(one.kind, one.settings).items()}
    return forms.shown_row(one) | settings


def _form(one: Supplier, given: dict[str, str]) -> dict[str, Any]:
    return {
        "one": one,
        "given": given,
        "was": leaving.written(_shown(one)),
        "parts": PARTS,
        "prefix": forms.OPTION,
        "sections": sections(one.kind, given, GROUPS),
    }


def _differences(found: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(one["setting"], options.written(one["before"]), options.written(one["after"])) for one in found]


def _shown_at(text: str) -> datetime.datetime | None:
    try:
        return msgspec.convert(text, datetime.datetime, strict=False)
    except msgspec.ValidationError:
        raise Invalid(("name", "moved", "This form does not come from this site. Reload the page.")) from None
