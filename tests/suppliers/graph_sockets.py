"""A server that answers requests with given bytes, or not at all: for responses that no well-behaved server gives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

#: Answers one request (head, body) on an open connection; returns whether the connection is kept.
Act = Callable[["Peer", bytes, bytes, asyncio.StreamWriter], Awaitable[bool]]

ACCEPTED = {
    "messaging_product": "whatsapp",
    "contacts": [{"input": "+212600000017", "wa_id": "212600000017", "user_id": "MA.1349"}],
    "messages": [{"id": "wamid.HBgM", "message_status": "accepted"}],
}


def answer(body: Any, status: int = 200, **headers: str) -> bytes:
    """A complete response; `body` is sent as JSON unless it is bytes."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(raw)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


def error(code: int, status: int = 400, subcode: int | None = None, **more: Any) -> bytes:
    """A Graph API error response."""
    inner: dict[str, Any] = {"message": f"(#{code}) title", "type": "OAuthException", "code": code, **more}
    if subcode is not None:
        inner["error_subcode"] = subcode
    return answer({"error": inner}, status)


class Peer:
    """The requests that arrived, and how they are answered."""

    def __init__(self, act: Act) -> None:
        self.act = act
        #: (head, body) of each complete request.
        self.requests: list[tuple[bytes, bytes]] = []
        self.connections = 0
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = b""
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        body = await reader.readexactly(int(line.split(b":")[1]))
                self.requests.append((head, body))
                if not await self.act(self, head, body, writer):
                    return
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    def abort(self) -> None:
        """Close every connection without a response."""
        for writer in list(self._writers):
            writer.transport.abort()


def always(raw: bytes, *, keep: bool = True) -> Act:
    """Answers with these bytes, then keeps or closes the connection."""

    async def act(peer: Peer, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(raw)
        await writer.drain()
        return keep

    return act


@asynccontextmanager
async def peer(act: Act) -> AsyncIterator[Peer]:
    """A peer on a free loopback port."""
    one = Peer(act)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield one
    finally:
        server.close()
        one.abort()
