"""Erases texts of organizations with a shorter retention than the installation's, and everything that repeats them.

Copies of a text are erased before the text itself, so that a round interrupted in between is repeated. The rule nobody
may break: the text of a message that may still be sent stays.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import asyncpg

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7_floor
from heliograph.retention import turns
from heliograph.retention.turns import Budget, ExpiredRows, SweptRows, Turn
from heliograph.sending.attempts import MAY_QUOTE
from heliograph.sms import timeline

#: All parts of a message, and their repetitions, arrive within this time. Its id is that of the first to be processed.
PARTS = timedelta(days=2)

# Organizations that remove messages after a time must have erased their texts by then: a text is in more places than
# its message.
ORGANIZATIONS = """
SELECT id, least(text_days, message_days) AS days FROM organizations
 WHERE (text_days IS NOT NULL OR message_days IS NOT NULL) AND id > $1 ORDER BY id
"""
NAME = "texts of organizations"
# $1: organization; $2, $3: range of ids; $4: maximum number of rows; $5, $6: range of the parts' ids.
ERASE = {
    "messages": """
UPDATE messages SET body = NULL WHERE organization_id = $1 AND id = ANY (ARRAY(
    SELECT id FROM messages
     WHERE organization_id = $1 AND id >= $2 AND id < $3 AND body IS NOT NULL AND status <> 'accepted' LIMIT $4))
""",
    # An event repeats the text, and so do the parts as delivered by the supplier.
    "received_messages": """
WITH past AS MATERIALIZED (
    SELECT id FROM received_messages WHERE organization_id = $1 AND id >= $2 AND id < $3 AND body IS NOT NULL LIMIT $4
), parts AS (
    UPDATE inbound_messages SET body = '', raw = ''
     WHERE id >= $5 AND id < $6 AND message_id = ANY (ARRAY(SELECT id FROM past))
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
    # The beginning of a receiver's response, which may repeat the text: of all attempts of an event.
    "webhook_attempts": """
UPDATE webhook_attempts SET detail = ''
 WHERE organization_id = $1 AND status IS NOT NULL AND detail <> '' AND event_id = ANY (ARRAY(
    SELECT event_id FROM webhook_attempts
     WHERE organization_id = $1 AND event_id >= $2 AND event_id < $3 AND status IS NOT NULL AND detail <> '' LIMIT $4))
""",
    # What a supplier answered, which may repeat the text: of all attempts of a message.
    "attempts": f"""
UPDATE attempts SET detail = '' WHERE organization_id = $1 AND {MAY_QUOTE} AND message_id = ANY (ARRAY(
    SELECT message_id FROM attempts
     WHERE organization_id = $1 AND message_id >= $2 AND message_id < $3 AND {MAY_QUOTE} LIMIT $4))
""",
    "whatsapp_messages": """
UPDATE whatsapp_messages SET content = NULL WHERE organization_id = $1 AND id = ANY (ARRAY(
    SELECT id FROM whatsapp_messages
     WHERE organization_id = $1 AND id >= $2 AND id < $3 AND content IS NOT NULL AND status <> 'accepted' LIMIT $4))
""",
}
#: Tables whose rows are swept by another id than their own.
ROWS = {
    "webhook_attempts": "(SELECT organization_id, event_id AS id FROM webhook_attempts)",
    "attempts": "(SELECT organization_id, message_id AS id FROM attempts)",
}
# A receipt's raw bytes may repeat the beginning of the text. The first receipt of a message is recorded in its row.
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
# Also erased: receivers' responses to webhooks, which may quote them, and the recipients of automatic replies.
ALSO = (
    ExpiredRows(
        "webhook_attempt_evidence WHERE organization_id = {organization} AND started_at < {until}",
        """
DELETE FROM webhook_attempt_evidence WHERE (organization_id, begun_on, event_id, endpoint_id, started_at) IN (
    SELECT organization_id, begun_on, event_id, endpoint_id, started_at FROM {rows} LIMIT $3)
""",
    ),
    ExpiredRows(
        "automatic_replies WHERE organization_id = {organization} AND replied_at < {until}",
        """
DELETE FROM automatic_replies WHERE (organization_id, recipient, kind) IN (
    SELECT organization_id, recipient, kind FROM {rows} LIMIT $3)
""",
    ),
)


async def forget(conn: Connection) -> bool:
    """Erase what has expired in organizations with a retention of their own; False: there is more. Each statement is a
    commit."""
    if clock.differs():
        return True
    return await turns.in_turn(conn, NAME, ORGANIZATIONS, partial(_turn, conn))


def _turn(conn: Connection, row: asyncpg.Record, now: datetime) -> Turn:
    organization_id: UUID = row["id"]
    swept = [
        SweptRows(
            ROWS.get(table, table),
            f"texts of {organization_id} in {table}",
            partial(_erase, conn, organization_id, table),
        )
        for table in ERASE
    ]
    return Turn(organization_id, now - timedelta(days=row["days"]), swept, ALSO)


async def _erase(
    conn: Connection, organization_id: UUID, table: str, start: datetime, end: datetime, budget: Budget
) -> int:
    bounds: list[object] = [organization_id, uuid7_floor(start), uuid7_floor(end), turns.STEP]
    if table == "received_messages":
        bounds += [uuid7_floor(start - PARTS), uuid7_floor(end + PARTS)]
    elif table == "messages":
        budget.spend(await _erase_quoted(conn, [*bounds, start.astimezone(UTC).date()]))
    return int((await conn.execute(ERASE[table], *bounds)).rpartition(" ")[2])


async def _erase_quoted(conn: Connection, bounds: list[object]) -> int:
    """Erase the raw bytes of receipts for messages whose texts are erased next."""
    came = [(row["fingerprint"], row["at"]) for row in await conn.fetch(QUOTED, *bounds)]
    return await timeline.erase_written(conn, came)
