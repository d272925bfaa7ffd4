"""Limits how fast one WhatsApp number may send: a token bucket for the number, and a gate for each user. Pure.

Meta limits the messages that a number sends and receives in one second (80, or 1,000 after an upgrade), and those that
one number sends to one user: one in 6 s on average, of which up to 45 may be sent in advance.

The rule nobody may break: a throttle halves the rate once; answers to messages already in flight do not halve it again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

#: Messages a second of a number without an upgrade.
DEFAULT_RATE = 80.0
MOST_RATE = 1_000.0
#: Seconds per message to one user, and how many messages may be sent in advance.
PAIR_SECONDS = 6.0
PAIR_BURST = 45
#: Seconds by which messages may be ahead.
PAIR_AHEAD = (PAIR_BURST - 1) * PAIR_SECONDS
#: Seconds by which all processes together are never ahead with one user, however many they are: long before, Meta
#: refuses their messages, which then do not count.
PAIR_MOST_AHEAD = 2 * PAIR_BURST * PAIR_SECONDS

#: Seconds for which a lowered rate stays, and the fraction of the ceiling recovered each second after that.
_HOLD = 5.0
_RECOVERY = 0.02
#: Seconds' worth of messages that may leave at once, and that may wait inside so that the pipe never runs dry.
_BURST = 0.1
_AHEAD = 0.25


class NumberPacer:
    """`rate` messages a second. `clock` gives monotonic seconds."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ceiling = self._rate = _within(rate)
        self._at = clock()
        self._tokens = 1.0
        self._held_until = self._at

    @property
    def rate(self) -> float:
        """The current rate, messages a second."""
        self._refill()
        return self._rate

    @property
    def ahead(self) -> int:
        """The number of messages that may wait for a token: about a quarter of a second's worth."""
        return max(1, int(self._rate * _AHEAD))

    def available(self) -> int:
        """Whole messages that may leave now."""
        self._refill()
        return max(0, int(self._tokens))

    def take(self, messages: int = 1) -> None:
        """Account for messages that left. Tokens may go below zero: the next messages wait longer."""
        self._refill()
        self._tokens -= messages

    def wait(self) -> float:
        """Seconds until a message may leave."""
        self._refill()
        return max(0.0, (1.0 - self._tokens) / self._rate)

    def slow(self) -> None:
        """Meta throttled us."""
        self._refill()
        now = self._at
        if now < self._held_until:
            return
        self._rate = max(min(1.0, self._ceiling), self._rate / 2)
        self._tokens = min(self._tokens, 0.0)
        self._held_until = now + _HOLD

    def resize(self, rate: float) -> None:
        """A new ceiling: an upgrade, or another share among processes. A lowered rate recovers to it."""
        self._refill()
        lowered = self._rate < self._ceiling
        self._ceiling = _within(rate)
        self._rate = min(self._rate, self._ceiling) if lowered else self._ceiling

    def _refill(self) -> None:
        now = self._clock()
        if now <= self._at:
            return
        elapsed, self._at = now - self._at, now
        self._tokens = min(self._tokens + elapsed * self._rate, max(1.0, self._rate * _BURST))
        recovering = min(elapsed, now - self._held_until)
        if recovering > 0 and self._rate < self._ceiling:
            self._rate = min(self._ceiling, self._rate + self._ceiling * _RECOVERY * recovering)


class PairGate:
    """Decides who may get another message from one number, and when.

    Each user has a time up to which sent messages are paid for (a GCRA): every message moves it by PAIR_SECONDS, and it
    may be ahead of the present by the burst. Other processes send from the same number: `learn` takes in what is known
    of their messages. At most `most` users are remembered; beyond that, those whose debt ends first are forgotten,
    which can cost a refusal by Meta and nothing else.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        seconds: float = PAIR_SECONDS,
        burst: int = PAIR_BURST,
        most: int = 100_000,
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._slack = seconds * (burst - 1)
        self._most = most
        self._paid: OrderedDict[str, float] = OrderedDict()
        self._shut: dict[str, float] = {}

    def wait(self, user: str, *, ahead: int = 0) -> float:
        """Seconds until `user` may get a message after `ahead` others; 0: now."""
        now = self._clock()
        wait = max(self._paid.get(user, now), now) + ahead * self._seconds - self._slack - now
        if self._shut:
            until = self._shut.get(user)
            if until is not None:
                wait = max(wait, until - now)
        return wait if wait > _INSTANT else 0.0

    def take(self, user: str) -> None:
        """Account for a message to `user`."""
        now = self._clock()
        self._paid[user] = max(self._paid.pop(user, now), now) + self._seconds
        if len(self._paid) > self._most:
            self._forget(now)

    def give_back(self, user: str) -> None:
        """A message to `user` was not sent, or not accepted: it does not count after all."""
        if user in self._paid:
            self._paid[user] -= self._seconds

    def learn(self, user: str, debt: float) -> None:
        """All processes together are at least `debt` seconds ahead with `user`."""
        now = self._clock()
        if now + debt > self._paid.get(user, now):
            self._paid[user] = now + debt
            if len(self._paid) > self._most:
                self._forget(now)

    def shut(self, user: str, seconds: float) -> None:
        """Meta refused another message to `user`: send none for `seconds`."""
        now = self._clock()
        self._shut = {one: until for one, until in self._shut.items() if until > now}
        if len(self._shut) >= self._most:
            self._shut.pop(next(iter(self._shut)))
        self._shut[user] = max(self._shut.get(user, 0.0), now + seconds)

    def __len__(self) -> int:
        return len(self._paid)

    def _forget(self, now: float) -> None:
        """Forget at least a tenth at once, so that the next messages find room without another search."""
        keep = self._most - self._most // 10
        self._paid = OrderedDict((user, paid) for user, paid in self._paid.items() if paid > now)
        if len(self._paid) > keep:
            owing = sorted(self._paid.items(), key=_paid_until)
            self._paid = OrderedDict(owing[-keep:])


#: A shorter wait is a rounding error, seconds.
_INSTANT = 1e-6


def _paid_until(entry: tuple[str, float]) -> float:
    return entry[1]


def _within(rate: float) -> float:
    return min(max(rate, 0.1), MOST_RATE)
