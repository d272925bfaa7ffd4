"""Signing in and out, one-time links, forgotten passwords, and a visitor's first page."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.mail import outbox
from heliograph.pages import cookies
from heliograph.pages.answers import Answer, Page, Redirect, own_address, refused
from heliograph.pages.people import passkeys
from heliograph.pages.people.door import end_former, is_known, mark_key, refusal_text, signed_in, ticket_key
from heliograph.pages.requests import Request
from heliograph.people import links, sessions, signing_in
from heliograph.people.mailing import forgotten as asking_anew
from heliograph.people.passkeys import challenges
from heliograph.people.passkeys.challenges import PasskeyRefused
from heliograph.people.sessions import SignedInUser
from heliograph.people.signing_in import WrongCode
from heliograph.people.tries import TooManyTries, WrongSignIn

#: The next page for somebody who forgot their password.
NEW_PASSWORD = "/account/password"  # noqa: S105


async def show_form(request: Request) -> Answer:
    """The form; the next page for those who are signed in, unless they come to sign in as somebody else."""
    following = own_address(request.query.get("next", "/"))
    if request.session is not None and request.query.get("other") != "yes":
        return Redirect(location=following)
    return Page(template="door/sign_in.html", values=_form(request, following, ""))


async def sign_in_passkey(request: Request) -> Answer:
    """Sign in with a passkey, which needs neither password nor code."""
    form = request.form
    following = own_address(form.get("next", "/"))
    where = passkeys.site_of(request)
    try:
        if where is None:
            raise PasskeyRefused
        asked = challenges.read_challenge(passkeys.key(request), form.get("challenge", ""))
        async with request.writing() as conn:
            user_id = await signing_in.passkey(
                conn, where, asked=asked, given=form.get("credential", ""), address=request.address
            )
            token = await sessions.open_for(
                conn,
                user_id=user_id,
                address=request.address,
                agent=request.agent,
                how="passkey",
                is_kept=form.get("keep") == "yes",
                request_id=request.request_id,
                is_known=is_known(request, user_id),
            )
    except (PasskeyRefused, TooManyTries) as refusal:
        request.services.failures.note(request.address, door="dashboard")
        wrong = Invalid(("email", "refused", refusal_text(request, refusal)))
        return refused("door/sign_in.html", wrong, _form(request, following, ""))
    await end_former(request)
    return signed_in(request, user_id, token, following, is_kept=form.get("keep") == "yes")


def _form(request: Request, following: str, email: str) -> dict[str, Any]:
    return {"next": following, "email": email, **passkeys.asking(request)}


async def sign_in(request: Request) -> Answer:
    """Check e-mail address and password; then start a session, or show the form for the code."""
    form = request.form
    following = own_address(form.get("next", "/"))
    values = _form(request, following, form.get("email", ""))
    is_kept = form.get("keep") == "yes"
    try:
        proved = await signing_in.password(
            request.services.pool,
            mark_key(request),
            request.services.guesses,
            email=form.get("email", ""),
            password=form.get("password", ""),
            address=request.address,
            browser=request.cookies.get(cookies.BROWSER, ""),
        )
        if proved.needs_code:
            ticket = signing_in.ticket(
                ticket_key(request), user_id=proved.user_id, hashed=proved.hashed, is_kept=is_kept
            )
            return Page(template="sign_in_code.html", values={"next": following, "ticket": ticket})
        async with request.writing() as conn:
            token = await sessions.open_for(
                conn,
                user_id=proved.user_id,
                address=request.address,
                agent=request.agent,
                how="password",
                is_kept=is_kept,
                request_id=request.request_id,
                is_known=is_known(request, proved.user_id),
                hashed=proved.hashed,
            )
    except (WrongSignIn, TooManyTries) as refusal:
        request.services.failures.note(request.address, door="dashboard")
        return refused("door/sign_in.html", Invalid(("email", "refused", refusal_text(request, refusal))), values)
    await end_former(request)
    return signed_in(request, proved.user_id, token, following, is_kept=is_kept)


async def sign_in_code(request: Request) -> Answer:
    """Check the code of the authenticator app, or a recovery code."""
    form = request.form
    following, confirms = own_address(form.get("next", "/")), form.get("confirms") == "yes"
    try:
        async with request.writing() as conn:
            half = await signing_in.read_ticket(conn, ticket_key(request), form.get("ticket", ""))
            user_id, is_kept = half.user_id, half.is_kept
            await signing_in.code(
                conn,
                request.services.factor_key,
                mark_key(request),
                request.services.guesses,
                user_id=user_id,
                given=form.get("code", ""),
                address=request.address,
                browser=request.cookies.get(cookies.BROWSER, ""),
            )
            if confirms and _is_own(request, user_id):
                return await _confirmed(request, conn, following)
            token = await sessions.open_for(
                conn,
                user_id=user_id,
                address=request.address,
                agent=request.agent,
                how="code",
                is_kept=is_kept,
                request_id=request.request_id,
                is_known=is_known(request, user_id),
                hashed=half.hashed,
            )
    except WrongSignIn as refusal:
        return refused(
            "door/sign_in.html",
            Invalid(("email", "refused", refusal_text(request, refusal))),
            _form(request, following, ""),
        )
    except (WrongCode, TooManyTries) as refusal:
        request.services.failures.note(request.address, door="dashboard")
        values = {"next": following, "ticket": form.get("ticket", ""), "confirms": confirms}
        return refused("sign_in_code.html", Invalid(("code", "refused", refusal_text(request, refusal))), values)
    await end_former(request)
    return signed_in(request, user_id, token, following, is_kept=is_kept)


async def show_enter(request: Request) -> Answer:
    """The page that a one-time link opens. The token is after `#`, so a script fills it in, or the reader pastes it."""
    return Page(template="link.html", values={"next": request.query.get("next", "")})


async def enter(request: Request) -> Answer:
    """Use a one-time link. One with a `next` that is opened by its person, signed in, confirms that it is them to this
    session, so that forms open in other tabs stay valid; otherwise it begins a session."""
    # The whole link can be pasted, too.
    token = request.form.get("link", "").strip().rpartition("#")[2]
    wanted = request.form.get("next", "")
    try:
        async with request.writing() as conn, conn.transaction():
            used = await links.use(conn, token=token)
            following = own_address(wanted) if wanted else NEW_PASSWORD if used.is_mailed else "/"
            confirms = bool(wanted) and _is_own(request, used.user_id)
            if used.needs_code:
                ticket = signing_in.ticket(ticket_key(request), user_id=used.user_id, hashed=used.hashed, is_kept=False)
                values = {"next": following, "ticket": ticket, "confirms": confirms}
                return Page(template="sign_in_code.html", values=values)
            if confirms:
                return await _confirmed(request, conn, following)
            session = await sessions.open_for(
                conn,
                user_id=used.user_id,
                address=request.address,
                agent=request.agent,
                how="link",
                request_id=request.request_id,
                is_known=is_known(request, used.user_id),
            )
    except links.LinkUsed as refusal:
        request.services.failures.note(request.address, door="dashboard")
        return refused("link.html", Invalid(("link", "refused", refusal.message)), {"next": wanted})
    await end_former(request)
    return signed_in(request, used.user_id, session, following, is_kept=False)


def _is_own(request: Request, user_id: UUID) -> bool:
    """Whether the session of this browser is this person's, and not what an operator views as an organization."""
    person = request.session
    return isinstance(person, SignedInUser) and person.reason is None and person.user_id == user_id


async def _confirmed(request: Request, conn: Connection, following: str) -> Answer:
    """The session stays, and its person has authenticated again."""
    await request.realm.prove(conn, id=request.person.id, user_id=request.person.user_id)
    request.services.sessions.forget(request.token)
    said = request.text("Confirmed. A form that waits in another tab can be continued there.")
    return Redirect(location=following, notice=said)


async def show_forgotten(request: Request) -> Answer:
    """The form that requests a link by e-mail; without an SMTP server, who can create one."""
    values = {"sends": outbox.of(request.services.settings) is not None, "email": "", "asked": None}
    return Page(template="door/forgotten.html", values=values)


async def forgotten(request: Request) -> Answer:
    """Send a link by e-mail. The response is the same whether or not the account exists."""
    box = outbox.of(request.services.settings)
    email = request.form.get("email", "").strip()
    values = {"sends": box is not None, "email": email, "asked": None}
    if box is None:
        return Page(template="door/forgotten.html", values=values)
    try:
        await asking_anew.ask(
            request.services.pool, box, email=email, language=request.locale.language, address=request.address
        )
    except (Invalid, TooManyTries) as refusal:
        wrong = (
            refusal if isinstance(refusal, Invalid) else Invalid(("email", "refused", refusal_text(request, refusal)))
        )
        return refused("door/forgotten.html", wrong, values)
    return Page(template="door/forgotten.html", values=values | {"asked": email.lower()})


async def prove(request: Request) -> Answer:
    """Return to the page that needs the password; asking for it is declared on this route."""
    return Redirect(location=own_address(request.query.get("next", "/")))
