"""Webhook endpoints: shapes and handlers. The rules are `webhooks.endpoints`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import CreatedAt, Items, Success, Time
from heliograph.base.clock import iso
from heliograph.webhooks import endpoints
from heliograph.webhooks.endpoints import Endpoint, EndpointDisabled, TooManyEndpoints
from heliograph.webhooks.events import KINDS


class CreateWebhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where events are to go, and which."""

    url: Annotated[
        str,
        Meta(
            description="Where events are posted to: a public address.",
            min_length=1,
            max_length=2048,
            extra_json_schema={"format": "uri"},
        ),
    ]
    subscribed_events: Annotated[
        list[Annotated[str, Meta(extra_json_schema={"enum": list(KINDS)})]],
        Meta(min_length=1, max_length=100, description="The kinds of events that go there."),
    ]


class WebhookEndpoint(msgspec.Struct):
    """A destination of events."""

    id: Annotated[UUID, Meta(description="Id of the endpoint.")]
    url: Annotated[str, Meta(description="Where events are posted to.")]
    subscribed_events: Annotated[list[str], Meta(description="The kinds of events that go there.")]
    status: Annotated[Literal["active", "disabled"], Meta(description="Nothing goes to a disabled one.")]
    created_at: CreatedAt
    disabled_at: Annotated[Time | None, Meta(description="When it was disabled; null: it is not.")]
    disabled_reason: Annotated[str | None, Meta(description="Why it was disabled, if it was.")]
    last_success_at: Annotated[Time | None, Meta(description="When it last answered with a 2xx.")]
    consecutive_failures: Annotated[int, Meta(description="Attempts since then that failed.")]


class WebhookCreated(msgspec.Struct, rename="camel"):
    """The new endpoint, and the secret that its events are signed with. It is shown only here."""

    success: Success
    webhook_endpoint: Annotated[WebhookEndpoint, Meta(description="The endpoint.")]
    signing_secret: Annotated[str, Meta(description="What signatures are made with. Keep it: it is not shown again.")]


class WebhookDisabled(msgspec.Struct, rename="camel"):
    """The endpoint as it is now."""

    success: Success
    webhook_endpoint: Annotated[WebhookEndpoint, Meta(description="The endpoint.")]


class WebhookSecretRotated(msgspec.Struct, rename="camel"):
    """The endpoint's new secret. It is shown only here."""

    success: Success
    webhook_endpoint: Annotated[WebhookEndpoint, Meta(description="The endpoint.")]
    signing_secret: Annotated[str, Meta(description="The new secret. Keep it: it is not shown again.")]
    previous_secret_expires_at: Annotated[
        Time, Meta(description="Until then the secret before it signs too, in `webhook-signature`.")
    ]


class WebhookList(msgspec.Struct):
    """Endpoints of the asking key's mode, newest first, those disabled within 90 days included."""

    success: Success
    items: Items[WebhookEndpoint]


async def list_webhooks(call: Call) -> WebhookList:
    """List webhook endpoints."""
    return WebhookList(True, [_shown(each) for each in await endpoints.list_all(call.conn, call.actor)])


async def canonical(body: CreateWebhook) -> CreateWebhook:
    """The kinds as a set. Raises Invalid."""
    return msgspec.structs.replace(body, subscribed_events=sorted(endpoints.checked_kinds(body.subscribed_events)))


@operation(status=201, canonical=canonical, has_secret=True, refusals=(TooManyEndpoints,))
async def create_webhook(call: Call, body: CreateWebhook) -> WebhookCreated:
    """Register a webhook endpoint."""
    endpoint, secret = await endpoints.create(
        call.conn,
        call.actor,
        url=body.url,
        subscribed_events=body.subscribed_events,
        rules=call.services.webhook_rules,
    )
    return WebhookCreated(True, _shown(endpoint), secret)


async def disable_webhook(call: Call, webhook_endpoint_id: UUID) -> WebhookDisabled:
    """Disable a webhook endpoint."""
    endpoint = await endpoints.disable(call.conn, call.actor, id=webhook_endpoint_id)
    return WebhookDisabled(True, _shown(endpoint))


@operation(has_secret=True, refusals=(EndpointDisabled,))
async def rotate_webhook_secret(call: Call, webhook_endpoint_id: UUID) -> WebhookSecretRotated:
    """Replace a webhook endpoint's secret.

    For 24 hours the old secret signs too: `webhook-signature` holds a signature of each, `x-service-signature` that
    of the new one.
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
        status="active" if endpoint.status == "active" else "disabled",
        created_at=iso(endpoint.created_at),
        disabled_at=_time(endpoint.disabled_at),
        disabled_reason=endpoint.disabled_reason,
        last_success_at=_time(endpoint.last_success_at),
        consecutive_failures=endpoint.consecutive_failures,
    )


def _time(at: datetime | None) -> str | None:
    return None if at is None else iso(at)
