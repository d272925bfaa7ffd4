"""What signing in to both realms has in common: sessions, texts of refusals, and signing keys."""

from __future__ import annotations

from uuid import UUID

from heliograph.base.crypto import Key, derive_key
from heliograph.base.errors import Refusal
from heliograph.pages import cookies
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.people import signing_in
from heliograph.people.tries import TooManyTries


async def end_former(request: Request) -> None:
    """End the session of whoever was signed in before in this browser."""
    if request.session is not None:
        async with request.writing() as conn:
            await request.realm.end(conn, token=request.token)
        request.services.sessions.forget(request.token)


def signed_in(request: Request, user_id: UUID, token: str, following: str, *, is_kept: bool = False) -> Answer:
    """Redirect to one of our pages, with the new session, and mark the browser as known."""
    session = cookies.session(request.realm.cookie, token, is_secure=request.is_secure, is_kept=is_kept)
    mark = signing_in.mark(mark_key(request), user_id=user_id, browser=request.cookies.get(cookies.BROWSER, ""))
    kept = cookies.preference(cookies.BROWSER, mark, is_secure=request.is_secure)
    return Redirect(location=following, cookies=[session, kept])


async def signed_out(request: Request) -> Answer:
    """End this session."""
    async with request.writing() as conn:
        await request.realm.end(conn, token=request.token)
    request.services.sessions.forget(request.token)
    ended = cookies.no_session(request.realm.cookie, is_secure=request.is_secure)
    return Redirect(location=request.realm.sign_in, cookies=[ended])


async def tell_session(request: Request) -> Answer:
    """Says whether somebody is signed in, and with which form token: a page asks before it submits a form."""
    return Page(template="session.html", values={}, status=200 if request.session is not None else 401)


def refusal_text(request: Request, refusal: Refusal) -> str:
    """A refusal, in the reader's language, with how long to wait."""
    if isinstance(refusal, TooManyTries):
        seconds = refusal.details["retry_after"]
        wait = f"{seconds} s" if seconds < 60 else request.locale.duration(seconds)
        return request.text("Too many attempts. Try again in %(wait)s.", wait=wait)
    return refusal.message


def mark_key(request: Request) -> Key:
    """The key that signs the marks of browsers in which somebody has signed in."""
    return derive_key(request.services.settings.secret_keys, "known browsers")


def is_known(request: Request, user_id: UUID) -> bool:
    """True if this person has signed in before in this browser."""
    browser = request.cookies.get(cookies.BROWSER, "")
    return signing_in.is_known(mark_key(request), user_id=user_id, browser=browser)


def ticket_key(request: Request) -> Key:
    """The key that signs the tickets of half-finished sign-ins, which are valid in their realm only."""
    return derive_key(request.services.settings.secret_keys, f"half a sign-in to the {request.realm.name}")
