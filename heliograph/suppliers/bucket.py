"""The rate in segments a second that an account may send: a token bucket that remembers being throttled. Pure.

With a configured rate, a throttle halves it, or lowers it to the number accepted in the last second if that is more; it
then recovers by 5 % of the ceiling a second. Without one, the supplier's own rate is searched for: the search starts
from the number accepted in the second before the first throttle, triples the rate each second until the next one, then
stays just below the accepted rate and grows slowly, faster the longer nothing is throttled.

The rule nobody may break: answers to segments that were already in the window do not lower the rate again.
"""

from __future__ import annotations

#: Seconds after a throttle in which further throttles carry no new information; fewer while the supplier's rate is
#: being searched for.
_HOLD = 1.0
_SEARCH_HOLD = 0.25
_RECOVERY = 0.05
#: Fractions kept after a throttle: of the segments accepted in a second, and of the rate that the search had reached.
_KEPT = 0.97
_FOUND = 0.9
_SEARCH = 3.0
#: Seconds without a throttle after which a found rate grows twice as fast, three times, and so on.
_FASTER = 4.0
#: Seconds' worth of segments that may leave at once, and that may wait inside so that the pipe never runs dry.
_BURST = 0.05
_FINER = 0.01
_AHEAD = 0.25
#: The shortest wait worth a timer, seconds: those of an event loop are no finer, and uvloop's fire at once.
_TICK = 0.001
_UNLIMITED = float("inf")
#: Accepted segments are counted by tenths of the last second.
_TENTHS = 10


class Bucket:
    """`ceiling` segments a second; 0: no limit until a throttle shows one. Times are seconds, monotonic."""

    def __init__(self, ceiling: float, now: float) -> None:
        self._ceiling = ceiling or _UNLIMITED
        self._rate = self._ceiling
        self._tokens = 1.0
        self._at = now
        self._held_until = now
        #: Searching for the rate of a supplier that has throttled only once so far.
        self._searching = False
        #: A segment has had to wait for a token since the rate last grew: only then might a found rate be too low.
        self._wanted = False
        self._accepted = [0] * _TENTHS
        self._tenth = int(now * _TENTHS)

    def resize(self, ceiling: float, now: float) -> None:
        """A new ceiling. A rate that a throttle has lowered stays where it is, and recovers to the new one."""
        self._refill(now)
        lowered = self._rate < self._ceiling
        self._ceiling = ceiling or _UNLIMITED
        self._rate = min(self._rate, self._ceiling) if lowered else self._ceiling

    def available(self, now: float) -> int:
        """Whole segments that may leave now."""
        if self._rate == _UNLIMITED:
            return 1 << 30
        self._refill(now)
        tokens = int(self._tokens)
        self._wanted = self._wanted or tokens <= 0
        return tokens

    def take(self, segments: int) -> None:
        """Account for segments that left. Tokens may go below zero: the next segments wait longer."""
        if self._rate != _UNLIMITED:
            self._tokens -= segments

    def accepted(self, now: float) -> None:
        """The supplier accepted a segment."""
        tenth = int(now * _TENTHS)
        if tenth != self._tenth:
            self._turn(tenth)
        self._accepted[tenth % _TENTHS] += 1

    @property
    def ahead(self) -> int:
        """The number of segments that may wait inside for a token."""
        return 1 << 30 if self._rate == _UNLIMITED else max(1, int(self._rate * _AHEAD))

    def wait(self, now: float) -> float:
        """Seconds until a segment may leave: 0, or long enough for a timer."""
        if self._rate == _UNLIMITED:
            return 0.0
        self._refill(now)
        missing = 1.0 - self._tokens
        return max(_TICK, missing / self._rate) if missing > 0 else 0.0

    def slow(self, now: float) -> None:
        """The supplier throttled us."""
        self._refill(now)
        if now < self._held_until:
            return
        self._turn(int(now * _TENTHS))
        accepted = float(sum(self._accepted))
        if self._rate == _UNLIMITED:
            self._rate = max(2.0, accepted)
            self._at, self._tokens = now, 0.0
            self._searching = True
            self._held_until = now + _SEARCH_HOLD
        else:
            self._rate = self._rate * _FOUND if self._searching else max(self._rate / 2, accepted * _KEPT)
            self._rate = min(max(min(1.0, self._ceiling), self._rate), self._ceiling)
            self._tokens = min(self._tokens, 1.0)
            self._searching = False
            self._held_until = now + _HOLD
        self._wanted = False

    @property
    def rate(self) -> float:
        """The current rate in segments a second; infinity: no limit."""
        return self._rate

    def _refill(self, now: float) -> None:
        if self._rate == _UNLIMITED or now <= self._at:
            return
        elapsed, self._at = now - self._at, now
        burst = max(1.0, self._rate * _BURST) if self._ceiling != _UNLIMITED else 1.0 + self._rate * _FINER
        self._tokens = min(self._tokens + elapsed * self._rate, burst)
        free = now - max(now - elapsed, self._held_until)
        if free <= 0 or self._rate >= self._ceiling:
            return
        if self._ceiling != _UNLIMITED:
            self._rate = min(self._ceiling, self._rate + self._ceiling * _RECOVERY * free)
        elif self._wanted:
            free = min(free, 1.0)
            if self._searching:
                self._rate *= _SEARCH**free
            else:
                self._rate *= 1 + _RECOVERY * free * (1 + (now - self._held_until) / _FASTER)
            self._wanted = False

    def _turn(self, tenth: int) -> None:
        """Forget counts that are more than a second old."""
        for gone in range(self._tenth + 1, min(tenth, self._tenth + _TENTHS) + 1):
            self._accepted[gone % _TENTHS] = 0
        self._tenth = max(tenth, self._tenth)
