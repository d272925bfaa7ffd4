"""My account: changing the e-mail address, confirmed through its mailbox; in both realms, since it is personal."""

from __future__ import annotations

from typing import Any

from heliograph.base.actor import Principal
from heliograph.base.errors import Invalid
from heliograph.mail import outbox
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.people import own_account
from heliograph.pages.people.door import refusal_text
from heliograph.pages.requests import Request
from heliograph.people import email_change, users
from heliograph.people.email_change import EmailChangeEnded
from heliograph.people.tries import TooManyTries


async def show(request: Request) -> Answer:
    """The form for another address."""
    return Page(template="account_email.html", values=await _values(request))


async def ask(request: Request) -> Answer:
    """Have a link mailed to the new address; without mails, change it."""
    box, session = outbox.of(request.services.settings), request.session
    assert session is not None
    try:
        async with request.writing() as conn:
            is_changed = await email_change.ask(
                conn,
                own_account.self_of(request),
                box,
                user=await users.get(conn, id=request.user_id),
                email=request.form.get("email", ""),
                session_id=session.id,
                language=request.locale.language,
            )
    except Invalid as refusal:
        return refused("account_email.html", refusal, await _values(request))
    except TooManyTries as refusal:
        wrong = Invalid(("email", "refused", refusal_text(request, refusal)))
        return refused("account_email.html", wrong, await _values(request))
    request.services.sessions.forget(request.token)
    told = (
        request.text("The e-mail address is changed. Your other sessions were ended.")
        if is_changed
        else request.text("A link is sent to the new address. The change takes effect once you confirm it there.")
    )
    return Redirect(location=own_account.here(request), notice=told)


async def withdraw(request: Request) -> Answer:
    """Keep the current address."""
    async with request.writing() as conn:
        await email_change.withdraw(conn, user_id=request.user_id)
    return Redirect(location=own_account.here(request), notice=request.text("The e-mail address is not changed."))


async def show_confirm(request: Request) -> Answer:
    """Where the mailed link leads: the token comes after `#`."""
    return Page(template="account_email_confirm.html", values={})


async def confirm(request: Request) -> Answer:
    """Change it."""
    # People may paste the whole link as well.
    token = request.form.get("link", "").strip().rpartition("#")[2]
    browser = Principal("unknown", address=request.address, device=request.agent, request_id=request.request_id)
    try:
        async with request.writing() as conn:
            user = await email_change.confirm(conn, outbox.of(request.services.settings), token=token, by=browser)
    except EmailChangeEnded as refusal:
        request.services.failures.note(request.address, door=request.realm.name)
        return refused("account_email_confirm.html", Invalid(("link", "ended", refusal.message)), {})
    except Invalid as refusal:
        message = refusal.details["fields"][0]["message"]
        return refused("account_email_confirm.html", Invalid(("link", "taken", message)), {})
    if request.session is not None and request.user_id == user.id:
        request.services.sessions.forget(request.token)
        told = request.text("Your e-mail address is %(email)s now. Your other sessions were ended.", email=user.email)
        return Redirect(location=own_account.here(request), notice=told)
    # The person who opened the link is signed in here as somebody else, or not at all.
    told = request.text("The e-mail address is confirmed: from now on, %(email)s signs in.", email=user.email)
    return Redirect(location=request.realm.home if request.session else request.realm.sign_in, notice=told)


async def _values(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        waits = await email_change.waiting(conn, user_id=request.user_id)
    return {
        "email": request.form.get("email", ""),
        "waits": waits,
        "sends": outbox.of(request.services.settings) is not None,
        "back": own_account.here(request),
    }
