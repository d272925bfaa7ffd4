"""The receiver of the benchmark's webhooks: it verifies each as a receiver must, and does nothing else.

It shares two cores with what it measures, and the simulated receiver, which can misbehave in a dozen ways, takes three
times as long for each. It only understands our own client: headers in its spelling, one request at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from typing import cast

import msgspec

from bench.load import percentile
from heliograph.simulators.receiver import Counters
from heliograph.webhooks.delivery.signing import Verifier

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
REFUSED = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
#: Latencies are kept for this many webhooks, the most recent ones.
KEPT = 20_000


class _Message(msgspec.Struct, rename="camel"):
    accepted_at: datetime


class _Data(msgspec.Struct):
    message: _Message


class _Event(msgspec.Struct):
    data: _Data


class Sink:
    """Counts webhooks. `secret`: the endpoint's."""

    def __init__(self, secret: str) -> None:
        self.counters = Counters()
        self._verifier = Verifier((secret,))
        self._seen: set[bytes] = set()
        self._kept: deque[tuple[datetime, bytes]] = deque(maxlen=KEPT)

    async def listen(self, port: int) -> asyncio.Server:
        """Receive webhooks on a loopback port."""
        return await asyncio.get_running_loop().create_server(lambda: _Line(self), "127.0.0.1", port, backlog=1024)

    def latencies(self) -> dict[str, float]:
        """From accept to webhook, ms, for those that arrived since the last call."""
        took = sorted((at - accepted_at(body)).total_seconds() * 1000 for at, body in self._kept)
        self._kept.clear()
        return {"p50": percentile(took, 0.5), "p95": percentile(took, 0.95)}

    def take(self, head: bytes, body: bytes) -> bytes:
        """Verify one; returns the answer."""
        counters, now = self.counters, datetime.now(UTC)
        counters.requests += 1
        id = field(head, b"x-service-event-id")
        if not body.startswith(b'{"id":"%s",' % id):
            counters.malformed += 1
        timestamp, signature = field(head, b"x-service-timestamp"), field(head, b"x-service-signature")
        problem = self._verifier.verify(timestamp=timestamp.decode(), signature=signature.decode(), body=body, now=now)
        if problem is not None:
            counters.bad_signatures += 1
            counters.refused += 1
            return REFUSED
        if id in self._seen:
            counters.duplicates += 1
        else:
            self._seen.add(id)
            counters.received += 1
            self._kept.append((now, body))
        return ANSWER


class _Line(asyncio.Protocol):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        while data:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                break
            head = data[: end - 2]
            whole = end + int(field(head, b"Content-Length"))
            if len(data) < whole:
                break
            self._transport.write(self._sink.take(head, data[end:whole]))
            data = data[whole:]
        self._rest = data


def field(head: bytes, name: bytes) -> bytes:
    """The value of a header; ValueError if it is missing."""
    at = head.index(b"\r\n%s: " % name) + len(name) + 4
    return head[at : head.index(b"\r\n", at)]


def accepted_at(body: bytes) -> datetime:
    """When the message of an event was accepted."""
    return msgspec.json.decode(body, type=_Event).data.message.accepted_at
