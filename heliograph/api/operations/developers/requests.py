"""The log of requests: shapes and handlers. The rule is `overview.requests`."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import HasMore, Items, NextCursor, Success, Time
from heliograph.api.shapes.paging import DateFrom, DateTo, PageQuery
from heliograph.base.database.clock import iso
from heliograph.base.errors import Invalid
from heliograph.overview import requests
from heliograph.requests import Filters, LogEntry, Unknown

COLLECTION = "requests"


class RequestQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Filters for requests."""

    status_class: Annotated[
        Literal["2xx", "3xx", "4xx", "5xx"] | None, Meta(description="Only requests answered with such a status.")
    ] = None
    status: Annotated[
        Annotated[int, Meta(ge=100, le=599)] | None, Meta(description="Only requests answered with this status.")
    ] = None
    method: Annotated[
        Literal["GET", "POST", "PUT", "PATCH", "DELETE"] | None,
        Meta(description="Only requests with this HTTP method."),
    ] = None
    path: Annotated[
        Annotated[str, Meta(max_length=256)] | None,
        Meta(description="Only requests to this path, as `path` has it, and those below it, such as `/contacts`."),
    ] = None
    error_code: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="Only requests refused with this error code; an unknown one is refused."),
    ] = None
    operation: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="Only requests for this operation, such as `sendSms`; an unknown one is refused."),
    ] = None
    api_key_id: Annotated[UUID | None, Meta(description="Only requests with this API key.")] = None
    request_id: Annotated[
        Annotated[str, Meta(max_length=128)] | None, Meta(description="Only requests with this `x-request-id`.")
    ] = None
    date_from: DateFrom = None
    date_to: DateTo = None


class LoggedRequest(msgspec.Struct, rename="camel", kw_only=True):
    """A request and its outcome."""

    id: Annotated[UUID, Meta(description="Id of the entry; of an accepted send, the id of its message.")]
    at: Annotated[Time, Meta(description="When it was answered.")]
    mode: Annotated[Literal["live", "test"], Meta(description="Mode of the key.")]
    api_key_id: Annotated[UUID | None, Meta(description="The API key; null for a request made on the dashboard.")]
    method: Annotated[str, Meta(description="HTTP method.", examples=["POST"])]
    path: Annotated[
        str, Meta(description="Path below `/v1`, or of the dashboard; only ids are kept in it.", examples=["/contacts"])
    ]
    operation: Annotated[
        str, Meta(description="The operation; on the dashboard, the route.", examples=["createContact"])
    ]
    status: Annotated[int, Meta(description="HTTP status of the response.")]
    error_code: Annotated[str | None, Meta(description="Code of the error; null if it was not refused.")]
    duration_ms: Annotated[int | None, Meta(description="Duration in milliseconds; null for accepted sends.")]
    address: Annotated[str | None, Meta(description="Address of the client; null for accepted sends.")]
    user_agent: Annotated[str | None, Meta(description="User-Agent of the client; null for accepted sends.")]
    request_id: Annotated[str, Meta(description="`x-request-id` of the response.")]
    idempotency: Annotated[
        Literal["stored", "replayed", "conflict"] | None,
        Meta(description="Effect of its `Idempotency-Key`; null without one, and for accepted sends."),
    ]
    message_id: Annotated[UUID | None, Meta(description="The message that it sent, if it was an accepted send.")]


class LoggedRequestWithBody(LoggedRequest, rename="camel", kw_only=True):
    """A request, with what is kept of its body and its response."""

    body: Annotated[
        str | None, Meta(description="The body with texts and numbers blanked, at most 4 kB; null if none is kept.")
    ]
    answer: Annotated[str | None, Meta(description="The response, if it was refused, with numbers blanked.")]


class RequestList(msgspec.Struct, rename="camel"):
    """A page of requests, newest first. With filters it can hold fewer than `limit` items although there are more."""

    success: Success
    items: Items[LoggedRequest]
    next_cursor: NextCursor
    has_more: HasMore


class RequestRead(msgspec.Struct, rename="camel"):
    """A request, and others with the same idempotency key."""

    success: Success
    request: Annotated[LoggedRequestWithBody, Meta(description="The request.")]
    siblings: Annotated[
        list[LoggedRequest], Meta(description="Other requests with the same `Idempotency-Key`, newest first.")
    ]


def _path(given: str | None) -> str | None:
    """The path of the filter, which may be given with its prefix. Raises Invalid for what is no path."""
    if given is None:
        return None
    path = given.removeprefix("/v1").rstrip("/")
    if not path.startswith("/"):
        raise Invalid(("path", "pattern", "`path` must be a path, such as `/contacts`"))
    return path


def _not_known(one: Unknown) -> tuple[str, str, str]:
    field, what = {"error_code": ("errorCode", "an error code"), "operation": ("operation", "an operation")}[one.field]
    hint = f"; did you mean `{one.closest}`?" if one.closest else "; the API reference lists them"
    return field, "enum", f"`{field}` is not {what} of this API{hint}"


async def list_requests(call: Call, query: RequestQuery) -> RequestList:
    """List requests.

    Requests of the last 30 days, newest first: refused requests, requests that changed something, and
    accepted sends. Reads that succeeded are not kept. A page scans at most 20,000; `nextCursor` continues from there.
    Entries appear about a second after the response.
    """
    # Two spellings are one filter, also in cursors.
    call.query = query = msgspec.structs.replace(query, path=_path(query.path))
    filters = Filters(
        status_class=query.status_class,
        status=query.status,
        method=query.method,
        path=query.path,
        error_code=query.error_code,
        operation=query.operation,
        key_id=query.api_key_id,
        request_id=query.request_id,
        date_from=query.date_from,
        date_to=query.date_to,
    )
    if strange := call.services.vocabulary.unknown(filters):
        raise Invalid(*map(_not_known, strange))
    found = await requests.list_page(
        call.conn, call.actor, filters=filters, after=paging.after_id(call, COLLECTION), limit=query.limit
    )
    items, following, more = paging.page(
        call,
        COLLECTION,
        found.requests,
        position=lambda one: [one.id],
        shown=lambda one: LoggedRequest(**_shown(one)),
        seen=None if found.seen is None else [found.seen],
    )
    return RequestList(True, items, following, more)


async def get_request(call: Call, request_id: UUID) -> RequestRead:
    """Get a request.

    By the id of its entry, the id of the message that it sent, or its `x-request-id` if that is a UUID.
    """
    found = await requests.get(call.conn, call.actor, id=request_id)
    one = found.request
    shown = LoggedRequestWithBody(body=one.body or None, answer=one.answer or None, **_shown(one))
    return RequestRead(True, shown, [LoggedRequest(**_shown(other)) for other in found.siblings])


def _shown(one: LogEntry) -> dict[str, Any]:
    return {
        "id": one.id,
        "at": iso(one.at),
        "mode": one.mode,
        "api_key_id": one.key_id,
        "method": one.method,
        "path": one.path,
        "operation": one.operation,
        "status": one.status,
        "error_code": one.error_code or None,
        "duration_ms": one.duration_ms,
        "address": one.address or None,
        "user_agent": one.agent or None,
        "request_id": one.request_id,
        "idempotency": one.idempotency or None,
        "message_id": one.message_id,
    }
