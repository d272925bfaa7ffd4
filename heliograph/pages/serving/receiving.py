"""What a browser submits with a request: the fields of a form, or a file that is read as it arrives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from heliograph.base.errors import Invalid, Refusal
from heliograph.http.server.asgi import MORE_TIME
from heliograph.pages import requests
from heliograph.pages.requests import Request
from heliograph.pages.uploads import Disconnected, Upload

Receive = Callable[[], Awaitable[dict[str, Any]]]

#: Maximum bytes of a form.
LONGEST_FORM = 65_536
#: Maximum bytes and fields of a form that is a table.
LONGEST_OF_ALL, MOST_OF_ALL = 1_048_576, 3_000


class TooLarge(Refusal):
    """What was sent is larger than any of our forms."""

    code, status = "payload_too_large", 413


async def form(request: Request, receive: Receive, *, is_long: bool = False) -> dict[str, str]:
    """The fields of a form; `is_long`: it is a table. Raises Invalid, TooLarge and Disconnected."""
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind not in (b"application/x-www-form-urlencoded", b""):
        raise Invalid(("form", "format", "What was sent is not a form."))
    longest, most = (LONGEST_OF_ALL, MOST_OF_ALL) if is_long else (LONGEST_FORM, requests.MOST_FIELDS)
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        more = message["more_body"]
        parts.append(message["body"])
        size += len(parts[-1])
        if size > longest:
            raise TooLarge
    return requests.pairs(b"".join(parts), most=most)


async def upload(request: Request, scope: dict[str, Any], receive: Receive) -> dict[str, str]:
    """The fields before the file, none of which has been read yet."""
    extension = scope.get("extensions", {}).get(MORE_TIME)
    kind = request.headers.get(b"content-type", b"").decode("latin-1")
    request.upload = Upload(kind, receive, extension["allow"] if extension else lambda: None)
    await request.upload.begin()
    return request.upload.fields
