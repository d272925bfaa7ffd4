"""Live values of the frame: the service status in words, and what awaits a decision."""

from __future__ import annotations

from heliograph.console.engine.console_cache import cache_of
from heliograph.pages.answers import Answer, Page
from heliograph.pages.pieces import state
from heliograph.pages.pieces.places import Mark
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import APPROVALS


async def show(request: Request) -> Answer:
    """The service status; the fragment, which every page refreshes periodically, also has the bell and the rail's
    marks."""
    known = cache_of(request)
    await known.refresh(request)
    marks = []
    if request.may(permission=APPROVALS):
        waiting = known.waits.count
        said = request.locale.count(
            "%(num)s sender ID waits for a decision.", "%(num)s sender IDs wait for a decision.", waiting
        )
        marks.append(Mark("/console/approvals", waiting, said))
    values = {"words": await state.text(request), "unread": known.unread(request.operator), "marks": marks}
    return Page(template="state_live.html" if request.is_fragment else "state.html", values=values)
