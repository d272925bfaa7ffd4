"""My account: name, language, password, second factor, sessions."""

from __future__ import annotations

from typing import Any

from heliograph.base.errors import Invalid, NotFound
from heliograph.pages.answers import Answer, Page, Redirect, own_address, refused
from heliograph.pages.people import factor, own_account, passkeys
from heliograph.pages.people.door import refusal_text
from heliograph.pages.requests import Request
from heliograph.people import factors, sessions, users
from heliograph.people.passkeys import keeping
from heliograph.people.tries import TooManyTries


async def show(request: Request) -> Answer:
    """The person's account."""
    return Page(template="door/account.html", values=await _values(request))


async def change(request: Request) -> Answer:
    """Change name, language and time zone."""
    try:
        return await own_account.keep(request)
    except Invalid as refusal:
        values = await _values(request) | own_account.typed(request)
        return refused("door/account.html", refusal, values)


async def show_password(request: Request) -> Answer:
    """The form that changes the password."""
    return Page(template="door/account_password.html", values={})


async def change_password(request: Request) -> Answer:
    """Change the password; all other sessions end, and passkeys stay."""
    person = request.person
    try:
        if request.form.get("password", "") != request.form.get("again", request.form.get("password", "")):
            raise Invalid(("again", "differs", "The two passwords differ."))
        async with request.reading() as conn:
            user = await users.get(conn, id=person.user_id)
        await users.set_password(
            request.services.pool,
            own_account.self_of(request),
            user=user,
            password=request.form.get("password", ""),
            keep_session=person.id,
        )
        request.has_written = True
        async with request.writing() as conn:
            await sessions.prove(conn, id=person.id, user_id=person.user_id)
            stay = await keeping.known(conn, user_id=person.user_id)
    except Invalid as refusal:
        return refused("door/account_password.html", refusal, {})
    except TooManyTries as refusal:
        return refused(
            "door/account_password.html", Invalid(("password", "refused", refusal_text(request, refusal))), {}
        )
    request.services.sessions.forget(request.token)
    notice = request.text("The password is changed. Your other sessions were ended.")
    if stay:
        # Whoever knew the old password may have added one.
        notice += " " + request.text("Passkeys stay valid: remove any below that is not yours.")
    return Redirect(location="/account", notice=notice)


async def show_factor(request: Request) -> Answer:
    """The form that sets up an authenticator app: its QR code, its secret as text, and a field for the first code."""
    async with request.writing() as conn:
        elsewhere = await factor.refused_here(request, conn)
    return elsewhere or Page(template="door/account_factor.html", values=_offer(request, factors.new_secret()))


async def turn_factor_on(request: Request) -> Answer:
    """Turn the second factor on if the first code is right, and show the recovery codes, once."""
    person = request.person
    secret = factor.offered(request)
    if secret is None:
        return Redirect(location="/account/factor")
    try:
        async with request.writing() as conn, conn.transaction():
            elsewhere = await factor.refused_here(request, conn)
            if elsewhere is not None:
                return elsewhere
            codes = await factors.enable(
                conn,
                own_account.self_of(request),
                request.services.factor_key,
                user_id=person.user_id,
                secret=secret,
                given=request.form.get("code", ""),
            )
    except Invalid as refusal:
        return refused("door/account_factor.html", refusal, _offer(request, secret))
    request.services.sessions.forget(request.token)
    return Page(template="door/account_codes.html", values={"codes": codes, "is_new": _is_new(request)})


def _offer(request: Request, secret: str) -> dict[str, Any]:
    return factor.offer(request, secret) | {"is_new": _is_new(request)}


def _is_new(request: Request) -> bool:
    """Whether the account was just created from an invitation: its owner may postpone this and go to the front page."""
    return request.query.get("new") == "yes"


async def turn_factor_off(request: Request) -> Answer:
    """Require only the password from now on."""
    if request.person.factor_required:
        said = request.text("Your organization requires a second factor. Set up another app to change it.")
        return Redirect(location="/account", notice=said, is_refusal=True)
    async with request.writing() as conn:
        await factors.disable(conn, own_account.self_of(request), user_id=request.person.user_id)
    request.services.sessions.forget(request.token)
    return Redirect(location="/account", notice=request.text("The authenticator app is turned off."))


async def end_session(request: Request) -> Answer:
    """End one of the person's sessions."""
    async with request.writing() as conn:
        await sessions.end(conn, own_account.self_of(request), user_id=request.person.user_id, id=request.id())
    return Redirect(location="/account", notice=request.text("The session was ended."))


async def end_others(request: Request) -> Answer:
    """End all sessions but this one."""
    async with request.writing() as conn:
        await sessions.end_all(
            conn, own_account.self_of(request), user_id=request.person.user_id, keep=request.person.id
        )
    return Redirect(location="/account", notice=request.text("All other sessions were ended."))


async def show_switch(request: Request) -> Answer:
    """Where a mail about one of several organizations leads: to its page, once the session looks at that one."""
    id, following, person = request.id(), own_address(request.query.get("next", "/")), request.person
    if person.organization_id == id:
        return Redirect(location=following)
    async with request.reading() as conn:
        # An operator who views as an organization switches to no other.
        known = {} if person.reason else dict(await sessions.organizations_of(conn, user_id=person.user_id))
    if id not in known:
        raise NotFound
    return Page(template="door/switch.html", values={"id": id, "name": known[id], "next": following})


async def switch(request: Request) -> Answer:
    """Switch to another organization."""
    async with request.writing() as conn:
        await sessions.switch(conn, id=request.person.id, user_id=request.person.user_id, organization_id=request.id())
    request.services.sessions.forget(request.token)
    return Redirect(location=own_address(request.form.get("next", "/")))


async def _values(request: Request) -> dict[str, Any]:
    person = request.person
    async with request.reading() as conn:
        listed = await sessions.list_all(conn, user_id=person.user_id)
        left = await factors.codes_left(conn, user_id=person.user_id)
        devices = await keeping.list_all(conn, user_id=person.user_id)
        # An operator who views as the organization belongs to none.
        belong = [] if person.reason else await sessions.organizations_of(conn, user_id=person.user_id)
    return {
        "organizations": belong,
        "sessions": listed,
        "codes_left": left,
        "passkeys": devices,
        "takes_passkeys": passkeys.site_of(request) is not None,
        "name": person.name,
        "time_zone": person.time_zone or "",
        "language": person.language or "",
        "zones": own_account.zones(),
    }
