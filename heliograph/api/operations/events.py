"""Events to fetch instead of waiting for them: shapes and handler. The rule is `webhooks.feed`."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import Items, Success, Time
from heliograph.api.shapes.paging import DateFrom, DateTo, PageQuery
from heliograph.base.clock import iso
from heliograph.webhooks import feed
from heliograph.webhooks.events import KINDS
from heliograph.webhooks.feed import Recorded

COLLECTION = "events"


class EventQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Which events to fetch."""

    kind: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": list(KINDS)})] | None, Meta(description="Only this kind.")
    ] = None
    date_from: DateFrom = None
    date_to: DateTo = None


class RecordedEvent(msgspec.Struct, rename="camel"):
    """What happened, exactly as the body of its callback says it."""

    id: Annotated[UUID, Meta(description="Id of the event; its callbacks carry the same.")]
    type: Annotated[str, Meta(description="What kind of event it is.", extra_json_schema={"enum": list(KINDS)})]
    timestamp: Annotated[Time, Meta(description="When it happened.")]
    request_id: Annotated[str, Meta(description="Id of the request that caused it.")]
    api_version: Annotated[Literal["v1"], Meta(description="Version of this form.")]
    data: Annotated[dict[str, Any], Meta(description="What happened, by kind: `message` for events of messages.")]


class EventList(msgspec.Struct, rename="camel"):
    """A page of events, oldest first."""

    success: Success
    items: Items[RecordedEvent]
    next_cursor: Annotated[
        str, Meta(description="Keep it, and ask from here on next time, whether there is more now or not.")
    ]
    has_more: Annotated[bool, Meta(description="More is there already. True also after a page that is short.")]


async def list_events(call: Call, query: EventQuery) -> EventList:
    """Fetch events.

    Oldest first, for those who fetch what they missed. `nextCursor` is always there: keep it, and ask with it again
    later. An event appears some three seconds after it happened, and none is ever passed over. `dateFrom` and
    `dateTo` are of the time when it was recorded. A page may be short, or empty, while `hasMore` is true.
    """
    page = await feed.read(
        call.conn,
        call.actor,
        after=paging.after_id(call, COLLECTION),
        kind=query.kind,
        date_from=query.date_from,
        date_to=query.date_to,
        limit=query.limit,
    )
    return EventList(
        True, [_shown(each) for each in page.events], paging.at(call, COLLECTION, [page.position]), page.more
    )


def _shown(event: Recorded) -> RecordedEvent:
    data: dict[str, Any] = msgspec.json.decode(event.data)
    return RecordedEvent(event.id, event.kind, iso(event.created_at), event.request_id, "v1", data)
