"""Time: the database's, as this process follows it from measurement to measurement.

A process's own clock measures durations and nothing else: whatever it shows, `now` and the ids that are made from it
(`base/ids.py`) are the database's, to a few milliseconds. Between two measurements the monotonic clock goes on, which
nobody sets. What must be exact (leases, due times, what is deleted) is decided by `now()` in SQL.

The rule nobody may break: nothing else in the product reads this machine's clock; a house test says so.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

#: All time there is, as far as it can be said.
BEGINNING, END = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: A process whose own clock differs from the database's by more does not start, seconds.
MOST = 5.0

#: What the database's time is ahead of the monotonic clock, nanoseconds; None: it was never measured.
_lead: int | None = None
#: Seconds that this machine's clock was ahead of the database's, when it was last measured.
_ahead = 0.0
#: Tests only: nanoseconds that this process's own clock stands ahead, now and once it runs.
_shift = _later = 0


class ClockDiffers(Exception):
    """This machine's clock is not the database's."""

    def __init__(self, ahead: float) -> None:
        where = "ahead of" if ahead > 0 else "behind"
        super().__init__(
            f"this machine's clock is {abs(ahead):.0f} s {where} the database's; synchronize both by NTP "
            f"(at most {MOST:g} s are allowed)"
        )


def now() -> datetime:
    """The present, in UTC, cut to milliseconds, which is all that an answer shows."""
    return EPOCH + timedelta(milliseconds=milliseconds())


def milliseconds() -> int:
    """The present in milliseconds since 1970; before the first measurement, as this machine has it."""
    return (_own() if _lead is None else time.monotonic_ns() + _lead) // 1_000_000


def note(there: datetime, *, own: int, asked: int, answered: int) -> float:
    """Follow what the database's clock said between two readings of the monotonic one; returns what `ahead` says.

    `own`: this machine's clock at the first of them. All in nanoseconds. The time between them is the measurement's
    uncertainty: within it, neither the time followed so far nor this machine's clock is called wrong.
    """
    global _lead, _ahead
    at = (there - EPOCH) // timedelta(microseconds=1) * 1000
    least, most = at - answered, at - asked
    _lead = (least + most) // 2 if _lead is None else min(max(_lead, least), most)
    early, late = own - at, own + (answered - asked) - at
    _ahead = (early if early > 0 else min(late, 0)) / 1e9
    return _ahead


def ahead() -> float:
    """Seconds by which this machine's clock was ahead of the database's at the last measurement; below 0: behind."""
    return _ahead


def differs() -> bool:
    """True if this machine's clock is further from the database's than a process may start with."""
    return abs(_ahead) > MOST


def demand() -> None:
    """Refuse to work with a clock that is not the database's. Raises ClockDiffers."""
    if differs():
        raise ClockDiffers(_ahead)


def reading() -> tuple[int, int]:
    """This machine's clock and the monotonic one, nanoseconds: what `note` wants of the moment before a question."""
    return _own(), time.monotonic_ns()


def arm(setting: str) -> None:
    """Tests only: this process's own clock stands `seconds` ahead, or, with `seconds:running`, does so from `running`
    on. Empty: it is what it is. Nothing is known of the database's clock after this."""
    global _shift, _later, _lead, _ahead
    seconds, _, when = setting.partition(":")
    shift = int(float(seconds or 0) * 1e9)
    _shift, _later = (0, shift) if when else (shift, shift)
    _lead, _ahead = None, 0.0


def running() -> None:
    """The process is ready; what `arm` put off begins."""
    global _shift
    _shift = _later


def _own() -> int:
    return time.time_ns() + _shift


def in_utc(at: datetime) -> datetime:
    """The same instant in UTC; what lies before or after all time there is its beginning or its end."""
    try:
        return at.astimezone(UTC)
    except OverflowError:
        return BEGINNING if at.year == 1 else END


# Messages of one batch share their times, and each event shows several.
@lru_cache(maxsize=4096)
def iso(at: datetime) -> str:
    """ISO 8601 in UTC with milliseconds and `Z`: `2026-03-01T12:00:00.000Z`."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    return at.isoformat(timespec="milliseconds")[:-6] + "Z"
