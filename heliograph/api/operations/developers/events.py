"""Events to fetch instead of waiting for them: shapes and handler. The rule is `webhooks.recording.feed`."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import Items, Success, Time
from heliograph.api.shapes.paging import DateFrom, DateTo, PageQuery
from heliograph.base.database.clock import iso
from heliograph.webhooks.recording import feed
from heliograph.webhooks.recording.events import KINDS
from heliograph.webhooks.recording.feed import Recorded

COLLECTION = "events"


class EventQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Filters for events."""

    kind: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": list(KINDS)})] | None,
        Meta(description="Only events of this kind."),
    ] = None
    date_from: DateFrom = None
    date_to: DateTo = None


class RecordedEvent(msgspec.Struct, rename="camel"):
    """An event, exactly as in the body of its callback."""

    id: Annotated[UUID, Meta(description="Id of the event, the same as in its callbacks.")]
    type: Annotated[str, Meta(description="Kind of event.", extra_json_schema={"enum": list(KINDS)})]
    timestamp: Annotated[Time, Meta(description="When the event happened.")]
    request_id: Annotated[str, Meta(description="Id of the request that caused the event.")]
    api_version: Annotated[Literal["v1"], Meta(description="Version of the event format.")]
    data: Annotated[
        dict[str, Any],
        Meta(description="The payload, which depends on the kind: for example `message` for message events."),
    ]


class EventList(msgspec.Struct, rename="camel"):
    """A page of events, oldest first."""

    success: Success
    items: Items[RecordedEvent]
    next_cursor: Annotated[
        str, Meta(description="Store it and pass it as `cursor` in the next request, whether or not there is more now.")
    ]
    has_more: Annotated[
        bool, Meta(description="Whether there is more to fetch right away. Can be true even if this page is not full.")
    ]


@operation(on_primary=True)
async def list_events(call: Call, query: EventQuery) -> EventList:
    """Fetch events.

    Oldest first, for polling or for catching up on missed webhooks. `nextCursor` is always present: store it and
    continue from it later. An event appears about three seconds after it happens, and a cursor never skips one.
    `dateFrom` and `dateTo` refer to the time at which the event was recorded. A page can be short, or even empty, while
    `hasMore` is true. `message.sent`, `message.read` and `notice.created` are recorded only while an endpoint
    subscribes to them.
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
