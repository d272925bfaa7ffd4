"""An HTTP supplier that accepts messages, reports their outcome later, and fails on request.

The last four digits of a recipient decide its fate (`FATES`); every other number is delivered. The rule nobody may
break: `taken` holds what a real supplier would have sent to handsets, once for each time it would have been sent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec

from heliograph.base.network.addresses import parse_networks
from heliograph.http.answers import Answer
from heliograph.http.client import ClientRules, HttpClient
from heliograph.http.heads import RequestHead
from heliograph.simulators.aggregators.lookups import LOOKUPS
from heliograph.simulators.aggregators.profiles import PROFILES, Post, Profile, SubmittedMessage
from heliograph.simulators.http import Coming, HttpSimulator, Reply

#: Last four digits → what becomes of the message.
FATES = {
    "0001": "undelivered",
    "0002": "expired",
    "0003": "rejected",
    "0100": "refused",
    "0101": "throttled",  # the first time
    "0102": "busy",  # the first time
    "0103": "lost",  # it is sent, but no response comes
    "0104": "early",  # its receipt comes before the response
    "0105": "twice",  # its receipt comes twice
    "0106": "silent",  # no receipt comes
    "0107": "garbled",  # it is sent, but the response cannot be parsed
}
STATES = ("undelivered", "expired", "rejected")
#: The largest request accepted, in bytes.
LARGEST = 1_048_576
RULES = ClientRules(
    seconds=5.0,
    connect_seconds=2.0,
    per_destination=1_024,
    allow_http=True,
    networks=parse_networks("127.0.0.0/8,::1/128"),
)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the simulator."""

    profile: str
    secret: str
    host: str = "127.0.0.1"
    port: int = 0
    #: The account's URL at Heliograph, without `/receipts` or `/inbound`, for messages without a URL of their own.
    callback: str = ""
    #: Seconds between a response and its receipt, and before a response.
    receipt_delay: float = 0.02
    latency: float = 0.0
    #: Seconds until a callback not answered with 2xx is repeated, and how many times.
    redeliver_after: float = 0.2
    redeliveries: int = 50
    #: The network of each number (digits) it can look up: "64304"; other numbers are unknown to it.
    networks: Mapping[str, str] = {}
    #: The fate of every message, whatever the number: a value of FATES.
    always: str = ""


class AcceptedSubmission(msgspec.Struct, frozen=True):
    """A message it accepted."""

    id: str
    submitted: SubmittedMessage


class Aggregator:
    """One account at one supplier. Use `start` and `stop`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.profile: Profile = PROFILES[options.profile]
        self.taken: list[AcceptedSubmission] = []
        #: Responses by kind, and callbacks by the status of their response.
        self.answered: Counter[str] = Counter()
        self.called: Counter[int] = Counter()
        self.port = 0
        #: Numbers looked up, in order.
        self.looked_up: list[str] = []
        #: How many requests to send were made.
        self.requests = 0
        self._server = HttpSimulator(self._answer, body_bytes=LARGEST)
        self._numbers = itertools.count(1)
        self._seen: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: HttpClient | None = None

    @property
    def base_url(self) -> str:
        """The URL of its API."""
        return f"http://{self.options.host}:{self.port}"

    async def start(self) -> None:
        """Start serving requests."""
        self._client = HttpClient(RULES)
        self.port = await self._server.listen(self.options.host, self.options.port)

    async def stop(self) -> None:
        """Close every connection; pending callbacks are dropped."""
        self._server.abort()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def write(self, *, sender: str, recipient: str, text: str, id: str = "", secret: str | None = None) -> int:
        """Send a message from a handset; returns the status of the callback's response. `id`: repeats an earlier
        message. `secret`: signs the callback instead of the account's secret."""
        post = self.profile.inbound(
            self.options.callback + "/inbound", sender, recipient, text, id or f"in-{next(self._numbers)}"
        )
        return await self._post(self.profile.sign(post, secret or self.options.secret))

    def _answer(self, head: RequestHead, body: bytes) -> Coming:
        lookup = LOOKUPS.get(self.profile.name)
        numbers = None if lookup is None else lookup.read(head, body, self.options.secret)
        if lookup is not None and numbers is not None:
            self.looked_up += numbers
            return self._delayed(lookup.answer({one: self.options.networks.get(one, "") for one in numbers}))
        if self.profile.read_several is None:
            one = self.profile.read(head, body, self.options.secret)
            some = [] if one is None else [one]
        else:
            some = self.profile.read_several(head, body, self.options.secret)
        self.requests += 1
        if not some:
            self.answered["unauthorized"] += 1
            return self.profile.unauthorized
        return self._one(some[0]) if len(some) == 1 else self._several(some)

    def _fate(self, asked: SubmittedMessage) -> str:
        """The fate of a message, this time."""
        fate = self.options.always or FATES.get(asked.to[-4:], "delivered")
        is_first = asked.to not in self._seen
        self._seen.add(asked.to)
        return fate if fate not in ("throttled", "busy") or is_first or self.options.always else "delivered"

    def _several(self, some: list[SubmittedMessage]) -> Reply:
        """Handle the messages of one request: a throttle or a lost response concerns all of them."""
        fates = [self._fate(asked) for asked in some]
        if "throttled" in fates:
            self.answered["throttled"] += 1
            return self._delayed(self.profile.throttled(some[0]))
        replies = []
        for asked, fate in zip(some, fates, strict=True):
            if fate in ("refused", "busy"):
                self.answered[fate] += 1
                replies.append((self.profile.refused if fate == "refused" else self.profile.busy)(asked))
                continue
            id = self._take(asked)
            if fate != "silent":
                self._later(self._tell(asked, id, fate))
            replies.append(self.profile.accepted(asked, id))
        if "lost" in fates:
            return Reply(200, way="drop")
        if "garbled" in fates:
            return Reply(200, b"<html>It works!</html>", "text/html")
        return self._delayed(self.profile.together(replies))

    def _take(self, asked: SubmittedMessage) -> str:
        id = f"{self.profile.name}-{next(self._numbers)}"
        self.taken.append(AcceptedSubmission(id, asked))
        self.answered["accepted"] += 1
        return id

    def _one(self, asked: SubmittedMessage) -> Coming:
        fate = self._fate(asked)
        if fate in ("refused", "throttled", "busy"):
            self.answered[fate] += 1
            return self._delayed(
                {"refused": self.profile.refused, "throttled": self.profile.throttled}.get(fate, self.profile.busy)(
                    asked
                )
            )
        id = self._take(asked)
        if fate == "early":
            return self._early(asked, id)
        if fate != "silent":
            self._later(self._tell(asked, id, fate))
        if fate == "lost":
            return Reply(200, way="drop")
        if fate == "garbled":
            return Reply(200, b"<html>It works!</html>", "text/html")
        return self._delayed(self.profile.accepted(asked, id))

    def _delayed(self, reply: Reply) -> Reply:
        reply.delay = self.options.latency
        return reply

    async def _early(self, asked: SubmittedMessage, id: str) -> Reply:
        await self._post(self._receipt(asked, id, "delivered"))
        return self.profile.accepted(asked, id)

    async def _tell(self, asked: SubmittedMessage, id: str, fate: str) -> None:
        await asyncio.sleep(self.options.latency + self.options.receipt_delay)
        post = self._receipt(asked, id, fate if fate in STATES else "delivered")
        for _ in range(2 if fate == "twice" else 1):
            for _ in range(self.options.redeliveries):
                if 200 <= await self._post(post) < 300:
                    break
                await asyncio.sleep(self.options.redeliver_after)

    def _receipt(self, asked: SubmittedMessage, id: str, state: str) -> Post:
        address = asked.callback or f"{self.options.callback}/receipts"
        return self.profile.sign(self.profile.receipt(address, asked, id, state), self.options.secret)

    async def _post(self, post: Post) -> int:
        assert self._client is not None
        found = await self._client.request(post.method, post.url, post.body, post.headers)
        status = found.status if isinstance(found, Answer) else 0
        self.called[status] += 1
        return status

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
