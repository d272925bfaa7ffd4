"""Connecting an account step by step: each value is tried at Meta at once; then its first callback is awaited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Problems
from heliograph.base.process.settings import SettingsError
from heliograph.console import typed as form_input
from heliograph.console.whatsapp import editing
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.requests import Request
from heliograph.suppliers.whatsapp_cloud.address import API_VERSION, BASE_URL
from heliograph.suppliers.whatsapp_cloud.graph import CloudClient
from heliograph.whatsapp.mirror import apps, onboarding
from heliograph.whatsapp.mirror.accounts import AccountExists
from heliograph.whatsapp.mirror.sync import Reading

FIELDS = ("organization", "app_id", "app_secret", "waba_id", "token", "currency", "name", "base_url", "api_version")
TEMPLATE = "whatsapp/connect.html"
#: What is wrong with a value: by field, or by field and issue.
WRONG: Mapping[str | tuple[str, str], str] = {
    **editing.WRONG,
    **dict.fromkeys((("app_id", "pattern"), ("waba_id", "pattern")), "Meta's ids consist of digits only."),
    ("app_secret", "required"): "An app that is not known here needs its secret.",
    ("token", "pattern"): "A token is one word: paste it without spaces.",
    ("currency", "required"): "Meta names no currency: choose one.",
    ("currency", "pattern"): "Enter a three-letter currency code, such as EUR.",
}


class CheckedValue(msgspec.Struct, frozen=True):
    """One value, and Meta's response to it."""

    #: The field concerned.
    field: str
    is_well: bool
    said: str


async def show(request: Request) -> Answer:
    """The form."""
    return Page(template=TEMPLATE, values=_values(request, []))


async def submit(request: Request) -> Answer:
    """Try the values, or connect the account with them."""
    form = request.form
    try:
        async with request.writing() as conn:
            wrong = Problems()
            with wrong.gathering():
                organization = await form_input.organization(conn, form.get("organization", "").strip())
            with wrong.gathering():
                typed = _typed(form)
            wrong.report()
            client = _client(typed)
            try:
                if form.get("do") != "connect":
                    return Page(template=TEMPLATE, values=_values(request, await _try(request, conn, client, typed)))
                made = await onboarding.connect(
                    conn,
                    apps.seal_key(request.services.settings),
                    client,
                    organization_id=organization.id,
                    app_id=typed["app_id"],
                    app_secret=typed["app_secret"] or None,
                    verify_token=None,
                    waba_id=typed["waba_id"],
                    token=typed["token"],
                    currency=typed["currency"].upper() or None,
                    base_url=typed["base_url"],
                    api_version=typed["api_version"],
                    name=typed["name"],
                    subscribe=True,
                    by=request.principal,
                )
            finally:
                await client.close()
    except Invalid as refusal:
        return refused(TEMPLATE, form_errors(refusal, WRONG), _values(request, []))
    except AccountExists as refusal:
        known = Invalid(("waba_id", refusal.code, "This account is connected already."))
        return refused(TEMPLATE, known, _values(request, []))
    where = f"/console/whatsapp/accounts/{organization.id}/{made.account.id}"
    return Redirect(location=where, notice=request.text("It is connected. Now enter the callback address at Meta."))


async def _try(request: Request, conn: Connection, client: CloudClient, typed: dict[str, str]) -> list[CheckedValue]:
    key = apps.seal_key(request.services.settings)
    values = {name: typed[name] for name in ("app_id", "waba_id", "token")}
    found = await onboarding.attempt(conn, key, client, app_secret=typed["app_secret"] or None, **values)
    return _checked_values(request, found)


def _checked_values(request: Request, found: Reading) -> list[CheckedValue]:
    """Meta's responses, value by value, in the order of the form."""
    text, count = request.text, request.locale.count
    app_refused = next((one for one in found.problems if one.startswith("credential:")), None)
    is_valid = found.credential in ("ok", "expiring")
    told = [CheckedValue("app_secret", app_refused is None, app_refused or text("Meta knows the app and its secret."))]
    said = request.locale.sentence(found.credential_detail)
    said = said or text("Meta accepts the token, and it has all required permissions.")
    told.append(CheckedValue("token", is_valid, said if app_refused is None else text("It could not be checked.")))
    if found.numbers is None:
        problem = next((one for one in found.problems if one.startswith("numbers:")), "")
        return [*told, CheckedValue("waba_id", False, problem or text("The account cannot be read."))]
    name = found.account.name if found.account is not None else ""
    numbers = count("%(num)s number", "%(num)s numbers", len(found.numbers))
    templates = count("%(num)s template", "%(num)s templates", len(found.templates or ()))
    told.append(CheckedValue("waba_id", True, text("“%(name)s”: %(what)s.", name=name, what=f"{numbers}, {templates}")))
    if found.account is not None and found.account.currency is None:
        told.append(CheckedValue("currency", False, text("Meta names no currency: choose one.")))
    return told


def _typed(form: dict[str, str]) -> dict[str, str]:
    """The form's values as typed. Raises Invalid."""
    typed, wrong = {name: form.get(name, "").strip() for name in FIELDS}, Problems()
    for name in ("app_id", "waba_id"):
        if not (typed[name].isascii() and typed[name].isdigit()):
            wrong.add(name, "format", "Meta's ids consist of digits only.")
    if not typed["token"]:
        wrong.add("token", "required", "Paste the token.")
    wrong.report()
    return typed | {
        "base_url": typed["base_url"] or BASE_URL,
        "api_version": typed["api_version"] or API_VERSION,
    }


def _client(typed: dict[str, str]) -> CloudClient:
    try:
        return CloudClient(typed["base_url"], typed["api_version"])
    except SettingsError as error:
        raise Invalid(("base_url", "format", str(error))) from None


def _values(request: Request, tried: list[CheckedValue]) -> dict[str, Any]:
    form = request.form
    return {
        "typed": {name: form.get(name, "") for name in FIELDS} | {"base_url": form.get("base_url", BASE_URL)},
        "tried": {one.field: one for one in tried},
        "is_well": bool(tried) and all(one.is_well for one in tried),
        "api_version": form.get("api_version", API_VERSION),
        "needs_address": not request.services.settings.public_url,
    }
