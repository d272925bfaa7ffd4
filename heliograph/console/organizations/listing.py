"""Organizations: all of them, newest first, with their remaining quota and their messages' results."""

from __future__ import annotations

from uuid import UUID

from heliograph.overview.installation import organizations
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import ORGANIZATIONS_CHANGE


async def show(request: Request) -> Answer:
    """A page of organizations."""
    search, state = request.query.get("search", "").strip(), request.query.get("state", "")
    state = state if state in words.ORGANIZATION_STATES else ""
    try:
        after = UUID(request.query["after"]) if request.query.get("after") else None
    except ValueError:
        after = None
    async with request.reading() as conn:
        listed = await organizations.listed(conn, after=after, search=search, state=state)
    values = {
        "listed": listed,
        "days": organizations.DAYS,
        "search": search,
        "state": state,
        "states": words.ORGANIZATION_STATES,
        "older": request.again(after=listed[-1].id) if len(listed) == organizations.MOST else "",
        "is_first": after is None,
        "may_change": request.may(permission=ORGANIZATIONS_CHANGE),
    }
    return Page(template="organizations/list.html", values=values)
