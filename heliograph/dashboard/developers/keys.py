"""API keys: created with a profile, shown once, rotated, revoked."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from heliograph.accounts import spending
from heliograph.accounts.api_keys import issued, lifecycle
from heliograph.accounts.api_keys.issued import ApiKey
from heliograph.accounts.api_keys.lifecycle import MAX_ACTIVE, KeyNotActive, KeyReplaced, TooManyActiveKeys
from heliograph.accounts.api_keys.scopes import PROFILES, SCOPES, LiveKeyRequired, ScopeRequired
from heliograph.audit import reading as audit
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Problems
from heliograph.overview import usage
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.lists import pagination
from heliograph.pages.pieces.key_form import OFFERED, OVERLAPS, overlaps
from heliograph.pages.requests import Request
from heliograph.people import memberships
from heliograph.people.roles import OWNERS, USAGE, holders

#: Choices for a key's lifetime, in days; 0: it does not expire.
EXPIRIES = (0, 30, 90, 365)
#: Keys listed with their creators.
TOLD = 100
#: The statuses of keys that have not ended.
CURRENT = ("active", "suspended")
#: Owners listed by name.
NAMED = 5
#: A key unused for this long should be checked.
STALE = timedelta(days=90)


class Profile(msgspec.Struct, frozen=True):
    """A card of the form."""

    name: str
    title: str
    explained: str
    scopes: list[str]


async def show(request: Request) -> Answer:
    """The keys of this mode, and a page of those that ended recently."""
    actor, limit = request.actor, pagination.size(request)
    today = clock.now().date()
    async with request.reading() as conn:
        standing = await issued.standing(conn, actor)
        found = await issued.ended(conn, actor, after=pagination.after(request), limit=limit + 1)
        # The others have expired and are not marked as such yet.
        keys = [one for one in standing if one.status in CURRENT]
        ended = [one for one in standing if one.status not in CURRENT and not request.query.get("after")]
        ended += found[:limit]
        listed = keys + ended
        told = await audit.latest(
            conn, actor.organization_id, action="api_key.created", object_ids=[one.id for one in listed[:TOLD]]
        )
        # Readers who may create only test keys are told who can allow them to create live ones.
        allowing = (
            []
            if request.may("api_keys:write") or not request.may("api_keys:write", mode="test")
            else await memberships.holders(conn, actor.organization_id, holders(permission=OWNERS), limit=NAMED)
        )
        limits = {one.key_id: one for one in await spending.limits(conn, actor.organization_id) if one.key_id}
        used = (
            await usage.shares(conn, actor, by="key", since=today - timedelta(days=6), until=today + timedelta(days=1))
            if request.mode == "live" and request.may(permission=USAGE)
            else None
        )
    now = clock.now()
    sends: dict[str, int] = {}
    for share in used or []:
        sends[share.value] = sends.get(share.value, 0) + share.messages
    values = {
        "makers": {
            one.id: entry.who_name or request.text(words.AUTHORS[entry.who])
            for one in listed
            if (entry := told.get(str(one.id))) is not None
        },
        "sends": None if used is None else {one.id: sends.get(str(one.id), 0) for one in keys},
        "limits": limits,
        "names": {one.id: f"{one.prefix}…{one.last4}" for one in listed},
        "keys": keys,
        "ended": ended,
        "pages": pagination.pages(request, found[limit - 1].id if len(found) > limit else None),
        "warnings": {one.id: _warnings(request, one, now - STALE) for one in keys if one.status == "active"},
        "profiles": {name: request.text(title) for name, title in words.PROFILES.items()},
        "most": MAX_ACTIVE,
        "may_make": bool(_profiles(request)) and request.may("api_keys:write"),
        "may_revoke": request.may("api_keys:write"),
        "allowing": allowing,
    }
    return Page(template="developers/keys.html", values=values)


async def show_new(request: Request) -> Answer:
    """The form for a key."""
    return Page(template="developers/keys_new.html", values=_typed(request))


async def make(request: Request) -> Answer:
    """Create a key, and show its secret, only here."""
    form = request.form

    async def work(conn: Connection) -> dict[str, str]:
        wrong, days = Problems(), {str(one): one for one in EXPIRIES}.get(form.get("expires", "0"))
        if days is None:
            wrong.add("expires", "enum", words.KEY_FORM["expires"])
        with wrong.gathering():
            key, secret = await lifecycle.issue(
                conn,
                request.actor,
                name=form.get("name", ""),
                profile=form.get("profile", ""),
                allowed_ips=form.get("allowed_ips", "").replace(",", " ").split(),
                expires_at=clock.now() + timedelta(days=days) if days else None,
            )
        wrong.report()
        await _demand_still(conn, request)
        return {"id": str(key.id), "name": key.name, "secret": secret}

    try:
        made = await request.once(work, has_secret=True)
    except Invalid as refusal:
        return refused("developers/keys_new.html", form_errors(refusal, words.KEY_FORM), _typed(request))
    except TooManyActiveKeys as refusal:
        async with request.reading() as conn:
            standing = [one for one in await issued.standing(conn, request.actor) if one.status == "active"]
        values = _typed(request) | {"standing": sorted(standing, key=_least_missed)}
        return refused("developers/keys_new.html", Invalid(("name", "limit", refusal.message)), values)
    base = request.services.settings.public_url or request.headers.get(b"origin", b"").decode("latin-1")
    values = {"made": made, "base": base.rstrip("/"), "ends": None}
    return Page(template="developers/keys_made.html", values=values)


async def _demand_still(conn: Connection, request: Request) -> None:
    """Check that the person may have made a key. After it was made, and thus after the organization was locked: whoever
    is being removed, and their keys revoked, must not keep a new one. Raises RoleRequired."""
    await memberships.demand_scope(conn, request.actor, "api_keys:write")


async def show_revoke(request: Request) -> Answer:
    """What revoking a key would stop."""
    return Page(template="developers/keys_revoke.html", values={"key": await _key(request)})


async def revoke(request: Request) -> Answer:
    """Revoke a key for good."""
    async with request.writing() as conn:
        key = await lifecycle.revoke(conn, request.actor, id=request.id())
    said = request.text("The key “%(name)s” is revoked; it stops working within a second.", name=key.name)
    return Redirect(location=request.to("/keys"), notice=said)


async def show_rotate(request: Request) -> Answer:
    """What rotating a key means, and how long both keys work."""
    return Page(template="developers/keys_rotate.html", values=await _rotation(request))


async def rotate(request: Request) -> Answer:
    """Create a key with the same rights, and let the old one expire later."""

    async def work(conn: Connection) -> dict[str, str]:
        hours = request.form.get("overlap", "")
        if hours not in {str(one) for one in OVERLAPS}:
            raise Invalid(("overlap", "enum", "Choose one of the times that are offered."))
        made, secret, old = await lifecycle.rotate(
            conn, request.actor, id=request.id(), overlap=timedelta(hours=int(hours))
        )
        assert old.expires_at is not None
        await _demand_still(conn, request)
        return {"id": str(made.id), "name": made.name, "secret": secret, "ends": old.expires_at.isoformat()}

    try:
        made = await request.once(work, has_secret=True)
    except Invalid as refusal:
        return refused("developers/keys_rotate.html", refusal, await _rotation(request))
    except (TooManyActiveKeys, KeyReplaced, KeyNotActive, ScopeRequired, LiveKeyRequired) as refusal:
        wrong = Invalid(("overlap", refusal.code, refusal.message))
        return refused("developers/keys_rotate.html", wrong, await _rotation(request))
    base = request.services.settings.public_url or request.headers.get(b"origin", b"").decode("latin-1")
    values = {"made": made, "base": base.rstrip("/"), "ends": datetime.fromisoformat(made["ends"])}
    return Page(template="developers/keys_made.html", values=values)


async def show_rename(request: Request) -> Answer:
    """The form that renames a key."""
    key = await _key(request)
    return Page(template="developers/keys_rename.html", values={"key": key, "name": key.name})


async def rename(request: Request) -> Answer:
    """Rename a key."""
    name = request.form.get("name", "")
    try:
        async with request.writing() as conn:
            await lifecycle.rename(conn, request.actor, id=request.id(), name=name)
    except Invalid as refusal:
        values = {"key": await _key(request), "name": name}
        return refused("developers/keys_rename.html", form_errors(refusal, words.KEY_FORM), values)
    return Redirect(location=request.to("/keys"), notice=request.text("The key is renamed."))


async def show_check(request: Request) -> Answer:
    """The form for pasting a secret that was found somewhere."""
    return Page(template="developers/keys_check.html", values={"found": None, "is_asked": False, "may_revoke": False})


async def check(request: Request) -> Answer:
    """Find the key of a secret. It is compared by hash, and neither stored nor shown."""
    async with request.reading() as conn:
        found = await issued.by_secret(conn, request.actor, secret=request.form.get("secret", ""))
    may_revoke = found is not None and request.may("api_keys:write", mode=found.mode)
    values = {"found": found, "is_asked": True, "may_revoke": may_revoke}
    return Page(template="developers/keys_check.html", values=values)


async def _rotation(request: Request) -> dict[str, Any]:
    return {"key": await _key(request), "options": overlaps(request), "overlap": request.form.get("overlap", "24")}


def _least_missed(key: ApiKey) -> datetime:
    """Sort key that puts the least missed first: never used, then the least recently used."""
    return key.last_used_at or clock.EPOCH


async def _key(request: Request) -> ApiKey:
    async with request.reading() as conn:
        return await issued.get(conn, request.actor, id=request.id())


def _profiles(request: Request) -> list[Profile]:
    """The profiles that the person may assign: they must hold, or be allowed to grant, every scope in them."""
    held = request.actor.scopes | request.actor.grants
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
        "standing": [],
        "name": form.get("name", ""),
        "chosen": form.get("profile", profiles[0].name if profiles else ""),
        "allowed_ips": form.get("allowed_ips", ""),
        "expires": form.get("expires", "0"),
        "expiries": [
            (
                str(days),
                request.locale.count("in %(num)s day", "in %(num)s days", days) if days else request.text("Never"),
            )
            for days in EXPIRIES
        ],
    }


def _warnings(request: Request, key: ApiKey, stale: Any) -> list[str]:
    found = []
    if key.last_used_at is None and key.created_at < clock.now() - timedelta(days=7):
        found.append(request.text("never used"))
    elif key.last_used_at is not None and key.last_used_at < stale:
        found.append(request.text("not used for 90 days"))
    if key.expires_at is None and key.mode == "live":
        found.append(request.text("no expiry"))
    if key.profile == "full_access" and key.mode == "live":
        found.append(request.text("full access"))
    return found
