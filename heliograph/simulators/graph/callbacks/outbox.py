"""Outgoing callbacks: collected, sent, repeated, retried for seven days, recorded.

An app has one outbox. It sends the verify token first (the handshake), also to each new URL, and keeps everything until
that has passed. Updates not answered with 200 are sent again, at once and then at growing intervals, possibly grouped
with others. The rule nobody may break: an update leaves the outbox only when a callback with it was answered with 200,
or after `retry_days`.
"""

from __future__ import annotations

import asyncio
import random
import time
import urllib.parse
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from heliograph.base.network.addresses import parse_networks
from heliograph.http.answers import Answer, Failure
from heliograph.http.client import ClientRules, HttpClient
from heliograph.simulators.clock import VirtualClock
from heliograph.simulators.graph.callbacks.webhooks import Item, encode, envelope, sign
from heliograph.simulators.graph.objects import App, Counters
from heliograph.simulators.graph.options import GraphOptions

#: Seconds before each attempt after the first; the last one repeats until `retry_days` are over.
GAPS = (0, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600)
_HANDSHAKE_GAPS = (0.1, 0.2, 0.5, 1.0)
#: Any destination that tests and developers listen on, with the timeout from the options.
RULES = ClientRules(
    seconds=3_600.0,
    connect_seconds=10.0,
    per_destination=1 << 30,
    allow_http=True,
    networks=parse_networks("0.0.0.0/0,::/0"),
    kept=1_024,
)
#: At most this many updates wait; more means a test that forgot its receiver.
_MOST_WAITING = 2_000_000


class Attempt(msgspec.Struct):
    """One callback attempt."""

    #: On the simulator's clock.
    at: float
    url: str
    items: int
    body: bytes
    headers: dict[str, str]
    #: The response's status; 0 if none came.
    status: int
    #: Real seconds until the response.
    seconds: float
    error: str = ""
    #: The highest attempt number among its updates.
    attempt: int = 1
    repeated: bool = False


class Outbox:
    """The callbacks of one app. `options` is called each time, so they can change while it runs."""

    def __init__(
        self, app: App, options: Callable[[], GraphOptions], clock: VirtualClock, counters: Callable[[], Counters]
    ) -> None:
        self.app = app
        #: The latest attempts.
        self.attempts: deque[Attempt] = deque(maxlen=options().keep_callbacks)
        #: Why the last handshake failed; empty if it passed or none was made.
        self.handshake_problem = ""
        #: Set once the handshake with the current URL has passed.
        self.verified = asyncio.Event()
        self.held = False
        #: The longest that an update has waited until it was taken, in real seconds.
        self.slowest = 0.0
        self._options, self._clock, self._counters = options, clock, counters
        self._random = random.Random(options().seed)
        # Separate, because the number of challenges depends on when the receiver comes up.
        self._challenges = random.Random(options().seed)
        self._era = 0
        self._pending: deque[Item] = deque()
        self._again = 0
        self._flying: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._shaking: asyncio.Task[None] | None = None
        self._client: HttpClient | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self, client: HttpClient) -> None:
        self._client = client
        self.set_url(self.app.webhook_url)

    async def close(self) -> None:
        """Stop at once. Undelivered callbacks are kept."""
        self._client = None
        await asyncio.sleep(0)  # a task cancelled before it began would not return its updates
        tasks = [*self._flying, *([self._shaking] if self._shaking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def clear(self) -> None:
        """Drop pending callbacks and forget past attempts."""
        self._pending.clear()
        self.attempts.clear()
        self._again = 0
        self._era += 1
        self.held = False
        self._random = random.Random(self._options().seed)

    def set_url(self, url: str, verify_token: str | None = None) -> None:
        """Post callbacks to this URL from now on, once the handshake has passed."""
        self.app.webhook_url = url
        if verify_token is not None:
            self.app.verify_token = verify_token
        self.verified.clear()
        if self._shaking is not None:
            self._shaking.cancel()
            self._shaking = None
        if url and self._client is not None:
            self._shaking = asyncio.get_running_loop().create_task(self._shake_until_passed())

    @property
    def passed(self) -> bool:
        """Whether the handshake has passed, so that callbacks are sent."""
        return self.verified.is_set()

    @property
    def waiting(self) -> int:
        """Updates not acknowledged yet, in flight or not."""
        return len(self._pending) + self._again

    def put(self, item: Item) -> None:
        options = self._options()
        if len(self._pending) >= _MOST_WAITING:
            self._counters().items_lost += 1
            return
        item.put_at = time.monotonic()
        self._pending.append(item)
        if options.duplicate_items and self._random.random() < options.duplicate_items:
            self._pending.append(msgspec.structs.replace(item, ended=None))
        self._wake()

    def hold(self) -> None:
        """Collect updates without sending them."""
        self.held = True

    def release(self) -> None:
        """Send the collected updates, in callbacks as full as possible."""
        self.held = False
        self._send()

    async def settle(self) -> None:
        """Return when nothing is in flight and nothing could be sent now."""
        while True:
            if self._ready() and self._pending:
                self._send()
            if not self._flying:
                return
            await asyncio.wait(set(self._flying))

    async def repeat(self, times: int = 1, *, last: int = 1, at_once: int = 64) -> list[int]:
        """Repeat the last callbacks byte for byte, this many times each; returns the response statuses."""
        chosen = list(self.attempts)[-last:]
        gate = asyncio.Semaphore(at_once)

        async def one(attempt: Attempt) -> int:
            async with gate:
                return (await self._post(attempt.body, attempt.headers, attempt.items, repeated=True)).status

        return list(await asyncio.gather(*(one(attempt) for attempt in chosen for _ in range(times))))

    async def handshake(self) -> bool:
        """Perform the handshake by GET. True if the challenge came back as plain text with a 200."""
        if self._client is None or not self.app.webhook_url:
            self.handshake_problem = "no URL"
            return False
        challenge = str(self._challenges.randrange(10**9, 10**10))
        query = {"hub.mode": "subscribe", "hub.challenge": challenge, "hub.verify_token": self.app.verify_token}
        url = self.app.webhook_url
        url += ("&" if "?" in url else "?") + urllib.parse.urlencode(query)
        found = await self._asked("GET", url, b"", {})
        if isinstance(found, Failure):
            passed, self.handshake_problem = False, found.kind
        else:
            passed = found.status == 200 and found.body == challenge.encode()
            self.handshake_problem = "" if passed else f"answered {found.status}, not the challenge"
        if passed:
            self.verified.set()
        return passed

    async def _shake_until_passed(self) -> None:
        # A receiver starting alongside the simulator gets another chance; Meta would wait for a click.
        tries = 0
        while not await self.handshake():
            await asyncio.sleep(_HANDSHAKE_GAPS[min(tries, len(_HANDSHAKE_GAPS) - 1)])
            tries += 1
        self._shaking = None
        self._wake()

    def _ready(self) -> bool:
        return self.passed and not self.held and self._client is not None

    def _wake(self) -> None:
        if not self._ready() or not self._pending:
            return
        options = self._options()
        if len(self._pending) >= options.batch:
            self._send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(options.batch_window_ms / 1000, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._send()

    def _send(self) -> None:
        """Send callbacks, as many concurrently as allowed."""
        options, loop = self._options(), asyncio.get_running_loop()
        if self._pending and options.shuffle and len(self._flying) < options.concurrency:
            mixed = list(self._pending)
            self._random.shuffle(mixed)
            self._pending = deque(mixed)
        while self._ready() and self._pending and len(self._flying) < options.concurrency:
            size = min(options.batch, len(self._pending))
            if options.rebatch and self._pending[0].attempts and size > 1:
                size = self._random.randrange(1, size)
            items = [self._pending.popleft() for _ in range(size)]
            self._again += len(items)
            task = loop.create_task(self._delivered_or_kept(items))
            self._flying.add(task)
            task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._flying.discard(task)
        if not task.cancelled():
            task.result()
        self._wake()

    async def _delivered_or_kept(self, items: list[Item]) -> None:
        era = self._era
        try:
            await self._deliver(items)
        except asyncio.CancelledError:
            # Closed while in flight: nobody knows whether it was accepted, so it is sent again.
            if era == self._era:
                self._again -= len(items)
                self._pending.extendleft(reversed(items))
            raise

    async def _deliver(self, items: list[Item]) -> None:
        options, counters, era = self._options(), self._counters(), self._era
        now = self._clock.now()
        for item in items:
            item.first = item.first or now
            item.attempts += 1
        body, headers = sign(
            encode(envelope(items, options.grouping, self._random)), self.app.secret, options.signature
        )
        attempt = await self._post(body, headers, len(items), attempt=max(item.attempts for item in items))
        if options.duplicates and self._random.random() < options.duplicates:
            await self._post(body, headers, len(items), repeated=True)
        if era != self._era:  # cleared meanwhile: these are no longer counted
            return
        self._again -= len(items)
        for item in items:
            if item.ended is not None:
                item.ended()
                item.ended = None
        if attempt.status == 200:
            counters.callbacks_taken += 1
            counters.items_taken += len(items)
            self.slowest = max(self.slowest, time.monotonic() - min(item.put_at for item in items))
            return
        later: dict[float, list[Item]] = {}
        for item in items:
            if self._clock.now() - item.first > options.retry_days * 86_400:
                counters.items_lost += 1
                continue
            later.setdefault(GAPS[min(item.attempts - 1, len(GAPS) - 1)], []).append(item)
        for gap, group in later.items():
            counters.items_again += len(group)
            self._again += len(group)
            if options.rebatch:
                self._random.shuffle(group)
            self._clock.put(gap, self._put_again, group)

    def _put_again(self, items: list[Item]) -> None:
        self._again -= len(items)
        if not self._options().rebatch:
            self._pending.extendleft(reversed(items))
        else:
            self._pending.extend(items)
        self._wake()

    async def _post(
        self, body: bytes, headers: dict[str, str], items: int, *, attempt: int = 1, repeated: bool = False
    ) -> Attempt:
        url, started = self.app.webhook_url, time.monotonic()
        self._counters().callbacks += 1
        made = Attempt(self._clock.now(), url, items, body, headers, 0, 0.0, "", attempt, repeated)
        self.attempts.append(made)
        found = await self._asked("POST", url, body, {"Content-Type": "application/json", **headers})
        if isinstance(found, Failure):
            made.error = found.kind
        else:
            made.status = found.status
        made.seconds = time.monotonic() - started
        return made

    async def _asked(self, method: str, url: str, body: bytes, headers: dict[str, str]) -> Answer | Failure:
        client, seconds = self._client, self._options().webhook_timeout
        if client is None:
            return Failure("closed", "", 0.0, is_sent=False)
        try:
            async with asyncio.timeout(seconds):
                if method == "POST":
                    return await client.post(url, body, headers)
                return await client.request(method, url, body, headers)
        except TimeoutError:
            return Failure("timeout", "", seconds)


def body_of(attempt: Attempt) -> Any:
    """The JSON of a callback, or its text if tampering made it invalid JSON."""
    try:
        return msgspec.json.decode(attempt.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return attempt.body.decode("latin-1")
