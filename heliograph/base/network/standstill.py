"""Time in which this process did not run: it was stopped, swapped out, moved to another machine, or too busy.

The rule nobody may break: such time counts for no deadline of somebody else. An event loop that wakes calls its timers
before it reads its sockets, so what others answered meanwhile looks as if it had never come.
"""

from __future__ import annotations

#: A timer that is later than this says so, seconds.
_LATE = 1.0


def stood_still(due: float, now: float) -> float:
    """For how many seconds, by a timer that was due at one time and is called at another; 0: not at all."""
    return now - due if now - due > _LATE else 0.0
