"""How many segments a second an account takes: a token bucket that remembers being told to slow down. Pure.

The rule nobody may break: after a throttle the rate is halved for a second and comes back by 5 % of the ceiling a
second. Answers to what was already in the window do not halve it again.
"""

from __future__ import annotations

_HOLD = 1.0
_RECOVERY = 0.05
#: Seconds' worth of segments that may leave at once, and that may wait inside so that the pipe never runs dry.
_BURST = 0.05
_AHEAD = 0.25
_UNLIMITED = float("inf")


class Bucket:
    """`ceiling` segments a second; 0: no limit until a throttle shows one. Times are seconds, monotonic."""

    def __init__(self, ceiling: float, now: float) -> None:
        self._configured = ceiling or _UNLIMITED
        self._ceiling = self._configured
        self._rate = self._configured
        self._tokens = 1.0
        self._at = now
        self._held_until = now
        # To know what "half" is when nobody configured a rate: segments of this second and of the last one.
        self._second = int(now)
        self._count = 0
        self._last_count = 0

    def resize(self, ceiling: float, now: float) -> None:
        """A new ceiling. A rate that a throttle has lowered stays where it is, and recovers to the new one."""
        self._refill(now)
        lowered = self._rate < self._ceiling
        self._configured = self._ceiling = ceiling or _UNLIMITED
        self._rate = min(self._rate, self._ceiling) if lowered else self._ceiling

    def available(self, now: float) -> int:
        """Whole segments that may leave now."""
        if self._rate == _UNLIMITED:
            return 1 << 30
        self._refill(now)
        return int(self._tokens)

    def take(self, segments: int, now: float) -> None:
        """Segments that left. Going below zero is allowed: the next ones wait longer."""
        if self._rate == _UNLIMITED:
            if int(now) != self._second:
                self._last_count = self._count if int(now) == self._second + 1 else 0
                self._second, self._count = int(now), 0
            self._count += segments
        else:
            self._tokens -= segments

    @property
    def ahead(self) -> int:
        """Segments that may wait inside for their token."""
        return 1 << 30 if self._rate == _UNLIMITED else max(1, int(self._rate * _AHEAD))

    def wait(self, now: float) -> float:
        """Seconds until a segment may leave."""
        if self._rate == _UNLIMITED:
            return 0.0
        self._refill(now)
        return max(0.0, (1.0 - self._tokens) / self._rate)

    def slow(self, now: float) -> None:
        """The supplier throttled us."""
        self._refill(now)
        if now < self._held_until:
            return
        if self._rate == _UNLIMITED:
            self._ceiling = self._rate = float(max(2, self._count, self._last_count))
            self._at, self._tokens = now, 0.0
        self._rate = max(min(1.0, self._ceiling), self._rate / 2)
        self._tokens = min(self._tokens, 1.0)
        self._held_until = now + _HOLD

    @property
    def rate(self) -> float:
        """Segments a second at present; infinity: no limit."""
        return self._rate

    def _refill(self, now: float) -> None:
        if self._rate == _UNLIMITED or now <= self._at:
            return
        elapsed, self._at = now - self._at, now
        self._tokens = min(self._tokens + elapsed * self._rate, max(1.0, self._rate * _BURST))
        recovering = now - max(now - elapsed, self._held_until)
        if recovering > 0 and self._rate < self._ceiling:
            self._rate += self._ceiling * _RECOVERY * recovering
            if self._rate >= self._ceiling:
                self._rate = self._ceiling = self._configured
