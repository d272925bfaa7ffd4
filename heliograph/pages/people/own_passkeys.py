"""My account: passkeys, several with names; in both realms, since they are personal."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from heliograph.base.errors import Invalid, NotFound
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.people import factor, own_account, passkeys
from heliograph.pages.requests import Request
from heliograph.pages.templates import device
from heliograph.people.passkeys import ceremony, challenges, keeping
from heliograph.people.passkeys.challenges import PasskeyRefused


async def show_new(request: Request) -> Answer:
    """The form for a passkey, with options for the browser."""
    async with request.writing() as conn:
        elsewhere = await factor.refused_here(request, conn)
    return elsewhere or Page(template="account_passkey.html", values=await _values(request))


async def add(request: Request) -> Answer:
    """Store the passkey that the browser created."""
    form, where = request.form, passkeys.site_of(request)
    try:
        async with request.writing() as conn, conn.transaction():
            elsewhere = await factor.refused_here(request, conn)
            if elsewhere is not None:
                return elsewhere
            if where is None:
                raise PasskeyRefused
            asked = challenges.read_challenge(passkeys.key(request), form.get("challenge", ""))
            await keeping.add(
                conn,
                own_account.self_of(request),
                user_id=request.user_id,
                made=ceremony.registered(where, asked, form.get("credential", "")),
                asked=asked,
                name=form.get("name", ""),
            )
    except PasskeyRefused as refusal:
        wrong = Invalid(("name", "refused", refusal.message))
        return refused("account_passkey.html", wrong, await _values(request))
    except Invalid as refusal:
        return refused("account_passkey.html", refusal, await _values(request))
    return Redirect(location=own_account.here(request), notice=request.text("The passkey is saved."))


async def remove(request: Request) -> Answer:
    """Forget a passkey; one that was forgotten before, by a double click or in another tab, is so all the same."""
    id = request.id()
    with contextlib.suppress(NotFound):
        async with request.writing() as conn:
            await keeping.remove(conn, own_account.self_of(request), user_id=request.user_id, id=id)
    return Redirect(location=own_account.here(request), notice=request.text("The passkey is no longer valid here."))


async def _values(request: Request) -> dict[str, Any]:
    person, where = request.session, passkeys.site_of(request)
    assert person is not None
    if where is None:
        raise NotFound("Browsers keep passkeys only for addresses with a name and https.")
    challenge = challenges.challenge(passkeys.key(request))
    async with request.reading() as conn:
        known = await keeping.known(conn, user_id=person.user_id)
    options = ceremony.registration_options(
        where,
        challenges.read_challenge(passkeys.key(request), challenge),
        user_id=person.user_id,
        email=person.email,
        name=person.name,
        known=known,
    )
    return {
        "challenge": challenge,
        "options": msgspec.json.decode(options),
        "name": request.form.get("name", device(request.agent)),
    }
