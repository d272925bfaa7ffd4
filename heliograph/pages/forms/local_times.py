"""Parses a day and a time of day as people type them, in their time zone.

The rule nobody may break: a time that the clocks skip is refused, never moved to another hour.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo


class SkippedTime(ValueError):
    """The clocks go forward on that day, past this time."""


def read(day: str, hour: str, zone: str) -> datetime:
    """The time that they mean, in UTC, so that it can be calculated with; of two, the earlier one. Raises ValueError,
    and SkippedTime."""
    at = datetime.combine(date.fromisoformat(day), time.fromisoformat(hour), ZoneInfo(zone))
    before, after = at.utcoffset(), at.replace(fold=1).utcoffset()
    assert before is not None
    assert after is not None
    if before < after:
        raise SkippedTime
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise ValueError(day) from None
