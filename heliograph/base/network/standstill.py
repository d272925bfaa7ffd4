"""Time during which this process did not run: it was stopped, swapped out, moved to another machine, or too busy.

The rule nobody may break: such time never counts toward a peer's deadline. An event loop that wakes up calls its timers
before it reads its sockets, so answers that arrived meanwhile look as if they never had.
"""

from __future__ import annotations

#: A timer later than this means that the process stood still, seconds.
_LATE = 1.0


def stood_still(due: float, now: float) -> float:
    """Seconds that the process stood still, from the times when a timer was due and was called; 0: it did not."""
    return now - due if now - due > _LATE else 0.0
