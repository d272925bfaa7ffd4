"""The clock of a simulator: real time, faster, or stopped until it is moved.

Everything scheduled for later (statuses, receipts, retries of callbacks, limits, reviews) follows it, with one timer
for all, so that a delay costs no timer per message and a test can let seven days pass at once. Socket timeouts follow
the real clock, because the other side does. The rule nobody may break: due actions run in the order of their times, and
`now` never goes back.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

#: Waiting a little over a millisecond lets actions due close together share one wake-up.
_GATHER = 0.001


class VirtualClock:
    """Seconds since 1970. `speed` 1 is real time, 0 is stopped. `after` is called after each group of due actions."""

    def __init__(self, after: Callable[[], None] = lambda: None) -> None:
        self._after = after
        self._base, self._origin = time.time(), time.monotonic()
        self._speed = 1.0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run due actions on this event loop from now on."""
        self._loop = loop
        self._set()

    def close(self) -> None:
        """Pause until opened again. Nothing is dropped."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop = None

    def reset(self, *, start: float | None = None, speed: float = 1.0) -> None:
        """Drop pending actions and start again: the only way for `now` to go back."""
        self._heap.clear()
        self._base, self._origin = time.time() if start is None else start, time.monotonic()
        self._speed = speed
        self._set()

    def now(self) -> float:
        return self._base + (time.monotonic() - self._origin) * self._speed if self._speed else self._base

    @property
    def speed(self) -> float:
        return self._speed

    @property
    def waiting(self) -> int:
        """Number of pending actions."""
        return len(self._heap)

    def run(self, speed: float = 1.0) -> None:
        """Continue from now at this speed; 0 stops the clock."""
        self._base, self._origin = self.now(), time.monotonic()
        self._speed = speed
        self._set()

    def put(self, delay: float, act: Callable[..., object], *arguments: Any) -> None:
        """Call `act(*arguments)` in `delay` seconds of this clock."""
        due = self.now() + delay
        heapq.heappush(self._heap, (due, next(self._order), act, arguments))
        if self._timer is None or due < self._due:
            self._set()

    def hasten(self) -> None:
        """Make all pending actions due now."""
        if self._heap:
            self._jump(max(self._heap)[0])
            self._set()

    async def advance(self, seconds: float, settled: Callable[[], Awaitable[None]] | None = None) -> None:
        """Let this many seconds pass at once. Due actions run in order, each at its own time.

        `settled` is awaited after each action: what an action started (a callback) can schedule later ones.
        """
        target = self.now() + seconds
        while True:
            if settled is not None:
                await settled()
            heap = self._heap
            if not heap or heap[0][0] > target:
                break
            self._jump(heap[0][0])
            self._act(heap[0][0])
        self._jump(target)
        self._set()

    def _jump(self, to: float) -> None:
        if to > self.now():
            self._base, self._origin = to, time.monotonic()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._heap or self._loop is None:
            return
        self._due = self._heap[0][0]
        left = self._due - self.now()
        if self._speed:
            self._timer = self._loop.call_later(max(0.0, left / self._speed) + _GATHER, self._run)
        elif left <= 0:
            self._timer = self._loop.call_later(0, self._run)

    def _run(self) -> None:
        self._act(self.now())
        self._timer = None
        self._set()

    def _act(self, until: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until:
            _, _, act, arguments = heapq.heappop(heap)
            act(*arguments)
        self._after()
