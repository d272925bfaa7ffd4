"""Drafts of campaigns: saved while somebody types, continued by anybody who may create campaigns, or discarded."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid_in
from heliograph.campaigns import drafts
from heliograph.dashboard.audience.composing import form
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request

HERE = "/campaigns"
#: Fields that are not part of a draft: they are stored elsewhere, or have to be decided again each time.
_OUTSIDE = ("draft", "numbers", "start", "typed")


async def save(request: Request) -> Answer:
    """Save the form as it is, and return the message that its script shows."""
    said = await keep(request, form.typed(request.form))
    return Page(template="audience/campaign_draft.html", values={"said": said})


async def keep(request: Request, typed: dict[str, str]) -> str:
    """Save a form; returns why it could not be saved, or what it replaced, or ""."""
    if (id := uuid_in(typed["draft"])) is None or not any(typed[name] for name in ("name", "text", "template")):
        return ""
    fields = {name: value for name, value in typed.items() if name not in _OUTSIDE and value}
    fields["zone"] = request.locale.zone
    try:
        async with request.writing() as conn:
            before = await drafts.save(
                conn, request.actor, id=id, fields=fields, numbers=form.numbers(typed["numbers"])
            )
    except Refusal as refusal:
        if isinstance(refusal, Invalid):
            return request.text("This is too long to be saved as a draft.")
        return request.text(refusal.message)
    if before is None:
        return ""
    name, at = before
    if name == request.actor.principal.name:
        return request.text(
            "Saved as a draft, over what another person named %(name)s saved at %(time)s.",
            name=name,
            time=request.locale.clock(at),
        )
    return request.text(
        "Saved as a draft, over what %(name)s saved at %(time)s.", name=name, time=request.locale.clock(at)
    )


async def read(request: Request, id: UUID) -> dict[str, str]:
    """The fields of a draft as typed; its time in the reader's zone, who may not have typed it. Raises NotFound."""
    async with request.reading() as conn:
        found = await drafts.get(conn, request.actor, id=id)
    fields = {**found.fields, "numbers": "\n".join(found.numbers), "draft": str(found.id)}
    zone = request.locale.zone
    if (typed_in := fields.pop("zone", zone)) != zone and "day" in fields and "hour" in fields:
        with contextlib.suppress(ValueError, KeyError, OverflowError):  # what is not a time stays as it is
            at = form.moment(fields, typed_in).astimezone(ZoneInfo(zone))
            # The form says of an hour that comes twice only the first: who continues has to choose another time.
            fields |= {"day": at.date().isoformat(), "hour": "" if at.fold else f"{at:%H:%M}"}
    return fields


async def discard(request: Request) -> Answer:
    """Discard a draft; this can be undone."""
    id = request.id()

    async def work(conn: Connection) -> str:
        await drafts.discard(conn, request.actor, id=id)
        return ""

    await request.once(work)
    undo = request.to(f"{HERE}/drafts/{id}/restore")
    return Redirect(location=request.to(HERE), notice=request.text("The draft is discarded."), undo=undo)


async def restore(request: Request) -> Answer:
    """Restore a discarded draft."""
    id = request.id()

    async def work(conn: Connection) -> str:
        await drafts.restore(conn, request.actor, id=id)
        return ""

    try:
        await request.once(work)
    except NotFound as refusal:
        return Redirect(location=request.to(HERE), notice=request.text(refusal.message), is_refusal=True)
    return Redirect(location=request.to(HERE), notice=request.text("The draft is restored."))


async def values(request: Request, conn: Connection) -> list[dict[str, Any]]:
    """Drafts as the list of campaigns shows them."""
    return [
        {
            "id": one.id,
            "name": one.fields.get("name", ""),
            "channel": one.fields.get("channel", ""),
            "author": one.author,
            "saved_at": one.saved_at,
        }
        for one in await drafts.list_all(conn, request.actor)
    ]
