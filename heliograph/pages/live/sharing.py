"""Renders a region once for all open pages that show the same.

Every open page polls every two seconds, and the cost must not grow with the number of pages: the first request renders
a region, and the others get the same result. How long it stays valid depends on the recent cost of all regions and on
how busy the process is, so that open pages use a share of idle time and almost none of the time needed for accepting
messages: half a second on an idle machine, up to ten on a busy one.

The rule nobody may break: nobody gets anything older than what they have seen, so a page never goes back in time, and
the result of one's own action is never hidden by what somebody else was shown before it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import msgspec

Value = TypeVar("Value")

#: All regions together may use 1/SHARE of the process's idle time, and 1/BUSY of its busy time; a region is valid for
#: at least LEAST and at most MOST seconds.
SHARE, BUSY, LEAST, MOST = 20, 500, 0.5, 10.0
#: Minimum interval over which the process's load is measured, in seconds.
MEASURED = 1.0
#: Maximum regions cached, and seconds without a reader after which one no longer counts.
CAPACITY, FORGOTTEN = 256, 30.0


class _Kept(msgspec.Struct, Generic[Value]):
    #: When its rendering began: by the caller's clock, and by this process's.
    made: int
    began: float
    #: Duration of its rendering in seconds.
    took: float
    read: float
    value: Value


class Sharing(Generic[Value]):
    """Cached regions, by key. One per process."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.process_time,
    ) -> None:
        """`processor`: seconds of processor time that the process has used."""
        self._now = monotonic
        self._processor = processor
        #: The last measurement of the load: its time, the processor time used by then, and the result, 0 to 1.
        self._measured, self._used, self._busy = monotonic(), processor(), 0.0
        self._kept: dict[Hashable, _Kept[Value]] = {}
        self._making: dict[Hashable, tuple[int, asyncio.Task[Value]]] = {}

    async def get(
        self,
        key: Hashable,
        *,
        seen: int,
        clock: Callable[[], int],
        make: Callable[[int], Awaitable[Value]],
        most: float = MOST,
    ) -> Value:
        """A region whose rendering began no earlier than `seen` by `clock`, and at most `most` seconds ago. `make` gets
        the time at which it begins. Raises what `make` raises."""
        now = self._now()
        self._measure(now)
        kept = self._kept.get(key)
        if kept is not None and kept.made >= seen and now - kept.began < min(self.good_for(), most):
            kept.read = now
            return kept.value
        under_way = self._making.get(key)
        if under_way is not None and under_way[0] >= seen:
            return await asyncio.shield(under_way[1])
        made = clock()
        # A task of its own: the first requester may disconnect while others are still waiting for it.
        task = asyncio.create_task(self._make(key, made, make))
        self._making[key] = (made, task)
        task.add_done_callback(lambda _: self._over(key, task))
        return await asyncio.shield(task)

    def good_for(self) -> float:
        """How long a region is valid, in seconds: the cost of all regions divided by the share that they may use."""
        share = (1 - self._busy) / SHARE + self._busy / BUSY
        return min(max(sum(one.took for one in self._kept.values()) / share, LEAST), MOST)

    def _measure(self, now: float) -> None:
        if (passed := now - self._measured) >= MEASURED:
            used = self._processor()
            self._busy = min((used - self._used) / passed, 1.0)
            self._measured, self._used = now, used

    async def _make(self, key: Hashable, made: int, make: Callable[[int], Awaitable[Value]]) -> Value:
        began = self._now()
        value = await make(made)
        ended = self._now()
        for other in [other for other, one in self._kept.items() if ended - one.read > FORGOTTEN]:
            del self._kept[other]
        if key not in self._kept and len(self._kept) >= CAPACITY:
            del self._kept[min(self._kept, key=lambda other: self._kept[other].read)]
        known = self._kept.get(key)
        if known is None or known.made <= made:
            self._kept[key] = _Kept(made, began, ended - began, ended, value)
        return value

    def _over(self, key: Hashable, task: asyncio.Task[Value]) -> None:
        if self._making.get(key, (0, None))[1] is task:
            del self._making[key]
        if not task.cancelled():
            task.exception()  # marked as retrieved: those who waited have it, but perhaps nobody did
