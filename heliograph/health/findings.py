"""Findings of the checks: which problems existed, and from when until when. Every minute a worker runs the checks, or a
web process if no worker does, and records which problems began and ended.

The rule nobody may break: a finding is open from the first run that finds it to the first that does not, whichever
process runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.sentences import Check, Sentence, State, packed, unpacked

#: The timer of the checks, its interval in seconds, and the delay after which a web process takes over from workers.
TIMER, EVERY, OVERDUE = "findings", 60.0, 30.0
#: How long a closed finding is kept.
KEPT = timedelta(days=30)
#: Maximum findings recorded per run, failures first, and read from the history.
MOST, SHOWN = 200, 200


class Finding(msgspec.Struct, frozen=True):
    """A failed check or warning."""

    check: Sentence
    state: State
    detail: Sentence
    since: datetime
    #: None: it still exists.
    over_at: datetime | None


# New findings are inserted, current ones updated, and past ones closed, in one commit.
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
    """Record the results of a run."""
    wrong = sorted((one for one in checks if one.state != "ok"), key=lambda one: one.state != "failed")
    # Several of one name and state are one finding, described by the first.
    first = {(str(one.check), one.state): one for one in reversed(wrong[:MOST])}
    rows = [
        (uuid7(), name, state, packed(one.check), packed(one.detail)) for (name, state), one in sorted(first.items())
    ]
    await conn.execute(KEEP, *([list(column) for column in zip(*rows, strict=True)] or [[]] * 5))


# A timer that is further ahead than its interval was last advanced before the clock was set back.
OVERDUE_NOW = """
SELECT FROM timers
 WHERE name = $1 AND (next_at < now() - make_interval(secs => $2) OR next_at > now() + make_interval(secs => $2 + $3))
"""


async def is_overdue(conn: Connection) -> bool:
    """True if no worker has run the checks when they were due."""
    return await conn.fetchrow(OVERDUE_NOW, TIMER, OVERDUE, EVERY) is not None


HISTORY = """
SELECT told, state, detail, since, over_at FROM findings
 WHERE over_at IS NULL OR over_at > now() - $1::interval
 ORDER BY over_at DESC NULLS FIRST, since DESC, id LIMIT $2
"""


async def history(conn: Connection, *, limit: int = SHOWN) -> list[Finding]:
    """Current problems, and those within KEPT; latest first."""
    rows = await conn.fetch(HISTORY, KEPT, limit)
    return [Finding(unpacked(told), state, unpacked(detail), *times) for told, state, detail, *times in rows]


OPEN = "SELECT name, state, since FROM findings WHERE over_at IS NULL"


async def since(conn: Connection) -> dict[tuple[str, str], datetime]:
    """When current problems began, by name and state."""
    return {(row["name"], row["state"]): row["since"] for row in await conn.fetch(OPEN)}


FORGET = "DELETE FROM findings WHERE id IN (SELECT id FROM findings WHERE over_at < $1 LIMIT $2)"
