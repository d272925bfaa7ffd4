"""Texts of organizations that keep them for a shorter time than the installation does.

Partitions are dropped for everybody, so the texts of one organization are erased row by row: along its own ids, which
are in order of time, from where the last round ended. The rule nobody may break: the text of a message that may still
be sent stays, and a round reads and writes a bounded number of rows.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
import structlog

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of, uuid7_floor

log = structlog.get_logger()

#: Rows that one statement erases; rows, statements and seconds of a round.
STEP, ROWS, STATEMENTS, SECONDS = 2_000, 50_000, 500, 20.0
#: Longest and shortest stretch of time that one statement looks at.
LONGEST, SHORTEST = timedelta(days=1), timedelta(seconds=1)
#: A round begins so long before where the last one ended: ids are made before their rows are committed.
OVERLAP = timedelta(minutes=10)
#: Parts of a message come so long before the last of them at most.
PARTS = timedelta(days=2)
#: After this time all is looked through again, for what was waiting for its time to be sent.
AGAIN = timedelta(days=7)

ORGANIZATIONS = "SELECT id, text_days FROM organizations WHERE text_days IS NOT NULL ORDER BY id"
# $1: organization; $2, $3: ids between which it looks; $4: at most so many rows; $5: since when parts may have come.
ERASE = {
    "messages": """
UPDATE messages SET body = NULL WHERE organization_id = $1 AND id = ANY (ARRAY(
    SELECT id FROM messages
     WHERE organization_id = $1 AND id >= $2 AND id < $3 AND body IS NOT NULL AND status <> 'accepted' LIMIT $4))
""",
    # An event repeats the text, and so do the parts as the supplier delivered them.
    "received_messages": """
WITH past AS MATERIALIZED (
    SELECT id FROM received_messages WHERE organization_id = $1 AND id >= $2 AND id < $3 AND body IS NOT NULL LIMIT $4
), parts AS (
    UPDATE inbound_messages SET body = '', raw = ''
     WHERE id >= $5 AND id < $3 AND message_id = ANY (ARRAY(SELECT id FROM past))
)
UPDATE received_messages SET body = NULL WHERE organization_id = $1 AND id = ANY (ARRAY(SELECT id FROM past))
""",
    "events": """
UPDATE events SET data = jsonb_set(data::jsonb, '{message,text}', 'null')::text
 WHERE organization_id = $1 AND id = ANY (ARRAY(
    SELECT id FROM events
     WHERE organization_id = $1 AND id >= $2 AND id < $3 AND kind = 'message.received' AND data LIKE '%"text":"%'
     LIMIT $4))
""",
    "whatsapp_messages": """
UPDATE whatsapp_messages SET content = NULL WHERE organization_id = $1 AND id = ANY (ARRAY(
    SELECT id FROM whatsapp_messages
     WHERE organization_id = $1 AND id >= $2 AND id < $3 AND content IS NOT NULL AND status <> 'accepted' LIMIT $4))
""",
}
FIRST = {table: f"SELECT id FROM {table} WHERE organization_id = $1 ORDER BY id LIMIT 1" for table in ERASE}
PLACE = """
SELECT done_until, (mark ->> 'whole')::timestamptz AS whole FROM retention_places WHERE name = $1
"""
MOVE = """
INSERT INTO retention_places (name, done_until, mark) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET done_until = excluded.done_until, mark = excluded.mark
"""


async def forget(conn: Connection) -> bool:
    """Erase what is past in all organizations that chose a time of their own; False: there is more. Each statement is a
    commit."""
    if clock.differs():
        return True
    budget = _Budget()
    finished = True
    for row in await conn.fetch(ORGANIZATIONS):
        for table in ERASE:
            finished &= await _sweep(conn, row["id"], table, timedelta(days=row["text_days"]), budget)
            if budget.is_spent:
                return False
    return finished


class _Budget:
    """What a round may take."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + SECONDS
        self._rows, self._statements = ROWS, STATEMENTS

    def spend(self, rows: int) -> None:
        self._rows -= rows
        self._statements -= 1

    @property
    def is_spent(self) -> bool:
        return self._rows <= 0 or self._statements <= 0 or time.monotonic() >= self._ends


async def _sweep(conn: Connection, organization_id: UUID, table: str, kept: timedelta, budget: _Budget) -> bool:
    name = f"texts of {organization_id} in {table}"
    now: datetime = await conn.fetchval("SELECT now()")
    until = now - kept
    place = await conn.fetchrow(PLACE, name)
    if place is not None and place["whole"] is not None and place["whole"] > now - AGAIN:
        start, whole = place["done_until"] - OVERLAP, place["whole"]
    else:
        first = await conn.fetchval(FIRST[table], organization_id)
        start, whole = (until if first is None else time_of(first)), now
    mark = msgspec.json.encode({"whole": whole}).decode()
    stretch = timedelta(hours=1)
    while start < until and not budget.is_spent:
        end = min(start + stretch, until)
        bounds: list[object] = [organization_id, uuid7_floor(start), uuid7_floor(end), STEP]
        if table == "received_messages":
            bounds.append(uuid7_floor(start - PARTS))
        done = int((await conn.execute(ERASE[table], *bounds)).rpartition(" ")[2])
        budget.spend(done)
        if done < STEP:
            start, stretch = end, min(stretch * 2, LONGEST)
            await conn.execute(MOVE, name, start, mark)
        else:
            stretch = max(stretch / 2, SHORTEST)
    return start >= until
