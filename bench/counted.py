"""Runs one of our processes and counts its operations on metrics and logs:
`python -m bench.counted FILE -m heliograph api …`.

Every operation is counted by its object, and executed. When the process ends normally, each kind is repeated in a tight
loop, on the same objects with the same labels, and the counts and costs are written to FILE.
"""

from __future__ import annotations

import asyncio
import atexit
import runpy
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop

from heliograph.base.process import measures

#: Operations and log lines in a tight loop, and rounds, of which the cheapest counts: interruptions are not its cost.
LOOP, LINES, ROUNDS = 20_000, 400, 5


class Kind(msgspec.Struct):
    """The number of operations of one kind, and nanoseconds of processor time for each."""

    times: int = 0
    nanoseconds: float = 0.0


class Counts:
    """What a process did."""

    def __init__(self) -> None:
        self._done: Counter[tuple[Any, ...]] = Counter()
        #: How each kind is repeated, by the same key.
        self._again: dict[tuple[Any, ...], Callable[[], object]] = {}

    def note(self, key: tuple[Any, ...], again: Callable[[], object]) -> None:
        """One more."""
        self._done[key] += 1
        if key not in self._again:
            self._again[key] = again

    def measured(self) -> dict[str, Kind]:
        """By kind: how often, and the average cost over all its objects."""
        kinds: dict[str, Kind] = {}
        for key, times in self._done.most_common():
            kind = kinds.setdefault(key[0], Kind())
            cost = _nanoseconds(self._again[key], LINES if key[0].startswith("log") else LOOP)
            kind.nanoseconds = (kind.nanoseconds * kind.times + cost * times) / (kind.times + times)
            kind.times += times
        # The reader of the result knows how often.
        return kinds | {"wake": Kind(0, uvloop.run(_wake()))}


def _nanoseconds(work: Callable[[], object], loop: int) -> float:
    """Of this thread's processor time, per operation."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        for _ in range(loop):
            work()
        best = min(best, (time.thread_time_ns() - began) / loop)
    return best


async def _wake() -> float:
    """Nanoseconds for a coroutine that sleeps and wakes, like the one that watches the event loop."""
    await asyncio.sleep(0.001)
    began = time.thread_time_ns()
    for _ in range(LINES):
        await asyncio.sleep(0.001)
    return (time.thread_time_ns() - began) / LINES


def watch(counts: Counts) -> None:
    """Count operations on metrics and logs from now on."""
    add, observe, accepted = measures.Counter.add, measures.Histogram.observe, measures.accepted

    def counted_add(self: measures.Counter, *labels: str, by: float = 1) -> None:
        counts.note(("counter", self.name, labels), lambda: add(self, *labels, by=by))
        add(self, *labels, by=by)

    def counted_observe(self: measures.Histogram, value: float, *labels: str) -> None:
        counts.note(("histogram", self.name, labels), lambda: observe(self, value, *labels))
        observe(self, value, *labels)

    def counted_accepted(seconds: float, count: int) -> None:
        counts.note(("histogram", "accepting"), lambda: accepted(seconds, count))
        accepted(seconds, count)

    measures.Counter.add = counted_add  # type: ignore[method-assign]
    measures.Histogram.observe = counted_observe  # type: ignore[method-assign]
    measures.accepted = counted_accepted
    _watch_logs(counts)


def _watch_logs(counts: Counts) -> None:
    """Lines written, and calls for lines below the level."""
    made = structlog.make_filtering_bound_logger

    def counted(min_level: Any) -> Any:
        logger = made(min_level)
        for name, its in (("debug", 10), ("info", 20), ("warning", 30), ("error", 40)):
            method = getattr(logger, name)
            kind = "log line" if its >= min_level else "log call without a line"

            def call(self: Any, event: str, *values: Any, _method: Any = method, _kind: str = kind, **more: Any) -> Any:
                counts.note((_kind, event), lambda: _method(self, event, *values, **more))
                return _method(self, event, *values, **more)

            setattr(logger, name, call)
        return logger

    structlog.make_filtering_bound_logger = counted


def main() -> None:
    file = Path(sys.argv[1])
    module, sys.argv = sys.argv[3], sys.argv[3:]
    counts = Counts()
    watch(counts)

    def write() -> None:
        file.write_bytes(msgspec.json.encode(counts.measured()))

    atexit.register(write)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
