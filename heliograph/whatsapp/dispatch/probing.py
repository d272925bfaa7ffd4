"""How much an account may send after being silent: a few messages at first, then more and more.

Some faults do not show in answers. Meta accepts every message of an account that cannot pay, and fails each a second
later; whatever was sent in that second has failed, at 80 a second. So an account without a recent `sent` status begins
with FEW. A `sent` status lifts the limit; without any (callbacks may not be set up), the allowance doubles every two
seconds, and after a quarter of a minute there is no limit.

The rule nobody may break: silence never stops a number for long.
"""

from __future__ import annotations

from collections.abc import Callable

#: Messages sent at first, by all numbers of an account and all workers together, but at least one per worker.
FEW = 5
#: Seconds in which the allowance doubles, and how often it does before the limit is lifted.
DOUBLES, DOUBLINGS = 2.0, 7
#: Seconds of silence after which it begins again.
IDLE = 60.0


class Probe:
    """One account, as one worker sees it. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._last = 0.0
        self._left = 0

    def room(self, workers: int) -> int | None:
        """The number of messages that may be sent now; None: unlimited. `workers`: how many share the account."""
        now = self._clock()
        if self._since is None or now - self._last > IDLE:
            return self._first(workers)
        doublings = int((now - self._since) / DOUBLES)
        if doublings >= DOUBLINGS:
            return None
        return max(0, self._first(workers) * 2**doublings - self._left)

    def took(self) -> None:
        """Account for one sent message."""
        now = self._clock()
        if self._since is None or now - self._last > IDLE:
            self._since, self._left = now, 0
        self._last = now
        self._left += 1

    def heard(self) -> None:
        """Meta reported a message of the account as sent: lift the limit until the next silence."""
        self._since = None

    def _first(self, workers: int) -> int:
        return max(1, FEW // workers)
