"""Forgetting: text, metadata, evidence and idempotency keys after their time, in steps that hold nobody up.

The rule nobody may break: nothing here runs in a transaction of the caller's. To drop a partition locks its whole
table, and whoever sends would wait for that until the last row is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import asyncpg
import structlog

from heliograph.base.db import RANGED, Connection
from heliograph.base.ids import uuid7_floor
from heliograph.base.migrate import make_partitions
from heliograph.base.settings import Settings

log = structlog.get_logger()

#: Rows deleted by one statement: some 50 ms of work.
STEP = 5000
#: Receipts and ids of suppliers are evidence and a way to match late receipts; networks send none after a week.
EVIDENCE_DAYS = 10
WEBHOOK_ATTEMPT_DAYS = 30
#: Meta repeats a callback for up to 7 days, and speaks of a message for up to 30.
WAMID_DAYS, CALLBACK_DAYS = 45, 8
#: Users count toward a portfolio's messaging limit for 24.
REACHED_HOURS = 25

DELETE_TEXT = """
DELETE FROM message_texts WHERE (organization_id, message_id) IN (
    SELECT organization_id, message_id FROM message_texts WHERE message_id < $1 LIMIT $2)
"""
DELETE_CONTENTS = """
DELETE FROM whatsapp_contents WHERE (organization_id, message_id) IN (
    SELECT organization_id, message_id FROM whatsapp_contents WHERE message_id < $1 LIMIT $2)
"""
DELETE_KEYS = """
DELETE FROM idempotency WHERE (organization_id, key_hash) IN (
    SELECT organization_id, key_hash FROM idempotency WHERE created_at < $1 LIMIT $2)
"""
DELETE_IDS = """
DELETE FROM sms_parts WHERE (supplier_id, id_key, message_id) IN (
    SELECT supplier_id, id_key, message_id FROM sms_parts WHERE created_at < $1 LIMIT $2)
"""
DELETE_INBOUND = """
DELETE FROM inbound_messages WHERE id IN (SELECT id FROM inbound_messages WHERE id < $1 LIMIT $2)
"""
# What a supplier wrote in a receipt may repeat the beginning of the text.
BLANK_RECEIPTS = """
UPDATE receipts SET raw = '' WHERE (received_on, supplier_id, fingerprint) IN (
    SELECT received_on, supplier_id, fingerprint FROM receipts WHERE received_on < $1::date AND raw <> '' LIMIT $2)
"""
# An event of a received message repeats its text. What was said is forgotten, and that it was said is not.
BLANK_EVENTS = """
UPDATE events SET data = jsonb_set(data::jsonb, '{message,text}', 'null')::text WHERE (organization_id, id) IN (
    SELECT organization_id, id FROM events
     WHERE id < $1 AND kind = 'message.received' AND data LIKE '%"text":"%' LIMIT $2)
"""
DELETE_REPLIES = """
DELETE FROM automatic_replies WHERE (organization_id, recipient, kind) IN (
    SELECT organization_id, recipient, kind FROM automatic_replies WHERE replied_at < $1 LIMIT $2)
"""
# Statuses come for 30 days after a send, and users quote old messages no longer than they remember them.
DELETE_WAMIDS = """
DELETE FROM whatsapp_wamids WHERE (number_id, wamid) IN (
    SELECT number_id, wamid FROM whatsapp_wamids WHERE created_at < $1 LIMIT $2)
"""
DELETE_EARLY = """
DELETE FROM whatsapp_early_statuses WHERE (number_id, wamid, status) IN (
    SELECT number_id, wamid, status FROM whatsapp_early_statuses WHERE received_at < $1 LIMIT $2)
"""
# Sealed under a key that no worker has any more, or they would be worked through by now.
DELETE_CALLBACKS = """
WITH due AS MATERIALIZED (
    SELECT id FROM queue WHERE kind = 'whatsapp_in' AND id < $1 LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM whatsapp_callbacks USING due WHERE whatsapp_callbacks.id = due.id
)
DELETE FROM queue USING due WHERE queue.id = due.id
"""
DELETE_REJECTS = """
DELETE FROM whatsapp_rejects WHERE id IN (SELECT id FROM whatsapp_rejects WHERE id < $1 LIMIT $2)
"""
# An older word for STOP or START comes no more that this one would have to hold up.
DELETE_WORDS = """
DELETE FROM whatsapp_words WHERE (organization_id, person) IN (
    SELECT organization_id, person FROM whatsapp_words WHERE said_at < $1 LIMIT $2)
"""
# With the last of its messages a conversation is forgotten, and by which names Meta knows the user.
DELETE_CONVERSATIONS = """
WITH silent AS MATERIALIZED (
    SELECT organization_id, id, number_id FROM whatsapp_conversations c
     WHERE greatest(created_at, last_inbound_at, last_outbound_at) < $1
       AND NOT EXISTS (SELECT FROM whatsapp_messages m
                        WHERE m.organization_id = c.organization_id AND m.recipient = c.recipient
                          AND m.conversation_id = c.id)
     LIMIT $2 FOR UPDATE SKIP LOCKED
), names AS (
    DELETE FROM whatsapp_aliases a USING silent
     WHERE a.organization_id = silent.organization_id AND a.number_id = silent.number_id
       AND a.conversation_id = silent.id
)
DELETE FROM whatsapp_conversations c USING silent
 WHERE c.organization_id = silent.organization_id AND c.id = silent.id
"""
DELETE_REACHED = """
DELETE FROM whatsapp_reached WHERE (portfolio, recipient) IN (
    SELECT portfolio, recipient FROM whatsapp_reached WHERE reached_at < $1 LIMIT $2)
"""
DELETE_REPLAYS = "DELETE FROM webhook_replays WHERE status <> 'running' AND created_at < $1"
DELETE_WORKERS = "DELETE FROM workers WHERE seen_at < $1"
PARTITIONS = """
SELECT child.relname
  FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
 WHERE parent.relname = $1 ORDER BY child.relname
"""


async def forget_keys(conn: Connection, settings: Settings) -> int:
    """Idempotency keys past their time; returns how many went."""
    return await _steps(conn, DELETE_KEYS, datetime.now(UTC) - timedelta(hours=settings.idempotency_hours))


async def forget(conn: Connection, settings: Settings) -> None:
    """Make the partitions ahead, drop those that are wholly past, and delete what is past in the others.

    Commits as it goes.
    """
    today = datetime.now(UTC)
    await _briefly(conn, partial(make_partitions, conn, today.date()))
    months = timedelta(days=31 * settings.metadata_retention_months)
    for table in ("messages", "sms_attempts", "events", "received_messages", "whatsapp_messages", "whatsapp_attempts"):
        await _drop_before(conn, table, today - months)
    await _drop_before(conn, "receipts", today - timedelta(days=93))
    await _drop_before(conn, "webhook_attempts", today - timedelta(days=WEBHOOK_ATTEMPT_DAYS))
    text_from = today - timedelta(days=settings.text_retention_days)
    await _drop_before(conn, "message_texts", text_from)
    await _drop_before(conn, "whatsapp_contents", text_from)
    await _steps(conn, DELETE_TEXT, uuid7_floor(text_from))
    await _steps(conn, DELETE_CONTENTS, uuid7_floor(text_from))
    await _steps(conn, DELETE_INBOUND, uuid7_floor(text_from))
    await _steps(conn, BLANK_EVENTS, uuid7_floor(text_from))
    await _steps(conn, DELETE_REPLIES, text_from)
    await _steps(conn, BLANK_RECEIPTS, text_from.date())
    await _steps(conn, DELETE_IDS, today - timedelta(days=EVIDENCE_DAYS))
    await _steps(conn, DELETE_WAMIDS, today - timedelta(days=WAMID_DAYS))
    await _steps(conn, DELETE_WORDS, today - timedelta(days=WAMID_DAYS))
    await _steps(conn, DELETE_EARLY, today - timedelta(days=CALLBACK_DAYS))
    await _steps(conn, DELETE_REJECTS, uuid7_floor(today - timedelta(days=CALLBACK_DAYS)))
    await _steps(conn, DELETE_CALLBACKS, uuid7_floor(text_from))
    await _steps(conn, DELETE_REACHED, today - timedelta(hours=REACHED_HOURS))
    await _steps(conn, DELETE_CONVERSATIONS, today - months)
    await conn.execute(DELETE_REPLAYS, today - timedelta(days=WEBHOOK_ATTEMPT_DAYS))
    await conn.execute(DELETE_WORKERS, today - timedelta(days=1))


async def _steps(conn: Connection, sql: str, bound: object) -> int:
    gone = 0
    while True:
        async with conn.transaction():
            await conn.execute(RANGED)
            done = int((await conn.execute(sql, bound, STEP)).rpartition(" ")[2])
        gone += done
        if done < STEP:
            return gone


async def _drop_before(conn: Connection, table: str, bound: datetime) -> None:
    """Drop monthly partitions that end before `bound`. Only the table's name, which is ours, goes into the SQL."""
    for row in await conn.fetch(PARTITIONS, table):
        named = re.fullmatch(rf"{table}_(\d{{4}})_(\d{{2}})", row["relname"])
        if named is None:
            continue
        year, month = int(named[1]), int(named[2])
        end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        if end <= bound:
            await _briefly(conn, partial(conn.execute, f"DROP TABLE {row['relname']}"))


async def _briefly(conn: Connection, change: Callable[[], Awaitable[object]]) -> None:
    """Change a table's form unless somebody reads it for long: all others would queue up behind the change. The next
    round tries again."""
    try:
        async with conn.transaction():
            await conn.execute("SET LOCAL lock_timeout = '500ms'")
            await change()
    except asyncpg.LockNotAvailableError:
        log.warning("retention waits for readers")
