"""The one place that renders a refusal, and that decides how an unexpected error appears to clients.

The rule nobody may break: the text of an unexpected error never reaches a client, and the log gets its type and origin,
never its values: a driver's message may quote a phone number or a text.
"""

from __future__ import annotations

import traceback
from typing import Annotated, Any, Literal

import asyncpg
import msgspec
import structlog
from msgspec import Meta

from heliograph.api.shapes import refusals
from heliograph.base.database.pool import is_down
from heliograph.base.errors import Refusal, Unavailable
from heliograph.base.ids import uuid7_text
from heliograph.base.process.logs import Sparse
from heliograph.base.process.spans import Context
from heliograph.http.heads import Headers, HttpError

log = structlog.get_logger(__name__)
_unavailable = Sparse("database unavailable")

JSON = (b"content-type", b"application/json")
#: Browsers must not take what somebody wrote for a page.
NOSNIFF = (b"x-content-type-options", b"nosniff")
#: Of every response that is not the same for everybody.
PRIVATE: Headers = [(b"cache-control", b"no-store"), NOSNIFF]
#: Path of the error pages, below the service's public address.
ERRORS = "/docs/errors"


class InternalError(Refusal):
    """An unexpected error occurred. Retry only a request that carries an Idempotency-Key."""

    code, status = "internal_error", 500


class Failure(msgspec.Struct, rename="camel"):
    """`error` of the envelope."""

    code: Annotated[str, Meta(description="Stable error code: base decisions on this.")]
    message: Annotated[str, Meta(description="Explanation for humans; the wording may change.")]
    details: Annotated[
        dict[str, Any], Meta(description="Details that depend on the code, such as the `fields` that are invalid.")
    ]
    request_id: Annotated[
        str, Meta(description="Id of this request, as in `x-request-id`. Quote it when you ask for help.")
    ]
    docs_url: Annotated[
        str,
        Meta(
            description="Documentation of this error code. Relative to this server if it begins with `/`.",
            examples=["/docs/errors/validation_error"],
        ),
    ]


class Envelope(msgspec.Struct):
    """The body of every error response."""

    success: Annotated[Literal[False], Meta(description="Always false.")]
    error: Annotated[Failure, Meta(description="The error.")]


_encode = msgspec.json.Encoder().encode


def render(refusal: Refusal, *, request_id: str, public_url: str) -> tuple[int, Headers, bytes]:
    """Status, headers (without x-request-id) and body of a refusal. `public_url`: as in the settings."""
    docs_url = f"{public_url.rstrip('/')}{ERRORS}/{refusal.code}"
    body = _encode(Envelope(False, Failure(refusal.code, refusal.message, refusal.details, request_id, docs_url)))
    headers = [JSON, (b"content-length", b"%d" % len(body)), *PRIVATE]
    headers += [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    return refusal.status, headers, body


def unanswered(error: Exception, *, public_url: str) -> tuple[int, Headers, bytes]:
    """Status, headers (without `connection`) and body for what no operation answers: an HTTP protocol error, or an
    exception that escaped from an application."""
    request_id = uuid7_text()
    refusal = refusal_of(error, request_id=request_id, operation="none")
    status, headers, body = render(refusal, request_id=request_id, public_url=public_url)
    headers = [header for header in headers if header[0] != b"connection"]
    return status, [*headers, (b"x-request-id", request_id.encode())], body


def has_waited(error: Exception) -> bool:
    """Whether a request has waited for the database for as long as it may, for a lock (an Unavailable without a cause)
    or a commit. Whatever else it would ask, even its unit of the rate, would often take as long again: behind a commit
    that hangs, both are locked."""
    cause = error.__cause__ if isinstance(error, Unavailable) else error
    return cause is None or isinstance(cause, TimeoutError | asyncpg.QueryCanceledError)


def refusal_of(error: Exception, *, request_id: str, operation: str, trace: Context | None = None) -> Refusal:
    """The refusal for `error`: the error itself if it is one, 503 if the database is unavailable or rolled the request
    back for others', again and again, otherwise 500 and a log line with the request's id and, if it is traced, its
    trace id. While the database is unavailable, lines are sparse."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, HttpError):
        return refusals.of_http(error)
    if is_down(error):
        kind = type(error).__name__
        _unavailable.warn(log, kind, request_id=request_id, operation=operation, error=kind, **_traced(trace))
        return Unavailable()
    if isinstance(error, asyncpg.DeadlockDetectedError):
        log.warning("deadlock", request_id=request_id, operation=operation, **_traced(trace))
        return Unavailable()
    log.error(
        "request failed",
        request_id=request_id,
        operation=operation,
        error=type(error).__name__,
        sqlstate=error.sqlstate if isinstance(error, asyncpg.PostgresError) else None,
        at=[f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)],
        **_traced(trace),
    )
    return InternalError()


def _traced(trace: Context | None) -> dict[str, str]:
    return {} if trace is None else {"trace_id": f"{trace.trace:032x}"}
