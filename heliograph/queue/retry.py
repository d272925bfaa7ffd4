"""All retry schedules, in one place. Pure: the number of tries goes in, a pause in seconds (or the end) comes out."""

from __future__ import annotations

import random

#: Pauses after the nth try that a supplier answered with "later", in seconds; then hourly until the validity ends.
SUBMIT = (5.0, 30.0, 120.0, 600.0)
SUBMIT_THEN = 3600.0
#: A message without a validity of its own is given up after this: a later text surprises more than it informs.
SUBMIT_HORIZON = 24 * 3600.0
#: Pause while a supplier is throttling, is not connected or has no free window: it is the line that waits, not the
#: message, so this is no try. Each attempt that ends so makes it a second longer, up to a minute.
HOLD = 1.0
HOLD_MOST = 60.0
#: Shortest and longest time between two looks for due work, seconds. What made a look slow, such as a database that
#: hung, may be over as soon as it ended.
LOOK, LOOK_MOST = 0.005, 2.0
#: Looks at a receipt that fits no message, seconds after it came; then it is an orphan.
RECEIPT = (1.0, 5.0, 30.0, 300.0, 3600.0, 21600.0, 86400.0)


def submit_pause(tries: int) -> float:
    """Seconds to wait after `tries` counted tries (1 or more) of a submit."""
    return SUBMIT[tries - 1] if tries <= len(SUBMIT) else SUBMIT_THEN


def hold_pause(attempt: int) -> float:
    """Seconds to wait after a message's nth attempt ended without a try being counted."""
    return min(attempt * HOLD, HOLD_MOST)


def receipt_pause(tries: int) -> float | None:
    """Seconds until an unmatched receipt is looked at again after `tries` looks; None: never."""
    return RECEIPT[tries] if tries < len(RECEIPT) else None


def look_pause(took: float) -> float:
    """Seconds until the next look for work after one that took so long: no more than a tenth of the time is spent
    looking, up to a bound."""
    return min(max(LOOK, 10 * took), LOOK_MOST)


def webhook_pause(schedule: tuple[float, ...], tries: int, chance: random.Random) -> float | None:
    """Seconds before the attempt that follows `tries` attempts, ±20 % (so that receivers that came back are not all
    asked at once); None: there is none."""
    if tries >= len(schedule):
        return None
    return schedule[tries] * chance.uniform(0.8, 1.2)
