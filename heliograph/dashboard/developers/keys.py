"""D12 API keys: made with a profile, shown once, revoked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from heliograph.accounts import api_keys
from heliograph.accounts.api_keys import MAX_ACTIVE, PROFILES, SCOPES, ApiKey, TooManyActiveKeys
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.pages import words
from heliograph.pages.answers import Answer, Elsewhere, Shown, refused
from heliograph.pages.requests import Request

#: Profiles as they are offered: the least that sends comes first.
OFFERED = ("sms_only", "sms", "whatsapp", "read_only", "full_access")
#: What may be chosen for the end of a key, in days; 0: it does not end.
EXPIRIES = (0, 30, 90, 365)
#: A key that was not used for so long is worth a look.
STALE = timedelta(days=90)


class Profile(msgspec.Struct, frozen=True):
    """A card of the form."""

    name: str
    title: str
    explained: str
    scopes: list[str]


async def show(request: Request) -> Answer:
    """The keys of this mode, those that ended lately included."""
    async with request.reading() as conn:
        listed = await api_keys.list_all(conn, request.actor)
    now = clock.now()
    values = {
        "keys": [one for one in listed if one.status in ("active", "suspended")],
        "ended": [one for one in listed if one.status not in ("active", "suspended")],
        "warnings": {one.id: _warnings(request, one, now - STALE) for one in listed if one.status == "active"},
        "profiles": {name: request.text(title) for name, title in words.PROFILES.items()},
        "most": MAX_ACTIVE,
        "may_make": bool(_profiles(request)) and request.may("api_keys:write"),
        "may_revoke": request.may("api_keys:write"),
    }
    return Shown(template="developers/keys.html", values=values)


async def show_new(request: Request) -> Answer:
    """The form for a key."""
    return Shown(template="developers/keys_new.html", values=_typed(request))


async def make(request: Request) -> Answer:
    """Make a key and show its secret, here and nowhere else."""
    form = request.form

    async def work(conn: Connection) -> dict[str, str]:
        days = form.get("expires", "0")
        if days not in {str(one) for one in EXPIRIES}:
            raise Invalid(("expires", "enum", "Choose one of the dates that are offered."))
        key, secret = await api_keys.issue(
            conn,
            request.actor,
            name=form.get("name", ""),
            profile=form.get("profile", ""),
            allowed_ips=form.get("allowed_ips", "").replace(",", " ").split(),
            expires_at=clock.now() + timedelta(days=int(days)) if days != "0" else None,
        )
        return {"id": str(key.id), "name": key.name, "secret": secret}

    try:
        made = await request.once(work, has_secret=True)
    except Invalid as refusal:
        return refused("developers/keys_new.html", _in_words(refusal), _typed(request))
    except TooManyActiveKeys as refusal:
        return refused("developers/keys_new.html", Invalid(("name", "limit", refusal.message)), _typed(request))
    base = request.services.settings.public_url or request.headers.get(b"origin", b"").decode("latin-1")
    return Shown(template="developers/keys_made.html", values={"made": made, "base": base.rstrip("/")})


async def show_revoke(request: Request) -> Answer:
    """What revoking a key would end."""
    return Shown(template="developers/keys_revoke.html", values={"key": await _key(request)})


async def revoke(request: Request) -> Answer:
    """End a key for good."""
    async with request.writing() as conn:
        key = await api_keys.revoke(conn, request.actor, id=request.id())
    said = request.text("The key “%(name)s” is revoked; it stops working within a second.", name=key.name)
    return Elsewhere(location=request.to("/keys"), notice=said)


async def _key(request: Request) -> ApiKey:
    wanted = request.id()
    async with request.reading() as conn:
        listed = await api_keys.list_all(conn, request.actor)
    found = next((one for one in listed if one.id == wanted), None)
    if found is None:
        raise NotFound
    return found


def _profiles(request: Request) -> list[Profile]:
    """The profiles that the person may give: what they do not hold themselves they cannot hand on."""
    held = request.actor.scopes
    return [
        Profile(
            name,
            request.text(words.PROFILES[name]),
            request.text(words.PROFILES_EXPLAINED[name]),
            [request.text(SCOPES[scope]) for scope in SCOPES if scope in PROFILES[name]],
        )
        for name in OFFERED
        if PROFILES[name] <= held
    ]


def _typed(request: Request) -> dict[str, Any]:
    form = request.form
    profiles = _profiles(request)
    return {
        "profiles": profiles,
        "name": form.get("name", ""),
        "chosen": form.get("profile", profiles[0].name if profiles else ""),
        "allowed_ips": form.get("allowed_ips", ""),
        "expires": form.get("expires", "0"),
        "expiries": [
            (
                str(days),
                request.speech.count("in %(num)s day", "in %(num)s days", days) if days else request.text("Never"),
            )
            for days in EXPIRIES
        ],
    }


def _in_words(refusal: Invalid) -> Invalid:
    """The rule's refusals, as a form says them."""
    return Invalid(
        *(
            (one["field"], one["issue"], words.KEY_FORM.get(one["field"], one["message"]))
            for one in refusal.details["fields"]
        )
    )


def _warnings(request: Request, key: ApiKey, stale: Any) -> list[str]:
    found = []
    if key.last_used_at is None and key.created_at < clock.now() - timedelta(days=7):
        found.append(request.text("never used"))
    elif key.last_used_at is not None and key.last_used_at < stale:
        found.append(request.text("not used for 90 days"))
    if key.profile == "full_access" and key.mode == "live":
        found.append(request.text("full access"))
    return found
