"""Writing HTTP/1.1: the heads of answers, and whole requests. Pure except for the time of day in `Date`.

The rule nobody may break: no header contains a line break. Those of requests come from customers' settings and are
checked; those of answers are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from email.utils import formatdate
from http import HTTPStatus

from heliograph.base.database import clock

_REASONS = {int(status): status.phrase for status in HTTPStatus}
#: Headers of each request. Without Accept-Encoding an answer could be in any coding (RFC 9110 §12.5.3).
_ALWAYS = "User-Agent: Heliograph/1\r\nAccept-Encoding: identity\r\n"
#: Line ends of a request besides those of the given headers: four in `start`, Content-Length, and the last.
_LINE_ENDS = 6

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Starts:
    """Status line and Date, which are the same for all answers within a second."""

    def __init__(self) -> None:
        self._second = 0
        self._made: dict[int, bytes] = {}

    def of(self, status: int) -> bytes:
        now = clock.milliseconds() // 1_000
        if now != self._second:
            self._second = now
            self._made.clear()
        start = self._made.get(status)
        if start is None:
            date = f"date: {formatdate(now, usegmt=True)}\r\n"
            start = self._made[status] = _status_line(status) + date.encode()
        return start


_starts = _Starts()


def response_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Status line, Date and these headers."""
    return _head(_starts.of(status), headers)


def undated_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Status line and these headers: for cached answers."""
    return _head(_status_line(status), headers)


def start(method: str, authority: str, path: str) -> str:
    """The start of all requests with a method to a path. `authority`: host, and port unless it is the scheme's
    default."""
    return f"{method} {path} HTTP/1.1\r\nHost: {authority}\r\n{_ALWAYS}"


def request(start: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The whole request. `headers` are sent unchanged; those of `start` and Content-Length are not among them.

    Raises ValueError for a name or value that contains a line break or cannot be encoded.
    """
    return request_of(start, "".join([f"{name}: {value}\r\n" for name, value in headers.items()]), len(headers), body)


def request_of(start: str, lines: str, count: int, body: bytes) -> bytes:
    """Like `request`, with `count` headers that are already lines."""
    head = f"{start}{lines}Content-Length: {len(body)}\r\n\r\n"
    # Counted over the whole head, which is cheaper than checking each: one line end too many was injected.
    ends = count + _LINE_ENDS
    if head.count("\n") != ends or head.count("\r") != ends or "\0" in head:
        raise ValueError("a header contains a line break or a NUL")
    return head.encode() + body


def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n".encode()


def _head(start: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return start + b"\r\n".join([*map(b": ".join, headers), b"\r\n"])
