"""D1 Home: is everything well, what needs me, what next."""

from __future__ import annotations

from heliograph.pages.answers import Answer, Shown
from heliograph.pages.requests import Request


async def front(request: Request) -> Answer:
    """Home, or what a visitor sees first."""
    if request.session is None:
        return Shown(template="visitor.html", values={"status": await request.services.status()})
    if request.session.organization_id is None:
        return Shown(template="nowhere.html", values={})
    return Shown(template="home.html", values={})
