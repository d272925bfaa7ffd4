"""The number of messages of one class that an organization sent in the last ten minutes. No I/O and no clock.

The rule nobody may break: adding a message costs the same however many there are, and a pace has at most STEPS + 1
counts.
"""

from __future__ import annotations

from collections import deque

#: The window moves in this many steps of this many seconds.
STEPS, STEP = 20, 30.0


class Pace:
    """A sliding count."""

    __slots__ = ("_before", "_counts", "_last", "_step")

    def __init__(self) -> None:
        #: (step, messages in it) before the last one, oldest first.
        self._counts: deque[tuple[int, int]] = deque()
        self._step = 0
        #: Messages in the last step, and before it.
        self._last = self._before = 0

    def add(self, at: float) -> None:
        """Add one message, at this time in seconds; late ones count as now."""
        step = int(at / STEP)
        if step > self._step:
            self._turn(step)
        self._last += 1

    def count(self, at: float) -> int:
        """Messages in the last ten minutes."""
        step = int(at / STEP)
        if step > self._step:
            self._turn(step)
        return self._last + self._before

    def _turn(self, step: int) -> None:
        if self._last:
            self._counts.append((self._step, self._last))
            self._before += self._last
        while self._counts and self._counts[0][0] <= step - STEPS:
            self._before -= self._counts.popleft()[1]
        self._step, self._last = step, 0
