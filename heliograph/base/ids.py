"""UUIDv7: ids that sort by the time they were made (RFC 9562 §5.7). The application makes them, never the database."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

_counter = 0
_last_ms = 0


def uuid7() -> UUID:
    """A new UUIDv7. Ids of one process never go backwards, even within one millisecond or when the clock does."""
    global _counter, _last_ms
    ms = time.time_ns() // 1_000_000
    if ms > _last_ms:
        _last_ms = ms
        _counter = int.from_bytes(os.urandom(2), "big") & 0x7FF  # leaves room for 2,048 more in this millisecond
    else:
        _counter += 1
        if _counter > 0xFFF:
            _last_ms += 1
            _counter = 0
    tail = int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF
    return UUID(int=(_last_ms << 80) | (0x7 << 76) | (_counter << 64) | (0x2 << 62) | tail)


def uuid7_floor(at: datetime) -> UUID:
    """The smallest UUIDv7 of the millisecond `at`: a bound for ranges of time over ids."""
    return UUID(int=((at - EPOCH) // MILLISECOND << 80) | (0x7 << 76) | (0x2 << 62))


def time_of(id: UUID) -> datetime:
    """When a UUIDv7 was made, to the millisecond, in UTC."""
    return datetime.fromtimestamp((id.int >> 80) / 1000, UTC)
