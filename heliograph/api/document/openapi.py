"""The OpenAPI 3.1 document, generated from the route table and the structs that also validate requests and responses.

The rule nobody may break: nothing is described here that is not declared there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import msgspec

from heliograph.accounts.api_keys.authentication import Unauthorized
from heliograph.accounts.api_keys.scopes import SCOPES, LiveKeyRequired, ScopeRequired
from heliograph.accounts.organizations import OrganizationSuspended
from heliograph.accounts.requests import IdempotencyConflict, IdempotencyInProgress
from heliograph.api.document import event_bodies, schemas
from heliograph.api.document.error_pages import errors
from heliograph.api.door.limits import ANONYMOUS_PER_WINDOW
from heliograph.api.door.operation import NONE, REQUIRED, Operation
from heliograph.api.door.reading import UUID_FORM
from heliograph.api.shapes.envelope import ERRORS, Envelope, InternalError
from heliograph.api.shapes.refusals import (
    BadRequest,
    HeadersTooLarge,
    InvalidJson,
    PayloadTooLarge,
    RateLimited,
    RequestTimeout,
    UnsupportedMediaType,
    UriTooLong,
)
from heliograph.base.errors import Invalid, NotFound, Refusal, Unavailable
from heliograph.webhooks.samples import SUMMARIES


class Example(msgspec.Struct, frozen=True):
    """Examples of a request's body and of its successful response."""

    answer: Any
    request: Any = None


#: One per operation, by its id; most are also in docs/api.md.
EXAMPLES = msgspec.json.decode(Path(__file__).with_name("examples.json").read_bytes(), type=dict[str, Example])

#: Examples of `error.details`, by code.
_DETAILS = {one.code: one.example for one in errors()}

_DATE_TIME = {"type": "string", "format": "date-time"}

_HEADERS: dict[str, dict[str, Any]] = {
    "RequestId": {
        "description": "Correlates this response with the service's logs and events.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    },
    "RateLimit": {"description": "Requests allowed per minute in this bucket.", "schema": {"type": "integer"}},
    "RateRemaining": {
        "description": "Requests left in the current minute.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "RateReset": {"description": "When the current window ends and the count starts again.", "schema": _DATE_TIME},
    "IdempotencyStatus": {
        "description": (
            "`stored`: this request was executed. `replayed`: this is the stored response to an earlier "
            "request with the same key."
        ),
        "schema": {"type": "string", "x-extensible-enum": ["stored", "replayed"]},
    },
    "RetryAfter": {"description": "Seconds to wait before retrying.", "schema": {"type": "integer", "minimum": 1}},
}

_PARAMETERS: dict[str, dict[str, Any]] = {
    "RequestId": {
        "name": "X-Request-Id",
        "in": "header",
        "description": (
            "Your own correlation id: 1 to 128 characters from A–Z a–z 0–9 . _ -. Anything else is replaced "
            "by a generated id."
        ),
        "schema": {"type": "string"},
    },
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "description": (
            "Makes retries safe: a request repeated with the same key and payload takes effect once. Kept for 72 "
            "hours, unless the operator has set another time."
        ),
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
        "example": "0199c5a0-7c1e-7d2a-9f00-3f1f5a6b7c8d",
    },
}

#: What each callback carries.
_WEBHOOK_HEADERS: dict[str, dict[str, Any]] = {
    name: {"name": header, "in": "header", "required": True, "description": text, "schema": {"type": "string"}}
    for name, header, text in (
        ("ServiceTimestamp", "x-service-timestamp", "When this attempt was made, ISO 8601."),
        (
            "ServiceSignature",
            "x-service-signature",
            (
                "`v1=` followed by the hex HMAC-SHA256, keyed with the endpoint's secret, of "
                "`x-service-timestamp`, a dot and the raw body."
            ),
        ),
        ("ServiceEventId", "x-service-event-id", "Id of the event, the same in every attempt."),
        ("EventRequestId", "x-request-id", "Id of the request that caused the event."),
        ("WebhookId", "webhook-id", "Standard Webhooks: the id of the event."),
        ("WebhookTimestamp", "webhook-timestamp", "Standard Webhooks: when this attempt was made, in Unix seconds."),
        ("WebhookSignature", "webhook-signature", "Standard Webhooks: the signatures, separated by spaces."),
    )
}

#: Ids in paths, by name.
_IDS = {
    "messageId": "Id of the message, as returned by the send.",
    "apiKeyId": "Id of the API key (not its secret).",
    "campaignId": "Id of the campaign.",
    "contactId": "Id of the contact.",
    "textId": "Id of the saved text.",
    "exportId": "Id of the export.",
    "webhookEndpointId": "Id of the webhook endpoint.",
    "requestId": "Id of the entry, of the message that was sent, or the `x-request-id`.",
}

_TAGS = {
    "notices": "Things that need somebody's attention.",
    "exports": "Files of messages, contacts and opt-outs, written by workers.",
    "opt-outs": "List, add and lift opt-outs.",
    "discovery": "Service index, health and this document. No API key is needed.",
    "sms": "Send, preview, list, read and cancel SMS messages, and list received ones.",
    "whatsapp": (
        "Send and read WhatsApp messages; read templates, conversations, phone numbers, campaigns and the wallet."
    ),
    "account": "The organization, its subscription and its quota.",
    "usage": "The ledger of quota usage.",
    "traffic": "Messages counted by time, and how long they took.",
    "sender-ids": "Names and numbers that messages are sent from.",
    "api-keys": "Keys for this API, and what each may do.",
    "contacts": "People and their numbers.",
    "campaigns": "One text for many recipients.",
    "webhooks": "Endpoints that events are posted to, and their deliveries.",
    "events": "A feed of events to poll.",
    "requests": "Requests of the last 30 days, and how they were answered.",
}


@functools.cache
def document(operations: tuple[Operation, ...], public_url: str) -> bytes:
    """The document as JSON, generated once per process. `public_url`: as in the settings."""
    requests = schemas.components(each.request for each in operations if each.request)
    for each in operations:
        for member in get_args(each.request):
            config = member.__struct_config__
            requests[member.__name__]["properties"][config.tag_field]["description"] = "Selects this form of the body."
    answers = schemas.components([Envelope, *(each.response for each in operations), *event_bodies.DATA.values()])
    bodies = {event_bodies.name(kind): event_bodies.body(kind, data) for kind, data in event_bodies.DATA.items()}
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, public_url)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Heliograph",
                "version": "v1",
                "summary": "One API for SMS and WhatsApp.",
                "description": (
                    "Every response carries `x-request-id`; every error is an `Envelope`. Version v1 "
                    "changes by additions only: accept any 2xx status, unknown fields, and values that "
                    "are not listed here (`x-extensible-enum` lists the values known today)."
                ),
                "license": {"name": "MIT", "identifier": "MIT"},
            },
            "servers": [{"url": public_url.rstrip("/") + "/v1"}],
            "tags": [
                {"name": name, "description": _TAGS[name]} for name in dict.fromkeys(_tag(each) for each in operations)
            ],
            "paths": paths,
            "webhooks": {kind: {"post": _webhook(kind)} for kind in event_bodies.DATA},
            "components": {
                "schemas": schemas.of_requests(requests) | schemas.of_answers(answers) | bodies,
                "headers": _HEADERS,
                "parameters": _PARAMETERS | _WEBHOOK_HEADERS,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer", "description": _scopes()},
                    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
        }
    )


def _webhook(kind: str) -> dict[str, Any]:
    """A callback: the request posted to endpoints that subscribe to this kind."""
    return {
        "operationId": f"on{event_bodies.name(kind).removesuffix('Event')}",
        "summary": SUMMARIES[kind],
        "description": (
            "Verify the signature over the raw body before parsing it. The same event may be delivered more than once."
        ),
        "tags": ["webhooks"],
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in _WEBHOOK_HEADERS],
        "security": [],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{event_bodies.name(kind)}"}}},
        },
        "responses": {
            "2XX": {"description": "The event was received. Any other status causes a retry."},
            "410": {"description": "Disables the endpoint: nothing more is sent to it."},
        },
    }


def _operation(each: Operation, public_url: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": each.id,
        "summary": each.summary,
        "description": _description(each),
        "tags": [_tag(each)],
        "parameters": _parameters(each),
        "security": [{"bearer": []}, {"apiKey": []}] if each.scope else [],
        "responses": _responses(each, public_url),
    }
    if each.request is not None:
        media: dict[str, Any] = {"schema": _body(each.request)}
        if (example := EXAMPLES[each.id].request) is not None:
            media["example"] = example
        described["requestBody"] = {"required": True, "content": {"application/json": media}}
    return described


def _description(each: Operation) -> str:
    parts = [each.description] if each.description else []
    if each.scope:
        parts.append(f"Scope: `{each.scope}`. Rate bucket: `{each.bucket}`.")
    return "\n\n".join(parts) or each.summary


def _parameters(each: Operation) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _IDS[name],
            "schema": {"type": "string", "format": "uuid", "pattern": UUID_FORM},
        }
        for name in re.findall(r"\{(\w+)\}", each.path)
    ]
    if each.query is not None:
        parameters += schemas.of_query(each.query)
    parameters.append({"$ref": "#/components/parameters/RequestId"})
    if each.idempotency == REQUIRED:
        parameters.append(_PARAMETERS["IdempotencyKey"] | {"required": True})
    elif each.idempotency != NONE:
        parameters.append({"$ref": "#/components/parameters/IdempotencyKey"})
    return parameters


def _responses(each: Operation, public_url: str) -> dict[str, Any]:
    headers = {"x-request-id": _header("RequestId")}
    limited = {
        "X-RateLimit-Limit": _header("RateLimit"),
        "X-RateLimit-Remaining": _header("RateRemaining"),
        "X-RateLimit-Reset": _header("RateReset"),
    }
    if each.scope:
        headers |= limited
    success = dict(headers)
    if each.idempotency != NONE:
        success["x-idempotency-status"] = _header("IdempotencyStatus")
    responses: dict[str, Any] = {
        str(each.status): {
            "description": _first_words(each.response),
            "headers": success,
            "content": {"application/json": {"schema": _ref(each.response), "example": EXAMPLES[each.id].answer}},
        }
    }
    by_status: dict[int, list[type[Refusal]]] = {}
    for refusal in dict.fromkeys(_refusals(each)):
        by_status.setdefault(refusal.status, []).append(refusal)
    for status, refusals in sorted(by_status.items()):
        unknown_key = status in (400, 401, 408, 414, 431, 500, 503)
        own = {"x-request-id": headers["x-request-id"]} if unknown_key else dict(headers)
        if status == 429:
            own |= limited
        if status in (409, 429, 503):
            own["Retry-After"] = _header("RetryAfter")
        responses[str(status)] = {
            "description": "\n".join(f"* `{one.code}`: {_first_words(one)}" for one in refusals),
            "headers": own,
            "content": {
                "application/json": {
                    "schema": _ref(Envelope),
                    "examples": {
                        one.code: {"value": {"success": False, "error": _failure(one, each, public_url)}}
                        for one in refusals
                    },
                }
            },
        }
    return responses


def _refusals(each: Operation) -> Iterable[type[Refusal]]:
    """All errors of an operation: those raised by the guard according to its declaration, then its own."""
    yield BadRequest
    if each.request is not None:
        yield from (InvalidJson, Invalid, UnsupportedMediaType, RequestTimeout)
    yield from (PayloadTooLarge, UriTooLong, HeadersTooLarge)
    if each.scope:
        yield from (Unauthorized, ScopeRequired, RateLimited)
    elif not each.is_probe:
        yield RateLimited
    if "{" in each.path:
        yield from (Invalid, NotFound)
    if each.query is not None:
        yield Invalid
    if each.idempotency != NONE:
        yield from (Invalid, IdempotencyConflict, IdempotencyInProgress)
        if not each.while_stopped:
            yield OrganizationSuspended
    if each.live_only:
        yield LiveKeyRequired
    yield from each.refusals
    yield from (InternalError, Unavailable)


def _failure(refusal: type[Refusal], each: Operation, public_url: str) -> dict[str, Any]:
    details = _DETAILS[refusal.code]
    if refusal is RateLimited:
        details = details | {"limit": each.bucket or ANONYMOUS_PER_WINDOW}
    return {
        "code": refusal.code,
        "message": _first_words(refusal),
        "details": details,
        "requestId": "019c8f5e-62b0-7a10-8f0e-5a3b1c9d7e22",
        "docsUrl": f"{public_url.rstrip('/')}{ERRORS}/{refusal.code}",
    }


def _first_words(described: type) -> str:
    return " ".join((described.__doc__ or "").strip().split("\n\n")[0].split())


def _body(shape: type[msgspec.Struct] | UnionType) -> dict[str, Any]:
    if not isinstance(shape, UnionType):
        return _ref(shape)
    members = get_args(shape)
    by_tag = {str(one.__struct_config__.tag): _ref(one)["$ref"] for one in members}
    tag_field = members[0].__struct_config__.tag_field
    return {
        "oneOf": [_ref(one) for one in members],
        "discriminator": {"propertyName": tag_field, "mapping": by_tag},
    }


def _ref(shape: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{shape.__name__}"}


def _header(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/headers/{name}"}


def _tag(each: Operation) -> str:
    return each.path.split("/")[1] if each.scope else "discovery"


def _scopes() -> str:
    return "An organization's API key. Scopes:\n" + "\n".join(f"* `{name}`: {text}" for name, text in SCOPES.items())
