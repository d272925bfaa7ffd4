"""The door for callbacks from Meta and from suppliers: everything under `/in/`.

They repeat whatever is not answered with 200, so a callback is verified and stored here, and nothing else. The rule
nobody may break: an invalid request is refused before its body is kept; no more bytes are held at once than `bodies.py`
has room for, however many clients send; and every callback that is not genuine counts as a failure of its address, but
a genuine one is accepted however many failures came from the same address.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from heliograph.api.callbacks.bodies import Body, BodyBuffers
from heliograph.api.door.guard import Disconnected, Receive, Scope, Send
from heliograph.api.door.limits import Limiter
from heliograph.api.shapes import envelope
from heliograph.api.shapes.refusals import PayloadTooLarge
from heliograph.base.errors import CallbackNotGenuine, NotFound
from heliograph.base.ids import uuid7_text

PREFIX = "/in/"

_is_request_id = re.compile(rb"[A-Za-z0-9._-]{1,128}").fullmatch


class Answer(msgspec.Struct, frozen=True):
    """The 200 response to a stored callback."""

    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"


class Call(msgspec.Struct, frozen=True):
    """A request whose body has not been read yet."""

    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    address: str
    #: Its address has had so many failures that this request is presumed to be a guess.
    is_guess: bool
    #: (function that takes the body, maximum bytes) → what the function returned. Raises PayloadTooLarge, Unavailable.
    body: Callable[[Callable[[bytes | bytearray], Awaitable[Any]], int], Awaitable[Any]]


class CallbackHandler(msgspec.Struct, frozen=True):
    """Handles the callbacks under one path."""

    prefix: str
    answer: Callable[[Call], Awaitable[Answer]]


class Callbacks:
    """The door as an ASGI application."""

    def __init__(
        self,
        handlers: Sequence[CallbackHandler],
        limiter: Limiter,
        *,
        public_url: str = "",
        bodies: BodyBuffers | None = None,
    ) -> None:
        """To be created inside a running loop. `public_url`: as in the settings."""
        self._handlers = tuple(handlers)
        self._limiter = limiter
        self._public_url = public_url
        self._bodies = bodies or BodyBuffers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id")
        request_id = given.decode() if given is not None and _is_request_id(given) else uuid7_text()
        status: int
        address = scope["client"][0] if scope["client"] else ""
        handler = self._handler_of(scope["path"])
        try:
            try:
                if handler is None:
                    raise nowhere(scope["path"])
                taken = await handler.answer(self._call(scope, headers, receive, address))
            except (NotFound, CallbackNotGenuine):
                await self._limiter.fail(address)
                raise
            status, body = 200, taken.body
            answer = [(b"content-type", taken.kind.encode()), (b"content-length", b"%d" % len(body)), *envelope.PRIVATE]
        except Disconnected:
            return
        except Exception as error:
            # Not bound to a name: an error referenced from this frame would form a reference cycle, and keep the body
            # alive until the garbage collector runs.
            status, answer, body = envelope.render(
                envelope.refusal_of(error, request_id=request_id, operation="callback"),
                request_id=request_id,
                public_url=self._public_url,
            )
        answer.append((b"x-request-id", request_id.encode()))
        await send({"type": "http.response.start", "status": status, "headers": answer})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _handler_of(self, path: str) -> CallbackHandler | None:
        for one in self._handlers:
            if path.startswith(one.prefix):
                return one
        return None

    def _call(self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, address: str) -> Call:
        async def read(take: Callable[[bytes | bytearray], Awaitable[Any]], most: int) -> Any:
            if int(headers.get(b"content-length", b"0")) > most:
                raise PayloadTooLarge(most)
            held = self._bodies.begin(address)
            try:
                return await take(await self._body(receive, held, most))
            except asyncio.CancelledError:
                if not held.gave_way:
                    raise
                raise held.gone() from None
            finally:
                self._bodies.release(held)

        guess = self._limiter.is_locked_out(address)
        return Call(scope["method"], scope["path"], scope.get("query_string", b""), headers, address, guess, read)

    async def _body(self, receive: Receive, held: Body, most: int) -> bytes | bytearray:
        message = await receive()
        # One growing buffer: pieces joined at the end would be in memory twice, and fragment it.
        body: bytes | bytearray = message.get("body", b"")
        self._bodies.grow(held, len(body))
        if message.get("more_body"):
            body = bytearray(body)
        while message.get("more_body"):
            if held.size > most:
                raise PayloadTooLarge(most)
            message = await receive()
            body += message.get("body", b"")
            self._bodies.grow(held, len(body) - held.size)
        if message["type"] == "http.disconnect":
            raise Disconnected
        if held.size > most:
            raise PayloadTooLarge(most)
        self._bodies.finish(held)
        return body


def nowhere(path: str) -> NotFound:
    """There is no such path."""
    return NotFound("There is nothing at this path.", resource="path", id=path[:256])
