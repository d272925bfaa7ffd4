"""The timer that lets a connector look again at the messages that wait in it, and shows that the process stood still.

The rule nobody may break: what waited during a standstill is not sent afterwards. Its lease may have ended meanwhile,
so another worker may have sent it, or be about to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from heliograph.base.sentences import said

#: Why a message that waited is returned.
STOOD_STILL = said("this process stood still")
#: Seconds of a standstill after which nothing that waited is sent. When it begins, a third of a lease is left, 20 s by
#: default; after that, another worker may send it.
STANDSTILL = 5.0
#: While anything waits, the timer fires at least this often, so that a standstill shows, seconds.
_PULSE = 1.0
_NEVER = float("inf")


class PumpTimer:
    """Calls `pump` at the earliest time that was asked for, or after _PULSE; then it has to be asked again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pump: Callable[[], None]) -> None:
        self._loop = loop
        self._pump = pump
        self._timer: asyncio.TimerHandle | None = None
        self._due = _NEVER

    def by(self, at: float) -> None:
        """Call `pump` at this time, seconds of the loop, or earlier."""
        at = min(at, self._loop.time() + _PULSE)
        if at < self._due:
            self.cancel()
            self._due = at
            self._timer = self._loop.call_at(at, self._fire)

    def stood_still(self, now: float) -> bool:
        """Whether the process has stood still since the timer was set; asked at the beginning of each `pump`, whoever
        calls it: answers that arrived meanwhile may be processed before the timer fires."""
        is_late = now - self._due > STANDSTILL
        if is_late or self._timer is None:
            self.cancel()
        return is_late

    def cancel(self) -> None:
        """Do not call `pump` unless asked again."""
        self._due = _NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._pump()
