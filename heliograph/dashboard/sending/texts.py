"""Saved texts: recurring texts, listed by name, changed, and inserted into the form of a send."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.campaigns import template as places
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.forms import leaving
from heliograph.pages.requests import Request
from heliograph.sms.accepting import preview
from heliograph.sms.accepting.accept import MAX_TEXT
from heliograph.sms.by_hand import saved_texts
from heliograph.sms.by_hand.saved_texts import MAX_NAME, SavedText, SavedTextExists, TooManySavedTexts

FORM = "sending/texts_edit.html"


class Line(msgspec.Struct, frozen=True):
    """A saved text, its cost as it is, and the placeholders that a campaign fills in."""

    text: SavedText
    segments: int
    places: list[str]


async def show_list(request: Request) -> Answer:
    """All of them, by name."""
    actor = request.acting("live")
    async with request.reading() as conn:
        listed = await saved_texts.list_all(conn, actor)
    lines = [Line(one, len(preview.measure(actor, one.body).parts), sorted(places.places(one.body))) for one in listed]
    values = {"lines": lines, "most": saved_texts.MOST, "may_write": may_write(request)}
    return Page(template="sending/texts.html", values=values)


async def show_new(request: Request) -> Answer:
    """An empty form."""
    return Page(template=FORM, values=_values("", ""))


async def keep(request: Request) -> Answer:
    """The form with the text of a send's form, to give it a name. Nothing is stored yet."""
    return Page(template=FORM, values=_values("", request.form.get("message", "")[:MAX_TEXT]))


async def create(request: Request) -> Answer:
    """Save a text."""
    name, body = _typed(request)

    async def work(conn: Connection) -> str:
        return (await saved_texts.create(conn, request.acting("live"), name=name, body=body)).name

    try:
        saved = await request.once(work)
    except (Invalid, SavedTextExists, TooManySavedTexts) as refusal:
        return refused(FORM, _form_refusal(refusal), _values(name, body))
    return Redirect(location=request.to("/texts"), notice=request.text("“%(name)s” is saved.", name=saved))


async def show(request: Request) -> Answer:
    """The form that changes one text."""
    async with request.reading() as conn:
        found = await saved_texts.get(conn, request.acting("live"), id=request.id())
    return Page(template=FORM, values=_values(found.name, found.body, found.id))


async def change(request: Request) -> Answer:
    """Change its name or text, or both; what was left as it was shown stays as it is by now."""
    id, as_shown = request.id(), leaving.unchanged_fields(request.form)
    name, body = _typed(request)
    typed = {field: text for field, text in (("name", name), ("body", body)) if field not in as_shown}

    async def work(conn: Connection) -> str:
        await saved_texts.change(conn, request.acting("live"), id=id, **typed)
        return ""

    try:
        await request.once(work)
    except (Invalid, SavedTextExists) as refusal:
        return refused(FORM, _form_refusal(refusal), _values(name, body, id, was=request.form.get(leaving.WAS)))
    return Redirect(location=request.to("/texts"), notice=request.text("Saved."))


async def show_remove(request: Request) -> Answer:
    """What removing it would do."""
    async with request.reading() as conn:
        found = await saved_texts.get(conn, request.acting("live"), id=request.id())
    return Page(template="sending/texts_remove.html", values={"one": found})


async def remove(request: Request) -> Answer:
    """Remove it."""
    id = request.id()

    async def work(conn: Connection) -> str:
        await saved_texts.remove(conn, request.acting("live"), id=id)
        return ""

    await request.once(work)
    return Redirect(location=request.to("/texts"), notice=request.text("The text was removed."))


def may_write(request: Request) -> bool:
    """Both modes share the texts, so changing them requires the live permission."""
    return request.may("sms:send", mode="live")


def _typed(request: Request) -> tuple[str, str]:
    return request.form.get("name", "").strip(), request.form.get("body", "")


def _values(name: str, body: str, id: UUID | None = None, *, was: str | None = None) -> dict[str, Any]:
    """`was`: the values shown first, as the form carries them; None: these."""
    shown = was or leaving.written({"name": name, "body": body})
    return {"name": name, "body": body, "id": id, "was": shown, "longest": MAX_TEXT, "longest_name": MAX_NAME}


def _form_refusal(refusal: Invalid | SavedTextExists | TooManySavedTexts) -> Invalid:
    if not isinstance(refusal, Invalid):
        return Invalid(("name", refusal.code, refusal.message))
    return Invalid(
        *(
            (one["field"], one["issue"], words.SAVED_TEXT_FORM.get(one["field"], one["message"]))
            for one in refusal.details["fields"]
        )
    )
