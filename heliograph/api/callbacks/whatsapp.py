"""The door for Meta: `/in/whatsapp/{app}`. GET is the handshake, POST a callback.

Meta asks for an answer within 250 ms mostly and repeats whatever is not answered with 200, so a callback is verified
and stored here, and nothing else. The rule nobody may break: what is wrong with a request is said before its body is
kept, no more bytes of bodies are held at once than `bodies.py` has room for, however many send, and whatever is not
genuine counts as a failure of its address; but what is genuine is taken however many failures came the same way.
"""

from __future__ import annotations

import asyncio
import re
import urllib.parse
from uuid import UUID

from heliograph.api.callbacks.bodies import Bodies, Body
from heliograph.api.door.guard import Disconnected, Receive, Scope, Send
from heliograph.api.door.limits import Limiter
from heliograph.api.shapes import envelope
from heliograph.api.shapes.refusals import MethodNotAllowed, PayloadTooLarge
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7_text
from heliograph.suppliers.whatsapp_cloud.callbacks.webhooks import is_signature
from heliograph.whatsapp.callbacks.intake import CallbackIntake, NotGenuine

PREFIX = "/in/"

_path = re.compile(r"/in/whatsapp/([0-9a-fA-F-]{36})").fullmatch
_is_request_id = re.compile(rb"[A-Za-z0-9._-]{1,128}").fullmatch

_PLAIN = (b"content-type", b"text/plain; charset=utf-8")
_ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


class Callbacks:
    """The door as an ASGI application: everything under PREFIX."""

    def __init__(
        self,
        intake: CallbackIntake,
        limiter: Limiter,
        *,
        max_bytes: int,
        public_url: str = "",
        bodies: Bodies | None = None,
    ) -> None:
        """Inside a running loop. `max_bytes`: of one callback. `public_url`: as in the settings."""
        self._intake = intake
        self._limiter = limiter
        self._max_bytes = max_bytes
        self._public_url = public_url
        self._bodies = bodies or Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id")
        request_id = given.decode() if given is not None and _is_request_id(given) else uuid7_text()
        status: int
        address = scope["client"][0] if scope["client"] else ""
        try:
            try:
                body = await self._answer(scope, headers, receive, address)
            except (NotFound, NotGenuine):
                await self._limiter.fail(address)
                raise
            status, answer = 200, [_PLAIN, (b"content-length", b"%d" % len(body)), *_ALWAYS]
        except Disconnected:
            return
        except Exception as error:
            # Not kept by a name: an error that this frame knows is a circle, which holds the body that it was raised
            # over until the garbage collector comes.
            status, answer, body = envelope.render(
                envelope.refusal_of(error, request_id=request_id, operation="callback"),
                request_id=request_id,
                public_url=self._public_url,
            )
        answer.append((b"x-request-id", request_id.encode()))
        await send({"type": "http.response.start", "status": status, "headers": answer})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, address: str) -> bytes:
        is_guess = self._limiter.is_locked_out(address)
        app_id = _app_id(scope["path"])
        method = scope["method"]
        if method == "GET":
            query = dict(urllib.parse.parse_qsl(scope["query_string"].decode("latin-1"), errors="replace"))
            return (await self._intake.greet(app_id, query, is_guess=is_guess)).encode("utf-8", "replace")
        if method != "POST":
            raise MethodNotAllowed("GET, POST")
        signature = headers.get(b"x-hub-signature-256")
        app = await self._intake.app(app_id, is_guess=is_guess or not is_signature(signature))
        if not is_signature(signature):
            raise NotGenuine
        if int(headers.get(b"content-length", b"0")) > self._max_bytes:
            raise PayloadTooLarge(self._max_bytes)
        held = self._bodies.begin(address)
        try:
            await self._intake.take(app, await self._body(receive, held), signature)
        except asyncio.CancelledError:
            if not held.gave_way:
                raise
            raise held.gone() from None
        finally:
            self._bodies.release(held)
        return b""

    async def _body(self, receive: Receive, held: Body) -> bytes | bytearray:
        message = await receive()
        # One buffer that grows: pieces that are joined in the end are there twice, and leave holes where they were.
        body: bytes | bytearray = message.get("body", b"")
        self._bodies.grow(held, len(body))
        if message.get("more_body"):
            body = bytearray(body)
        while message.get("more_body"):
            if held.size > self._max_bytes:
                raise PayloadTooLarge(self._max_bytes)
            message = await receive()
            body += message.get("body", b"")
            self._bodies.grow(held, len(body) - held.size)
        if message["type"] == "http.disconnect":
            raise Disconnected
        if held.size > self._max_bytes:
            raise PayloadTooLarge(self._max_bytes)
        self._bodies.finish(held)
        return body


def _app_id(path: str) -> UUID:
    match = _path(path)
    try:
        return UUID(match[1] if match else "")
    except ValueError:
        raise NotFound("There is nothing at this path.", resource="path", id=path[:256]) from None
