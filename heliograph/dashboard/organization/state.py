"""The frame's own news: how many notices are new, and how the service is, in words."""

from __future__ import annotations

from heliograph.pages.answers import Answer, Shown
from heliograph.pages.requests import Request


async def show(request: Request) -> Answer:
    """How the service is; the fragment has the bell too, which each page renews from time to time."""
    template = "organization/state_live.html" if request.is_fragment else "organization/state.html"
    return Shown(template=template, values={"words": await _said(request)})


async def _said(request: Request) -> str:
    name, minutes = await request.services.status()
    match name:
        case "ok":
            return request.text("Working normally")
        case "slow":
            late = request.speech.number(minutes)
            return request.text("Deliveries are slower than usual: about %(minutes)s min", minutes=late)
        case "waiting":
            return request.text("New messages are accepted, sending waits for the operator")
        case _:
            return request.text("The service is disturbed; nothing that was accepted is lost")
