"""Deliveries to a webhook endpoint: attempts, resends and replays. The rules are `webhooks.history` and
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
from heliograph.api.shapes.paging import DateFrom, DateTo, PageQuery
from heliograph.base.database.clock import iso, iso_or_none, now
from heliograph.base.errors import Problems
from heliograph.webhooks import history, replays
from heliograph.webhooks.delivery.attempts import type_of
from heliograph.webhooks.endpoints import EndpointDisabled, EndpointPaused
from heliograph.webhooks.history import AttemptEntry, Filters
from heliograph.webhooks.recording.events import KINDS
from heliograph.webhooks.replays import REPLAY_DAYS, Replay, ReplayRunning

Kind = Annotated[str, Meta(extra_json_schema={"enum": list(KINDS)})]
At = Annotated[datetime, Meta(tz=True)]


class AttemptQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Filters for attempts."""

    result: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": [history.FAILED, *history.RESULTS]})] | None,
        Meta(description="Only attempts with this result; `failed` stands for all results except `delivered`."),
    ] = None
    kind: Annotated[
        Kind | None,
        Meta(description="Only attempts to deliver events of this kind. Examples of any kind count as `webhook.test`."),
    ] = None
    date_from: DateFrom = None
    date_to: DateTo = None


class WebhookAttempt(msgspec.Struct):
    """One attempt to deliver an event."""

    event_id: Annotated[UUID, Meta(description="Id of the event, the same in every attempt.")]
    kind: Annotated[str | None, Meta(description="Kind of event; null once the event has been deleted.")]
    attempt: Annotated[int, Meta(description="Number of the attempt, from 1; resends and replays continue the count.")]
    started_at: Annotated[Time, Meta(description="When the attempt began.")]
    duration_ms: Annotated[
        int, Meta(description="Time until the response arrived or the attempt was given up, in milliseconds.")
    ]
    http_status: Annotated[int | None, Meta(description="Status of the receiver's response; null if there was none.")]
    result: Annotated[
        str,
        Meta(
            description=(
                "`delivered` (2xx), `refused` (any other status), `gone` (410), or why there was no "
                "response: `timeout`, `connect`, `dns`, `tls`, `blocked`, `closed`, `protocol`, `secret`."
            )
        ),
    ]


class WebhookAttemptList(msgspec.Struct, rename="camel"):
    """A page of attempts, newest first. With filters it can hold fewer than `limit` items although there are more."""

    success: Success
    items: Items[WebhookAttempt]
    next_cursor: NextCursor
    has_more: HasMore


class ResendEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The event to send again."""

    event_id: Annotated[UUID, Meta(description="Id of any event of this organization.")]


class WebhookDelivery(msgspec.Struct):
    """An event queued for an endpoint."""

    event_id: Annotated[UUID, Meta(description="Id of the event.")]
    webhook_endpoint_id: Annotated[UUID, Meta(description="Id of the endpoint.")]


class WebhookQueued(msgspec.Struct):
    """The delivery is queued. The endpoint's attempts show the outcome."""

    success: Success
    queued: Queued
    delivery: Annotated[WebhookDelivery, Meta(description="The queued delivery.")]


class ReplayEvents(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The time range to send again."""

    from_at: Annotated[
        At,
        Meta(description=f"Start of the range, inclusive, at most {REPLAY_DAYS} days ago; by recording time."),
    ] = msgspec.field(name="from")
    to_at: Annotated[At | None, Meta(description="End of the range, exclusive. Defaults to now.")] = msgspec.field(
        name="to", default=None
    )
    kinds: Annotated[
        Annotated[list[Kind], Meta(min_length=1, max_length=100)] | None,
        Meta(description="Only these kinds, among those that the endpoint subscribes to. Defaults to all of them."),
    ] = None
    only_failed: Annotated[
        bool,
        Meta(description="Only events that this endpoint never answered with a 2xx, or was never sent."),
    ] = False


class WebhookReplay(msgspec.Struct, kw_only=True):
    """A replay of a time range, and its progress."""

    id: Annotated[UUID, Meta(description="Id of the replay.")]
    status: Annotated[
        Literal["running", "completed", "canceled"],
        Meta(description="`completed`: every event is queued. `canceled`: the endpoint was disabled in the meantime."),
    ]
    from_at: Annotated[Time, Meta(description="Start of the range, inclusive.")] = msgspec.field(name="from")
    to_at: Annotated[Time, Meta(description="End of the range, exclusive.")] = msgspec.field(name="to")
    kinds: Annotated[list[str], Meta(description="Kinds of events that are replayed.")]
    only_failed: Annotated[bool, Meta(description="Whether events that were delivered are left out.")]
    queued: Annotated[int, Meta(description="Deliveries queued so far.")]
    created_at: Annotated[Time, Meta(description="When the replay was requested.")]
    completed_at: Annotated[Time | None, Meta(description="When it ended; null while running.")]
    cause: Annotated[
        Literal["request", "return"],
        Meta(description="`request`: requested. `return`: the endpoint was resumed, or enabled with `recover`."),
    ]


class WebhookReplayStarted(msgspec.Struct):
    """The new replay."""

    success: Success
    queued: Queued
    replay: Annotated[WebhookReplay, Meta(description="The replay.")]


class WebhookReplayList(msgspec.Struct, rename="camel"):
    """A page of an endpoint's replays, newest first."""

    success: Success
    items: Items[WebhookReplay]
    next_cursor: NextCursor
    has_more: HasMore


async def list_webhook_attempts(call: Call, webhook_endpoint_id: UUID, query: AttemptQuery) -> WebhookAttemptList:
    """List an endpoint's delivery attempts.

    Newest first. Attempts are kept for 30 days. `dateFrom` and `dateTo` refer to the beginning of the attempt. With
    `result` or `kind`, a page scans at most 5,000 attempts; `nextCursor` continues from there.
    """
    endpoint_id = webhook_endpoint_id
    # The collection's name includes the endpoint, so the cursor is bound to it.
    collection = f"webhooks/{endpoint_id}/attempts"
    found = await history.attempts(
        call.conn,
        call.actor,
        endpoint_id=endpoint_id,
        filters=Filters(query.result, query.kind, query.date_from, query.date_to),
        before=_beginning(paging.after(call, collection)),
        limit=query.limit + 1,
    )
    return WebhookAttemptList(
        True,
        *paging.page(
            call,
            collection,
            found.attempts,
            position=lambda row: [row.started_at, row.event_id, row.attempt],
            shown=_tried,
            seen=found.seen,
        ),
    )


@operation(status=202, refusals=(EndpointDisabled, EndpointPaused))
async def resend_webhook_event(call: Call, webhook_endpoint_id: UUID, body: ResendEvent) -> WebhookQueued:
    """Resend an event.

    The event keeps its id and is retried like a new one. The endpoint need not subscribe to its kind.
    """
    endpoint_id = webhook_endpoint_id
    await replays.resend(call.conn, call.actor, endpoint_id=endpoint_id, event_id=body.event_id)
    return WebhookQueued(True, True, WebhookDelivery(body.event_id, endpoint_id))


@operation(status=202, refusals=(EndpointDisabled, EndpointPaused))
async def test_webhook(call: Call, webhook_endpoint_id: UUID) -> WebhookQueued:
    """Send a test event.

    Sends a `webhook.test` event to this endpoint only, whether or not it subscribes to that kind.
    """
    endpoint_id = webhook_endpoint_id
    event_id = await replays.send_example(call.conn, call.actor, endpoint_id=endpoint_id, request_id=call.request_id)
    return WebhookQueued(True, True, WebhookDelivery(event_id, endpoint_id))


async def canonical(body: ReplayEvents) -> ReplayEvents:
    """Raises Invalid with all errors, whatever the time and the endpoint."""
    wrong = Problems()
    if body.to_at is not None and body.from_at >= body.to_at:
        wrong.add("from", "range", "`from` must be before `to`")
    if not set(body.kinds or ()) <= set(KINDS):
        wrong.add("kinds", "enum", f"`kinds` may list only {', '.join(KINDS)}")
    wrong.report()
    return body


@operation(
    status=202,
    canonical=canonical,
    presently=lambda call, body: replays.check_range(body.from_at, body.to_at, now()),
    unordered=("kinds",),
    refusals=(EndpointDisabled, EndpointPaused, ReplayRunning),
)
async def replay_webhook_events(call: Call, webhook_endpoint_id: UUID, body: ReplayEvents) -> WebhookReplayStarted:
    """Replay a time range.

    Runs in the background, at lower priority than new events and never faster than the endpoint responds. Events keep
    their ids. An endpoint can have one replay at a time.
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

    Newest first, with the progress of each.
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


def _tried(row: AttemptEntry) -> WebhookAttempt:
    return WebhookAttempt(
        event_id=row.event_id,
        kind=None if row.kind is None else type_of(row.kind),
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
        completed_at=iso_or_none(row.completed_at),
        cause="return" if row.cause == replays.RETURN else "request",
    )
