"""D6b Tags: how many people have each, its last campaign; rename, merge and remove, after showing how many people."""

from __future__ import annotations

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid_in
from heliograph.campaigns import record
from heliograph.campaigns.views import tags as tag_uses
from heliograph.contacts import records, tags
from heliograph.contacts.tags import TooManyTagChanges
from heliograph.dashboard.audience import words
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request


async def show_list(request: Request) -> Answer:
    """A page of tags, in alphabetical order."""
    after, size = request.query.get("after", "")[: records.MAX_TAG], pagination.size(request)
    async with request.reading() as conn:
        # First, since the page is no longer renewed once there is none: the list must not be from before its end.
        open_ = await tags.under_way(conn, request.actor)
        listed = await tag_uses.list_page(conn, request.actor, after=after, limit=size + 1)
    rows = listed[:size]
    values = {
        "rows": rows,
        "changes": open_,
        "may_write": request.may("contacts:write"),
        "next": request.to("/contacts/tags", after=rows[-1].name) if len(listed) > size else None,
        "first": request.to("/contacts/tags"),
        "is_first": not after,
        "size": size,
        "looked": tag_uses.LOOK,
    }
    template = "audience/tags_rows.html" if request.is_fragment else "audience/tags.html"
    return Page(template=template, values=values)


async def show_edit(request: Request) -> Answer:
    """The form that renames, merges or removes one tag, with the effect of each."""
    name = request.query.get("tag", "")
    return Page(template="audience/tag_edit.html", values=await _values(request, name, ""))


async def rename(request: Request) -> Answer:
    """Rename a tag; the name of another tag merges both."""
    name, becomes = request.form.get("tag", ""), request.form.get("becomes", "").strip()

    async def work(conn: Connection) -> str:
        wanted = records.tag(becomes, "becomes")
        return str(await tags.begin(conn, request.actor, tag=name, becomes=wanted))

    try:
        id = await request.once(work)
    except Invalid as refusal:
        one = refusal.details["fields"][0]
        message = words.CONTACT_FORM["same" if one["issue"] == "same" else "tag"]
        wrong = Invalid(("becomes", one["issue"], message))
        return refused("audience/tag_edit.html", wrong, await _values(request, name, becomes))
    except TooManyTagChanges as busy:
        return Redirect(location=request.to("/contacts/tags"), notice=request.text(busy.message), is_refusal=True)
    return await _begun(request, id)


async def remove(request: Request) -> Answer:
    """Remove a tag from everybody."""
    name = request.form.get("tag", "")

    async def work(conn: Connection) -> str:
        return str(await tags.begin(conn, request.actor, tag=name, becomes=None))

    try:
        id = await request.once(work)
    except TooManyTagChanges as busy:
        return Redirect(location=request.to("/contacts/tags"), notice=request.text(busy.message), is_refusal=True)
    return await _begun(request, id)


async def _begun(request: Request, id: str) -> Answer:
    found = uuid_in(id)
    assert found is not None
    async with request.writing() as conn:
        change = await tags.get(conn, request.actor, id=found)
    if change.finished_at is None:
        said = request.text("There are many people with this tag. The list shows the progress.")
    else:
        said = request.locale.count("%(num)s person changed.", "%(num)s people changed.", change.contacts)
    return Redirect(location=request.to("/contacts/tags"), notice=said)


async def _values(request: Request, name: str, becomes: str) -> dict[str, object]:
    if not name or len(name) > records.MAX_TAG:
        raise NotFound
    async with request.reading() as conn:
        found = await tags.one(conn, request.actor, name=name)
        waiting = await record.waiting_for_tag(conn, request.actor, tag=name)
    return {"tag": found, "becomes": becomes, "waiting": waiting}
