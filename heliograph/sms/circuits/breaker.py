"""A circuit breaker for one supplier, as seen by one worker. Pure.

A failing supplier is skipped, and probed with single messages until one succeeds.

The rule nobody may break: an answer to a message that left before the circuit opened does not close it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

_NEVER = float("inf")


class Breaker:
    """Tracks a supplier's failures. Open after 20 failures in a row, or when over half of at least 20 answers within 60
    s failed; then one message every 15 s is let through, and the first success closes it. Messages that were already on
    their way when it opened no longer count: with a supplier that fails seven times in ten, some of them succeed.

    If workers share its state (`sharing.py`), a probe needs a grant, which only one of them has at a time."""

    IN_A_ROW = 20
    WINDOW = 60.0
    PROBE = 15.0
    #: After this long without a message, earlier unanswered ones no longer count.
    IDLE = 60.0
    #: An answer that takes longer than this is slow.
    SLOW = 5.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._row = 0
        self._answers: deque[tuple[float, bool]] = deque()
        self._failures = 0
        self._next_probe = 0.0
        # Whether a message is unanswered, or was deferred; since when nothing has been accepted or refused; when the
        # last one was sent.
        self._waits = False
        self._since = self._asked = clock()
        self._put_off = self._moved = -self.WINDOW
        self.open = False
        #: True if it is open for all workers: probes need a grant.
        self.shared = False
        #: When it opened, by `clock`.
        self._opened = 0.0
        #: How often it has opened.
        self.openings = 0

    def usable(self) -> bool:
        """True if a message may be sent now; in the open state, if it is time for a probe."""
        return not self.open or self._clock() >= self._next_probe

    def begin_probe(self) -> None:
        """Note that a message is sent as a probe; the next may follow after PROBE seconds, or when granted."""
        self._next_probe = _NEVER if self.shared else self._clock() + self.PROBE

    def record(self, *, ok: bool, sent_in: int | None = None) -> None:
        """Note that an answer arrived (`ok`), or did not. `sent_in`: `openings` when the message was sent; None: just
        now."""
        if sent_in not in (None, self.openings):
            return
        at = self._clock()
        if ok:
            self._row = 0
            if self.open:
                self.close()
        else:
            self._row += 1
            self._failures += 1
        self._answers.append((at, ok))
        while self._answers and self._answers[0][0] < at - self.WINDOW:
            self._failures -= not self._answers.popleft()[1]
        if not self.open and (
            self._row >= self.IN_A_ROW
            or (len(self._answers) >= self.IN_A_ROW and self._failures * 2 > len(self._answers))
        ):
            self.trip()

    def trip(self, *, since: float = 0.0) -> None:
        """Open the circuit. `since`: seconds for which it has been open."""
        self.open, self.shared = True, False
        self._opened = self._clock() - since
        self.openings += 1
        self._next_probe = self._clock() + self.PROBE

    def close(self) -> None:
        """Close the circuit; earlier failures no longer count."""
        self.open = self.shared = False
        self._row = self._failures = 0
        self._answers.clear()

    def share(self) -> None:
        """Note that it is open for all workers: no probe without a grant."""
        self.shared, self._next_probe = True, _NEVER

    def grant(self) -> None:
        """Allow this worker to send the next probe."""
        self._next_probe = self._clock()

    def open_for(self) -> float:
        """Seconds since it opened."""
        return self._clock() - self._opened

    def asked(self) -> None:
        """Note that a message is sent."""
        at = self._clock()
        if not self._waits or at - self._asked > self.IDLE:
            self._waits, self._since = True, at
        self._asked = at

    def moved(self) -> None:
        """Note that a message was accepted, or refused permanently: the supplier works."""
        self._waits, self._moved = False, self._clock()

    def put_off(self) -> None:
        """Note that the supplier throttles, or that its session is in trouble."""
        self._put_off = self._clock()

    def is_slow(self) -> bool:
        """True if it has recently deferred messages, or has not answered for a while."""
        at = self._clock()
        return at - self._put_off < self.WINDOW or (self._waits and at - self._since > self.SLOW)

    def moves(self) -> bool:
        """True if it accepted or refused something in the last PROBE seconds."""
        return self._clock() - self._moved < self.PROBE

    def stalls(self, patience: float) -> bool:
        """True if for that many seconds it has only deferred messages, or not answered at all."""
        return self._waits and self._clock() - self._since > patience


class Senders:
    """Senders that one supplier refuses individually, which says nothing about the supplier itself."""

    #: How many are remembered.
    MOST = 10_000

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._breakers: OrderedDict[str, Breaker] = OrderedDict()

    def refused(self, sender: str) -> None:
        """Note that the sender, or a message from it, was refused."""
        breaker = self._breakers.setdefault(sender, Breaker(self._clock))
        self._breakers.move_to_end(sender)
        breaker.record(ok=False)
        if len(self._breakers) > self.MOST:
            self._breakers.popitem(last=False)

    def taken(self, sender: str) -> None:
        """Note that a message from it was accepted."""
        if self._breakers:
            self._breakers.pop(sender, None)

    def avoided(self, sender: str) -> bool:
        """True while other suppliers should be tried first; one message every Breaker.PROBE seconds may still probe."""
        breaker = self._breakers.get(sender) if self._breakers else None
        if breaker is None or not breaker.open:
            return False
        if breaker.usable():
            breaker.begin_probe()
            return False
        return True
