"""Asking before a shorter retention deletes what an organization has, on its settings page and in the console."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from heliograph.accounts.send_defaults import SendDefaults
from heliograph.base.database.pool import Connection
from heliograph.pages import forgery
from heliograph.pages.answers import Page
from heliograph.pages.requests import Request
from heliograph.retention import shortening
from heliograph.retention.shortening import NotAgreed

#: The field that agrees to what the form deletes.
AGREED = "agreed"


async def change(
    request: Request, conn: Connection, organization_id: UUID, apply: Callable[[], Awaitable[SendDefaults]]
) -> None:
    """Run `apply`, which changes the organization's defaults. Raises what it raises, and NotAgreed, which `ask`
    answers."""
    await shortening.change(
        conn,
        request.services.settings,
        organization_id=organization_id,
        apply=apply,
        is_agreed=lambda after: request.form.get(AGREED) == _mark(after),
    )


def ask(request: Request, asks: NotAgreed, *, back: str) -> Page:
    """The page that says what the form deletes, and submits it again, with the agreement to that."""
    kept = {name: value for name, value in request.form.items() if name not in (forgery.FIELD, AGREED)}
    values = {
        "found": asks.found,
        "kept": kept | {AGREED: _mark(asks.after)},
        "action": request.to(request.path),
        "back": back,
    }
    return Page(template="shorten.html", values=values)


def _mark(after: SendDefaults) -> str:
    return f"{after.text_days}/{after.message_days}"
