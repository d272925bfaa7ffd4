"""Accepting an invitation, with an existing account or a new one."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

from heliograph.base.actor import Principal
from heliograph.base.errors import Invalid
from heliograph.pages import cookies, forgery
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.people.door import end_former, signed_in
from heliograph.pages.requests import Request
from heliograph.people import invitations, passwords, sessions, users
from heliograph.people.invitations import InvitationEnded, Offer

#: The next page after creating an account: the second factor is offered at once.
OFFERED = "/account/factor?new=yes"


async def show(request: Request) -> Answer:
    """The page that the link opens, with the token after `#`. Whoever signed in to accept an invitation already opened
    continues with it, or reads that it is for somebody else, unless the address has another one's token, which only the
    browser knows."""
    token = request.cookies.get(cookies.session_name(cookies.INVITATION, request.is_secure), "")
    if token and request.session is not None:
        with contextlib.suppress(InvitationEnded):
            async with request.reading() as conn:
                offer = await invitations.offer(conn, token=token)
            values = _values(request, offer, token) | {"is_kept": True}
            return Page(template="door/invitation_offer.html", values=values)
    return Page(template="door/invitation.html", values={})


async def read(request: Request) -> Answer:
    """Show what the link offers."""
    # The whole link can be pasted, too.
    token = request.form.get("link", "").strip().rpartition("#")[2]
    try:
        async with request.reading() as conn:
            offer = await invitations.offer(conn, token=token)
    except InvitationEnded as refusal:
        request.services.failures.note(request.address, door="dashboard")
        return refused("door/invitation.html", Invalid(("link", "ended", refusal.message)), {})
    values = _values(request, offer, token)
    # In a cookie, not in the address of the sign-in, since addresses are logged.
    kept = [_kept(request, token)] if offer.is_known and not values["is_them"] else []
    return Page(template="door/invitation_offer.html", values=values, cookies=kept)


async def accept(request: Request) -> Answer:
    """Become a member, with the account that is signed in or with a new one. Whoever did so already, such as in another
    tab, is told that they have joined."""
    try:
        return await _accept(request)
    except InvitationEnded:
        if (joined := await _joined(request)) is None:
            raise
        return joined


async def _joined(request: Request) -> Answer | None:
    """The organization that a link led to which has ended, if the person belongs to it; None: they do not."""
    person = request.session and request.person
    if person is None:
        return None
    async with request.reading() as conn:
        belong = await sessions.organizations_of(conn, user_id=person.user_id)
    for id, name in belong:
        if str(id) == request.form.get("organization"):
            here = "/" if id == request.organization_id else f"/organizations/{id}/look"
            said = request.text("You have joined %(organization)s already.", organization=name)
            return Redirect(location=here, notice=said)
    return None


async def _accept(request: Request) -> Answer:
    form, token = request.form, request.form.get("invitation", "")
    async with request.reading() as conn:
        offer = await invitations.offer(conn, token=token)
    person = request.session and request.person
    # The page was opened before they signed in: it asks for another account, or does not say whom it would sign out.
    is_older = person is not None and forgery.FIELD not in form
    if person is not None and person.email == offer.email and not is_older:
        async with request.writing() as conn:
            await invitations.accept(conn, request.principal, token=token, user_id=person.user_id)
            await sessions.switch(conn, id=person.id, user_id=person.user_id, organization_id=offer.organization_id)
        request.services.sessions.forget(request.token)
        return Redirect(location="/", cookies=[_kept(request, "")])
    if offer.is_known or is_older:
        return Page(template="door/invitation_offer.html", values=_values(request, offer, token))
    try:
        passwords.check_strength(form.get("password", ""), email=offer.email)
        users.checked_name(form.get("name", ""))
        user_id, session = await _with_new_account(request, offer, token)
    except Invalid as refusal:
        return refused("door/invitation_offer.html", refusal, _values(request, offer, token))
    await end_former(request)
    return signed_in(request, user_id, session, OFFERED, is_kept=False)


async def _with_new_account(request: Request, offer: Offer, token: str) -> tuple[UUID, str]:
    """(the person, their session)"""
    form = request.form
    who = Principal(
        "person",
        name=form.get("name", "").strip(),
        address=request.address,
        device=request.agent,
        request_id=request.request_id,
    )
    hashed = await passwords.hashed(form.get("password", ""))
    async with request.writing() as conn, conn.transaction():
        user, is_new = await users.ensure(conn, who, email=offer.email, name=form.get("name", ""))
        if not is_new:  # somebody else created it meanwhile: the password is theirs
            raise InvitationEnded
        await users.keep_password(conn, who, user=user, hashed=hashed)
        await invitations.accept(conn, who, token=token, user_id=user.id)
        session = await sessions.open_for(
            conn,
            user_id=user.id,
            address=request.address,
            agent=request.agent,
            how="invitation",
            organization_id=offer.organization_id,
            request_id=request.request_id,
        )
    return user.id, session


def _kept(request: Request, token: str) -> str:
    return cookies.invitation(token, is_secure=request.is_secure)


def _values(request: Request, offer: Offer, token: str) -> dict[str, Any]:
    person = request.session
    return {
        "offer": offer,
        "invitation": token,
        "name": request.form.get("name", ""),
        "is_them": person is not None and person.email == offer.email,
    }
