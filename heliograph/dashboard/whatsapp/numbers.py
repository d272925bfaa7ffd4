"""WhatsApp numbers: the status of each, and what blocks it."""

from __future__ import annotations

from heliograph.pages.answers import Answer, Page
from heliograph.pages.requests import Request
from heliograph.whatsapp import number_states
from heliograph.whatsapp.mirror import qualities


async def show(request: Request) -> Answer:
    """The organization's numbers; both modes share them."""
    async with request.reading() as conn:
        listed = await number_states.list_all(conn, request.actor)
        trends = await qualities.trends(conn, request.actor, ids=[one.number.id for one in listed])
    return Page(template="whatsapp/numbers.html", values={"listed": listed, "trends": trends})
