"""What a fault costs clients who are not affected by it, measured in the same run: the p99 of their response times
before, against during or after the fault. If everybody needs the database that is down, the bystanders are requests
that do not need it while the fault lasts, and messages sent once it is over.

Long form only: it takes minutes, and means nothing on a busy machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence

from tests.load import Client, Load
from tests.processes import LONG, Installation

#: Below this, a p99 is noise of the machine; seconds.
NOISE = 0.025
#: The length of each quiet period and of each period after a fault, in seconds.
SECONDS = 15.0
#: Pause between two requests of a continuous client, in seconds.
PAUSE = 0.01
MOST = 2.0


def p99(waits: Sequence[float]) -> float:
    """The 99th percentile of these waits, in seconds."""
    return statistics.quantiles(waits, n=100)[-1] if len(waits) > 1 else waits[0]


class Bystanders:
    """Measures the bystanders. Use `async with` around the faults."""

    def __init__(self, made: Installation, load: Load) -> None:
        self._load = load
        self._client = Client(made.base_url, made.key)
        self._asked: list[tuple[float, float]] = []
        #: p99 of requests that need no database: in quiet periods, and during faults.
        self.alive: tuple[list[float], list[float]] = ([], [])
        #: p99 of messages: in quiet periods, and after faults.
        self.sent: tuple[list[float], list[float]] = ([], [])

    async def __aenter__(self) -> Bystanders:
        await self._client.__aenter__()
        self._asking = asyncio.create_task(self._ask())
        if LONG:
            await self._measure(0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._asking
        await self._client.__aexit__(*error)

    @contextlib.contextmanager
    def during_fault(self) -> Iterator[None]:
        """A period in which requests that need the database fail."""
        since = time.monotonic()
        yield
        if LONG:
            self.alive[1].append(p99([wait for asked, wait in self._asked if asked > since]))

    async def after_fault(self) -> None:
        """Measure: the fault is over, and a message has been accepted since."""
        if LONG:
            await self._measure(1)

    def judge(self, what: str) -> None:
        """Print the results, and assert that each is less than MOST times its baseline."""
        if not LONG:
            return
        for name, (quiet, hit) in (("needs no database", self.alive), ("messages afterwards", self.sent)):
            before, then = statistics.median(quiet), statistics.median(hit)
            print(f"{what}: p99 of the others, {name}: {before * 1e3:.1f} ms before, {then * 1e3:.1f} ms", hit)
            assert then < MOST * max(before, NOISE), (what, name, quiet, hit)

    async def _measure(self, when: int) -> None:
        since = time.monotonic()
        await asyncio.sleep(SECONDS)
        waits = [one.at - one.asked for one in self._load.answers if one.asked > since and one.status == 202]
        self.sent[when].append(p99(waits))
        if when == 0:
            self.alive[0].append(p99([wait for asked, wait in self._asked if asked > since]))

    async def _ask(self) -> None:
        while True:
            asked = time.monotonic()
            assert await self._client.alive()
            self._asked.append((asked, time.monotonic() - asked))
            await asyncio.sleep(PAUSE)


async def send_steadily(client: Client, numbers: Iterator[int], seconds: float) -> float:
    """Send one message after another; returns the p99 of the response times, in seconds."""
    first = len(client.answers)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await client.send(f"+25884{next(numbers):07d}")
        await asyncio.sleep(PAUSE)
    return p99([answer.at - answer.asked for answer in client.answers[first:]])
