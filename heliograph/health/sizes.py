"""How the database grows, and when its disk is full: a sample a day, kept for a year.

    samples of the last month ──► bytes a day ──┐
    partitions and how long they are kept ──────┴─► the day on which the disk is full, or the size it levels off at

The rule nobody may break: a forecast says what it was made of, and is none where too little is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta

import msgspec

from heliograph.base.database.pool import Connection

#: The timer of the samples, and seconds between two: of a day, the last one stays.
TIMER, EVERY = "sizes", 3600.0
#: For how long a sample is kept.
KEPT = timedelta(days=400)
#: A forecast is made of so many days, two of which must lie at least so far apart.
LOOKED, LEAST = 30, timedelta(days=2)
#: Whoever looks further ahead is guessing.
FARTHEST = timedelta(days=5 * 365)


class Sample(msgspec.Struct, frozen=True):
    """The database of a day (UTC), in bytes. `free`: of its disk; None: that is another machine's."""

    day: date
    bytes: int
    free: int | None


class Part(msgspec.Struct, frozen=True):
    """A table whose rows are dropped when they are old: its bytes, since when it has rows, how long it keeps them."""

    bytes: int
    since: datetime
    kept: timedelta


class Forecast(msgspec.Struct, frozen=True):
    """What is to be expected. `measured`: from samples so many days apart; None: from the age of the oldest
    partitions."""

    per_day: float
    measured: int | None
    #: The day on which nothing is free any more; None: not within FARTHEST, or the free space is not known.
    full_on: date | None
    #: Bytes that partitions still grow by until as much is dropped as comes.
    until_level: int
    levels_off: bool


SAMPLE = """
INSERT INTO database_sizes AS known (day, bytes, free)
VALUES ((now() AT TIME ZONE 'UTC')::date, pg_database_size(current_database()), $1)
ON CONFLICT (day) DO UPDATE SET bytes = excluded.bytes, free = excluded.free
"""


async def sample(conn: Connection, *, free: int | None) -> None:
    """Keep how large the database is now. `free`: of its disk, where that is known."""
    await conn.execute(SAMPLE, free)


LATEST = "SELECT day, bytes, free FROM database_sizes ORDER BY day DESC LIMIT $1"


async def latest(conn: Connection) -> list[Sample]:
    """The samples that a forecast is made of, oldest first."""
    return [Sample(**row) for row in await conn.fetch(LATEST, LOOKED)][::-1]


def forecast(samples: Sequence[Sample], parts: Sequence[Part], *, free: int | None, now: datetime) -> Forecast | None:
    """None: neither samples nor partitions say how it grows."""
    of_parts = sum(_per_day(one, now) for one in parts)
    until_level = sum(max(0, round(_per_day(one, now) * (one.kept / timedelta(days=1)) - one.bytes)) for one in parts)
    apart = samples[-1].day - samples[0].day if samples else timedelta()
    if apart >= LEAST:
        per_day = (samples[-1].bytes - samples[0].bytes) / apart.days
    elif of_parts:
        per_day = of_parts
    else:
        return None
    # What is dropped at its age bounds what partitions take; only what other tables take grows for ever.
    levels_off = free is not None and per_day > 0 and until_level < free and of_parts >= 0.8 * per_day
    full_on = None
    if free is not None and per_day > 0 and not levels_off and (left := timedelta(days=free / per_day)) < FARTHEST:
        full_on = (now + left).date()
    return Forecast(per_day, apart.days if apart >= LEAST else None, full_on, until_level, levels_off)


def _per_day(one: Part, now: datetime) -> float:
    """Bytes that a table grows by, before anything of it is dropped. One of today says nothing yet."""
    age = min(now - one.since, one.kept)
    return one.bytes / (age / timedelta(days=1)) if age >= timedelta(days=1) else 0.0


FORGET = "DELETE FROM database_sizes WHERE day IN (SELECT day FROM database_sizes WHERE day < $1::timestamptz LIMIT $2)"
