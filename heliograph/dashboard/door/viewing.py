"""Entrance for an operator who views as an organization, by a one-time link from the console."""

from __future__ import annotations

from heliograph.base.errors import Invalid
from heliograph.pages import cookies
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.people.door import end_former
from heliograph.pages.requests import Request
from heliograph.people.links import LinkUsed
from heliograph.people.operators import viewing


async def show(request: Request) -> Answer:
    """The page that the link opens. The token is after `#`, so a script fills it in, or the reader pastes it."""
    return Page(template="link.html", values={})


async def take_up(request: Request) -> Answer:
    """Begin viewing; this ends the browser's earlier dashboard session."""
    token = request.form.get("link", "").strip().rpartition("#")[2]
    try:
        async with request.writing() as conn:
            session = await viewing.take_up(conn, token=token)
    except LinkUsed as refusal:
        request.services.failures.note(request.address, door="dashboard")
        return refused("link.html", Invalid(("link", "refused", refusal.message)), {})
    await end_former(request)
    kept = cookies.session(request.realm.cookie, session, is_secure=request.is_secure)
    return Redirect(location="/", cookies=[kept])
