"""Findings of the checks: what was not well, from when until when. Every minute a worker looks, or, while none does, a
web process; whoever looks writes down what came and what went.

The rule nobody may break: a finding is open from the first look that finds it to the first that does not, whoever
looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.sentences import Check, Sentence, State, packed, unpacked

#: The timer of the looks, seconds between two, and seconds after which a web process looks because no worker did.
TIMER, EVERY, OVERDUE = "findings", 60.0, 30.0
#: For how long one that is over is kept.
KEPT = timedelta(days=30)
#: Findings of a look that are kept, the failures first, and of the history that are read.
MOST, SHOWN = 200, 200


class Finding(msgspec.Struct, frozen=True):
    """A check that was not well."""

    check: Sentence
    state: State
    detail: Sentence
    since: datetime
    #: None: it is still so.
    over_at: datetime | None


# What came is inserted, what is still so is told as it is now, and what went is over, in one commit.
KEEP = """
WITH seen AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[])
           AS one (id, name, state, told, detail)
), over AS (
    UPDATE findings SET over_at = now()
     WHERE over_at IS NULL AND NOT EXISTS (
           SELECT FROM seen WHERE seen.name = findings.name AND seen.state = findings.state)
)
INSERT INTO findings AS known (id, name, state, told, detail, since)
SELECT id, name, state, told, detail, now() FROM seen ORDER BY name, state
    ON CONFLICT (name, state) WHERE over_at IS NULL DO UPDATE SET detail = excluded.detail
"""


async def keep(conn: Connection, checks: Sequence[Check]) -> None:
    """Write down what a look found."""
    wrong = sorted((one for one in checks if one.state != "ok"), key=lambda one: one.state != "failed")
    # Several of one name and state are one finding, told by the first.
    first = {(str(one.check), one.state): one for one in reversed(wrong[:MOST])}
    rows = [
        (uuid7(), name, state, packed(one.check), packed(one.detail)) for (name, state), one in sorted(first.items())
    ]
    await conn.execute(KEEP, *([list(column) for column in zip(*rows, strict=True)] or [[]] * 5))


OVERDUE_NOW = "SELECT FROM timers WHERE name = $1 AND next_at < now() - make_interval(secs => $2)"


async def is_overdue(conn: Connection) -> bool:
    """No worker has looked when it was time."""
    return await conn.fetchrow(OVERDUE_NOW, TIMER, OVERDUE) is not None


HISTORY = """
SELECT told, state, detail, since, over_at FROM findings
 WHERE over_at IS NULL OR over_at > now() - $1::interval
 ORDER BY over_at DESC NULLS FIRST, since DESC, id LIMIT $2
"""


async def history(conn: Connection, *, limit: int = SHOWN) -> list[Finding]:
    """What is not well, and what was not within KEPT; the latest first."""
    rows = await conn.fetch(HISTORY, KEPT, limit)
    return [Finding(unpacked(told), state, unpacked(detail), *times) for told, state, detail, *times in rows]


OPEN = "SELECT name, state, since FROM findings WHERE over_at IS NULL"


async def since(conn: Connection) -> dict[tuple[str, str], datetime]:
    """By name and state of what is not well, since when."""
    return {(row["name"], row["state"]): row["since"] for row in await conn.fetch(OPEN)}


FORGET = "DELETE FROM findings WHERE id IN (SELECT id FROM findings WHERE over_at < $1 LIMIT $2)"
