"""D8b Delivery: one event at one endpoint, with requests and responses."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import msgspec

from heliograph.dashboard.developers.webhooks import rules
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.people.roles import CONTENT, REVEAL
from heliograph.webhooks import endpoints, history, inspection, replays
from heliograph.webhooks.delivery.attempts import type_of
from heliograph.webhooks.delivery.evidence import StoredEvidence
from heliograph.webhooks.endpoints import EndpointDisabled, EndpointPaused
from heliograph.webhooks.history import AttemptEntry, Delivery

#: Waiting for a test just sent, so that the page shows its response: the number of checks, and seconds between them.
LOOKS, PAUSE = 12, 0.2


class Line(msgspec.Struct, frozen=True):
    """An attempt, and the response as far as it is kept."""

    tried: AttemptEntry
    kept: StoredEvidence | None
    head: str
    body: str
    #: (phase, seconds).
    times: list[tuple[str, float]]


async def show(request: Request) -> Answer:
    """The event as it was sent, and each attempt with its response."""
    endpoint_id, event_id = request.id(), request.id("event")
    found = await _found(request, endpoint_id, event_id)
    for _ in range(LOOKS if request.query.get("wait") and not request.is_fragment else 0):
        if found.attempts:
            break
        await asyncio.sleep(PAUSE)
        found = await _found(request, endpoint_id, event_id)
    template = "developers/delivery_live.html" if request.is_fragment else "developers/delivery.html"
    return Page(template=template, values=await _values(request, endpoint_id, found))


async def panel(request: Request, endpoint_id: UUID, event_id: UUID) -> dict[str, Any]:
    """The values of the delivery that is open next to the list of attempts. Raises NotFound."""
    return await _values(request, endpoint_id, await _found(request, endpoint_id, event_id))


async def reveal(request: Request) -> Answer:
    """The event with its texts and numbers, for readers who may see them one at a time."""
    endpoint_id, event_id = request.id(), request.id("event")
    async with request.writing() as conn:
        found = await history.reveal(conn, request.actor, endpoint_id=endpoint_id, event_id=event_id)
    values = await _values(request, endpoint_id, found, is_revealed=True)
    return Page(template="developers/delivery.html", values=values)


async def resend(request: Request) -> Answer:
    """Send the event again, or at once if it is waiting for a later attempt."""
    endpoint_id, event_id = request.id(), request.id("event")
    here = f"/webhooks/{endpoint_id}/events/{event_id}"
    try:
        async with request.writing() as conn:
            await replays.resend(conn, request.actor, endpoint_id=endpoint_id, event_id=event_id)
    except (EndpointDisabled, EndpointPaused) as refusal:
        return Redirect(location=request.to(here), notice=request.text(refusal.message), is_refusal=True)
    return Redirect(location=request.to(here), notice=request.text("It is on its way again."))


async def _values(request: Request, endpoint_id: UUID, found: Delivery, *, is_revealed: bool = False) -> dict[str, Any]:
    latest = found.attempts[0] if found.attempts else None
    is_example = found.event.kind.startswith(replays.TEST)
    whole = is_revealed or is_example or request.may(permission=CONTENT)
    async with request.reading() as conn:
        endpoint = await endpoints.get(conn, request.actor, id=endpoint_id)
        secrets = await endpoints.secrets(conn, request.actor, id=endpoint_id, rules=rules(request))
    # What was sent last; before the first attempt, what would be sent.
    kept = None if latest is None else found.evidence.get(latest.started_at)
    began = found.event.created_at if latest is None else latest.started_at
    sent = inspection.sent(found.event, kept, began, secrets)
    return {
        "endpoint": endpoint,
        "delivery": found,
        "kind": type_of(found.event.kind),
        "is_example": is_example,
        "attempts": [_line(one, found.evidence.get(one.started_at), whole) for one in found.attempts],
        "latest": latest,
        "is_over": bool(found.attempts) and found.next_at is None,
        "sent": sent,
        "body": _pretty(sent.body if whole else inspection.masked(found.event)),
        "whole": whole,
        "is_revealed": is_revealed,
        "may_reveal": not whole and request.may(permission=REVEAL),
        "may_write": request.may("webhooks:write"),
    }


def _line(tried: AttemptEntry, kept: StoredEvidence | None, whole: bool) -> Line:
    if kept is None:
        return Line(tried, None, "", "", [])
    body = kept.body.decode("utf-8", "replace") if whole else ""
    times = (
        ("DNS", kept.dns_ms),
        ("TCP", kept.connect_ms),
        ("TLS", kept.tls_ms),
        ("first byte", kept.first_byte_ms),
    )
    listed = [(name, ms / 1000) for name, ms in times if ms is not None]
    return Line(tried, kept, kept.head.decode("latin-1"), body, listed)


def _pretty(body: str) -> str:
    return msgspec.json.format(body, indent=2)


async def _found(request: Request, endpoint_id: UUID, event_id: UUID) -> Delivery:
    async with request.reading() as conn:
        return await history.delivery(conn, request.actor, endpoint_id=endpoint_id, event_id=event_id)
