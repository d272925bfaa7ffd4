"""The bell: what needed attention in the last 90 days, newest first; what is new to the reader is marked."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from heliograph.base.errors import Invalid
from heliograph.notices import reading
from heliograph.notices.kinds import KINDS
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.lists import pagination
from heliograph.pages.noticing.lines import lines
from heliograph.pages.requests import Request


def seen_by(request: Request) -> list[str]:
    """The kinds that the reader's role is notified of."""
    return [name for name, kind in KINDS.items() if request.may(kind.scope, kind.permission, mode="live")]


async def show(request: Request) -> Answer:
    """A page of notices."""
    limit = pagination.size(request)
    async with request.reading() as conn:
        found = await reading.list_page(
            conn,
            request.acting("live"),
            user_id=request.person.user_id,
            kinds=[kind for kind in seen_by(request) if kind not in request.person.silent],
            after=pagination.after(request),
            limit=limit,
        )
    rows = found[:limit]
    told = lines(request.locale, rows)
    values: dict[str, Any] = {
        "lines": [(line, request.to(line.path, channel=line.channel, mode=line.newest.mode)) for line in told],
        "has_new": any(one.is_new for one in rows),
        "newest": rows[0].id if rows else None,
        "days": reading.DAYS,
        "is_first": pagination.after(request) is None,
        "pages": pagination.pages(request, rows[-1].id if len(found) > limit else None),
    }
    return Page(template="organization/notices.html", values=values)


async def read(request: Request) -> Answer:
    """Mark the notices on the page, and older ones, as read."""
    try:
        up_to = UUID(request.form.get("up_to", ""))
    except ValueError:
        raise Invalid(("up_to", "format", "This form does not come from this site. Reload the page.")) from None
    async with request.writing() as conn:
        await reading.read(conn, request.acting("live"), user_id=request.person.user_id, up_to=up_to)
    request.services.sessions.forget(request.token)
    return Redirect(location=request.to("/notices"))
