"""The HTTP side of the simulator: a lean server on httptools, and the ways in which an answer can fail to come.

One connection answers in the order of its requests. The rule nobody may break: this file decides how an answer
travels, never what it says.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import httptools
import msgspec

_LARGEST_BODY = 3 * 1024 * 1024
#: Of a head, and of what is not body between two pieces of one: sizes of chunks, trailer.
_LARGEST_HEAD = 65_536
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


class Request(msgspec.Struct, gc=False):
    """A request as it came; header names in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Reply(msgspec.Struct):
    """An answer. `way`: normal, drip (in small pieces), drop (the connection ends instead), hang (nothing comes)."""

    status: int
    body: bytes
    kind: str = "application/json; charset=UTF-8"
    headers: tuple[tuple[str, str], ...] = ()
    #: Real seconds before it leaves.
    delay: float = 0.0
    way: str = "normal"
    #: It leaves when this is over.
    behind: Awaitable[Any] | None = None
    #: Called when it has left, or would have.
    left: Callable[[], None] | None = None
    #: Real seconds between two pieces of a drip.
    interval: float = 0.02


Handler = Callable[[Request], Reply | Coroutine[Any, Any, Reply]]


class Connection(asyncio.Protocol):
    """One connection: httptools calls the on_… methods while it is fed."""

    def __init__(self, handler: Handler, connections: set[Connection]) -> None:
        self._handler = handler
        self._all = connections
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        #: Bytes since the last request or piece of a body.
        self._between = 0
        self._in_body = False
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._all.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._all.discard(self)

    def data_received(self, data: bytes) -> None:
        self._between += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.write(encoded(Reply(400, b"")))
            self._transport.close()
        if self._between > _LARGEST_HEAD:
            self._transport.abort()

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._body = []
        self._size = 0
        self._in_body = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # a trailer says nothing
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._in_body = True
        if self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._between = 0
        self._body.append(body)
        self._size += len(body)
        if self._size > _LARGEST_BODY:
            self._transport.abort()

    def on_message_complete(self) -> None:
        self._between = 0
        if self._transport.is_closing():
            return
        path, _, query = self._url.decode("latin-1").partition("?")
        request = Request(
            self._parser.get_method().decode(),
            urllib.parse.unquote(path) if "%" in path else path,
            dict(urllib.parse.parse_qsl(query, keep_blank_values=True)) if query else {},
            self._headers,
            b"".join(self._body),
        )
        keep_alive = self._parser.should_keep_alive()
        reply = self._handler(request)
        if (
            isinstance(reply, Reply)
            and not reply.delay
            and reply.way == "normal"
            and reply.behind is None
            and self._answering is None
        ):
            self._leave(reply, keep_alive)
            return
        before = self._answering
        self._answering = asyncio.get_running_loop().create_task(self._later(reply, keep_alive, before))
        self._answering.add_done_callback(self._answered)

    def abort(self) -> None:
        """Cut the connection."""
        if self._answering is not None:
            self._answering.cancel()
        self._transport.abort()

    def _leave(self, reply: Reply, keep_alive: bool) -> None:
        if not self._transport.is_closing():
            self._transport.write(encoded(reply, keep_alive=keep_alive))
            if not keep_alive:
                self._transport.close()
        if reply.left is not None:
            reply.left()

    def _answered(self, task: asyncio.Task[None]) -> None:
        if self._answering is task:
            self._answering = None
        if not task.cancelled():
            task.result()

    async def _later(
        self, coming: Reply | Coroutine[Any, Any, Reply], keep_alive: bool, before: asyncio.Task[None] | None
    ) -> None:
        reply = coming if isinstance(coming, Reply) else await coming
        if reply.delay:
            await asyncio.sleep(reply.delay)
        if reply.behind is not None:
            await reply.behind
        if before is not None:
            await before
        if reply.way == "normal":
            self._leave(reply, keep_alive)
            return
        if reply.left is not None:
            reply.left()
        if reply.way == "drop":
            self._transport.abort()
        elif reply.way == "drip":
            data = encoded(reply, keep_alive=keep_alive)
            size = max(1, len(data) // 20)
            for at in range(0, len(data), size):
                self._transport.write(data[at : at + size])
                await asyncio.sleep(reply.interval)


def encoded(reply: Reply, *, keep_alive: bool = True) -> bytes:
    """The bytes of an answer."""
    lines = [f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Status')}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in reply.headers]
    if reply.body:
        lines.append(f"content-type: {reply.kind}\r\n")
    lines.append(f"content-length: {len(reply.body)}\r\n")
    if not keep_alive:
        lines.append("connection: close\r\n")
    return ("".join(lines) + "\r\n").encode("latin-1") + reply.body
