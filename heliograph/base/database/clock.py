"""Time: the database's, which this process tracks by measuring it.

A process's own clock measures durations and nothing else: whatever it shows, `now` and the ids derived from it
(`base/ids.py`) are the database's, to a few milliseconds. Between measurements the monotonic clock is used, which
nobody can set. Whatever must be exact (leases, due times, deletions) is decided by `now()` in SQL.

The rule nobody may break: nothing else in the product reads this machine's clock; a house test ensures that.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

#: The range of representable times.
BEGINNING, END = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
#: No time of this clock that was written down is further ahead than this, since processes track it to milliseconds,
#: unless the clock was set back since: it proves nothing then, and outweighs nothing. Also as an SQL expression.
AHEAD = timedelta(minutes=1)
LATEST = f"now() + interval '{AHEAD.total_seconds():.0f} seconds'"
#: A process whose own clock differs from the database's by more than this does not start, seconds.
MOST = 5.0

#: How far the database's time is ahead of the monotonic clock, nanoseconds; None: not measured yet.
_lead: int | None = None
#: Seconds by which this machine's clock was ahead of the database's at the last measurement.
_ahead = 0.0
#: The database's clock has been set forward if it is further ahead than measured before by this, nanoseconds; and when
#: that was found last, on the monotonic clock, nanoseconds.
_STEP = 1_000_000_000
_forward_at: int | None = None
#: Tests only: nanoseconds by which this process's own clock is ahead, now and once it runs.
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
    """The current time, in UTC, truncated to milliseconds, as shown in answers."""
    return EPOCH + milliseconds() * MILLISECOND


def milliseconds() -> int:
    """The current time in milliseconds since 1970; before the first measurement, this machine's."""
    return (_own() if _lead is None else time.monotonic_ns() + _lead) // 1_000_000


def note(there: datetime, *, own: int, asked: int, answered: int) -> float:
    """Record a measurement: the database's time between two readings of the monotonic clock. Returns `ahead`.

    `own`: this machine's clock at the first reading. All in nanoseconds. The time between the readings is the
    measurement's uncertainty: within it, neither the tracked time nor this machine's clock is considered wrong.
    """
    global _lead, _ahead, _forward_at
    at = (there - EPOCH) // timedelta(microseconds=1) * 1000
    least, most = at - answered, at - asked
    if _lead is not None and least - _lead > _STEP:
        _forward_at = answered
    _lead = (least + most) // 2 if _lead is None else min(max(_lead, least), most)
    early, late = own - at, own + (answered - asked) - at
    _ahead = (early if early > 0 else min(late, 0)) / 1e9
    return _ahead


def ahead() -> float:
    """Seconds by which this machine's clock was ahead of the database's at the last measurement; below 0: behind."""
    return _ahead


def since_forward() -> float:
    """Seconds since the database's clock was found to have been set forward, or this machine to have been suspended:
    times that were written before are younger than they seem. Infinite if it never was."""
    return math.inf if _forward_at is None else (time.monotonic_ns() - _forward_at) / 1e9


def differs() -> bool:
    """True if this machine's clock is further from the database's than a process may start with."""
    return abs(_ahead) > MOST


def demand() -> None:
    """Refuse to work if this machine's clock differs from the database's. Raises ClockDiffers."""
    if differs():
        raise ClockDiffers(_ahead)


def reading() -> tuple[int, int]:
    """This machine's clock and the monotonic one, nanoseconds: what `note` needs from the moment before a query."""
    return _own(), time.monotonic_ns()


def arm(setting: str) -> None:
    """Tests only: this process's own clock is `seconds` ahead, or, with `seconds:running`, `running` seconds ahead once
    it runs. Empty: unchanged. This discards the measurement of the database's clock."""
    global _shift, _later, _lead, _ahead, _forward_at
    seconds, _, when = setting.partition(":")
    shift = int(float(seconds or 0) * 1e9)
    _shift, _later = (0, shift) if when else (shift, shift)
    _lead, _ahead, _forward_at = None, 0.0, None


def running() -> None:
    """The process is ready; what `arm` postponed begins."""
    global _shift
    _shift = _later


def _own() -> int:
    return time.time_ns() + _shift


def in_utc(at: datetime) -> datetime:
    """The same instant in UTC, clamped to the range of representable times."""
    try:
        return at.astimezone(UTC)
    except OverflowError:
        return BEGINNING if at.year == 1 else END


def midnight(of: date) -> datetime:
    """The start of a day, or of a moment's day, in UTC."""
    day = in_utc(of).date() if isinstance(of, datetime) else of
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


# Cached: messages of one batch share their times, and each event shows several.
@lru_cache(maxsize=4096)
def iso(at: datetime) -> str:
    """ISO 8601 in UTC with milliseconds and `Z`: `2026-03-01T12:00:00.000Z`."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    return at.isoformat(timespec="milliseconds")[:-6] + "Z"


def iso_or_none(at: datetime | None) -> str | None:
    """As `iso`, for a time that may be missing."""
    return None if at is None else iso(at)


def moment_in(text: str) -> datetime | None:
    """The time in a text: a date, meaning its midnight in UTC, or a time with a zone. None if it is neither."""
    if len(text) != len("2026-01-01"):
        return time_in(text)
    try:
        return midnight(date.fromisoformat(text))
    except ValueError:
        return None


def time_in(text: str) -> datetime | None:
    """The time with a zone in a text, in UTC. None if it is none, or one that UTC cannot represent."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
