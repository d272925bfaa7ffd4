"""Exchanges that an ASGI application answers (asgi.readthedocs.io, HTTP 2.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from heliograph.http.heads import Headers, HttpError, RequestHead, has_token
from heliograph.http.server.connection import ServerConnection
from heliograph.http.server.exchange import BEGUN, COMPLETE, WAITING, Exchange
from heliograph.http.writer import CONTINUE, response_head

Scope = MutableMapping[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

#: Bytes of an answer's body written at once.
PIECE = 32_768
#: Bytes of a body waiting for the application at which reading stops.
_HIGH_WATER = 65_536

#: The states of a request: arriving; complete; read by the application; timed out; its client is gone.
ARRIVING, WHOLE, TAKEN, LATE, GONE = range(5)

#: The extension with which an application gives a body more time.
MORE_TIME = "heliograph.more_time"
#: The extension with which it answers in one call, `AsgiExchange.answer_at_once`.
AT_ONCE = "heliograph.at_once"

_VERSIONS = {"version": "3.0", "spec_version": "2.5"}
_CLOSE = (b"connection", b"close")


class Asgi:
    """`begin` starts the application for each request, in a task of its own."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop = asyncio.get_running_loop()
        #: Running applications.
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, connection: ServerConnection, head: RequestHead) -> AsgiExchange:
        """The exchange for a request whose head has arrived."""
        exchange = AsgiExchange(connection, head)
        exchange.task = self._loop.create_task(exchange.run(self._app, self.tasks))
        self.tasks.add(exchange.task)
        return exchange


class AsgiExchange(Exchange):
    """One request and its answer."""

    __slots__ = ("_body", "_is_chunked", "_response_head", "_waiter", "_waits_for_continue", "request", "task")
    #: Runs the application.
    task: asyncio.Task[None]

    def __init__(self, connection: ServerConnection, head: RequestHead) -> None:
        super().__init__(connection, head)
        self.request = ARRIVING
        self._waits_for_continue = head.expects_continue
        #: What the application has not received yet.
        self._body: bytes | bytearray = b""
        self._waiter: asyncio.Future[None] | None = None
        self._response_head = b""
        self._is_chunked = False

    async def run(self, app: App, tasks: set[asyncio.Task[None]]) -> None:
        """Run the application, in a task of `tasks`. It answers its own errors; one that escapes ends the
        connection."""
        try:
            await app(self._scope(), self.receive, self.send)
        except Exception as error:
            self.connection.fail(self, error)
        finally:
            tasks.discard(self.task)
        if self.answer != COMPLETE and self.request != GONE:
            self.connection.abort()

    def _scope(self) -> dict[str, Any]:
        # Not kept: it refers to this exchange, and the collector runs so rarely that thousands would accumulate.
        connection, head = self.connection, self.head
        return {
            "type": "http",
            "asgi": _VERSIONS,
            "http_version": head.version,
            "method": head.method,
            "scheme": "http",
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": connection.client_of(head),
            "server": None,
            # An application that processes a long body as it arrives gives it more time, piece by piece.
            "extensions": {MORE_TIME: {"allow": connection.allow_body}, AT_ONCE: {"answer": self.answer_at_once}},
        }

    # ── Called by the connection ───────────────────────────────────────────────────────────────────────────────────

    @property
    def is_full(self) -> bool:
        return len(self._body) > _HIGH_WATER

    def take_body(self, piece: bytes) -> None:
        body = self._body
        if not body:
            self._body = piece
        else:
            if isinstance(body, bytes):
                body = self._body = bytearray(body)
            body += piece
        self._wake()

    def end_request(self) -> None:
        self.request = WHOLE
        self._wake()

    def time_out(self) -> bool:
        if self.request == LATE:
            return False
        self.request = LATE
        self._wake()
        return True

    def disconnect(self) -> None:
        self.request = GONE
        self._body = b""  # nobody will ask for it
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ── Called by the application ──────────────────────────────────────────────────────────────────────────────────

    async def receive(self) -> Message:
        """ASGI receive. Raises HttpError 408 if the body's deadline has passed."""
        connection = self.connection
        if self._waits_for_continue and self.request == ARRIVING and not connection.is_closing:
            connection.write(CONTINUE)
        self._waits_for_continue = False
        while self.answer != COMPLETE and (self.request == TAKEN or (self.request == ARRIVING and not self._body)):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.request == LATE and self.answer != COMPLETE:
            raise HttpError(408, "the body did not arrive in time")
        if self.request == GONE or self.answer == COMPLETE:
            return {"type": "http.disconnect"}
        body, self._body = self._body, b""
        if self.request == WHOLE:
            self.request = TAKEN
        else:
            connection.regulate()
        return {"type": "http.request", "body": bytes(body), "more_body": self.request == ARRIVING}

    async def send(self, message: Message) -> None:
        """ASGI send. Head and first piece of the body are sent together."""
        connection = self.connection
        if connection.flow.writes_paused:
            await connection.flow.drain()
        if self._is_cut_off():
            return
        if self.answer == WAITING:
            self.answer = BEGUN
            self._begin_answer(message["status"], message["headers"])
            return
        # An answer to HEAD ends with its head (RFC 9110 §9.3.2): whatever followed would be read as the next answer.
        body = b"" if self.head.method == "HEAD" else message.get("body", b"")
        more = message.get("more_body", False)
        if self._is_chunked:
            body = _chunk(body, is_last=not more)
        start, self._response_head = self._response_head, b""
        # In pieces: a client that does not read then holds one of them, not all of a large answer.
        at = 0
        while len(body) - at > PIECE:
            connection.write(start + body[at : at + PIECE])
            start = b""
            at += PIECE
            if connection.flow.writes_paused:
                await connection.flow.drain()
            if self._is_cut_off():
                return
        if at:
            body = body[at:]
        if start or body:
            connection.write(start + body)
        if not more:
            self._complete()

    def answer_at_once(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send a whole answer. False: nothing was done, because a body this long, or for a client that does not read,
        has to be sent in pieces."""
        if len(body) > PIECE or self.connection.flow.writes_paused:
            return False
        if not self._is_cut_off():
            self._begin_answer(status, headers)
            if self._is_chunked:
                body = _chunk(body, is_last=True)
            self.connection.write(self._response_head + (b"" if self.head.method == "HEAD" else body))
            self._complete()
        return True

    def _complete(self) -> None:
        self.answer = COMPLETE
        self._body = b""  # what the application did not read
        self._wake()
        self.connection.answered(self)

    def _is_cut_off(self) -> bool:
        if self.connection.is_closing:
            self.request = GONE
        return self.request == GONE

    def _begin_answer(self, status: int, headers: Headers) -> None:
        names = dict(headers)
        if b"connection" in names and has_token(names[b"connection"], b"close"):
            self.keep_alive = False
        if self._waits_for_continue and self.request == ARRIVING:
            self.keep_alive = False  # the client may or may not send its body now, so what follows would be ambiguous
        if b"content-length" not in names and status not in (204, 304) and self.head.method != "HEAD":
            if self.head.version == "1.0":
                self.keep_alive = False
            else:
                self._is_chunked = True
                headers = [*headers, (b"transfer-encoding", b"chunked")]
        if not self.keep_alive:
            headers = [*(header for header in headers if header[0] != b"connection"), _CLOSE]
        self._response_head = response_head(status, headers)


def _chunk(body: bytes, *, is_last: bool) -> bytes:
    """A piece of a chunked body (RFC 9112 §7.1)."""
    data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return data + b"0\r\n\r\n" if is_last else data
