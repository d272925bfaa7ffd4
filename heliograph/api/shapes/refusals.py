"""Refusals at the level of HTTP, before any rule is consulted.

400 bad_request · invalid_json        405 method_not_allowed        408 request_timeout
413 payload_too_large                 414 uri_too_long              415 unsupported_media_type
429 rate_limit_exceeded               431 request_headers_too_large
"""

from __future__ import annotations

from collections.abc import Callable

from heliograph.base.errors import Refusal, Unavailable
from heliograph.http.heads import HttpError


class BadRequest(Refusal):
    """This is not a well-formed HTTP request."""

    code, status = "bad_request", 400


class InvalidJson(Refusal):
    """The body is not valid JSON (RFC 8259): it must be UTF-8 without a byte order mark, with no duplicate names in an
    object."""

    code, status = "invalid_json", 400


class MethodNotAllowed(Refusal):
    """This path does not support this method."""

    code, status = "method_not_allowed", 405

    def __init__(self, allowed: str) -> None:
        super().__init__(allowed=allowed.split(", "))
        self.headers = {"allow": allowed}


class RequestTimeout(Refusal):
    """The request did not arrive in time."""

    code, status = "request_timeout", 408

    def __init__(self) -> None:
        super().__init__()
        self.headers = {"connection": "close"}


class PayloadTooLarge(Refusal):
    """The body is larger than this operation accepts."""

    code, status = "payload_too_large", 413

    def __init__(self, max_bytes: int) -> None:
        super().__init__(maxBytes=max_bytes)
        # There is no point in reading the rest of the body.
        self.headers = {"connection": "close"}


class UriTooLong(Refusal):
    """The request URI is too long."""

    code, status = "uri_too_long", 414


class UnsupportedMediaType(Refusal):
    """The body must be sent as `Content-Type: application/json`, in UTF-8 and uncompressed."""

    code, status = "unsupported_media_type", 415


class RateLimited(Refusal):
    """Too many requests in this minute. Wait for the time given in Retry-After."""

    code, status = "rate_limit_exceeded", 429

    def __init__(self, limit: str, retry_after: int) -> None:
        """`limit`: name of the bucket that is used up; `retry_after`: seconds, at least 1."""
        super().__init__(bucket="minute", limit=limit, retryAfterSeconds=retry_after)
        self.headers = {"retry-after": str(retry_after)}


class HeadersTooLarge(Refusal):
    """The request has too many headers, or they are too long."""

    code, status = "request_headers_too_large", 431


def of_http(error: HttpError) -> Refusal:
    """The refusal for an HTTP error."""
    if error.status == 400:
        return BadRequest(f"This is not a well-formed HTTP request: {error.reason}.")
    return _BY_STATUS[error.status]()


_BY_STATUS: dict[int, Callable[[], Refusal]] = {
    408: RequestTimeout,
    414: UriTooLong,
    431: HeadersTooLarge,
    503: Unavailable,
}
