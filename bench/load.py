"""The load generator: many connections with one request under way on each, as raw protocols on uvloop.

Requests are assembled from prepared bytes; only status and length of an answer are examined. It runs as a separate
process, `python -m bench.load OPTIONS` (JSON), and prints its `Result` as JSON. Its maximum speed is measured against
`process.fixed`, and must be several times what it measures.

Three ways to limit it: `count` stops after that many messages, `rate` paces, and `in_flight` limits the messages sent
whose webhook has not come back, so that the throughput of the whole way is measured.
"""

from __future__ import annotations

import array
import asyncio
import gc
import os
import random
import sys
import time
import urllib.parse
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import uvloop

from bench import machine
from bench.control import Control

TEXT = "Your code is 482913. It is valid for ten minutes. We will never ask you for it by phone."
#: Time allowed for the last answers, seconds.
PATIENCE = 30.0
#: Recipients' numbers, and the distance between those of two messages; coprime, so that all of them are used.
NUMBERS, SPREAD = 9_986_000, 7919
#: How often to check whether more may be sent, seconds.
TICK = 0.01


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to do. Times in seconds."""

    port: int
    key: str
    connections: int
    #: Send WhatsApp templates from these numbers in turn; none: SMS.
    whatsapp: tuple[str, ...] = ()
    #: Use Kannel's `sendsms`, with the name and password in `key` ("name:password"); receipts go to this address.
    receipts_to: str = ""
    warm_up: float = 0.0
    #: Length of the measured window, after the warm-up.
    seconds: float = 0.0
    #: Instead of a window: send this many and measure until the last is answered.
    count: int = 0
    #: Messages per second; 0: as fast as answers arrive.
    rate: float = 0.0
    #: Maximum number of messages sent whose webhook has not arrived; 0: no limit.
    in_flight: int = 0
    #: Control port of the receiver whose webhooks count.
    receiver: int = 0
    #: Processes whose processor time is measured, by name.
    processes: dict[str, int] = {}


class Result(msgspec.Struct, frozen=True):
    """What was measured. Latencies in ms, from writing a request to its complete answer."""

    #: Messages answered with 202 in the window, and the window's length in seconds.
    accepted: int
    seconds: float
    #: Webhooks that arrived in the window.
    received: int
    #: Every answer from the first to the last, by status; "lost" is a connection that closed.
    statuses: dict[str, int]
    p50: float
    p99: float
    worst: float
    #: Seconds of processor time in the window, by process; "generator" is this one.
    processor: dict[str, float]
    #: Share of the machine, 0 to 1, that was used by processes other than these.
    others: float
    #: Share of the machine that was used in total.
    busy: float

    @property
    def rate(self) -> float:
        """Messages accepted per second."""
        return self.accepted / self.seconds

    def costs(self, messages: int) -> dict[str, float]:
        """Microseconds of processor time for each of `messages`."""
        return {name: used / max(messages, 1) * 1e6 for name, used in self.processor.items()}


def requests(options: Options) -> Callable[[int], bytes]:
    """A function from a number to a request with a key and recipient of its own.

    Recipients are spread over a thousand blocks, as in honest traffic: of consecutive numbers, nearly every one would
    meet a hold of the guard, which is another row for each message. Each run begins at a different place, since the
    fourth message to a number within ten minutes makes its block suspicious as well. Their last four digits are 0014
    and up: those below are commands to simulators.
    """
    if options.whatsapp:
        return _templates(options)
    if options.receipts_to:
        return _sendsms(options)
    body = b'{"to":"+25884%s","message":"' + TEXT.encode() + b'"}'
    before, after = body.split(b"%s")
    # A UUID's first four groups are unique to this run; the last one is a counter.
    run = str(uuid.uuid4())[:24].encode()
    first = random.randrange(NUMBERS)
    head = (
        f"POST /v1/sms/send HTTP/1.1\r\nhost: 127.0.0.1:{options.port}\r\nauthorization: Bearer {options.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body) + 5}\r\nidempotency-key: "
    ).encode() + run
    before = b"\r\n\r\n" + before

    def request(number: int) -> bytes:
        group, last = divmod((first + number) * SPREAD % NUMBERS, 9986)
        return b"%s%012x%s%03d%04d%s" % (head, number, before, group, last + 14, after)

    return request


def _templates(options: Options) -> Callable[[int], bytes]:
    heads = []
    template = b'{"name":"appointment_reminder","language":"en","category":"utility","parameters":["Ana","Thursday"]}'
    for number in options.whatsapp:
        body = b'{"type":"template","phoneNumberId":"%s","template":%s,"to":"+25884%%07d"}' % (
            number.encode(),
            template,
        )
        head = (
            f"POST /v1/whatsapp/messages HTTP/1.1\r\nhost: 127.0.0.1:{options.port}\r\n"
            f"authorization: Bearer {options.key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body % 0)}\r\n\r\n"
        ).encode()
        heads.append(head + body)

    def request(number: int) -> bytes:
        return heads[number % len(heads)] % (number % 10_000_000)

    return request


def _sendsms(options: Options) -> Callable[[int], bytes]:
    name, _, password = options.key.partition(":")
    query = {"username": name, "password": password, "from": "HELIOGRAPH", "text": TEXT, "dlr-mask": "1"}
    query |= {"dlr-url": options.receipts_to}
    before = f"GET /cgi-bin/sendsms?{urllib.parse.urlencode(query)}&to=%2B25884".encode()
    after = f" HTTP/1.1\r\nhost: 127.0.0.1:{options.port}\r\n\r\n".encode()

    def request(number: int) -> bytes:
        group, last = divmod(number, 9986)
        return b"%s%03d%04d%s" % (before, group % 1000, last + 14, after)

    return request


async def generate(options: Options) -> Result:
    """Do what the options say."""
    return await _Load(options).run()


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values are; 0 if there are none."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


class _Load:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.sent = self.answered = self.accepted = self.received = 0
        self.stopping = False
        self.idle: list[_Connection] = []
        self.statuses: Counter[str] = Counter()
        self.latencies = array.array("d")
        self.done = asyncio.Event()
        self._allowed = 0 if options.rate or options.in_flight else sys.maxsize
        self.request = requests(options)

    def may_send(self) -> bool:
        return self.sent < self._allowed and not self.stopping

    def note(self, status: str, took: float) -> None:
        self.answered += 1
        if status == "202":
            self.accepted += 1
            self.latencies.append(took)
        else:
            self.statuses[status] += 1
        if self.answered == self.sent and (self.stopping or self.answered == self.options.count):
            self.done.set()

    async def run(self) -> Result:
        options = self.options
        loop = asyncio.get_running_loop()
        control = await Control.connect(options.receiver) if options.receiver else None
        if options.count:
            self._allowed = options.count
        for _ in range(options.connections):
            await loop.create_connection(lambda: _Connection(self), "127.0.0.1", options.port)
        ready, self.idle = self.idle, []
        pacing = asyncio.create_task(self._pace(control))
        try:
            for connection in ready:
                connection.send()
            if not options.count:
                await asyncio.sleep(options.warm_up)
            begin = await self._look(control)
            self.latencies = array.array("d")
            if options.count:
                await self.done.wait()
            else:
                await asyncio.sleep(options.seconds)
            end = await self._look(control)
            took = sorted(self.latencies)
            self.stopping = True
            if self.answered < self.sent:
                await asyncio.wait_for(self.done.wait(), PATIENCE)
        finally:
            pacing.cancel()
            await asyncio.gather(pacing, return_exceptions=True)
            if control is not None:
                control.close()
            for connection in self.idle:
                connection.close()
        used = {name: end["used"][name] - begin["used"][name] for name in end["used"]}
        seconds = end["at"] - begin["at"]
        return Result(
            accepted=end["accepted"] - begin["accepted"],
            seconds=seconds,
            received=end["received"] - begin["received"],
            statuses={"202": self.accepted} | self.statuses,
            p50=percentile(took, 0.5) * 1000,
            p99=percentile(took, 0.99) * 1000,
            worst=percentile(took, 1.0) * 1000,
            processor=used,
            busy=(end["busy"] - begin["busy"]) / seconds / (os.cpu_count() or 1),
            others=max(end["busy"] - begin["busy"] - sum(used.values()), 0.0) / seconds / (os.cpu_count() or 1),
        )

    async def _look(self, control: Control | None) -> dict[str, Any]:
        received = (await control.ask("counters"))["received"] if control else 0
        used = {name: machine.processor_seconds(pid) for name, pid in self.options.processes.items()}
        used["generator"] = time.process_time()
        return {
            "at": time.perf_counter(),
            "accepted": self.accepted,
            "received": received,
            "used": used,
            "busy": machine.busy_seconds(),
        }

    async def _pace(self, control: Control | None) -> None:
        """Permit more sends as time passes or webhooks come back."""
        options = self.options
        if not (options.rate or options.in_flight):
            return
        began = time.perf_counter()
        # Messages of earlier runs may still come back; they are ignored.
        before = (await control.ask("counters"))["received"] if control else 0
        while True:
            allowed = sys.maxsize
            if options.rate:
                allowed = int((time.perf_counter() - began) * options.rate)
            if options.in_flight and control is not None:
                returned = (await control.ask("counters"))["received"] - before
                allowed = min(allowed, returned + options.in_flight)
            self._allowed = allowed
            ready, self.idle = self.idle, []
            for connection in ready:
                connection.send()
            await asyncio.sleep(TICK)


class _Connection(asyncio.Protocol):
    def __init__(self, load: _Load) -> None:
        self._load = load
        self._rest = b""
        self._began = 0.0
        self._waiting = False
        #: As spelled by the server: answers are not searched for other spellings.
        self._length = b"Content-Length: " if load.options.receipts_to else b"content-length: "

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._load.idle.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting:
            self._load.note("lost", 0.0)

    def close(self) -> None:
        self._transport.close()

    def send(self) -> None:
        """Send the next request, or queue until one may be sent."""
        load = self._load
        if not load.may_send():
            load.idle.append(self)
            return
        number = load.sent
        load.sent = number + 1
        self._waiting = True
        self._began = time.perf_counter()
        self._transport.write(load.request(number))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        end = data.find(b"\r\n\r\n")
        at = data.find(self._length, 0, end)
        if end < 0 or len(data) < end + 4 + int(data[at + 16 : data.find(b"\r", at)]):
            self._rest = data
            return
        self._rest = b""
        self._waiting = False
        self._load.note(data[9:12].decode(), time.perf_counter() - self._began)
        self.send()


if __name__ == "__main__":
    gc.disable()
    chosen = msgspec.json.decode(sys.argv[1], type=Options)
    print(msgspec.json.encode(uvloop.run(generate(chosen))).decode())
