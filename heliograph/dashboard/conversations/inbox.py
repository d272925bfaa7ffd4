"""Inbox: the conversations on the left, one of them open on the right."""

from __future__ import annotations

import math
from typing import Any
from uuid import UUID

from heliograph.base.database import clock, cursor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.base.ids import just_above, time_of
from heliograph.inbox import threads
from heliograph.overview import inbox
from heliograph.overview.inbox import Conversation, Window
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.people import memberships
from heliograph.people.roles import CONVERSE

COLLECTION = "conversations of a page"
#: Conversations, and messages, per page.
LINES, BUBBLES = 30, 40
#: Maximum characters of a search, and the state of conversations that are searched.
LONGEST, ALL = 100, "all"
#: Hours during which WhatsApp allows a free-text reply.
WINDOW_HOURS = 24


async def show_list(request: Request) -> Answer:
    """The list alone."""
    return await _shown(request, None)


async def show(request: Request) -> Answer:
    """One conversation, next to the list."""
    return await _shown(request, request.id())


async def page(request: Request, id: UUID, **values: Any) -> dict[str, Any]:
    """The values of a conversation's page; `values`: those of a refused reply."""
    return await _values(request, id) | values


def address(request: Request, id: UUID | None = None, /, **query: str) -> str:
    """The address of a conversation, or of the list alone, with the tab and the search that it was opened from."""
    kept = {name: request.query.get(name) for name in ("state", "q")}
    return request.to("/inbox" if id is None else f"/inbox/{id}", **kept, **query)


async def _shown(request: Request, id: UUID | None) -> Answer:
    try:
        values = await _values(request, id)
    except Invalid:  # a position in another list
        return Redirect(location=address(request, id))
    return Page(
        template="conversations/inbox_live.html" if request.is_fragment else "conversations/inbox.html", values=values
    )


async def _values(request: Request, id: UUID | None) -> dict[str, Any]:
    whole = request.may(permission=CONVERSE)
    # Whoever may not see names and numbers may not find out about them either.
    searched = request.query.get("q", "").strip()[:LONGEST] if whole else ""
    usual = ALL if searched else threads.STATES[0]
    state = request.query.get("state", "")
    state = state if state in threads.STATES else usual
    kept = "" if state == usual else state
    bound = f"{state} {searched}".strip()
    may_answer = request.may("whatsapp:send", CONVERSE)
    async with request.reading() as conn:
        after = _place(request, "after", bound)
        if searched:
            lines, more = await inbox.search(conn, request.actor, text=searched, state=state, after=after, limit=LINES)
        else:
            lines, more = await inbox.list_page(conn, request.actor, state=state, after=after, limit=LINES)
        before = _place(request, "before", str(id))
        found = None if id is None else await inbox.get(conn, request.actor, id=id, before=before, limit=BUBBLES)
        is_empty = not lines and not searched and not await threads.any_at_all(conn, request.actor)
        assigned = {one.thread.assigned_to for one in lines} | (set() if found is None else {found.thread.assigned_to})
        names = await memberships.names(conn, request.actor, ids={one for one in assigned if one is not None})
    # An earlier page of a conversation, to which links lead as well, does not show what is new.
    is_shown = found is not None and (before is None or any(one.id == found.thread.message_id for one in found.bubbles))
    if found is not None and found.thread.is_unread and may_answer and is_shown:
        async with request.writing() as conn:
            await threads.see(conn, request.actor, id=found.thread.id, message_id=found.thread.message_id)
            await inbox.spread(conn, request.actor, thread=found.thread)
    return {
        "state": state,
        "kept": kept,
        "states": threads.STATES,
        "lines": lines,
        "is_empty": is_empty,
        "more": None if more is None else request.to("/inbox", state=kept, q=searched, after=_at(request, more, bound)),
        "q": searched,
        "looked_until": time_of(more) if searched and more is not None and len(lines) < LINES else None,
        "is_first": "after" not in request.query,
        "found": found,
        "older": None
        if found is None or found.older is None
        else request.to(f"/inbox/{id}", state=kept, q=searched, before=_at(request, found.older, str(id))),
        "is_newest": "before" not in request.query,
        "is_shown": is_shown,
        "quoted": {} if found is None else _quoted(request, found),
        "may_answer": may_answer,
        "whole": whole,
        "names": names,
        "left": _left(None if found is None else found.window),
        # In whole hours: a list that changed with every refresh would be sent again each time.
        "hours_left": {one.thread.id: math.ceil(_left(one.window)) for one in lines},
        "hours": WINDOW_HOURS,
        "typed": "",
        "is_refused": False,
    }


async def place_of(conn: Connection, request: Request, id: UUID) -> str | None:
    """The address of a received SMS in its conversation; None: it has none, or the reader may not see it."""
    if not request.may("whatsapp:read"):
        return None
    thread = await inbox.of_received(conn, request.actor, id=id)
    if thread is None:
        return None
    # The reader comes from another page, where `q` may be another search.
    return request.to(f"/inbox/{thread}", before=_above(request, thread, id)) + f"#b-{id}"


def _above(request: Request, thread: UUID, id: UUID) -> str:
    """Where the page that begins with a message of a conversation begins, however far back that is."""
    return _at(request, just_above(id), str(thread))


def _quoted(request: Request, found: Conversation) -> dict[UUID, str]:
    """Where each message that another one answers is shown: on this page, or on an earlier one."""
    here, thread = {one.id for one in found.bubbles}, found.thread.id
    places = {one.quoted: f"#b-{one.quoted}" for one in found.bubbles if one.quoted is not None}
    for id in places.keys() - here:
        places[id] = address(request, thread, before=_above(request, thread, id)) + places[id]
    return places


def _left(window: Window | None) -> float:
    """Hours for which a window is still open."""
    if window is None or window.expires_at is None or not window.is_open:
        return 0.0
    return max((window.expires_at - clock.now()).total_seconds() / 3600, 0.0)


def _at(request: Request, id: UUID, bound: str) -> str:
    organization_id = request.actor.organization_id
    return cursor.encode(
        request.services.cursor_key,
        [id],
        organization_id=organization_id,
        collection=COLLECTION,
        filters={"of": bound},
    )


def _place(request: Request, name: str, bound: str) -> UUID | None:
    """Where a page begins. Raises Invalid for a position in another list."""
    given = request.query.get(name)
    if not given:
        return None
    (id,) = cursor.decode(
        request.services.cursor_key,
        given,
        organization_id=request.actor.organization_id,
        collection=COLLECTION,
        filters={"of": bound},
    )
    return UUID(id)
