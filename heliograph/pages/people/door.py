"""What the doors of both realms share: sessions, words for what was refused, and the keys that sign."""

from __future__ import annotations

from uuid import UUID

from heliograph.base.crypto import Key, derive_key
from heliograph.base.errors import Refusal
from heliograph.pages import cookies
from heliograph.pages.answers import Answer, Elsewhere, Shown
from heliograph.pages.requests import Request
from heliograph.people import signing_in
from heliograph.people.tries import TooManyTries


async def end_former(request: Request) -> None:
    """Whoever signs in where somebody was signed in takes their place."""
    if request.session is not None:
        async with request.writing() as conn:
            await request.realm.end(conn, token=request.token)
        request.services.sessions.forget(request.token)


def signed_in(request: Request, user_id: UUID, token: str, following: str, *, is_kept: bool = False) -> Answer:
    """To a page of ours, as whoever the session is of, in a browser that is known from now on."""
    session = cookies.session(request.realm.cookie, token, is_secure=request.is_secure, is_kept=is_kept)
    mark = signing_in.mark(mark_key(request), user_id=user_id)
    kept = cookies.preference(cookies.BROWSER, mark, is_secure=request.is_secure)
    return Elsewhere(location=following, cookies=[session, kept])


async def signed_out(request: Request) -> Answer:
    """End this session."""
    async with request.writing() as conn:
        await request.realm.end(conn, token=request.token)
    request.services.sessions.forget(request.token)
    ended = cookies.no_session(request.realm.cookie, is_secure=request.is_secure)
    return Elsewhere(location=request.realm.sign_in, cookies=[ended])


async def tell_session(request: Request) -> Answer:
    """Whether somebody is signed in, and what their forms carry: a page asks before it sends one."""
    return Shown(template="session.html", values={}, status=200 if request.session is not None else 401)


def said(request: Request, refusal: Refusal) -> str:
    """A refusal, in the reader's language, with how long to wait."""
    if isinstance(refusal, TooManyTries):
        return request.text("Too many failures. Try again in %(seconds)s s.", seconds=refusal.details["retry_after"])
    return refusal.message


def mark_key(request: Request) -> Key:
    """Signs the marks of browsers in which somebody has signed in."""
    return derive_key(request.services.settings.secret_keys, "known browsers")


def is_known(request: Request, user_id: UUID) -> bool:
    """Whether this person has signed in before in this browser."""
    browser = request.cookies.get(cookies.BROWSER, "")
    return signing_in.is_known(mark_key(request), user_id=user_id, browser=browser)


def ticket_key(request: Request) -> Key:
    """Signs the tickets of half a sign-in, which are good in their realm alone."""
    return derive_key(request.services.settings.secret_keys, f"half a sign-in to the {request.realm.name}")
