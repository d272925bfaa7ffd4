"""S2 Sign in and out, one-time links, S3 forgotten passwords, and what a visitor sees first."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from heliograph.base.crypto import derive_key
from heliograph.base.errors import Invalid, Refusal
from heliograph.mail import outbox
from heliograph.pages import cookies, forgery
from heliograph.pages.answers import Answer, Elsewhere, Shown, refused
from heliograph.pages.application import own_address
from heliograph.pages.pieces import leafing, passkeys
from heliograph.pages.requests import Request
from heliograph.people import links, sessions, signing_in
from heliograph.people.mailing import forgotten as asking_anew
from heliograph.people.passkeys import ceremony
from heliograph.people.passkeys.ceremony import PasskeyRefused
from heliograph.people.signing_in import WrongCode, WrongSignIn
from heliograph.people.tries import TooManyTries

#: Where somebody goes on who forgot their password.
NEW_PASSWORD = "/account/password"  # noqa: S105


async def show_form(request: Request) -> Answer:
    """The form, or home for who is signed in."""
    following = own_address(request.query.get("next", "/"))
    if request.session is not None:
        return Elsewhere(location=following)
    return Shown(template="door/sign_in.html", values=_form(request, following, ""))


async def sign_in_passkey(request: Request) -> Answer:
    """A passkey that the browser showed: who has it needs neither password nor code."""
    form = request.form
    following = own_address(form.get("next", "/"))
    demand_https(request)
    where = passkeys.site_of(request)
    try:
        if where is None:
            raise PasskeyRefused
        asked = ceremony.read_challenge(passkeys.key(request), form.get("challenge", ""))
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
            )
    except (PasskeyRefused, TooManyTries) as refusal:
        request.services.failures.note(request.address, door="dashboard")
        wrong = Invalid(("email", "refused", said(request, refusal)))
        return refused("door/sign_in.html", wrong, _form(request, following, ""))
    await end_former(request)
    return signed_in(request, user_id, token, following, is_kept=form.get("keep") == "yes")


def _form(request: Request, following: str, email: str) -> dict[str, Any]:
    return {"next": following, "email": email, **passkeys.asking(request)}


async def sign_in(request: Request) -> Answer:
    """E-mail and password; then a session, or the form for the code."""
    form = request.form
    following = own_address(form.get("next", "/"))
    values = _form(request, following, form.get("email", ""))
    is_kept = form.get("keep") == "yes"
    demand_https(request)
    try:
        proved = await signing_in.password(
            request.services.pool,
            _mark_key(request),
            email=form.get("email", ""),
            password=form.get("password", ""),
            address=request.address,
            browser=request.cookies.get(cookies.BROWSER, ""),
        )
    except (WrongSignIn, TooManyTries) as refusal:
        request.services.failures.note(request.address, door="dashboard")
        return refused("door/sign_in.html", Invalid(("email", "refused", said(request, refusal))), values)
    if proved.needs_code:
        ticket = signing_in.ticket(_ticket_key(request), user_id=proved.user_id, is_kept=is_kept)
        return Shown(template="door/sign_in_code.html", values={"next": following, "ticket": ticket})
    async with request.writing() as conn:
        token = await sessions.open_for(
            conn,
            user_id=proved.user_id,
            address=request.address,
            agent=request.agent,
            how="password",
            is_kept=is_kept,
            request_id=request.request_id,
        )
    await end_former(request)
    return signed_in(request, proved.user_id, token, following, is_kept=is_kept)


async def sign_in_code(request: Request) -> Answer:
    """The code of the authenticator app, or a recovery code."""
    form = request.form
    following = own_address(form.get("next", "/"))
    try:
        user_id, is_kept = signing_in.read_ticket(_ticket_key(request), form.get("ticket", ""))
    except WrongSignIn as refusal:
        return refused(
            "door/sign_in.html",
            Invalid(("email", "refused", said(request, refusal))),
            _form(request, following, ""),
        )
    try:
        async with request.writing() as conn:
            await signing_in.code(
                conn,
                request.services.factor_key,
                _mark_key(request),
                user_id=user_id,
                given=form.get("code", ""),
                address=request.address,
                browser=request.cookies.get(cookies.BROWSER, ""),
            )
            token = await sessions.open_for(
                conn,
                user_id=user_id,
                address=request.address,
                agent=request.agent,
                how="code",
                is_kept=is_kept,
                request_id=request.request_id,
            )
    except (WrongCode, TooManyTries) as refusal:
        request.services.failures.note(request.address, door="dashboard")
        values = {"next": following, "ticket": form.get("ticket", "")}
        return refused("door/sign_in_code.html", Invalid(("code", "refused", said(request, refusal))), values)
    await end_former(request)
    return signed_in(request, user_id, token, following, is_kept=is_kept)


async def sign_out(request: Request) -> Answer:
    """End this session."""
    async with request.writing() as conn:
        await sessions.end_token(conn, token=request.token)
    request.services.sessions.forget(request.token)
    return Elsewhere(location="/login", cookies=[cookies.no_session(is_secure=request.is_secure)])


async def show_enter(request: Request) -> Answer:
    """Where a one-time link leads: the token stands after `#`, so a script fills it in, or the reader pastes it."""
    return Shown(template="door/enter.html", values={})


async def enter(request: Request) -> Answer:
    """Use a one-time link."""
    demand_https(request)
    # The whole link may be pasted as well.
    token = request.form.get("link", "").strip().rpartition("#")[2]
    try:
        async with request.writing() as conn, conn.transaction():
            used = await links.use(conn, token=token)
            if used.needs_code:
                ticket = signing_in.ticket(_ticket_key(request), user_id=used.user_id, is_kept=False)
                return Shown(template="door/sign_in_code.html", values={"next": NEW_PASSWORD, "ticket": ticket})
            session = await sessions.open_for(
                conn,
                user_id=used.user_id,
                address=request.address,
                agent=request.agent,
                how="link",
                request_id=request.request_id,
            )
    except links.LinkUsed as refusal:
        request.services.failures.note(request.address, door="dashboard")
        return refused("door/enter.html", Invalid(("link", "refused", refusal.message)), {})
    await end_former(request)
    return signed_in(request, used.user_id, session, NEW_PASSWORD if used.is_mailed else "/", is_kept=False)


async def show_forgotten(request: Request) -> Answer:
    """Where to ask for a link by mail; without an SMTP server, who can make one."""
    values = {"sends": outbox.of(request.services.settings) is not None, "email": "", "asked": None}
    return Shown(template="door/forgotten.html", values=values)


async def forgotten(request: Request) -> Answer:
    """Have a link mailed. The answer is the same whoever asks."""
    box = outbox.of(request.services.settings)
    email = request.form.get("email", "").strip()
    values = {"sends": box is not None, "email": email, "asked": None}
    if box is None:
        return Shown(template="door/forgotten.html", values=values)
    try:
        await asking_anew.ask(
            request.services.pool, box, email=email, language=request.speech.language, address=request.address
        )
    except (Invalid, TooManyTries) as refusal:
        wrong = refusal if isinstance(refusal, Invalid) else Invalid(("email", "refused", said(request, refusal)))
        return refused("door/forgotten.html", wrong, values)
    return Shown(template="door/forgotten.html", values=values | {"asked": email.lower()})


async def tell_session(request: Request) -> Answer:
    """Whether somebody is signed in, and what their forms carry: a page asks before it sends one."""
    return Shown(template="door/session.html", values={}, status=200 if request.session is not None else 401)


async def set_preferences(request: Request) -> Answer:
    """Theme, language, the folded rail and rows of a page, kept in cookies, for visitors too."""
    kept = []
    for field, name, allowed in (
        ("theme", cookies.THEME, cookies.THEMES),
        ("language", cookies.LANGUAGE, ("en", "pt")),
        ("rail", cookies.RAIL, ("folded", "open")),
        ("keys", cookies.KEYS, ("on", "off")),
        ("rows", cookies.ROWS, tuple(map(str, leafing.SIZES))),
    ):
        value = request.form.get(field, "")
        if value in allowed:
            kept.append(cookies.preference(name, value, is_secure=request.is_secure))
    return Elsewhere(location=own_address(request.form.get("next", "/")), cookies=kept)


async def prove(request: Request) -> Answer:
    """Back to where the password was asked for: giving it is what this route declares."""
    return Elsewhere(location=own_address(request.query.get("next", "/")))


async def end_former(request: Request) -> None:
    """Whoever signs in where somebody was signed in takes their place."""
    if request.session is not None:
        async with request.writing() as conn:
            await sessions.end_token(conn, token=request.token)
        request.services.sessions.forget(request.token)


def signed_in(request: Request, user_id: UUID, token: str, following: str, *, is_kept: bool) -> Answer:
    """To a page of ours, as whoever the session is of, in a browser that is known from now on."""
    session = cookies.session(token, is_secure=request.is_secure, is_kept=is_kept)
    mark = signing_in.mark(_mark_key(request), user_id=user_id)
    kept = cookies.preference(cookies.BROWSER, mark, is_secure=request.is_secure)
    return Elsewhere(location=following, cookies=[session, kept])


def demand_https(request: Request) -> None:
    """A browser keeps no session of ours that came over plain http, unless it is on this machine."""
    if request.is_secure and request.headers.get(b"origin", b"").startswith(b"http://"):
        raise forgery.PlainHttp


def said(request: Request, refusal: Refusal) -> str:
    """A refusal, in the reader's language, with how long to wait."""
    if isinstance(refusal, TooManyTries):
        return request.text("Too many failures. Try again in %(seconds)s s.", seconds=refusal.details["retry_after"])
    return refusal.message


def _mark_key(request: Request) -> bytes:
    return derive_key(request.services.settings.secret_key, "known browsers")


def _ticket_key(request: Request) -> bytes:
    return derive_key(request.services.settings.secret_key, "half a sign-in")
