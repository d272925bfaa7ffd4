"""HTTP for the simulators: a function answers each request once its body has arrived, at once or later, and a response
can fail in the ways that real responses fail.

The rule nobody may break: this file decides how a response travels, never what it says.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from heliograph.http.heads import HttpError, RequestHead
from heliograph.http.proxies import TrustedProxies
from heliograph.http.reader import ReaderLimits
from heliograph.http.server.connection import ServerConnection
from heliograph.http.server.exchange import COMPLETE, Exchange, Response, Service
from heliograph.http.server.registry import Limits, Registry
from heliograph.http.server.server import Server, bound
from heliograph.http.writer import CONTINUE, undated_head

#: How many seconds a client may leave a connection idle.
_IDLE = 3_600.0


class Reply(msgspec.Struct):
    """A response. `way`: normal, drip (in small pieces), drop (the connection closes instead), hang (nothing comes)."""

    status: int
    body: bytes = b""
    kind: str = "application/json; charset=UTF-8"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    #: Real seconds before it is sent.
    delay: float = 0.0
    way: str = "normal"
    #: It is sent after this has finished.
    behind: Awaitable[Any] | None = None
    #: Called when it has been sent or would have been, even if the client is gone.
    left: Callable[[], None] | None = None
    #: For a drip: real seconds between pieces, and bytes in each; 0 means a twentieth of the whole.
    interval: float = 0.02
    piece: int = 0


Coming = Reply | Coroutine[Any, Any, Reply]
Handler = Callable[[RequestHead, bytes], Coming]


class HttpSimulator:
    """A server whose requests are answered by `handler`."""

    def __init__(self, handler: Handler, *, body_bytes: int) -> None:
        """`body_bytes`: the largest request body."""
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        request = ReaderLimits(head_bytes=65_536, fields=200, body_bytes=body_bytes)
        limits = Limits(request=request, idle_seconds=_IDLE, connections_per_address=1_000_000)
        self._service = Service(Registry(limits), self._begin, _refusal, TrustedProxies())
        self._server: Server | None = None

    @property
    def is_listening(self) -> bool:
        """Whether connections are accepted."""
        return self._server is not None

    async def listen(self, host: str, port: int, *, shared: bool = False) -> int:
        """Accept connections; returns the port, a free one if 0 was given. With `shared`, other processes can bind the
        address as well. Raises OSError."""
        sock = bound(host, port, shared=shared)
        self._server = Server(self._service, self._tasks)
        await self._server.start([sock])
        taken: int = sock.getsockname()[1]
        return taken

    def abort(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.abort()
            self._server = None

    def _begin(self, connection: ServerConnection, head: RequestHead) -> Exchange:
        return _Exchange(connection, head, self._handler, self._tasks)


class _Exchange(Exchange):
    """One request and its response."""

    __slots__ = ("_handler", "_input_ended", "_pieces", "_task", "_tasks")

    def __init__(
        self, connection: ServerConnection, head: RequestHead, handler: Handler, tasks: set[asyncio.Task[None]]
    ) -> None:
        super().__init__(connection, head)
        self._handler = handler
        self._pieces: list[bytes] = []
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._input_ended = False
        if head.expects_continue:
            connection.write(CONTINUE)

    def take_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def end_request(self) -> None:
        pieces = self._pieces
        coming = self._handler(self.head, pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if isinstance(coming, Reply) and not coming.delay and coming.way == "normal" and coming.behind is None:
            self._leave(coming)
        else:
            self._task = asyncio.get_running_loop().create_task(self._later(coming))
            self._tasks.add(self._task)
            self._task.add_done_callback(self._ended)

    def end_input(self) -> None:
        super().end_input()
        self._input_ended = True
        if self._task is None:
            self.connection.give_way()  # the response hangs, and the client is gone

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._task = None
        if not task.cancelled():
            task.result()

    def _leave(self, reply: Reply) -> None:
        if not self.connection.is_closing:
            self.connection.write(self._encoded(reply))
            self._complete()
        if reply.left is not None:
            reply.left()

    def _complete(self) -> None:
        self.answer = COMPLETE
        self.connection.answered(self)

    def _encoded(self, reply: Reply) -> bytes:
        return _head(reply.status, reply.kind, len(reply.body), reply.headers, self.keep_alive) + reply.body

    async def _later(self, coming: Coming) -> None:
        reply = coming if isinstance(coming, Reply) else await coming
        if reply.delay:
            await asyncio.sleep(reply.delay)
        if reply.behind is not None:
            await reply.behind
        if reply.way == "normal":
            self._leave(reply)
            return
        if reply.left is not None:
            reply.left()
        connection = self.connection
        if reply.way == "drop" or (reply.way == "hang" and self._input_ended):
            connection.give_way()
        elif reply.way == "drip":
            data = self._encoded(reply)
            size = reply.piece or max(1, len(data) // 20)
            for at in range(0, len(data), size):
                if connection.is_closing:
                    return
                connection.write(data[at : at + size])
                await asyncio.sleep(reply.interval)
            self._complete()


@functools.lru_cache(maxsize=64)
def _head(status: int, kind: str, length: int, headers: tuple[tuple[bytes, bytes], ...], keep_alive: bool) -> bytes:
    lines = list(headers)
    if length:
        lines.append((b"content-type", kind.encode()))
    if status != 204:
        lines.append((b"content-length", b"%d" % length))
    if not keep_alive:
        lines.append((b"connection", b"close"))
    return undated_head(status, lines)


def _refusal(error: Exception) -> Response:
    return (error.status if isinstance(error, HttpError) else 500), [(b"content-length", b"0")], b""
