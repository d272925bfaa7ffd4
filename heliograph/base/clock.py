"""Time as the API shows it. Leases, schedules and windows follow the database's clock, not this one."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

#: All time there is, as far as it can be said.
BEGINNING, END = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def now() -> datetime:
    """The present, in UTC, cut to milliseconds, which is all that an answer shows."""
    at = datetime.now(UTC)
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


# Messages of one batch share their times, and each event shows several.
@lru_cache(maxsize=4096)
def in_utc(at: datetime) -> datetime:
    """The same instant in UTC; what lies before or after all time there is its beginning or its end."""
    try:
        return at.astimezone(UTC)
    except OverflowError:
        return BEGINNING if at.year == 1 else END


def iso(at: datetime) -> str:
    """ISO 8601 in UTC with milliseconds and `Z`: `2026-03-01T12:00:00.000Z`."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    return at.isoformat(timespec="milliseconds")[:-6] + "Z"
