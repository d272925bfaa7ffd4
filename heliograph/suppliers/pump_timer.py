"""The timer that lets a connector look again at the messages that wait in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from heliograph.base.sentences import said

#: Why a message that waited is returned: this process stood still, or could not renew its lease.
LEASE_LOST = said("another worker may have taken it over while it waited")
#: While anything waits, the timer fires at least this often, so that what may be another worker's is returned, seconds.
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

    def cancel(self) -> None:
        """Do not call `pump` unless asked again."""
        self._due = _NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._due, self._timer = _NEVER, None
        self._pump()
