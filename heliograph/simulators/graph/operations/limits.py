"""Meta's limits, on the simulator's clock: messages per second, per pair, users per day, calls per hour."""

from __future__ import annotations

from collections import deque


class Bucket:
    """A token bucket: `burst` at once, `rate` a second sustained."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, max(1.0, burst)
        self._left, self._at = self._burst, now

    def take(self, now: float) -> bool:
        """Take one token, if available."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Daily:
    """Number of distinct users messaged in the last 24 hours."""

    __slots__ = ("_last", "_order")

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._order: deque[tuple[float, str]] = deque()

    def allows(self, user: str, most: int, now: float) -> bool:
        """Count this user and return True, unless there are already `most` others."""
        while self._order and self._order[0][0] <= now - 86_400:
            at, one = self._order.popleft()
            if self._last.get(one) == at:
                del self._last[one]
        if user not in self._last and len(self._last) >= most:
            return False
        self._last[user] = now
        self._order.append((now, user))
        return True


class Hourly:
    """Number of calls in the current hour."""

    __slots__ = ("_hour", "calls")

    def __init__(self) -> None:
        self._hour, self.calls = 0, 0

    def count(self, now: float) -> int:
        """Count one; returns the new number."""
        hour = int(now // 3600)
        if hour != self._hour:
            self._hour, self.calls = hour, 0
        self.calls += 1
        return self.calls

    @property
    def minutes_left(self) -> int:
        """An upper bound: a client that waits this long is in a new hour."""
        return 60
