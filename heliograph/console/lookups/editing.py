"""Adding, changing, pausing, resuming and removing look-up suppliers; every setting of a kind has a field, and the API
key is write-only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from heliograph.base.errors import Invalid
from heliograph.console.lookups.listing import HERE, find
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.forms import leaving
from heliograph.pages.pieces import confirming
from heliograph.pages.requests import Request
from heliograph.sms.dispatch import suppliers
from heliograph.sms.lookups import accounts, forms
from heliograph.sms.lookups.accounts import Account
from heliograph.suppliers.http.kind import SECRET
from heliograph.suppliers.lookups import kinds


async def show_new(request: Request) -> Answer:
    """The form with a field for each setting and its default."""
    kind = _kind(request.query.get("kind", ""))
    return Page(template="lookups/edit.html", values=_form(None, kind, {"name": ""} | _defaults(kind)))


async def add(request: Request) -> Answer:
    """Add it; from then on it is queried wherever a route names a network."""
    form = request.form
    kind = _kind(form.get("kind", ""))
    given = {"name": ""} | _defaults(kind) | {name: form[name] for name in ("name", *_defaults(kind)) if name in form}
    try:
        values = {name: value for name, value in forms.read(kind, _defaults(kind), given).items() if value is not None}
        if not form.get(SECRET):
            raise Invalid((SECRET, "required", "Type its API key."))
        async with request.writing() as conn:
            id = await accounts.add(
                conn,
                suppliers.seal_key(request.services.settings),
                name=given["name"].strip(),
                kind=kind,
                values=values,
                secrets={SECRET: form[SECRET]},
                by=request.principal,
            )
    except Invalid as refusal:
        return refused("lookups/edit.html", refusal, _form(None, kind, given))
    said = request.text("%(name)s is added: workers use it within seconds.", name=given["name"].strip())
    return Redirect(location=f"{HERE}/{id}", notice=said)


async def show(request: Request) -> Answer:
    """The form with the current values."""
    async with request.reading() as conn:
        one = await find(conn, request.id())
    return Page(template="lookups/edit.html", values=_form(one, one.kind, forms.shown(one)))


async def change(request: Request) -> Answer:
    """Save the form; an emptied field returns to its default."""
    async with request.reading() as conn:
        one = await find(conn, request.id())
    before = forms.shown(one)
    given = before | {name: request.form[name] for name in before if name in request.form}
    given |= leaving.current_values(request.form, before)
    try:
        values = forms.read(one.kind, before, given)
        if values:
            async with request.writing() as conn:
                key = suppliers.seal_key(request.services.settings)
                await accounts.change(conn, key, account=str(one.id), values=values, by=request.principal)
    except Invalid as refusal:
        return refused("lookups/edit.html", refusal, _form(one, one.kind, given))
    said = request.text("Saved: workers apply it within seconds.") if values else request.text("Nothing was changed.")
    return Redirect(location=f"{HERE}/{one.id}", notice=said)


async def show_key(request: Request) -> Answer:
    """An empty field for its API key."""
    async with request.reading() as conn:
        one = await find(conn, request.id())
    return Page(template="lookups/key.html", values={"one": one, "meaning": kinds.KINDS[one.kind].secrets[SECRET]})


async def replace_key(request: Request) -> Answer:
    """Replace the API key."""
    async with request.reading() as conn:
        one = await find(conn, request.id())
    try:
        if not request.form.get(SECRET):
            raise Invalid((SECRET, "required", "Type its API key."))
        async with request.writing() as conn:
            await accounts.change(
                conn,
                suppliers.seal_key(request.services.settings),
                account=str(one.id),
                values={},
                secrets={SECRET: request.form[SECRET]},
                by=request.principal,
            )
    except Invalid as refusal:
        values = {"one": one, "meaning": kinds.KINDS[one.kind].secrets[SECRET]}
        return refused("lookups/key.html", refusal, values)
    return Redirect(location=f"{HERE}/{one.id}", notice=request.text("Saved: workers apply it within seconds."))


async def pause(request: Request) -> Answer:
    """Stop querying it: numbers are routed by what is already known about them."""
    said = request.text("It is paused: numbers are routed by what is already known about them.")
    return await _set(request, "paused", said, "resume")


async def resume(request: Request) -> Answer:
    """Query it again."""
    return await _set(request, "active", request.text("It is used again within seconds."), "pause")


async def show_remove(request: Request) -> Answer:
    """What removing it would lose."""
    async with request.reading() as conn:
        return Page(template="lookups/remove.html", values={"one": await find(conn, request.id())})


async def remove(request: Request) -> Answer:
    """Remove it with its API key, once its name is typed to confirm."""
    async with request.reading() as conn:
        one = await find(conn, request.id())
    try:
        confirming.check(request, one.name)
    except Invalid as refusal:
        return refused("lookups/remove.html", refusal, {"one": one})
    async with request.writing() as conn:
        await accounts.set_state(conn, account=str(one.id), state="removed", by=request.principal)
    return Redirect(location=HERE, notice=request.text("%(name)s is removed.", name=one.name))


async def _set(request: Request, state: Literal["active", "paused"], said: str, undo: str) -> Answer:
    id = request.id()
    async with request.writing() as conn, conn.transaction():
        before = await accounts.find(conn, str(id), query=accounts.LOCK)
        await accounts.set_state(conn, account=str(id), state=state, by=request.principal)
    # If it was in that state already, it was perhaps somebody else who put it there.
    return Redirect(location=f"{HERE}/{id}", notice=said, undo=f"{HERE}/{id}/{undo}" if before.state != state else "")


def _kind(text: str) -> str:
    return text if text in kinds.KINDS else next(iter(kinds.KINDS))


def _defaults(kind: str) -> dict[str, str]:
    return {one.name: one.default for one in forms.fields(kind)}


def _form(one: Account | None, kind: str, given: Mapping[str, str]) -> dict[str, Any]:
    asked = forms.fields(kind)
    return {
        "one": one,
        "kind": kind,
        "title": kinds.KINDS[kind].title,
        "kinds": [(name, found.title) for name, found in kinds.KINDS.items()],
        "asked": asked,
        "labels": {field.name: field.name for field in asked},
        "given": given,
        "was": leaving.written(forms.shown(one) if one else {}),
        "meaning": kinds.KINDS[kind].secrets[SECRET],
        "action": f"{HERE}/{one.id}/edit" if one else f"{HERE}/new",
        "back": f"{HERE}/{one.id}" if one else HERE,
    }
