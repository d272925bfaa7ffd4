"""Webhook endpoints: shapes and handlers. The rules are `webhooks.endpoints`."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import CreatedAt, Items, Success, Time
from heliograph.base.database.clock import iso, iso_or_none
from heliograph.base.errors import Invalid, Problems
from heliograph.webhooks import changing, endpoints
from heliograph.webhooks.changing import Changes
from heliograph.webhooks.endpoints import Endpoint, EndpointDisabled, TooManyEndpoints
from heliograph.webhooks.recording.events import KINDS
from heliograph.webhooks.replays import REPLAY_DAYS

Description = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]


class CreateWebhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A webhook endpoint to register."""

    url: Annotated[
        str,
        Meta(
            description="URL that events are posted to. It must resolve to a public address.",
            min_length=1,
            max_length=2048,
            extra_json_schema={"format": "uri"},
        ),
    ]
    subscribed_events: Annotated[
        list[Annotated[str, Meta(extra_json_schema={"enum": list(KINDS)})]],
        Meta(min_length=1, max_length=100, description="Kinds of events to send to this endpoint."),
    ]
    description: Annotated[
        Description | None, Meta(description="What the endpoint is for, in your own words; empty if omitted.")
    ] = None


class ChangeWebhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Changes to a webhook endpoint. Omitted fields are not changed."""

    url: Annotated[
        Annotated[str, Meta(min_length=1, max_length=2048, extra_json_schema={"format": "uri"})] | None,
        Meta(description="URL that events are posted to. It must resolve to a public address."),
    ] = None
    subscribed_events: Annotated[
        Annotated[
            list[Annotated[str, Meta(extra_json_schema={"enum": list(KINDS)})]], Meta(min_length=1, max_length=100)
        ]
        | None,
        Meta(description="All kinds of events to send to this endpoint."),
    ] = None
    description: Annotated[Description | None, Meta(description="What the endpoint is for, in your own words.")] = None
    disabled: Annotated[bool | None, Meta(description="`true` disables the endpoint, `false` enables it again.")] = None
    paused: Annotated[
        bool | None,
        Meta(
            description=(
                "`true`: nothing is sent until it is resumed with `false`, which also sends what waited, "
                f"up to {REPLAY_DAYS} days back."
            )
        ),
    ] = None
    recover: Annotated[
        bool | None,
        Meta(description="With `disabled`: false, whether to send the events that it missed as well."),
    ] = None


class WebhookEndpoint(msgspec.Struct):
    """A destination for events."""

    id: Annotated[UUID, Meta(description="Id of the endpoint.")]
    url: Annotated[str, Meta(description="URL that events are posted to.")]
    subscribed_events: Annotated[list[str], Meta(description="Kinds of events to send to this endpoint.")]
    status: Annotated[
        Literal["active", "paused", "disabled"],
        Meta(description="Nothing is sent to an endpoint that is `paused`, whose events wait, or `disabled`."),
    ]
    created_at: CreatedAt
    disabled_at: Annotated[Time | None, Meta(description="When it was disabled; null if it is not.")]
    disabled_reason: Annotated[str | None, Meta(description="Why it was disabled; null if it is not.")]
    last_success_at: Annotated[Time | None, Meta(description="When it last responded with a 2xx.")]
    consecutive_failures: Annotated[int, Meta(description="Failed attempts since the last success.")]
    description: Annotated[str, Meta(description="What the endpoint is for, in your own words; may be empty.")]
    paused_at: Annotated[Time | None, Meta(description="When it was paused; null if it is not.")]
    dropped_deliveries: Annotated[
        int, Meta(description="Deliveries that left the queue when it was paused or disabled; 0 while it is active.")
    ]


class WebhookCreated(msgspec.Struct, rename="camel"):
    """The new endpoint and its signing secret, which is shown only in this response."""

    success: Success
    webhook_endpoint: Annotated[WebhookEndpoint, Meta(description="The endpoint.")]
    signing_secret: Annotated[
        str, Meta(description="The secret that events are signed with. Store it now: it is not shown again.")
    ]


class WebhookChanged(msgspec.Struct, rename="camel"):
    """The endpoint in its current state."""

    success: Success
    webhook_endpoint: Annotated[WebhookEndpoint, Meta(description="The endpoint.")]


class WebhookDisabled(msgspec.Struct, rename="camel"):
    """The endpoint in its current state."""

    success: Success
    webhook_endpoint: Annotated[WebhookEndpoint, Meta(description="The endpoint.")]


class WebhookSecretRotated(msgspec.Struct, rename="camel"):
    """The endpoint and its new signing secret, which is shown only in this response."""

    success: Success
    webhook_endpoint: Annotated[WebhookEndpoint, Meta(description="The endpoint.")]
    signing_secret: Annotated[str, Meta(description="The new signing secret. Store it now: it is not shown again.")]
    previous_secret_expires_at: Annotated[
        Time,
        Meta(description="Until then `webhook-signature` also carries a signature created with the previous secret."),
    ]


class WebhookList(msgspec.Struct):
    """Endpoints of the same mode as the requesting key, newest first, including those disabled in the last 90 days."""

    success: Success
    items: Items[WebhookEndpoint]


async def list_webhooks(call: Call) -> WebhookList:
    """List webhook endpoints."""
    return WebhookList(True, [_shown(each) for each in await endpoints.list_all(call.conn, call.actor)])


async def canonical(body: CreateWebhook) -> CreateWebhook:
    """The kinds as a set; no description is an empty one. Raises Invalid with all errors, whatever the settings."""
    wrong = Problems()
    with wrong.gathering():
        endpoints.check_form(body.url)
    with wrong.gathering():
        kinds = sorted(endpoints.checked_kinds(body.subscribed_events))
    with wrong.gathering():
        description = endpoints.checked_description(body.description or "")
    wrong.report()
    return msgspec.structs.replace(body, subscribed_events=kinds, description=description)


def presently(call: Call, body: CreateWebhook | ChangeWebhook) -> None:
    """Raises Invalid for a URL that the settings do not allow."""
    if body.url not in (None, endpoints.CATCHER):
        endpoints.check(body.url, call.services.webhook_rules)


@operation(status=201, canonical=canonical, presently=presently, has_secret=True, refusals=(TooManyEndpoints,))
async def create_webhook(call: Call, body: CreateWebhook) -> WebhookCreated:
    """Register a webhook endpoint."""
    endpoint, secret = await endpoints.create(
        call.conn,
        call.actor,
        url=body.url,
        subscribed_events=body.subscribed_events,
        rules=call.services.webhook_rules,
        description=body.description or "",
    )
    return WebhookCreated(True, _shown(endpoint), secret)


async def changes(body: ChangeWebhook) -> Changes:
    """The changes requested, with the kinds as a set. Raises Invalid with all errors, whatever the settings."""
    wrong, kinds, description = Problems(), None, None
    if body.url is not None and body.url != endpoints.CATCHER:
        with wrong.gathering():
            endpoints.check_form(body.url)
    if body.subscribed_events is not None:
        with wrong.gathering():
            kinds = sorted(endpoints.checked_kinds(body.subscribed_events))
    if body.description is not None:
        with wrong.gathering():
            description = endpoints.checked_description(body.description)
    wrong.report()
    found = Changes(
        url=body.url,
        subscribed_events=kinds,
        description=description,
        disabled=body.disabled,
        paused=body.paused,
        recover=body.recover,
    )
    if found == Changes():
        what = "give what to change: `url`, `subscribed_events`, `description`, `disabled` or `paused`"
        raise Invalid(("url", "required", what))
    changing.check_together(found)
    return found


@operation(canonical=changes, presently=presently, refusals=(TooManyEndpoints, EndpointDisabled))
async def change_webhook(call: Call, webhook_endpoint_id: UUID, body: Changes) -> WebhookChanged:
    """Change a webhook endpoint.

    Omitted fields are not changed, nor is the secret. Nothing is sent to a paused endpoint; once it is resumed, it also
    receives the events that waited. Disabling an endpoint discards what is queued for it; once enabled again, it
    receives the events that occur from then on, and with `recover` those it missed."""
    endpoint = await changing.change(
        call.conn, call.actor, id=webhook_endpoint_id, changes=body, rules=call.services.webhook_rules
    )
    return WebhookChanged(True, _shown(endpoint))


@operation(while_stopped=True)
async def disable_webhook(call: Call, webhook_endpoint_id: UUID) -> WebhookDisabled:
    """Disable a webhook endpoint."""
    endpoint = await changing.disable(call.conn, call.actor, id=webhook_endpoint_id)
    return WebhookDisabled(True, _shown(endpoint))


@operation(has_secret=True, refusals=(EndpointDisabled,))
async def rotate_webhook_secret(call: Call, webhook_endpoint_id: UUID) -> WebhookSecretRotated:
    """Rotate a webhook endpoint's secret.

    For 24 hours both secrets sign: `webhook-signature` holds a signature with each, `x-service-signature` only one with
    the new secret.
    """
    endpoint, secret, until = await endpoints.rotate_secret(
        call.conn, call.actor, id=webhook_endpoint_id, rules=call.services.webhook_rules
    )
    return WebhookSecretRotated(True, _shown(endpoint), secret, iso(until))


def _shown(endpoint: Endpoint) -> WebhookEndpoint:
    return WebhookEndpoint(
        id=endpoint.id,
        url=endpoint.url,
        subscribed_events=endpoint.subscribed_events,
        status="active" if endpoint.status == "active" else "paused" if endpoint.status == "paused" else "disabled",
        created_at=iso(endpoint.created_at),
        disabled_at=iso_or_none(endpoint.disabled_at),
        disabled_reason=endpoint.disabled_reason,
        last_success_at=iso_or_none(endpoint.last_success_at),
        consecutive_failures=endpoint.consecutive_failures,
        description=endpoint.description,
        paused_at=iso_or_none(endpoint.paused_at),
        dropped_deliveries=endpoint.dropped,
    )
