"""Meta's part in the measurement of callbacks: many signed POSTs of statuses, several at a time.

A separate process, `python -m bench.statuses OPTIONS` (JSON), which prints its `Posted` as JSON. The bodies are created
and signed before the clock starts; times are from writing a request to its answer. Each message is sent, then
delivered, then read, in posts that may overtake each other, as Meta's do.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import hmac
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import cast

import msgspec
import uvloop

from bench.load import percentile

#: Meta's statuses of a message, in order.
LADDER = ("sent", "delivered", "read")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to post, and how."""

    port: int
    #: Path for the app's callbacks.
    path: str
    app_secret: str
    waba: str
    #: Graph id of the number, and its digits.
    number: str
    digits: str
    #: A file with our ids of the statuses' messages, one per line.
    messages: str
    connections: int
    #: Statuses per POST.
    batch: int
    #: Statuses per second; 0: as fast as answers arrive.
    rate: float = 0.0


class Posted(msgspec.Struct, frozen=True):
    """What was measured. Latencies in ms."""

    items: int
    posts: int
    seconds: float
    #: When the first was posted: time.monotonic(), which is the same for all processes of a machine.
    began: float
    #: Answers other than 200.
    refused: int
    p50: float
    p99: float
    worst: float


def wamid(id: str) -> str:
    """Meta's id of the message that has this id here."""
    return f"wamid.bench{id}"


def bodies(options: Options, ids: list[str]) -> Iterator[bytes]:
    """The bodies, status by status."""
    for rung, status in enumerate(LADDER):
        for first in range(0, len(ids), options.batch):
            yield _body(options, ids[first : first + options.batch], status, int(time.time()) - len(LADDER) + rung)


def _body(options: Options, ids: list[str], status: str, at: int) -> bytes:
    value = {
        "messaging_product": "whatsapp",
        "metadata": {"display_phone_number": options.digits, "phone_number_id": options.number},
        "statuses": [_status(id, status, at) for id in ids],
    }
    change = {"field": "messages", "value": value}
    entry = {"id": options.waba, "changes": [change]}
    return msgspec.json.encode({"object": "whatsapp_business_account", "entry": [entry]})


def _status(id: str, status: str, at: int) -> dict[str, object]:
    item: dict[str, object] = {
        "id": wamid(id),
        "status": status,
        "timestamp": str(at),
        "recipient_id": "258841234567",
        "biz_opaque_callback_data": id,
    }
    if status == "sent":
        item["pricing"] = {"billable": True, "pricing_model": "PMP", "type": "regular", "category": "utility"}
    return item


async def post(options: Options) -> Posted:
    """Post everything; returns when the last answer has arrived."""
    with open(options.messages) as file:  # noqa: ASYNC230
        ids = file.read().split()
    return await _Poster(options, ids).run()


class _Poster:
    def __init__(self, options: Options, ids: list[str]) -> None:
        self.options = options
        self.items = len(ids) * len(LADDER)
        self.requests = deque(self._request(body) for body in bodies(options, ids))
        self.posts = len(self.requests)
        self.latencies: list[float] = []
        self.refused = 0
        self.done = asyncio.Event()
        self._began = 0.0
        self._sent = 0

    def _request(self, body: bytes) -> bytes:
        options = self.options
        signature = hmac.new(options.app_secret.encode(), body, hashlib.sha256).hexdigest()
        return (
            f"POST {options.path} HTTP/1.1\r\nhost: 127.0.0.1:{options.port}\r\ncontent-type: application/json\r\n"
            f"x-hub-signature-256: sha256={signature}\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body

    async def run(self) -> Posted:
        loop = asyncio.get_running_loop()
        connections = [
            (await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self.options.port))[1]
            for _ in range(self.options.connections)
        ]
        began = time.monotonic()
        self._began = time.perf_counter()
        for connection in connections:
            connection.send()
        await self.done.wait()
        seconds = time.perf_counter() - self._began
        for connection in connections:
            connection.close()
        took = sorted(self.latencies)
        return Posted(
            items=self.items,
            posts=self.posts,
            seconds=seconds,
            began=began,
            refused=self.refused,
            p50=percentile(took, 0.5) * 1000,
            p99=percentile(took, 0.99) * 1000,
            worst=percentile(took, 1.0) * 1000,
        )

    def next(self) -> tuple[bytes, float] | None:
        """The next request, and in how many seconds it is due; None: there are no more."""
        if not self.requests:
            return None
        due = 0.0
        if self.options.rate:
            due = self._began + self._sent * self.options.batch / self.options.rate - time.perf_counter()
        self._sent += 1
        return self.requests.popleft(), max(due, 0.0)

    def note(self, status: bytes, took: float) -> None:
        self.latencies.append(took)
        if status != b"200":
            self.refused += 1
        if len(self.latencies) == self.posts:
            self.done.set()


class _Connection(asyncio.Protocol):
    def __init__(self, poster: _Poster) -> None:
        self._poster = poster
        self._rest = b""
        self._began = 0.0
        self._waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting:
            self._waiting = False
            self._poster.note(b"", 0.0)

    def close(self) -> None:
        self._transport.close()

    def send(self) -> None:
        """Send the next request when it is due."""
        found = self._poster.next()
        if found is None:
            return
        request, due = found
        if due:
            asyncio.get_running_loop().call_later(due, self._write, request)
        else:
            self._write(request)

    def _write(self, request: bytes) -> None:
        self._waiting = True
        self._began = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        end = data.find(b"\r\n\r\n")
        at = data.lower().find(b"content-length: ", 0, end)
        length = 0 if at < 0 else int(data[at + 16 : data.find(b"\r", at)])
        if end < 0 or len(data) < end + 4 + length:
            self._rest = data
            return
        self._rest = b""
        self._waiting = False
        self._poster.note(data[9:12], time.perf_counter() - self._began)
        self.send()


if __name__ == "__main__":
    gc.disable()
    chosen = msgspec.json.decode(sys.argv[1], type=Options)
    print(msgspec.json.encode(uvloop.run(post(chosen))).decode())
