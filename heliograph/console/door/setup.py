"""Setup: from a one-time link to an operator with a second factor, one page per step; it can be interrupted.

The rule nobody may break: a session without a second factor gets only these pages, and only a link starts one.
"""

from __future__ import annotations

from heliograph.base.errors import Invalid, NotFound
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.people import factor
from heliograph.pages.people.door import end_former, refusal_text, signed_in
from heliograph.pages.requests import Request
from heliograph.people import factors, links, users
from heliograph.people.operators import sessions
from heliograph.people.tries import TooManyTries

ACCOUNT, FACTOR, NEXT = "/console/setup/account", "/console/setup/factor", "/console/setup/next"


async def show_link(request: Request) -> Answer:
    """The page that a one-time link opens. The token is after `#`, so a script fills it in, or the reader pastes it."""
    return Page(template="link.html", values={})


async def enter(request: Request) -> Answer:
    """Use the link."""
    # The whole link can be pasted, too.
    token = request.form.get("link", "").strip().rpartition("#")[2]
    try:
        async with request.writing() as conn, conn.transaction():
            used = await links.use(conn, token=token, realm="console")
            session = await sessions.open_for(
                conn,
                user_id=used.user_id,
                address=request.address,
                agent=request.agent,
                how="link",
                request_id=request.request_id,
            )
    except (links.LinkUsed, NotFound):
        request.services.failures.note(request.address, door=request.realm.name)
        return refused("link.html", Invalid(("link", "refused", links.LinkUsed().message)), {})
    await end_former(request)
    return signed_in(request, used.user_id, session, ACCOUNT)


async def show_account(request: Request) -> Answer:
    """Step 1: the form for name and password."""
    return Page(template="door/setup_account.html", values={"name": request.operator.name})


async def keep_account(request: Request) -> Answer:
    """Save name and password; all other sessions end."""
    operator, form = request.operator, request.form
    if not operator.is_proved:
        raise Invalid(("password", "late", "Too much time has passed since the link was used. Ask for a new one."))
    values = {"name": form.get("name", "")}
    try:
        async with request.reading() as conn:
            user = await users.get(conn, id=operator.user_id)
        users.checked_name(form.get("name", ""))
        await users.set_password(
            request.services.pool,
            request.principal,
            user=user,
            password=form.get("password", ""),
            keep_session=operator.id,
        )
        async with request.writing() as conn:
            await users.change(
                conn,
                request.principal,
                id=user.id,
                name=form.get("name", ""),
                language=user.language,
                time_zone=user.time_zone,
            )
    except Invalid as refusal:
        return refused("door/setup_account.html", refusal, values)
    except TooManyTries as refusal:
        return refused(
            "door/setup_account.html", Invalid(("password", "refused", refusal_text(request, refusal))), values
        )
    request.services.sessions.forget(request.token)
    return Redirect(location=FACTOR)


async def show_factor(request: Request) -> Answer:
    """Step 2: an authenticator app, its QR code, its secret as text, and a field for the first code."""
    return Page(template="door/setup_factor.html", values=factor.offer(request, factors.new_secret()))


async def turn_factor_on(request: Request) -> Answer:
    """Turn the factor on if the first code is right; then step 3: the recovery codes, shown once."""
    operator = request.operator
    # An existing factor has to be used before it is replaced; an operator without one came by a link just now.
    if not operator.is_proved:
        return Redirect(location=request.realm.sign_in if operator.lacks_factor else "/console/account")
    secret = factor.offered(request)
    if secret is None:
        return Redirect(location=FACTOR)
    try:
        async with request.writing() as conn:
            codes = await factors.enable(
                conn,
                request.principal,
                request.services.factor_key,
                user_id=operator.user_id,
                secret=secret,
                given=request.form.get("code", ""),
            )
    except Invalid as refusal:
        return refused("door/setup_factor.html", refusal, factor.offer(request, secret))
    request.services.sessions.forget(request.token)
    return Page(template="door/setup_codes.html", values={"codes": codes})


async def show_next(request: Request) -> Answer:
    """Step 4: what to do first."""
    if request.operator.lacks_factor:
        return Redirect(location=FACTOR)
    return Page(template="door/setup_next.html", values={})
