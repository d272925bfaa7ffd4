"""One request and its answer on a connection, as ASGI sees them.

The rule nobody may break: a request's answer is written whole or the connection ends; what follows a broken answer
would be read as a part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from heliograph.api.shapes import envelope
from heliograph.api.shapes.refusals import RequestTimeout
from heliograph.base.errors import Refusal

#: Bytes of an answer's body that are written at once.
PIECE = 32_768


class Line(Protocol):
    """What an exchange needs of its connection."""

    transport: asyncio.Transport
    flow: FlowControl
    server_state: ServerState
    expect_100_continue: bool

    def write(self, data: bytes) -> None:
        """Write a part of an answer."""

    def abort(self) -> None:
        """End the connection at once."""

    def is_draining(self) -> bool:
        """The process is going down: no request after this one."""

    def answered(self, exchange: Exchange) -> None:
        """The last byte of the answer is written."""

    def refuse_now(self, refusal: Refusal) -> None:
        """Write a refusal that the application did not render, and close."""


class Exchange:
    """What uvicorn calls a cycle."""

    __slots__ = (
        "_chunked",
        "_head",
        "body",
        "connection",
        "disconnected",
        "keep_alive",
        "message_event",
        "more_body",
        "response_complete",
        "response_started",
        "scope",
        "timed_out",
        "waiting_for_100_continue",
    )

    def __init__(self, connection: Line, scope: Any, *, keep_alive: bool) -> None:
        self.connection = connection
        self.scope = scope
        self.keep_alive = keep_alive and not connection.is_draining()
        self.waiting_for_100_continue = connection.expect_100_continue
        self.message_event = asyncio.Event()
        self.body = bytearray()
        self.more_body = True
        self.disconnected = False
        self.timed_out = False
        self.response_started = False
        self.response_complete = False
        self._head = b""
        self._chunked = False

    async def run_asgi(self, app: Callable[..., Any]) -> None:
        """Run the application. Its errors are its own to render; one that gets here ends the connection."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception as error:
            refusal = envelope.refusal_of(error, request_id="", operation="none")
            if not self.response_started and not self.disconnected:
                self.response_started = self.response_complete = True
                self.connection.refuse_now(refusal)
                return
        if not self.response_complete and not self.disconnected:
            self.connection.abort()

    async def receive(self) -> dict[str, Any]:
        """ASGI receive. Raises RequestTimeout when the body's deadline has passed."""
        connection = self.connection
        if self.waiting_for_100_continue and not connection.transport.is_closing():
            connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            if self.more_body:
                connection.flow.resume_reading()
            if not self.message_event.is_set():
                await self.message_event.wait()
            self.message_event.clear()
        if self.timed_out and self.more_body:
            raise RequestTimeout
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body = bytes(self.body)
        self.body = bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: dict[str, Any]) -> None:
        """ASGI send. Head and first piece of the body leave together."""
        connection = self.connection
        if connection.flow.write_paused and not self.disconnected:
            await connection.flow.drain()
        if self.disconnected or connection.transport.is_closing():
            self.disconnected = True
            return
        if not self.response_started:
            self.response_started = True
            self._start(message["status"], message["headers"])
            return
        body = message.get("body", b"")
        more = message.get("more_body", False)
        head, self._head = self._head, b""
        if self._chunked:
            piece = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = piece if more else piece + b"0\r\n\r\n"
        # In pieces: a client that does not read holds one of them, and not all of a large answer.
        for at in range(PIECE, len(body), PIECE):
            connection.write(head + body[at - PIECE : at])
            head = b""
            if connection.flow.write_paused:
                await connection.flow.drain()
            if self.disconnected or connection.transport.is_closing():
                self.disconnected = True
                return
        rest = body[(len(body) - 1) // PIECE * PIECE :] if len(body) > PIECE else body
        if head or rest:
            connection.write(head + rest)
        if not more:
            self.response_complete = True
            self.message_event.set()
            connection.answered(self)

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        has_length = False
        for name, value in headers:
            if name == b"content-length":
                has_length = True
            elif name == b"connection" and value == b"close":
                self.keep_alive = False
        if self.more_body and self.waiting_for_100_continue:
            self.keep_alive = False  # the client may or may not send its body now; nobody could tell what follows
        extra = self.connection.server_state.default_headers
        if not self.keep_alive:
            headers = [*(header for header in headers if header[0] != b"connection"), (b"connection", b"close")]
        if not has_length and status not in (204, 304) and self.scope["method"] != "HEAD":
            if self.scope["http_version"] == "1.0":
                self.keep_alive = False
            else:
                self._chunked = True
                headers = [*headers, (b"transfer-encoding", b"chunked")]
        self._head = head_of(status, [*extra, *headers])


def head_of(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The status line and headers of an answer."""
    lines = [STATUS_LINE[status]]
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
