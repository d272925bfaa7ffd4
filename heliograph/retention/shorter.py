"""Texts of organizations that keep them for a shorter time than the installation does, and what repeats them.

Partitions are dropped for everybody, so the texts of one organization are erased row by row: along its own ids, which
are in order of time, from where the last round ended. What repeats a text goes before it does, so that a round that
ends in between is done again. The rule nobody may break: the text of a message that may still be sent stays, and a
round reads and writes a bounded number of rows.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of, uuid7_floor
from heliograph.sms.timeline import NEAR

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

ORGANIZATIONS = "SELECT id, text_days FROM organizations WHERE text_days IS NOT NULL AND id > $1 ORDER BY id"
# The last organization that a round came to the end of, and whether one before it has more.
TURN = """
SELECT (mark ->> 'last')::uuid AS last, (mark ->> 'more')::boolean AS more FROM retention_places WHERE name = $1
"""
NAME, NIL = "texts of organizations", UUID(int=0)
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
# What a supplier wrote in a receipt may repeat the beginning of the text. The first receipt of a message stands in its
# row, and receipts of several organizations in one row, where those of the others stay.
QUOTED = """
WITH past AS MATERIALIZED (
    SELECT id, receipt, receipt_at FROM messages
     WHERE organization_id = $1 AND id >= $2 AND id < $3 AND body IS NOT NULL AND status <> 'accepted' LIMIT $4
)
SELECT receipt AS fingerprint, receipt_at AS at FROM past WHERE receipt IS NOT NULL
UNION ALL
SELECT later.fingerprint, later.received_at
  FROM past CROSS JOIN LATERAL (SELECT fingerprint, received_at FROM receipts
                                 WHERE message_id = past.id AND received_on >= $5::date AND organization_id = $1
                                OFFSET 0) later
"""
ERASE_QUOTED = """
WITH places AS MATERIALIZED (
    SELECT b.received_on, b.id, array_agg(came.fingerprint) AS theirs
      FROM unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::uuid[]) AS came (fingerprint, at, first, last)
           CROSS JOIN LATERAL (
           SELECT received_on, id, fingerprints FROM receipt_bytes
            WHERE received_on = (came.at AT TIME ZONE 'UTC')::date AND id BETWEEN came.first AND came.last
            ORDER BY id OFFSET 0) b
     WHERE came.fingerprint = ANY (b.fingerprints)
     GROUP BY b.received_on, b.id
)
UPDATE receipt_bytes
   SET raw = ARRAY(SELECT CASE WHEN one.fingerprint = ANY (places.theirs) THEN '' ELSE one.raw END
                     FROM unnest(fingerprints, raw) WITH ORDINALITY AS one (fingerprint, raw, n) ORDER BY n)
  FROM places
 WHERE receipt_bytes.received_on = places.received_on AND receipt_bytes.id = places.id
"""
# What else goes: what receivers answered to webhooks, which may quote them, and to whom automatic replies went.
ALSO = (
    """
DELETE FROM webhook_attempt_evidence WHERE (organization_id, begun_on, event_id, endpoint_id, started_at) IN (
    SELECT organization_id, begun_on, event_id, endpoint_id, started_at FROM webhook_attempt_evidence
     WHERE organization_id = $1 AND started_at < $2 LIMIT $3)
""",
    """
DELETE FROM automatic_replies WHERE (organization_id, recipient, kind) IN (
    SELECT organization_id, recipient, kind FROM automatic_replies
     WHERE organization_id = $1 AND replied_at < $2 LIMIT $3)
""",
)
FIRST = {table: f"SELECT id FROM {table} WHERE organization_id = $1 ORDER BY id LIMIT 1" for table in ERASE}
PLACE = """
SELECT done_until, (mark ->> 'whole')::timestamptz AS whole FROM retention_places WHERE name = $1
"""
MOVE = """
INSERT INTO retention_places (name, done_until, mark) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET done_until = excluded.done_until, mark = excluded.mark
"""


async def forget(conn: Connection) -> bool:
    """Erase what is past in organizations that chose a time of their own; False: there is more. Each statement is a
    commit.

    A round goes on with the organization that the last one did not come to the end of, and then the next ones, so that
    each has its turn however many there are, and however much one of them has.
    """
    if clock.differs():
        return True
    budget = _Budget()
    place = await conn.fetchrow(TURN, NAME)
    last, more = (place["last"], place["more"]) if place is not None else (NIL, False)
    for number, (id, text_days) in enumerate(await conn.fetch(ORGANIZATIONS, last)):
        if not await _forget_one(conn, id, timedelta(days=text_days), budget):
            if number == 0:  # it had the whole round, and has its next one after the others
                last, more = id, True
            await _pass_on(conn, last, more=more)
            return False
        last = id
    if place is not None:
        await _pass_on(conn, NIL, more=False)
    return not more


async def _pass_on(conn: Connection, last: UUID, *, more: bool) -> None:
    mark = msgspec.json.encode({"last": last, "more": more}).decode()
    await conn.execute(MOVE, NAME, await conn.fetchval("SELECT now()"), mark)


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


async def _forget_one(conn: Connection, organization_id: UUID, kept: timedelta, budget: _Budget) -> bool:
    """False: the round is over before it is done."""
    for table in ERASE:
        if not await _sweep(conn, organization_id, table, kept, budget):
            return False
    for sql in ALSO:
        if not await _delete(conn, sql, organization_id, kept, budget):
            return False
    return True


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
        elif table == "messages":
            budget.spend(await _erase_quoted(conn, [*bounds, start.astimezone(UTC).date()]))
        done = int((await conn.execute(ERASE[table], *bounds)).rpartition(" ")[2])
        budget.spend(done)
        if done < STEP:
            start, stretch = end, min(stretch * 2, LONGEST)
            await conn.execute(MOVE, name, start, mark)
        else:
            stretch = max(stretch / 2, SHORTEST)
    return start >= until


async def _erase_quoted(conn: Connection, bounds: list[object]) -> int:
    """Erase what suppliers wrote in the receipts of messages whose texts are erased next."""
    came = [(row["fingerprint"], row["at"]) for row in await conn.fetch(QUOTED, *bounds)]
    if not came:
        return 0
    done = await conn.execute(
        ERASE_QUOTED,
        [fingerprint for fingerprint, _ in came],
        [at for _, at in came],
        [uuid7_floor(at - NEAR) for _, at in came],
        [uuid7_floor(at + NEAR) for _, at in came],
    )
    return int(done.rpartition(" ")[2])


async def _delete(conn: Connection, sql: str, organization_id: UUID, kept: timedelta, budget: _Budget) -> bool:
    until = await conn.fetchval("SELECT now()") - kept
    while not budget.is_spent:
        done = int((await conn.execute(sql, organization_id, until, STEP)).rpartition(" ")[2])
        budget.spend(done)
        if done < STEP:
            return True
    return False
