"""An organization's API keys: created with every option, viewed, renamed and rotated by an operator."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from heliograph.accounts.api_keys import issued, lifecycle
from heliograph.accounts.api_keys.issued import ApiKey
from heliograph.accounts.api_keys.lifecycle import KeyNotActive, KeyReplaced, TooManyActiveKeys
from heliograph.accounts.api_keys.scopes import PROFILES, SCOPES
from heliograph.accounts.organizations import Organization
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Problems
from heliograph.console import typed
from heliograph.console.acting import acting_for, organization
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.pieces.key_form import OFFERED, OVERLAPS, overlaps
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import ORGANIZATIONS_CHANGE

#: The rules' refusals in the forms' wording.
WRONG: Mapping[str | tuple[str, str], str] = {
    ("name", "pattern"): "A name must not contain control characters.",
    "name": "A name must have 1 to 100 characters.",
    "allowed_ips": "List addresses or networks, such as 203.0.113.0/24.",
    "mode": "Choose live or test.",
    "profile": "Choose one of those that are offered.",
    "scopes": "Choose at least one scope.",
    "expires_at": "Choose a day in the future.",
}


async def show_new(request: Request) -> Answer:
    """The form for a key."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
    return Page(template="credentials/key_new.html", values=_typed(request, one))


async def create(request: Request) -> Answer:
    """Create a key, and show its secret, once."""
    form = request.form
    async with request.reading() as conn:
        one = await organization(conn, request, "id")

    async def work(conn: Connection) -> dict[str, str]:
        wrong, profile, ends = Problems(), form.get("profile", ""), None
        with wrong.gathering():
            ends = typed.day("expires_at", form.get("expires_at", ""))
        with wrong.gathering():
            key, secret = await lifecycle.issue(
                conn,
                acting_for(request, one),
                name=form.get("name", ""),
                profile=profile or None,
                scopes=None if profile else [scope for scope in SCOPES if form.get(f"scope.{scope}") == "yes"],
                mode=form.get("mode", ""),
                allowed_ips=form.get("allowed_ips", "").replace(",", " ").split(),
                expires_at=None if ends is None else clock.midnight(ends),
            )
        wrong.report()
        return {"name": key.name, "secret": secret}

    try:
        made = await request.once(work, has_secret=True, actor=acting_for(request, one))
    except Invalid as refusal:
        return refused("credentials/key_new.html", form_errors(refusal, WRONG), _typed(request, one))
    except TooManyActiveKeys as refusal:
        wrong = Invalid(("name", refusal.code, refusal.message))
        return refused("credentials/key_new.html", wrong, _typed(request, one))
    return Page(template="credentials/key_made.html", values={"one": one, "key": made, "secret": made["secret"]})


async def show(request: Request) -> Answer:
    """A key with its rights, and the forms that change it."""
    return Page(template="credentials/key.html", values=await _values(request))


async def rename(request: Request) -> Answer:
    """Rename a key."""
    try:
        async with request.writing() as conn:
            one = await organization(conn, request, "id")
            name = request.form.get("name", "")
            await lifecycle.rename(conn, acting_for(request, one), id=request.id("key"), name=name)
    except Invalid as refusal:
        return refused("credentials/key.html", form_errors(refusal, WRONG), await _values(request))
    return Redirect(location=_path(one, request), notice=request.text("The key is renamed."))


async def rotate(request: Request) -> Answer:
    """Create a key with the same rights, and show its secret, once; the old one expires later."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")

    async def work(conn: Connection) -> dict[str, str]:
        hours = request.form.get("overlap", "")
        if hours not in {str(one) for one in OVERLAPS}:
            raise Invalid(("overlap", "enum", "Choose one of the times that are offered."))
        made, secret, old = await lifecycle.rotate(
            conn, acting_for(request, one), id=request.id("key"), overlap=timedelta(hours=int(hours))
        )
        assert old.expires_at is not None
        return {"name": made.name, "secret": secret, "ends": old.expires_at.isoformat()}

    try:
        made = await request.once(work, has_secret=True, actor=acting_for(request, one))
    except Invalid as refusal:
        return refused("credentials/key.html", refusal, await _values(request))
    except (TooManyActiveKeys, KeyReplaced, KeyNotActive) as refusal:
        wrong = Invalid(("overlap", refusal.code, refusal.message))
        return refused("credentials/key.html", wrong, await _values(request))
    values = {"one": one, "key": made, "secret": made["secret"], "ends": datetime.fromisoformat(made["ends"])}
    return Page(template="credentials/key_made.html", values=values)


def _path(one: Organization, request: Request) -> str:
    return f"/console/organizations/{one.id}/keys/{request.id('key')}"


def _typed(request: Request, one: Organization) -> dict[str, Any]:
    form, text = request.form, request.text
    profiles = [(name, text(words.PROFILES[name])) for name in OFFERED if name in PROFILES]
    return {
        "one": one,
        "profiles": [*profiles, ("", text("Its own scopes"))],
        "modes": [("live", text("Live")), ("test", text("Test"))],
        "scopes": [(name, text(said), form.get(f"scope.{name}") == "yes") for name, said in SCOPES.items()],
        "profile": form.get("profile", "sms"),
        "key_mode": form.get("mode", "live"),
        "name": form.get("name", ""),
        "allowed_ips": form.get("allowed_ips", ""),
        "expires_at": form.get("expires_at", ""),
    }


async def _values(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        one: Organization = await organization(conn, request, "id")
        key: ApiKey = await issued.get(conn, acting_for(request, one), id=request.id("key"))
    return {
        "one": one,
        "key": key,
        "scopes": [request.text(SCOPES[scope]) for scope in SCOPES if scope in key.scopes],
        "profile": request.text(words.PROFILES.get(key.profile, key.profile)) if key.profile else "",
        "name": request.form.get("name", key.name),
        "overlap": request.form.get("overlap", "24"),
        "overlaps": overlaps(request),
        "may_change": request.may(permission=ORGANIZATIONS_CHANGE),
    }
