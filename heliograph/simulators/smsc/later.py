"""Things to be done later, with one timer for all of them, so that a delay costs no timer per message.

The rule nobody may break: what falls due together is done together, in order, and `after` runs once behind it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Later:
    """A heap of calls. It forgets nothing while it is closed."""

    def __init__(self, after: Callable[[], None]) -> None:
        self._after = after
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._due = 0.0

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run on this loop from now on."""
        self._loop = loop
        self._set()

    def close(self) -> None:
        """Run nothing until it is open again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop = None

    def put(self, delay: float, act: Callable[..., object], *arguments: Any) -> None:
        """Call `act(*arguments)` in `delay` seconds. Only while it is open."""
        assert self._loop is not None
        due = self._loop.time() + delay
        heapq.heappush(self._heap, (due, next(self._order), act, arguments))
        if self._timer is None or due < self._due:
            self._set()

    def hasten(self) -> None:
        """Let all of them be due now, in their order. Only while it is open."""
        assert self._loop is not None
        now = self._loop.time()
        self._heap = [(min(due, now), next(self._order), act, given) for due, _, act, given in sorted(self._heap)]
        self._set()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap and self._loop is not None:
            self._due = self._heap[0][0]
            # A millisecond more gathers what falls due together.
            self._timer = self._loop.call_at(self._due + 0.001, self._run)

    def _run(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, act, arguments = heapq.heappop(heap)
            act(*arguments)
        self._set()
        self._after()
