"""Live values of the frame: the number of new notices, the service status in words, and what needs attention."""

from __future__ import annotations

from heliograph.campaigns import record
from heliograph.pages.answers import Answer, Page
from heliograph.pages.pieces import state
from heliograph.pages.pieces.places import Mark
from heliograph.pages.requests import Request
from heliograph.webhooks import endpoints

#: Maximum number of paused campaigns counted.
MOST = 99


async def show(request: Request) -> Answer:
    """The service status; the fragment, which every page refreshes periodically, also has the bell and the rail's
    marks."""
    if not request.is_fragment:
        return Page(template="state.html", values={"words": await state.text(request)})
    name, _ = await request.services.status()
    marks = [] if name == "down" or request.person.organization_id is None else await _marks(request)
    return Page(template="state_live.html", values={"words": await state.text(request), "marks": marks})


async def _marks(request: Request) -> list[Mark]:
    """Stalled campaigns and failing endpoints, in the mode of the page."""
    marks, count = [], request.locale.count
    if not (request.may("campaigns:read") or request.may("webhooks:read")):
        return []
    async with request.reading() as conn:
        if request.may("campaigns:read"):
            paused = await record.paused(conn, request.actor, most=MOST)
            said = count("%(num)s campaign is stalled.", "%(num)s campaigns are stalled.", paused)
            marks.append(Mark("/campaigns", paused, said))
        if request.may("webhooks:read"):
            listed = await endpoints.used(conn, request.actor)
            failing = sum(one.is_failing for one in listed)
            said = count("%(num)s endpoint is failing.", "%(num)s endpoints are failing.", failing)
            marks.append(Mark("/webhooks", failing, said))
    return marks
