"""An organization's notices, and how far each person has read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7_floor

#: Days for which notices are kept.
DAYS = 90


class Noticed(msgspec.Struct, frozen=True):
    """A notice as it is read."""

    id: UUID
    mode: str
    kind: str
    object: str
    name: str
    facts: Mapping[str, str | int]
    created_at: datetime
    is_new: bool


# What has an id of times to come ($6) is from before the clock was set back.
LIST = """
SELECT n.id, n.mode, n.kind, n.object, n.name, n.facts, n.created_at,
       n.id < $6 AND n.id > coalesce((SELECT read_to FROM notice_reads
                                       WHERE organization_id = $1 AND user_id = $2 AND read_to < $6 LIMIT 1),
                                     '00000000-0000-0000-0000-000000000000') AS is_new
  FROM notices n
 WHERE n.organization_id = $1 AND n.id < $3 AND n.kind || '' = ANY ($4) AND (n.user_id IS NULL OR n.user_id = $2)
 ORDER BY n.id DESC LIMIT $5
"""
LAST = UUID(int=2**128 - 1)


async def list_page(
    conn: Connection, actor: Actor, *, user_id: UUID, kinds: Collection[str], after: UUID | None = None, limit: int = 50
) -> list[Noticed]:
    """Notices of these kinds older than `after`, newest first: up to `limit` + 1. `user_id`: the reader, for whom some
    are new."""
    rows = await conn.fetch(
        LIST, actor.organization_id, user_id, after or LAST, list(kinds), limit + 1, first_to_come()
    )
    return [
        Noticed(**{**row, "facts": msgspec.json.decode(row["facts"], type=dict[str, str | int])})
        for row in map(dict, rows)
    ]


def first_to_come() -> UUID:
    """An id above those of all notices that were recorded by now."""
    return uuid7_floor(clock.now() + clock.AHEAD)


READ = """
INSERT INTO notice_reads AS known (organization_id, user_id, read_to) VALUES ($1, $2, $3)
ON CONFLICT (organization_id, user_id) DO UPDATE
   SET read_to = greatest(CASE WHEN known.read_to < $4 THEN known.read_to END, excluded.read_to)
"""


async def read(conn: Connection, actor: Actor, *, user_id: UUID, up_to: UUID) -> None:
    """Record that a person has read everything up to this notice."""
    to_come = first_to_come()
    read_to = up_to if up_to < to_come else uuid7_floor(clock.now())
    await conn.execute(READ, actor.organization_id, user_id, read_to, to_come)


FORGET = """
DELETE FROM notices WHERE (organization_id, id) IN (
    SELECT organization_id, id FROM notices WHERE created_at < $1 LIMIT $2)
"""
