"""D8b Delivery: one event at one endpoint, what was sent and what was answered."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from heliograph.pages.answers import Answer, Elsewhere, Shown
from heliograph.pages.requests import Request
from heliograph.webhooks import endpoints, history, replays
from heliograph.webhooks.endpoints import EndpointDisabled
from heliograph.webhooks.history import Delivery

#: A test that was just sent is waited for, so that its answer stands on the page: looks, and seconds between them.
LOOKS, PAUSE = 12, 0.2


async def show(request: Request) -> Answer:
    """The event as it was sent, and each attempt with its answer."""
    endpoint_id, event_id = request.id(), request.id("event")
    found = await _found(request, endpoint_id, event_id)
    for _ in range(LOOKS if request.query.get("wait") and not request.is_fragment else 0):
        if found.attempts:
            break
        await asyncio.sleep(PAUSE)
        found = await _found(request, endpoint_id, event_id)
    async with request.reading() as conn:
        endpoint = await endpoints.get(conn, request.actor, id=endpoint_id)
    values: dict[str, Any] = {
        "endpoint": endpoint,
        "delivery": found,
        "attempts": found.attempts,
        "latest": found.attempts[0] if found.attempts else None,
        "is_over": bool(found.attempts) and found.next_at is None,
        "may_write": request.may("webhooks:write"),
    }
    template = "developers/delivery_live.html" if request.is_fragment else "developers/delivery.html"
    return Shown(template=template, values=values)


async def resend(request: Request) -> Answer:
    """Send the event again, or now where it waits for a later attempt."""
    endpoint_id, event_id = request.id(), request.id("event")
    here = f"/webhooks/{endpoint_id}/events/{event_id}"
    try:
        async with request.writing() as conn:
            await replays.resend(conn, request.actor, endpoint_id=endpoint_id, event_id=event_id)
    except EndpointDisabled as refusal:
        return Elsewhere(location=request.to(here), notice=request.text(refusal.message))
    return Elsewhere(location=request.to(here), notice=request.text("It is on its way again."))


async def _found(request: Request, endpoint_id: UUID, event_id: UUID) -> Delivery:
    async with request.reading() as conn:
        return await history.delivery(conn, request.actor, endpoint_id=endpoint_id, event_id=event_id)
