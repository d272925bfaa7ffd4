"""D3 Messages: one list of both channels. D4 Message: what happened to one, and why."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.database import clock, cursor
from heliograph.base.errors import Invalid, NotFound
from heliograph.overview import messages, requests
from heliograph.overview.messages import Filters, Message, MessageDetail
from heliograph.pages.answers import Answer, Elsewhere, Shown
from heliograph.pages.pieces import ranges
from heliograph.pages.pieces.ranges import Range
from heliograph.pages.requests import Request
from heliograph.people.roles import CONTENT, DEVELOP, REVEAL
from heliograph.sms import messages as sms
from heliograph.sms.messages import MessageNotCancelable, Step

#: Rows of a page that may be chosen; the first is the usual one.
SIZES = (50, 25, 100, 200)
#: An id in any of its spellings has so many hexadecimal digits.
ID_DIGITS = 32
COLLECTION = "messages of a page"
#: What people put between the digits of a number.
_SPACING = str.maketrans("", "", " \u00a0().-/")


class Line(msgspec.Struct, frozen=True):
    """A step of the timeline. `gap`: seconds since the one before; `share`: of the longest gap, 0 to 10."""

    step: Step
    gap: float | None
    share: int


async def show_list(request: Request) -> Answer:
    """The list, by the filters of the address."""
    query = request.query
    searched = query.get("q", "").strip()
    range = ranges.read(request)
    wanted, problem = _filters(request, searched, range)
    if isinstance(wanted, UUID):
        return Elsewhere(location=request.to(f"/messages/{wanted}"))
    limit = next((size for size in SIZES if str(size) == query.get("limit")), SIZES[0])
    values: dict[str, Any] = {
        "q": searched,
        "problem": problem,
        "channel": wanted.channel or "",
        "status": query.get("status", ""),
        "range": range,
        "statuses": messages.STATUSES,
        "is_filtered": bool(searched or wanted.channel or wanted.statuses or range.name),
        "whole": request.may(permission=CONTENT),
        "limit": limit,
    }
    kept = {name: query.get(name, "") for name in ("q", "channel", "status", "range", "from", "to")}
    # A page that stands still: what is relative to now would move while somebody leafs through it.
    bound = {name: value for name, value in kept.items() if value} | {"mode": request.mode}
    organization_id = request.actor.organization_id
    key = request.services.cursor_key
    after = None
    if query.get("after"):
        try:
            (position,) = cursor.decode(
                key, query["after"], organization_id=organization_id, collection=COLLECTION, filters=bound
            )
            after = UUID(position)
        except Invalid:
            return Elsewhere(location=request.to("/messages", **kept))
    async with request.reading() as conn:
        found = await messages.list_page(conn, request.actor, filters=wanted, after=after, limit=limit)
    rows = found.messages[:limit]
    last = rows[-1].id if len(found.messages) > limit else found.seen
    older = (
        None
        if last is None
        else cursor.encode(key, [last], organization_id=organization_id, collection=COLLECTION, filters=bound)
    )
    values |= {
        "rows": rows,
        "older": None if older is None else request.to("/messages", **kept, limit=query.get("limit"), after=older),
        "first": request.to("/messages", **kept, limit=query.get("limit")),
        "is_first": after is None,
        # The look ended before the page was full: say how far it got.
        "looked_until": None if found.seen is None else _time_of(found.seen),
    }
    return Shown(
        template="messaging/messages_rows.html" if request.is_fragment else "messaging/messages.html", values=values
    )


async def show(request: Request) -> Answer:
    """One message."""
    async with request.reading() as conn:
        detail = await messages.get(conn, request.actor, id=request.id())
    values = _values(request, detail)
    return Shown(
        template="messaging/message_live.html" if request.is_fragment else "messaging/message.html", values=values
    )


async def reveal(request: Request) -> Answer:
    """One message with its number and text, for who sees them one at a time."""
    async with request.writing() as conn:
        detail = await messages.reveal(conn, request.actor, id=request.id())
    return Shown(template="messaging/message.html", values=_values(request, detail, is_revealed=True))


async def cancel(request: Request) -> Answer:
    """Take an SMS back that nobody has yet."""
    id = request.id()
    try:
        async with request.writing() as conn:
            await sms.cancel(conn, request.actor, id=id)
    except MessageNotCancelable as refusal:
        return Elsewhere(location=request.to(f"/messages/{id}"), notice=request.text(refusal.message))
    return Elsewhere(
        location=request.to(f"/messages/{id}"),
        notice=request.text("The message is canceled; what it cost is given back."),
    )


async def go(request: Request) -> Answer:
    """What somebody pasted: an id, a phone number, a reference, an error's code."""
    text = request.parameters.get("anything", "").strip() or request.query.get("q", "").strip()
    if (id := _id(text)) is not None:
        for mode in (request.mode, "test" if request.mode == "live" else "live"):
            request.mode = mode
            try:
                async with request.reading() as conn:
                    await messages.get(conn, request.actor, id=id)
            except NotFound:
                continue
            return Elsewhere(location=request.to(f"/messages/{id}"))
    if text and request.may("webhooks:read", DEVELOP):
        for mode in (request.mode, "test" if request.mode == "live" else "live"):
            request.mode = mode
            async with request.reading() as conn:
                asked = await requests.find(conn, request.actor, request_id=text)
            if asked is not None:
                return Elsewhere(
                    location=request.to(
                        f"/messages/{asked.message_id}" if asked.message_id else f"/requests/{asked.id}"
                    )
                )
    if id is not None:
        raise NotFound
    return Elsewhere(location=request.to("/messages", q=text))


def _filters(request: Request, searched: str, range: Range) -> tuple[Filters | UUID, str]:
    """(what is asked for, what of it could not be understood); an id is a message of its own."""
    query = request.query
    channel, status = query.get("channel"), query.get("status")
    found = Filters(
        channel=channel if channel in messages.CHANNELS else None,
        statuses=[status] if status in messages.STATUSES else None,
        date_from=range.since,
        date_to=range.until,
    )
    if not searched:
        return found, ""
    if (id := _id(searched)) is not None:
        return id, ""
    if (number := phones.parse(searched.translate(_SPACING))) is not None:
        return msgspec.structs.replace(found, recipient=number), ""
    if searched.startswith("+"):
        return found, request.text("This is no phone number with a country code, such as +258841234567.")
    return msgspec.structs.replace(found, client_reference=searched[:200]), ""


def _id(text: str) -> UUID | None:
    if len(text.replace("-", "")) != ID_DIGITS:
        return None
    try:
        return UUID(text)
    except ValueError:
        return None


def _values(request: Request, detail: MessageDetail, *, is_revealed: bool = False) -> dict[str, Any]:
    message, steps = detail.message, detail.steps
    gaps = [(late.at - early.at).total_seconds() for early, late in pairwise(steps)]
    longest = max(gaps, default=0.0)
    lines = [Line(steps[0], None, 0)] if steps else []
    lines += [
        Line(step, gap, round(10 * gap / longest) if longest else 0) for step, gap in zip(steps[1:], gaps, strict=True)
    ]
    whole = is_revealed or request.may(permission=CONTENT)
    return {
        "is_revealed": is_revealed,
        "may_reveal": not whole and request.may(permission=REVEAL),
        "message": message,
        "text": detail.text if whole else None,
        "lines": lines,
        "whole": whole,
        "took": None if message.delivered_at is None else _took(message),
        "may_cancel": message.channel == "sms" and message.status == "accepted" and request.may("sms:send"),
    }


def _took(message: Message) -> float:
    """Seconds from when it could go to when it arrived."""
    assert message.delivered_at is not None
    return max((message.delivered_at - (message.send_at or message.accepted_at)).total_seconds(), 0.0)


def _time_of(id: UUID) -> Any:
    return clock.EPOCH + timedelta(milliseconds=id.int >> 80)
