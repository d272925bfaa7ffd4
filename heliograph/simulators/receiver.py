"""A webhook sink: receives callbacks, verifies them, answers as told and remembers what it saw.

The rule nobody may break: an event counts as received (and is in the ledger) only if it was answered with 2xx and its
signature was valid. That is what a sender may rely on, so it is what a test compares with.

Callbacks are answered where they are read, without a task, because a benchmark's receiver must never be the bottleneck.
`GET` on any path returns the counters as JSON.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from heliograph.base.database import clock
from heliograph.base.process.signals import stopping
from heliograph.http.heads import RequestHead
from heliograph.simulators.http import HttpSimulator, Reply
from heliograph.simulators.ledger import Ledger
from heliograph.webhooks.delivery import signing

_LARGEST_BODY = 1_048_576
_WANTED = frozenset(
    {
        b"x-service-timestamp",
        b"x-service-signature",
        b"x-service-event-id",
        b"x-request-id",
        b"traceparent",
        b"webhook-id",
        b"webhook-timestamp",
        b"webhook-signature",
    }
)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver's behavior. By default it answers everything at once with 200."""

    host: str = "127.0.0.1"
    #: 0 means any free port.
    port: int = 0
    #: Callbacks must be signed with one of these; if empty, signatures are not checked.
    secrets: tuple[str, ...] = ()
    status: int = 200
    #: Body of each response.
    answer: bytes = b""
    #: Seconds before each response.
    latency: float = 0.0
    #: Share of callbacks, 0 to 1, answered with `fail_status` instead.
    fail_share: float = 0.0
    fail_status: int = 500
    #: Value of Retry-After, in seconds, on responses from status 300 up.
    retry_after: int | None = None
    #: Read everything, answer nothing.
    hang: bool = False
    #: Seconds between two bytes of a response; 0 sends it at once.
    byte_interval: float = 0.0
    #: Events kept in memory; older ones are forgotten, but remain counted.
    keep: int = 10_000
    #: Event ids remembered to recognize duplicates.
    remember: int = 1_000_000
    #: A file that gets one line per received event: event id, type, message id, separated by spaces.
    ledger: str = ""
    seed: int | None = None


class Event(msgspec.Struct, frozen=True, gc=False):
    """One callback as received. `problem` is None if the signature was valid or not checked."""

    id: str
    type: str
    message_id: str
    at: datetime
    status: int
    duplicate: bool
    problem: str | None
    body: bytes
    #: The relevant headers, with lower-case names.
    raw_headers: dict[bytes, bytes]

    @property
    def headers(self) -> dict[str, str]:
        """`raw_headers` as text: decoded on demand, which a benchmark never does."""
        return {name.decode(): value.decode("latin-1") for name, value in self.raw_headers.items()}

    @property
    def request_id(self) -> str:
        return self.raw_headers.get(b"x-request-id", b"").decode("latin-1")


class Counters(msgspec.Struct):
    """Counters since the start."""

    #: All callbacks.
    requests: int = 0
    #: Received: distinct events answered with 2xx.
    received: int = 0
    #: Callbacks repeated after they had been answered with 2xx.
    duplicates: int = 0
    #: Not answered with 2xx, or not answered at all.
    refused: int = 0
    bad_signatures: int = 0
    #: The body was not an event.
    malformed: int = 0


class _Message(msgspec.Struct):
    id: str = ""


class _Data(msgspec.Struct):
    message: _Message | None = None


class _Body(msgspec.Struct):
    id: str
    type: str
    data: _Data


class Receiver:
    """Use `await start()`, then `url`, then `await stop()`. `said`, if given, gets one line per callback."""

    def __init__(self, options: Options | None = None, *, said: Callable[[str], object] | None = None) -> None:
        self.options = options or Options()
        self.port = 0
        self.counters = Counters()
        self.events: deque[Event] = deque(maxlen=self.options.keep)
        self._said = said
        self._random = random.Random(self.options.seed)
        # Two generations: when the newer one is full, the older is dropped, so memory stays bounded.
        self._seen: set[str] = set()
        self._seen_before: set[str] = set()
        self._http = HttpSimulator(self._answer, body_bytes=_LARGEST_BODY)
        self._ledger: Ledger | None = None
        self._lines: list[str] = []
        self._spoken: list[str] = []
        self._flush: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._decoder = msgspec.json.Decoder(_Body)
        #: Made from the secrets stored with it, since options may be replaced at any time.
        self._verifier: tuple[tuple[str, ...], signing.Verifier] = ((), signing.Verifier(()))

    @property
    def url(self) -> str:
        """The URL it listens on, once started."""
        return f"http://{self.options.host}:{self.port}/"

    async def start(self) -> None:
        """Listen. Raises OSError if the port is in use or the ledger cannot be opened."""
        if self.options.ledger:
            self._ledger = Ledger(self.options.ledger)
        self._loop = asyncio.get_running_loop()
        self.port = await self._http.listen(self.options.host, self.options.port)

    async def stop(self) -> None:
        """Close every connection and write the rest of the ledger. Raises OSError if that is not possible."""
        self._http.abort()
        self.flush()
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()

    async def wait_for(self, condition: Callable[[Receiver], bool], *, within: float = 120.0) -> None:
        """Wait until `condition(self)` holds; checked after each callback. Raises TimeoutError after `within`
        seconds."""
        async with asyncio.timeout(within):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    def flush(self) -> None:
        """Write pending ledger and output lines now; otherwise they are written 50 ms after the first."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._lines:
            if self._ledger is not None:
                self._ledger.write(self._lines)
            self._lines.clear()
        if self._spoken:
            lines, self._spoken = self._spoken, []
            if self._said is not None:
                self._said("\n".join(lines))

    def _answer(self, head: RequestHead, body: bytes) -> Reply:
        if head.method != "POST":
            return Reply(200, msgspec.json.encode(self.counters))
        options = self.options
        status = self._take({name: value for name, value in head.headers if name in _WANTED}, body)
        return _reply(status, options.answer, options.retry_after, options.latency, options.byte_interval)

    def _take(self, headers: dict[bytes, bytes], body: bytes) -> int:
        """Judge and record one callback; returns the status of the response, 0 for none."""
        counters, options = self.counters, self.options
        counters.requests += 1
        now = datetime.now(UTC)
        problem = self._problem(headers, body, now) if options.secrets else None
        try:
            event = self._decoder.decode(body)
        except (msgspec.ValidationError, msgspec.DecodeError):
            event = _MALFORMED
            counters.malformed += 1
        if problem is not None:
            counters.bad_signatures += 1
        status = self._status(event, problem)
        message_id = event.data.message.id if event.data.message is not None else ""
        duplicate = event.id in self._seen or event.id in self._seen_before
        if not 200 <= status < 300:
            counters.refused += 1
        elif duplicate:
            counters.duplicates += 1
        else:
            counters.received += 1
            self._acknowledge(event.id)
        if 200 <= status < 300 and self._ledger is not None:
            self._lines.append(f"{event.id} {event.type} {message_id}\n")
        if options.keep:
            self.events.append(Event(event.id, event.type, message_id, now, status, duplicate, problem, body, headers))
        if self._said is not None:
            remarks = [text for text in (problem, "duplicate" if duplicate else None) if text]
            answer = str(status) if status else "no answer"
            self._spoken.append(" ".join([clock.iso(now), event.type, event.id, message_id, answer, *remarks]))
        if (self._lines or self._spoken) and self._flush is None:
            self._flush = self._loop.call_later(0.05, self.flush)
        self._changed.set()
        return status

    def _status(self, event: _Body, problem: str | None) -> int:
        if self.options.hang:
            return 0
        if event is _MALFORMED:
            return 400
        if problem is not None:
            return 401
        if self.options.fail_share and self._random.random() < self.options.fail_share:
            return self.options.fail_status
        return self.options.status

    def _problem(self, headers: dict[bytes, bytes], body: bytes, now: datetime) -> str | None:
        secrets, verifier = self._verifier
        if secrets is not self.options.secrets:
            secrets, verifier = self._verifier = (self.options.secrets, signing.Verifier(self.options.secrets))
        return verifier.verify(
            timestamp=headers.get(b"x-service-timestamp", b"").decode("latin-1"),
            signature=headers.get(b"x-service-signature", b"").decode("latin-1"),
            body=body,
            now=now,
        )

    def _acknowledge(self, event_id: str) -> None:
        if len(self._seen) >= max(1, self.options.remember // 2):
            self._seen_before, self._seen = self._seen, set()
        self._seen.add(event_id)


_MALFORMED = _Body(id="-", type="malformed", data=_Data())


@functools.lru_cache(maxsize=64)
def _reply(status: int, body: bytes, retry_after: int | None, latency: float, byte_interval: float) -> Reply:
    if not status:
        return Reply(0, way="hang")
    headers = ((b"retry-after", b"%d" % retry_after),) if retry_after is not None and status >= 300 else ()
    way = "drip" if byte_interval else "normal"
    return Reply(status, body, headers=headers, delay=latency, way=way, interval=byte_interval, piece=1)


def _print(line: str) -> None:
    print(line, flush=True)  # so that a reader at the other end of a pipe gets it now


async def run(options: Options, *, said: Callable[[str], object] = _print) -> Counters:
    """Receive until SIGINT or SIGTERM, printing the URL and then a line per callback; returns the counters."""
    receiver = Receiver(options, said=said)
    await receiver.start()
    try:
        with stopping() as ended:
            said(f"listening on {receiver.url}")
            await ended.wait()
    finally:
        await receiver.stop()
    return receiver.counters
