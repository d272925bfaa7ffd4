"""Waiting callbacks from Meta, and items that could not be applied: retry them, or give them up."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from heliograph.base.errors import NotFound
from heliograph.overview.installation import whatsapp
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import TRAFFIC_CHANGE
from heliograph.whatsapp.callbacks import dead_letters
from heliograph.whatsapp.callbacks.processing import retries
from heliograph.whatsapp.mirror import apps

HERE = "/console/whatsapp/callbacks"
#: For this long one request retries; what was applied is gone by the next one.
SECONDS = 10.0


async def show(request: Request) -> Answer:
    """Waiting callbacks, and a page of items that could not be applied, newest first."""
    key, size = apps.seal_key(request.services.settings), pagination.size(request)
    async with request.reading() as conn:
        waiting, aside = await whatsapp.waiting(conn), await dead_letters.count(conn)
        letters = await whatsapp.list_dead_letters(conn, key, after=pagination.after(request), limit=size + 1)
    values: dict[str, Any] = {
        "waiting": waiting,
        "counted": whatsapp.COUNTED,
        "aside": aside,
        "most_aside": dead_letters.COUNTED,
        "letters": letters[:size],
        "pages": pagination.pages(request, UUID(letters[size - 1].id) if len(letters) > size else None),
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
    template = "whatsapp/callbacks_live.html" if request.is_fragment else "whatsapp/callbacks.html"
    return Page(template=template, values=values)


async def retry(request: Request) -> Answer:
    """Retry items that could not be applied, oldest first."""
    key = apps.seal_key(request.services.settings)
    looked, done = await retries.retry(request.services.pool, key, seconds=SECONDS)
    said = request.text(
        "%(done)s of %(looked)s are applied.", done=request.locale.number(done), looked=request.locale.number(looked)
    )
    return Redirect(location=HERE, notice=said, is_refusal=not done)


async def show_one(request: Request) -> Answer:
    """One item: why it could not be applied, and its contents, without what people wrote."""
    key = apps.seal_key(request.services.settings)
    async with request.reading() as conn:
        found = await whatsapp.get_dead_letter(conn, key, id=request.id())
    values: dict[str, Any] = {
        "open": found,
        "one": found.line,
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
    return Page(template="whatsapp/callback.html", values=values)


async def retry_one(request: Request) -> Answer:
    """Apply this one."""
    id = request.id()
    looked, done = await retries.retry(request.services.pool, apps.seal_key(request.services.settings), id=id)
    if not looked:
        raise NotFound
    if done:
        return Redirect(location=HERE, notice=request.text("It is applied."))
    return Redirect(location=f"{HERE}/{id}", notice=request.text("It still cannot be applied."), is_refusal=True)


async def drop(request: Request) -> Answer:
    """Give it up."""
    async with request.writing() as conn:
        await dead_letters.drop(conn, id=request.id(), by=request.principal)
    return Redirect(location=HERE, notice=request.text("It is given up."))
