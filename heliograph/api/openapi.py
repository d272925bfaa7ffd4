"""The OpenAPI 3.1 document, made from the route table and the structs: one source for validation, answers and this.

The rule nobody may break: nothing is described here that is not declared there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import msgspec

from heliograph.accounts.api_keys import SCOPES, ScopeRequired, Unauthorized
from heliograph.accounts.organizations import OrganizationSuspended
from heliograph.accounts.requests import IdempotencyConflict, IdempotencyInProgress
from heliograph.api.envelope import Envelope, InternalError
from heliograph.api.operation import NONE, REQUIRED, Operation
from heliograph.api.refusals import (
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
from heliograph.base.settings import Settings

#: An answer of each operation that succeeds, by its id; most are those of docs/api.md.
ANSWERS: dict[str, Any] = msgspec.json.decode(Path(__file__).with_name("examples.json").read_bytes())

_JSON_TYPES = {bool: "boolean", int: "integer", str: "string"}
#: In its usual form; a format alone is a hint.
_UUID = "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"
_DATE_TIME = {"type": "string", "format": "date-time"}

_HEADERS: dict[str, dict[str, Any]] = {
    "RequestId": {
        "description": "Correlates this answer with the service's logs and events.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    },
    "RateLimit": {"description": "Requests that this bucket allows in a minute.", "schema": {"type": "integer"}},
    "RateRemaining": {"description": "Requests left in this minute.", "schema": {"type": "integer", "minimum": 0}},
    "RateReset": {"description": "When the next minute begins.", "schema": _DATE_TIME},
    "IdempotencyStatus": {
        "description": "`stored`: this request was executed. `replayed`: an earlier one was, this is its answer.",
        "schema": {"type": "string", "enum": ["stored", "replayed"]},
    },
    "RetryAfter": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}},
}

_PARAMETERS: dict[str, dict[str, Any]] = {
    "RequestId": {
        "name": "X-Request-Id",
        "in": "header",
        "description": "Your own correlation id. Anything that is not 1 to 128 of A–Z a–z 0–9 . _ - is replaced.",
        "schema": {"type": "string"},
    },
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Makes a repeated request have one outcome. Kept for 72 hours.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
        "example": "0199c5a0-7c1e-7d2a-9f00-3f1f5a6b7c8d",
    },
}

#: Ids in paths, by name.
_IDS = {
    "messageId": "Id of the message, as it was answered to the send.",
    "apiKeyId": "Id of the API key; not its secret.",
    "campaignId": "Id of the campaign.",
    "webhookEndpointId": "Id of the webhook endpoint.",
}

_TAGS = {
    "discovery": "What there is and how it is. No key is needed.",
    "sms": "Messages: sent, looked at, listed and canceled.",
    "whatsapp": "WhatsApp: messages sent and read; templates, conversations, numbers, campaigns and the wallet.",
    "account": "The organization's standing.",
    "usage": "The ledger of the quota.",
    "sender-ids": "Names and numbers that messages are sent as.",
    "api-keys": "Who may do what.",
    "contacts": "People and their numbers.",
    "campaigns": "One text for many recipients.",
    "webhooks": "Where events are posted to, and what became of that.",
    "events": "What happened, to be fetched.",
}


def document(operations: Sequence[Operation], settings: Settings) -> bytes:
    """The document as JSON."""
    shapes = [Envelope, *(each.response for each in operations), *(each.request for each in operations if each.request)]
    _, components = msgspec.json.schema_components(shapes, ref_template="#/components/schemas/{name}")
    for each in operations:
        for member in get_args(each.request):
            config = member.__struct_config__
            components[member.__name__]["properties"][config.tag_field]["description"] = "Says that it is this body."
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, settings)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Heliograph",
                "version": "v1",
                "summary": "One API for SMS and WhatsApp.",
                "description": (
                    "Every answer carries `x-request-id`; every refusal is an `Envelope`. Within v1 there are only "
                    "additions: accept any 2xx, and fields that you do not know."
                ),
                "license": {"name": "MIT", "identifier": "MIT"},
            },
            "servers": [{"url": settings.public_url.rstrip("/") + "/v1"}],
            "tags": [
                {"name": name, "description": _TAGS[name]} for name in dict.fromkeys(_tag(each) for each in operations)
            ],
            "paths": paths,
            "components": {
                "schemas": _typed(components),
                "headers": _HEADERS,
                "parameters": _PARAMETERS,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer", "description": _scopes()},
                    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
        }
    )


def _typed(schema: Any) -> Any:
    """A schema whose enumerations say of what type they are, single values as `const`: generators need both."""
    if isinstance(schema, list):
        return [_typed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    typed = {name: _typed(one) for name, one in schema.items()}
    values = schema.get("enum")
    if isinstance(values, list) and (kind := _JSON_TYPES.get(type(values[0]))):
        typed["type"] = kind
        if len(values) == 1:
            typed["const"] = typed.pop("enum")[0]
    return typed


def _operation(each: Operation, settings: Settings) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": each.id,
        "summary": each.summary,
        "description": _description(each, settings),
        "tags": [_tag(each)],
        "parameters": _parameters(each),
        "security": [{"bearer": []}, {"apiKey": []}] if each.scope else [],
        "responses": _responses(each),
    }
    if each.request is not None:
        media: dict[str, Any] = {"schema": _body(each.request)}
        if each.example is not None:
            media["example"] = each.example
        described["requestBody"] = {"required": True, "content": {"application/json": media}}
    return described


def _description(each: Operation, settings: Settings) -> str:
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
            "schema": {"type": "string", "format": "uuid", "pattern": _UUID},
        }
        for name in re.findall(r"\{(\w+)\}", each.path)
    ]
    if each.query is not None:
        parameters += _query_parameters(each.query)
    parameters.append({"$ref": "#/components/parameters/RequestId"})
    if each.idempotency == REQUIRED:
        parameters.append(_PARAMETERS["IdempotencyKey"] | {"required": True})
    elif each.idempotency != NONE:
        parameters.append({"$ref": "#/components/parameters/IdempotencyKey"})
    return parameters


def _query_parameters(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    (_, components) = msgspec.json.schema_components([query], ref_template="#/components/schemas/{name}")
    schema = components[query.__name__]
    parameters = []
    for name, shape in schema["properties"].items():
        described = {key: value for key, value in shape.items() if key not in ("description", "anyOf")}
        if "anyOf" in shape:  # a parameter is absent, never null
            (given,) = (one for one in shape["anyOf"] if one != {"type": "null"})
            described = given
        described = {key: value for key, value in described.items() if not (key == "default" and value is None)}
        parameter = {"name": name, "in": "query", "schema": _typed(described)}
        if "description" in shape:
            parameter["description"] = shape["description"]
        if name in schema.get("required", ()):
            parameter["required"] = True
        parameters.append(parameter)
    return parameters


def _responses(each: Operation) -> dict[str, Any]:
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
            "content": {"application/json": {"schema": _ref(each.response), "example": ANSWERS[each.id]}},
        }
    }
    by_status: dict[int, list[type[Refusal]]] = {}
    for refusal in dict.fromkeys(_refusals(each)):
        by_status.setdefault(refusal.status, []).append(refusal)
    for status, refusals in sorted(by_status.items()):
        unknown_key = status in (400, 401, 408, 414, 431, 500, 503)
        own = {"x-request-id": headers["x-request-id"]} if unknown_key else dict(headers)
        if status in (409, 429, 503):
            own["Retry-After"] = _header("RetryAfter")
        responses[str(status)] = {
            "description": "\n".join(f"* `{one.code}`: {_first_words(one)}" for one in refusals),
            "headers": own,
            "content": {
                "application/json": {
                    "schema": _ref(Envelope),
                    "examples": {one.code: {"value": {"success": False, "error": _failure(one)}} for one in refusals},
                }
            },
        }
    return responses


def _refusals(each: Operation) -> Iterable[type[Refusal]]:
    """Everything that an operation may refuse: what the guard refuses by its facts, then what it declares."""
    yield BadRequest
    if each.request is not None:
        yield from (InvalidJson, Invalid, UnsupportedMediaType, RequestTimeout)
    yield from (PayloadTooLarge, UriTooLong, HeadersTooLarge)
    if each.scope:
        yield from (Unauthorized, ScopeRequired, RateLimited)
    if "{" in each.path:
        yield from (Invalid, NotFound)
    if each.query is not None:
        yield Invalid
    if each.idempotency != NONE:
        yield from (Invalid, IdempotencyConflict, IdempotencyInProgress, OrganizationSuspended)
    yield from each.refusals
    yield from (InternalError, Unavailable)


def _failure(refusal: type[Refusal]) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if refusal is Invalid:
        details = {"fields": [{"field": "to", "issue": "required", "message": "`to` is required"}]}
    elif refusal is RateLimited:
        details = {"bucket": "minute", "limit": "sms_send", "retryAfterSeconds": 12}
    elif refusal is PayloadTooLarge:
        details = {"maxBytes": 262_144}
    return {"code": refusal.code, "message": _first_words(refusal), "details": details}


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
