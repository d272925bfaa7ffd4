"""Deliveries to a webhook endpoint: what was tried, and sending again. The rules are `webhooks.history` and
`webhooks.replays`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import HasMore, Items, NextCursor, Queued, Success, Time
from heliograph.api.shapes.paging import PageQuery
from heliograph.base.clock import iso
from heliograph.webhooks import history, replays
from heliograph.webhooks.endpoints import EndpointDisabled
from heliograph.webhooks.events import KINDS
from heliograph.webhooks.history import Tried
from heliograph.webhooks.replays import REPLAY_DAYS, Replay, ReplayRunning

Kind = Annotated[str, Meta(extra_json_schema={"enum": list(KINDS)})]
At = Annotated[datetime, Meta(tz=True)]


class WebhookAttempt(msgspec.Struct):
    """One try to deliver an event."""

    event_id: Annotated[UUID, Meta(description="The same at every attempt.")]
    kind: Annotated[str | None, Meta(description="Kind of the event; null once the event is no longer kept.")]
    attempt: Annotated[int, Meta(description="From 1; a resend or a replay goes on counting.")]
    started_at: Annotated[Time, Meta(description="When this attempt began.")]
    duration_ms: Annotated[int, Meta(description="Until the answer came, or was given up; milliseconds.")]
    http_status: Annotated[int | None, Meta(description="Status of the receiver's answer; null if there was none.")]
    result: Annotated[
        str,
        Meta(
            description=(
                "`delivered` (2xx), `refused` (another status), `gone` (410), or why there was no answer: `timeout`, "
                "`connect`, `dns`, `tls`, `blocked`, `closed`, `protocol`, `secret`."
            )
        ),
    ]


class WebhookAttemptList(msgspec.Struct, rename="camel"):
    """A page of attempts, newest first."""

    success: Success
    items: Items[WebhookAttempt]
    next_cursor: NextCursor
    has_more: HasMore


class ResendEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which event is to go out again."""

    event_id: Annotated[UUID, Meta(description="Id of an event of this organization, of any kind.")]


class WebhookDelivery(msgspec.Struct):
    """An event on its way to an endpoint."""

    event_id: Annotated[UUID, Meta(description="Id that the callback will carry.")]
    webhook_endpoint_id: Annotated[UUID, Meta(description="Where it goes.")]


class WebhookQueued(msgspec.Struct):
    """The delivery is queued. What comes of it is in the endpoint's attempts."""

    success: Success
    queued: Queued
    delivery: Annotated[WebhookDelivery, Meta(description="The event, and where it goes.")]


class ReplayEvents(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which range of time is to go out again."""

    from_at: Annotated[At, Meta(description=f"Events recorded from here on; within the last {REPLAY_DAYS} days.")] = (
        msgspec.field(name="from")
    )
    to_at: Annotated[At | None, Meta(description="Up to here, excluded. Left out: until now.")] = msgspec.field(
        name="to", default=None
    )
    kinds: Annotated[
        Annotated[list[Kind], Meta(min_length=1, max_length=100)] | None,
        Meta(description="Only these of the kinds that the endpoint subscribed to. Left out: all of them."),
    ] = None
    only_failed: Annotated[
        bool,
        Meta(description="True: only events that this endpoint never answered with a 2xx, or was never sent."),
    ] = False


class WebhookReplay(msgspec.Struct, kw_only=True):
    """A range of time that is sent again, and how far it has come."""

    id: Annotated[UUID, Meta(description="Id of the replay.")]
    status: Annotated[
        Literal["running", "completed", "canceled"],
        Meta(description="`completed`: all of it is queued. `canceled`: the endpoint was disabled meanwhile."),
    ]
    from_at: Annotated[Time, Meta(description="Where the range begins.")] = msgspec.field(name="from")
    to_at: Annotated[Time, Meta(description="Where it ends, excluded.")] = msgspec.field(name="to")
    kinds: Annotated[list[str], Meta(description="Kinds of events that are sent again.")]
    only_failed: Annotated[bool, Meta(description="Whether what was delivered is left out.")]
    queued: Annotated[int, Meta(description="Deliveries queued so far.")]
    created_at: Annotated[Time, Meta(description="When it was asked for.")]
    completed_at: Annotated[Time | None, Meta(description="When it ended; null while it is running.")]


class WebhookReplayStarted(msgspec.Struct):
    """The replay as it starts."""

    success: Success
    queued: Queued
    replay: Annotated[WebhookReplay, Meta(description="The replay.")]


class WebhookReplayList(msgspec.Struct, rename="camel"):
    """A page of an endpoint's replays, newest first."""

    success: Success
    items: Items[WebhookReplay]
    next_cursor: NextCursor
    has_more: HasMore


async def list_webhook_attempts(call: Call, webhook_endpoint_id: UUID, query: PageQuery) -> WebhookAttemptList:
    """List attempts to deliver to an endpoint.

    Newest first. Attempts are kept for 30 days.
    """
    endpoint_id = webhook_endpoint_id
    # The cursor is bound to the endpoint by the collection's name.
    collection = f"webhooks/{endpoint_id}/attempts"
    found = await history.attempts(
        call.conn,
        call.actor,
        endpoint_id=endpoint_id,
        before=_beginning(paging.after(call, collection)),
        limit=query.limit + 1,
    )
    return WebhookAttemptList(
        True,
        *paging.page(
            call, collection, found, position=lambda row: [row.started_at, row.event_id, row.attempt], shown=_tried
        ),
    )


@operation(status=202, refusals=(EndpointDisabled,))
async def resend_webhook_event(call: Call, webhook_endpoint_id: UUID, body: ResendEvent) -> WebhookQueued:
    """Deliver one event again.

    The event keeps its id and is tried as a new one is. Its kind need not be subscribed to.
    """
    endpoint_id = webhook_endpoint_id
    await replays.resend(call.conn, call.actor, endpoint_id=endpoint_id, event_id=body.event_id)
    return WebhookQueued(True, True, WebhookDelivery(body.event_id, endpoint_id))


@operation(status=202, refusals=(EndpointDisabled,))
async def test_webhook(call: Call, webhook_endpoint_id: UUID) -> WebhookQueued:
    """Deliver an example.

    A `webhook.test` event goes to this endpoint alone, whether it subscribed to that kind or not.
    """
    endpoint_id = webhook_endpoint_id
    event_id = await replays.send_example(call.conn, call.actor, endpoint_id=endpoint_id, request_id=call.request_id)
    return WebhookQueued(True, True, WebhookDelivery(event_id, endpoint_id))


@operation(status=202, refusals=(EndpointDisabled, ReplayRunning))
async def replay_webhook_events(call: Call, webhook_endpoint_id: UUID, body: ReplayEvents) -> WebhookReplayStarted:
    """Deliver a range of time again.

    Goes on in the background, behind what happens meanwhile, and never faster than the endpoint answers. Events
    keep their ids. An endpoint has one replay at a time.
    """
    started = await replays.replay(
        call.conn,
        call.actor,
        endpoint_id=webhook_endpoint_id,
        from_at=body.from_at,
        to_at=body.to_at,
        kinds=body.kinds,
        only_failed=body.only_failed,
    )
    return WebhookReplayStarted(True, True, _replay(started))


async def list_webhook_replays(call: Call, webhook_endpoint_id: UUID, query: PageQuery) -> WebhookReplayList:
    """List an endpoint's replays.

    Newest first, with how far each has come.
    """
    endpoint_id = webhook_endpoint_id
    collection = f"webhooks/{endpoint_id}/replays"
    found = await replays.list_replays(
        call.conn,
        call.actor,
        endpoint_id=endpoint_id,
        before=paging.after_id(call, collection),
        limit=query.limit + 1,
    )
    return WebhookReplayList(True, *paging.page(call, collection, found, position=lambda row: [row.id], shown=_replay))


def _beginning(position: list[Any] | None) -> tuple[datetime, UUID, int] | None:
    return None if position is None else (datetime.fromisoformat(position[0]), UUID(position[1]), position[2])


def _tried(row: Tried) -> WebhookAttempt:
    return WebhookAttempt(
        event_id=row.event_id,
        kind=row.kind,
        attempt=row.attempt,
        started_at=iso(row.started_at),
        duration_ms=row.duration_ms,
        http_status=row.status,
        result=row.result,
    )


def _replay(row: Replay) -> WebhookReplay:
    return WebhookReplay(
        id=row.id,
        status="running" if row.status == "running" else "completed" if row.status == "completed" else "canceled",
        from_at=iso(row.from_at),
        to_at=iso(row.to_at),
        kinds=row.kinds,
        only_failed=row.only_failed,
        queued=row.queued,
        created_at=iso(row.created_at),
        completed_at=None if row.completed_at is None else iso(row.completed_at),
    )
