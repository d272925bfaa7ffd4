"""How much may leave of an account from which nothing was heard lately: a few messages, and then more and more.

Some faults show in no answer. Meta takes every message of an account that cannot pay, and fails each a second later;
what left in that second has failed, at 80 a second. So an account none of whose messages was said to be sent lately
begins with FEW. A status that says `sent` opens it; without any word (callbacks may not be set up) what may leave
doubles every two seconds, and after a quarter of a minute it is all.

The rule nobody may break: silence never stops a number for long.
"""

from __future__ import annotations

from collections.abc import Callable

#: Messages that leave at first, of all numbers of an account and of all workers together, but at least one a worker.
FEW = 5
#: Seconds in which what may leave doubles, and how often it does so before there is no limit any more.
DOUBLES, DOUBLINGS = 2.0, 7
#: After a pause so long, seconds, it begins anew.
IDLE = 60.0


class Probe:
    """One account, as one worker sees it. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._last = 0.0
        self._left = 0

    def room(self, workers: int) -> int | None:
        """How many messages may leave now; None: any number. `workers`: how many share the account."""
        now = self._clock()
        if self._since is None or now - self._last > IDLE:
            return self._first(workers)
        doublings = int((now - self._since) / DOUBLES)
        if doublings >= DOUBLINGS:
            return None
        return max(0, self._first(workers) * 2**doublings - self._left)

    def took(self) -> None:
        """One left."""
        now = self._clock()
        if self._since is None or now - self._last > IDLE:
            self._since, self._left = now, 0
        self._last = now
        self._left += 1

    def heard(self) -> None:
        """A message of the account was sent: nothing is held back, and the next time it begins anew."""
        self._since = None

    def _first(self, workers: int) -> int:
        return max(1, FEW // workers)
