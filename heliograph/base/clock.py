"""Time as the API shows it. Leases, schedules and windows follow the database's clock, not this one."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


def now() -> datetime:
    """The present, in UTC, cut to milliseconds, which is all that an answer shows."""
    at = datetime.now(UTC)
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


# Messages of one batch share their times, and each event shows several.
@lru_cache(maxsize=4096)
def iso(at: datetime) -> str:
    """ISO 8601 in UTC with milliseconds and `Z`: `2026-03-01T12:00:00.000Z`."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    return at.isoformat(timespec="milliseconds")[:-6] + "Z"
