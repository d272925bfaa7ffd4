"""An account's name here, and the address of its Graph API; the difference is shown before saving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.console.acting import organization
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.forms import leaving
from heliograph.pages.requests import Request
from heliograph.suppliers.whatsapp_cloud.address import API_VERSION, BASE_URL
from heliograph.whatsapp.mirror import accounts, apps, onboarding
from heliograph.whatsapp.mirror.accounts import BusinessAccount

FORM, DIFFERENCE = "whatsapp/edit.html", "whatsapp/difference.html"
#: Fields, with their defaults, and their names in a difference.
FIELDS = {"name": ("", "Name"), "base_url": (BASE_URL, "Base URL"), "api_version": (API_VERSION, "Version")}
#: Texts for invalid values.
WRONG: Mapping[str | tuple[str, str], str] = {
    "name": "A name can have at most 200 characters, all of them visible.",
    "base_url": "An address of the Graph API begins with https://; http:// is only for this machine.",
    "api_version": "A version looks like v25.0.",
}


async def show(request: Request) -> Answer:
    """The form with the current values."""
    async with request.reading() as conn:
        one = await _account(conn, request)
    return Page(template=FORM, values=_values(one, _shown(one)))


async def change(request: Request) -> Answer:
    """Show the difference; once confirmed, save it."""
    form = request.form
    async with request.reading() as conn:
        one = await _account(conn, request)
    before = _shown(one)
    given = before | {name: form[name].strip() or FIELDS[name][0] for name in FIELDS if name in form}
    given["base_url"] = given["base_url"].rstrip("/")
    given |= leaving.current_values(form, before)
    values = _values(one, given)
    if form.get("do") == "again":
        return Page(template=FORM, values=values)
    changed = {name: text for name, text in given.items() if text != before[name]}
    # The state that the difference page showed; that page itself is made from the current state.
    seen = msgspec.structs.replace(one, **{name: form.get(f"seen_{name}", before[name]) for name in FIELDS})
    try:
        if not changed and seen == one:
            return Redirect(location=values["here"], notice=request.text("Nothing was changed."))
        accounts.check(name=given["name"], base_url=given["base_url"], api_version=given["api_version"])
        if form.get("do") != "save":
            told = [(request.text(FIELDS[name][1]), before[name], text) for name, text in changed.items()]
            return Page(template=DIFFERENCE, values=values | {"differences": told, "before": before})
        async with request.writing() as conn:
            await accounts.update(
                conn,
                apps.seal_key(request.services.settings),
                organization_id=one.organization_id,
                account_id=one.id,
                seen=seen,
                by=request.principal,
                **given,
            )
    except Invalid as refusal:
        wrong = [(one["field"], one["issue"], WRONG[one["field"]]) for one in refusal.details["fields"]]
        is_moved = any(issue == "moved" for _, issue, _ in wrong)
        return refused(FORM, refusal if is_moved else Invalid(*wrong), values)
    return Redirect(location=values["here"], notice=request.text("Saved: it takes effect within a second."))


async def _account(conn: Connection, request: Request) -> BusinessAccount:
    """The account in the address. Raises NotFound."""
    of = await organization(conn, request)
    return await onboarding.find_account(conn, of.id, str(request.id()))


def _shown(one: BusinessAccount) -> dict[str, str]:
    return {"name": one.name, "base_url": one.base_url, "api_version": one.api_version}


def _values(one: BusinessAccount, given: dict[str, str]) -> dict[str, Any]:
    was = leaving.written(_shown(one))
    return {
        "one": one,
        "given": given,
        "was": was,
        "here": f"/console/whatsapp/accounts/{one.organization_id}/{one.id}",
    }
