"""The state of the service, as shown in the footer of every page."""

from __future__ import annotations

from heliograph.pages.requests import Request


async def text(request: Request) -> str:
    """The state, in the reader's language."""
    name, minutes = await request.services.status()
    match name:
        case "ok":
            return request.text("Working normally")
        case "slow":
            late = request.locale.number(minutes)
            return request.text("Deliveries are slower than usual: about %(minutes)s min", minutes=late)
        case "waiting":
            return request.text("New messages are accepted, sending waits for the operator")
        case _:
            return request.text("The service is disrupted; nothing that was accepted is lost")
