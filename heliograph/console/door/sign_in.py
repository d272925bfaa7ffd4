"""Signing in as an operator: a password and a code, or a passkey; nothing less gives access to the console."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from heliograph.base.errors import Invalid, NotFound
from heliograph.pages import cookies
from heliograph.pages.answers import Answer, Page, Redirect, own_address, refused
from heliograph.pages.people import passkeys
from heliograph.pages.people.door import end_former, mark_key, refusal_text, signed_in, ticket_key
from heliograph.pages.requests import Request
from heliograph.people import signing_in
from heliograph.people.operators import sessions
from heliograph.people.passkeys import challenges
from heliograph.people.passkeys.challenges import PasskeyRefused
from heliograph.people.signing_in import WrongCode
from heliograph.people.tries import TooManyTries, WrongSignIn

HOME = "/console"
#: The first page after signing in.
FIRST = "/console/now"


async def redirect_home(request: Request) -> Answer:
    """Go to the first page; visitors go to the sign-in form, and operators who are not set up yet to the setup."""
    if request.session is None:
        return Redirect(location=request.realm.sign_in)
    if request.operator.lacks_factor:
        return Redirect(location=request.realm.factor)
    return Redirect(location=FIRST)


async def show_form(request: Request) -> Answer:
    """The form; the console for those who are signed in."""
    following = _following(request.query.get("next", HOME))
    if request.session is not None:
        return Redirect(location=following)
    return Page(template="door/sign_in.html", values=_form(request, following, ""))


async def sign_in(request: Request) -> Answer:
    """Check e-mail address and password; the form for the code always follows."""
    form = request.form
    following = _following(form.get("next", HOME))
    values = _form(request, following, form.get("email", ""))
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
    except (WrongSignIn, TooManyTries) as refusal:
        return _refused(request, refusal_text(request, refusal), values)
    if not proved.needs_code:
        # A password alone must not allow setting up a factor: an attacker who guessed it would set up their own.
        said_so = request.text(
            "The console needs a passkey, or a password with an authenticator app. Ask for a new link to set one up."
        )
        return _refused(request, said_so, values)
    ticket = signing_in.ticket(ticket_key(request), user_id=proved.user_id, hashed=proved.hashed, is_kept=False)
    return Page(template="sign_in_code.html", values={"next": following, "ticket": ticket})


async def sign_in_code(request: Request) -> Answer:
    """Check the code of the authenticator app, or a recovery code."""
    form = request.form
    following = _following(form.get("next", HOME))
    try:
        async with request.writing() as conn:
            half = await signing_in.read_ticket(conn, ticket_key(request), form.get("ticket", ""))
            user_id = half.user_id
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
        token = await _session(request, user_id, "code", hashed=half.hashed)
    except WrongSignIn as refusal:  # too late, which is no failure of anybody who guesses
        return _back(refusal_text(request, refusal), _form(request, following, ""))
    except (WrongCode, TooManyTries) as refusal:
        request.services.failures.note(request.address, door=request.realm.name)
        values = {"next": following, "ticket": form.get("ticket", "")}
        return refused("sign_in_code.html", Invalid(("code", "refused", refusal_text(request, refusal))), values)
    except NotFound:  # has an account and a factor, but is not an operator
        return _refused(request, WrongSignIn().message, _form(request, following, ""))
    await end_former(request)
    return signed_in(request, user_id, token, following)


async def sign_in_passkey(request: Request) -> Answer:
    """Sign in with a passkey."""
    form = request.form
    following = _following(form.get("next", HOME))
    where = passkeys.site_of(request)
    try:
        if where is None:
            raise PasskeyRefused
        asked = challenges.read_challenge(passkeys.key(request), form.get("challenge", ""))
        async with request.writing() as conn:
            user_id = await signing_in.passkey(
                conn, where, asked=asked, given=form.get("credential", ""), address=request.address
            )
        token = await _session(request, user_id, "passkey")
    except (PasskeyRefused, TooManyTries) as refusal:
        return _refused(request, refusal_text(request, refusal), _form(request, following, ""))
    except NotFound:
        return _refused(request, PasskeyRefused().message, _form(request, following, ""))
    await end_former(request)
    return signed_in(request, user_id, token, following)


async def prove(request: Request) -> Answer:
    """Return to the page that needs the password; asking for it is declared on this route."""
    return Redirect(location=_following(request.query.get("next", HOME)))


async def _session(request: Request, user_id: UUID, how: str, *, hashed: str | None = None) -> str:
    """Start a session. Raises NotFound for somebody who is not an operator, and WrongSignIn."""
    async with request.writing() as conn:
        return await sessions.open_for(
            conn,
            user_id=user_id,
            address=request.address,
            agent=request.agent,
            how=how,
            request_id=request.request_id,
            hashed=hashed,
        )


def _refused(request: Request, message: str, values: dict[str, Any]) -> Answer:
    request.services.failures.note(request.address, door=request.realm.name)
    return _back(message, values)


def _back(message: str, values: dict[str, Any]) -> Answer:
    return refused("door/sign_in.html", Invalid(("email", "refused", message)), values)


def _form(request: Request, following: str, email: str) -> dict[str, Any]:
    return {"next": following, "email": email, **passkeys.asking(request)}


def _following(address: str) -> str:
    """The next page, which must be in the console: this door redirects nowhere else."""
    own = own_address(address)
    return own if own == HOME or own.startswith((f"{HOME}/", f"{HOME}?")) else HOME
