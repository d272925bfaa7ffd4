"""UUIDv7: ids that sort by creation time (RFC 9562 §5.7). The application creates them, never the database.

Their time is the database's (`base/database/clock.py`): tables are partitioned, paged and purged by it, so an id from a
wrong clock would never be found, or be purged at once.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from uuid import UUID

# The driver's own class, a UUID in every respect, is created, hashed and written in a fifth of the time.
from asyncpg.pgproto.pgproto import UUID as QuickUUID

from heliograph.base.database.clock import EPOCH, MILLISECOND, milliseconds

#: Milliseconds in a day, and the number of the day from which they are counted.
_DAY, _EPOCH_DAY = 86_400_000, EPOCH.toordinal()

#: Ids continue from the last one while the clock is behind it by less than this, milliseconds; if by more, the clock
#: was set, and they follow it: ids are unique all the same.
BACK = 10_000

#: Random numbers are read from the system this many at a time: a call per id would cost as much as everything else.
RESERVE = 512

_counter = 0
_last_ms = 0
_random: list[int] = []
_halves = struct.Struct(">QQ").pack


def uuid7() -> UUID:
    """A new UUIDv7. Ids of one process do not go backwards, even within a millisecond or if the clock does, unless it
    goes back by more than ten seconds."""
    return uuid_of(_make())


#: The UUID of 16 bytes.
uuid_of: Callable[[bytes], UUID] = QuickUUID
#: The UUID of a text in the usual spelling. Raises ValueError.
uuid_of_text: Callable[[str], UUID] = QuickUUID


def uuid_in(text: str) -> UUID | None:
    """Parse an id in any spelling; None if it is not one."""
    try:
        return UUID(text)
    except ValueError:
        return None


def uuid7_text() -> str:
    """A new UUIDv7 as text."""
    return str(uuid7())


def _make() -> bytes:
    global _counter, _last_ms, _random
    if not _random:
        _random = list(struct.unpack(f"{RESERVE}Q", os.urandom(8 * RESERVE)))
    tail = _random.pop()
    ms = milliseconds()
    if ms > _last_ms or ms < _last_ms - BACK:
        _last_ms = ms
        # Starts at a random value below half, which leaves room for 2,048 more in this millisecond.
        _counter = (tail >> 53) & 0x7FF
    else:
        _counter += 1
        if _counter > 0xFFF:
            _last_ms += 1
            _counter = 0
    return _halves(_last_ms << 16 | 0x7000 | _counter, tail & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000)


def uuid7_floor(at: datetime) -> UUID:
    """The smallest UUIDv7 of the millisecond `at`: a bound for time ranges over ids. Times before 1970 count as
    1970."""
    return UUID(int=(max(0, (at - EPOCH) // MILLISECOND) << 80) | (0x7 << 76) | (0x2 << 62))


def just_above(id: UUID) -> UUID:
    """The exclusive upper bound for a descending list that begins with this id."""
    return UUID(int=min(id.int + 1, 2**128 - 1))


def place_of(id: UUID) -> int:
    """A UUIDv7's position among others, in 60 bits: distinct and in order for the ids of one process."""
    return id.int >> 80 << 12 | id.int >> 64 & 0xFFF


def time_of(id: UUID) -> datetime:
    """When a UUIDv7 was created, to the millisecond, in UTC."""
    return datetime.fromtimestamp((id.int >> 80) / 1000, UTC)


def day_of(id: UUID) -> date:
    """The day on which a UUIDv7 was created, in UTC."""
    return date.fromordinal(_EPOCH_DAY + (id.int >> 80) // _DAY)
