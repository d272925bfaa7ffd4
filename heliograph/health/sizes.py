"""The growth of the database, and when its disk will be full: one sample a day, kept for a year.

    samples of the last month ──► bytes a day ──┐
    partitions and how long they are kept ──────┴─► the day on which the disk is full, or the size it levels off at

The rule nobody may break: a forecast says what it is based on, and none is made if too little is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta

import msgspec

from heliograph.base.database.pool import Connection

#: The timer of the samples, and its interval in seconds: the last sample of a day is kept.
TIMER, EVERY = "sizes", 3600.0
#: How long a sample is kept.
KEPT = timedelta(days=400)
#: Number of days that a forecast is based on, and the minimum time that they must span.
LOOKED, LEAST = 30, timedelta(days=2)
#: The limit of a forecast: anything beyond is guesswork.
FARTHEST = timedelta(days=5 * 365)


class Sample(msgspec.Struct, frozen=True):
    """The size of the database on a day (UTC), in bytes. `free`: on its disk; None: it is on another machine."""

    day: date
    bytes: int
    free: int | None


class Part(msgspec.Struct, frozen=True):
    """A table whose old rows are dropped: its bytes, the age of its oldest rows, how long it keeps them."""

    bytes: int
    since: datetime
    kept: timedelta


class Forecast(msgspec.Struct, frozen=True):
    """A forecast. `measured`: based on samples this many days apart; None: on the age of the oldest partitions."""

    per_day: float
    measured: int | None
    #: The day on which the disk will be full; None: not within FARTHEST, or the free space is not known.
    full_on: date | None
    #: Bytes by which partitions will still grow until as much is dropped as is added.
    until_level: int
    levels_off: bool


SAMPLE = """
INSERT INTO database_sizes AS known (day, bytes, free)
VALUES ((now() AT TIME ZONE 'UTC')::date, pg_database_size(current_database()), $1)
ON CONFLICT (day) DO UPDATE SET bytes = excluded.bytes, free = excluded.free
"""


async def sample(conn: Connection, *, free: int | None) -> None:
    """Record the current size of the database. `free`: on its disk, if known."""
    await conn.execute(SAMPLE, free)


# Days to come were sampled before the clock was set back: until then, none of them would be the last.
LATEST = """
SELECT day, bytes, free FROM database_sizes WHERE day <= (now() AT TIME ZONE 'UTC')::date ORDER BY day DESC LIMIT $1
"""


async def latest(conn: Connection) -> list[Sample]:
    """The samples that a forecast is based on, oldest first."""
    return [Sample(**row) for row in await conn.fetch(LATEST, LOOKED)][::-1]


def forecast(samples: Sequence[Sample], parts: Sequence[Part], *, free: int | None, now: datetime) -> Forecast | None:
    """A forecast; None: neither samples nor partitions show how the database grows."""
    of_parts = sum(_per_day(one, now) for one in parts)
    until_level = sum(max(0, round(_per_day(one, now) * (one.kept / timedelta(days=1)) - one.bytes)) for one in parts)
    apart = samples[-1].day - samples[0].day if samples else timedelta()
    if apart >= LEAST:
        per_day = (samples[-1].bytes - samples[0].bytes) / apart.days
    elif of_parts:
        per_day = of_parts
    else:
        return None
    # Retention limits the size of partitions; only other tables grow forever.
    levels_off = free is not None and per_day > 0 and until_level < free and of_parts >= 0.8 * per_day
    full_on = None
    if free is not None and per_day > 0 and not levels_off and (left := free / per_day) < FARTHEST.days:
        full_on = (now + timedelta(days=left)).date()
    return Forecast(per_day, apart.days if apart >= LEAST else None, full_on, until_level, levels_off)


def _per_day(one: Part, now: datetime) -> float:
    """Bytes by which a table grows per day before anything is dropped; 0 for a table that began within a day, which
    shows nothing yet."""
    age = min(now - one.since, one.kept)
    return one.bytes / (age / timedelta(days=1)) if age >= timedelta(days=1) else 0.0


FORGET = "DELETE FROM database_sizes WHERE day IN (SELECT day FROM database_sizes WHERE day < $1::timestamptz LIMIT $2)"
