"""All retry schedules, in one place. Pure functions from the number of tries to a pause in seconds, or to the end.

Each schedule is checked when it is created, at process startup; the tables in the documents are generated
from them (`tests/house/tables.py`).
"""

from __future__ import annotations

import math
import random
from itertools import pairwise

import msgspec


class Schedule(msgspec.Struct, frozen=True):
    """An explicit pause before each try; seconds. Raises ValueError for a nonsensical schedule."""

    pauses: tuple[float, ...]
    #: Pause before each try after the last one listed; None: there is none.
    then: float | None = None
    #: Each pause is randomly longer or shorter by up to this share.
    jitter: float = 0.0

    def __post_init__(self) -> None:
        listed = self.pauses if self.then is None else (*self.pauses, self.then)
        if not self.pauses:
            raise ValueError("a schedule needs at least one pause")
        if not all(0 <= pause < math.inf for pause in listed):
            raise ValueError("a pause must be 0 or more and finite")
        if any(later < earlier for earlier, later in pairwise(listed)):
            raise ValueError("a pause must not be shorter than the one before it")
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter must be from 0 to less than 1")

    def pause(self, place: int, chance: random.Random | None = None) -> float | None:
        """The pause at this position, from 0; None: the schedule has ended. `chance`: for the jitter, if there is
        any."""
        pause = self.pauses[place] if place < len(self.pauses) else self.then
        if pause is None or not self.jitter or chance is None:
            return pause
        return pause * chance.uniform(1 - self.jitter, 1 + self.jitter)


class Backoff(msgspec.Struct, frozen=True):
    """A pause that grows by a factor with each try, up to a limit; seconds. It never ends by itself."""

    first: float
    growth: float = 2.0
    longest: float = 3600.0

    def __post_init__(self) -> None:
        if not (0 <= self.first < math.inf and 0 <= self.longest < math.inf):
            raise ValueError("a pause must be 0 or more and finite")
        if not 1 <= self.growth < math.inf:
            raise ValueError("a pause must not shrink")

    def pause(self, failures: int) -> float:
        """The pause after a failure that followed this many others, from 0."""
        # The exponent is limited too, so that it cannot overflow.
        return min(self.first * self.growth ** min(failures, 32), max(self.longest, self.first))


# ── SMS ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

#: After each submit that a supplier answered with "later", until the message's validity ends.
SUBMIT = Schedule((5.0, 30.0, 120.0, 600.0), then=3600.0)
#: A message without a validity of its own is abandoned after this: a later text would confuse more than inform.
SUBMIT_HORIZON = 24 * 3600.0
#: While a supplier throttles, is not connected or has no free window: the cause is not the message, so this does not
#: count as a try. Each attempt that ends like this makes the pause a second longer, up to a minute.
HOLD, HOLD_MOST = 1.0, 60.0
#: Maximum wait that a supplier may request, seconds; after that it is tried again, or another supplier is.
ASKED_MOST = 60.0
#: When a receipt that matches no message is checked again after its arrival; after the last check it is an orphan.
RECEIPT = Schedule((1.0, 5.0, 30.0, 300.0, 3600.0, 21600.0, 86400.0))

# ── WhatsApp ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#: Errors at Meta: after each failed try of a message.
META_TROUBLE = Backoff(2.0, growth=4.0, longest=300.0)
#: Meta throttles; the error code determines the first pause.
META_THROTTLED = Backoff(2.0)
#: Too many messages to one user. Meta's own advice: 4^n s from n = 0. A user's allowance recovers at one message
#: in 6 s, so the longest pause after a full burst of 45 is 270 s.
META_USER = Backoff(1.0, growth=4.0, longest=270.0)
#: Meta has paused the template.
META_TEMPLATE_PAUSED = Backoff(3 * 3600.0, longest=6 * 3600.0)
#: Pause of a number whose sends went unanswered several times in a row.
META_SILENT = Backoff(1.0, longest=60.0)
#: After a failed sync of an account; and of an account never synced before, for which somebody is waiting.
META_SYNC = Backoff(60.0, longest=1800.0)
META_FIRST_SYNC = Backoff(2.0, longest=1800.0)

# ── Webhooks ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#: ±20 %, so that deliveries do not all arrive at once when a receiver is back.
WEBHOOK_JITTER = 0.2


def webhook(text: str) -> Schedule:
    """Parse `HELIOGRAPH_WEBHOOK_SCHEDULE`: the pause before each attempt. Raises ValueError."""
    try:
        pauses = tuple(float(pause) for pause in text.split(","))
    except ValueError:
        raise ValueError("pauses must be numbers of seconds, separated by commas") from None
    return Schedule(pauses, jitter=WEBHOOK_JITTER)


# ── Loops ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

#: Shortest and longest time between two checks for due work, seconds. Whatever made a check slow, such as a hanging
#: database, may be over as soon as it ends.
LOOK, LOOK_MOST = 0.005, 2.0


def submit_pause(tries: int) -> float:
    """Seconds to wait after `tries` counted tries (1 or more) of a submit."""
    pause = SUBMIT.pause(tries - 1)
    assert pause is not None  # it continues hourly
    return pause


def hold_pause(attempt: int) -> float:
    """Seconds to wait after a message's nth attempt ended without a try being counted."""
    return min(attempt * HOLD, HOLD_MOST)


def asked_pause(asked: float, attempt: int, pause: float, left: float) -> float:
    """Seconds to wait after a message's nth attempt, if a supplier requested a pause; `pause`: the pause otherwise.
    `left`: until the message's deadline, which no supplier's request makes it miss."""
    wanted = max(asked, hold_pause(attempt)) if asked <= ASKED_MOST else max(ASKED_MOST, pause)
    return wanted if wanted < left else pause


def receipt_pause(tries: int) -> float | None:
    """Seconds until an unmatched receipt is checked again after `tries` checks; None: never."""
    return RECEIPT.pause(tries)


def look_pause(took: float) -> float:
    """Seconds until the next check for work after one that took this long: checks take at most a tenth of the time, up
    to a limit."""
    return min(max(LOOK, 10 * took), LOOK_MOST)
