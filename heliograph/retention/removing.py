"""Removes messages of organizations with a shorter retention than the installation's: their rows, and everything that
contains their numbers.

The rule nobody may break: sums are correct at every commit. A message's row is its entry in the usage list, so it is
replaced by the sum of its month in the commit that removes it. A message that may still be sent, or may still be
charged for, stays; so do the wallet entries of removed messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import asyncpg

from heliograph.accounts import usage
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, despite_deadlocks
from heliograph.base.ids import uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.retention import turns
from heliograph.retention.forgetting import bounds
from heliograph.retention.shorter import PARTS
from heliograph.retention.turns import Budget, ExpiredRows, SweptRows, Turn
from heliograph.whatsapp.retention import DELETE_SILENT, IS_SILENT

NAME = "messages of organizations"
#: For this long after its deadline Meta may still report a message as delivered, and charge for it.
CHARGED = timedelta(days=30)

ORGANIZATIONS = """
SELECT id, message_days AS days FROM organizations WHERE message_days IS NOT NULL AND id > $1 ORDER BY id
"""
# The end of the last month whose messages are being added up because it is about to be dropped for everybody: a message
# must not be counted twice. `messages` has only monthly partitions.
SUMMED = """
SELECT max(done_until) + interval '1 month' FROM retention_places
 WHERE name LIKE 'sums of messages\\_%' AND to_regclass(substr(name, length('sums of ') + 1)) IS NOT NULL
"""

# $1: organization; $2, $3: range of ids; $4: maximum number; $5: what happened since then has not expired. A row locked
# by another transaction is skipped, and found when everything is scanned again. Only rows whose text is erased, which
# happens after everything that repeats it is erased.
PAST_SMS = """
SELECT id FROM messages
 WHERE organization_id = $1 AND id >= $2 AND id < $3 AND status <> 'accepted' AND body IS NULL
   AND greatest(accepted_at, send_at, sent_at, delivered_at, failed_at, ended_at) < $5
 ORDER BY id LIMIT $4 FOR UPDATE SKIP LOCKED
"""
# $6: messages with a later deadline may still be reported on by Meta.
PAST_WHATSAPP = """
SELECT id FROM whatsapp_messages
 WHERE organization_id = $1 AND id >= $2 AND id < $3 AND status <> 'accepted' AND charge <> 'reserved'
   AND greatest(accepted_at, sent_at, delivered_at, read_at, failed_at, canceled_at) < $5
   AND (direction = 'inbound' OR coalesce(deadline_at, accepted_at) < $6)
 ORDER BY id LIMIT $4 FOR UPDATE SKIP LOCKED
"""
# $1: organization; $2: ids; $3, $4: the first and last of them, to select partitions.
_THESE = "organization_id = $1 AND {id} = ANY ($2::uuid[]) AND {id} >= $3 AND {id} <= $4"
REMOVE_SMS = usage.stray(f"DELETE FROM messages WHERE {_THESE.format(id='id')}")
REMOVE_WHATSAPP = f"DELETE FROM whatsapp_messages WHERE {_THESE.format(id='id')}"
REMOVE_ATTEMPTS = f"DELETE FROM attempts WHERE {_THESE.format(id='message_id')}"
# $3: the day of the first of them.
REMOVE_RECEIPTS = """
DELETE FROM receipts WHERE organization_id = $1 AND message_id = ANY ($2::uuid[]) AND received_on >= $3
"""
REMOVE_SUPPLIERS_IDS = """
DELETE FROM sms_parts WHERE organization_id = $1 AND message_id = ANY ($2::uuid[]) AND answered_on >= $3
"""
# Includes the parts as delivered by the supplier, and their repetitions. $6, $7: range of their ids.
REMOVE_RECEIVED = """
WITH past AS MATERIALIZED (
    SELECT id FROM received_messages WHERE organization_id = $1 AND id >= $2 AND id < $3 AND received_at < $5 LIMIT $4
), parts AS (
    DELETE FROM inbound_messages
     WHERE id >= $6 AND id < $7 AND message_id = ANY (ARRAY(SELECT id FROM past))
)
DELETE FROM received_messages WHERE organization_id = $1 AND id = ANY (ARRAY(SELECT id FROM past))
"""
REMOVE_EVENTS = """
DELETE FROM events WHERE organization_id = $1 AND id = ANY (ARRAY(
    SELECT id FROM events WHERE organization_id = $1 AND id >= $2 AND id < $3 AND created_at < $5 LIMIT $4))
"""
# The first id of that time.
_PAST = "(lpad(to_hex((extract(epoch FROM {until}::timestamptz) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid"
# Deleted along with the last of the messages.
ALSO = (
    ExpiredRows(
        "inbox_threads WHERE organization_id = {organization} AND heard_at < {until}",
        "DELETE FROM inbox_threads WHERE (organization_id, id) IN (SELECT organization_id, id FROM {rows} LIMIT $3)",
    ),
    ExpiredRows(
        "whatsapp_conversations c WHERE organization_id = {organization} AND " + IS_SILENT.format(before="{until}"),
        DELETE_SILENT.format(silent="{rows}", most="$3"),
    ),
    ExpiredRows(
        "guard_challenges WHERE organization_id = {organization} AND passed_at < {until}",
        """
DELETE FROM guard_challenges WHERE (organization_id, message_id) IN (
    SELECT organization_id, message_id FROM {rows} LIMIT $3)
""",
    ),
    # Nobody is skipped before the campaign is created.
    ExpiredRows(
        f"campaign_skipped s WHERE organization_id = {{organization}} AND campaign_id < {_PAST} AND s.id < {_PAST}",
        """
DELETE FROM campaign_skipped WHERE (organization_id, campaign_id, reason, id) IN (
    SELECT organization_id, campaign_id, reason, id FROM {rows} LIMIT $3)
""",
    ),
)

#: Removes up to STEP rows of an organization from between two times, of those that expired before a third.
Remove = Callable[[Connection, UUID, datetime, datetime, datetime], Awaitable[int]]


async def forget(conn: Connection, settings: Settings) -> bool:
    """Remove what has expired in organizations with a retention of their own; False: there is more. Commits as it
    goes."""
    if clock.differs():
        return True
    present: datetime = await conn.fetchval("SELECT now()")
    whole, summed = bounds(settings, present).metadata, await conn.fetchval(SUMMED)
    # What has expired for everybody is dropped by whole months.
    since = whole if summed is None else max(whole, summed)
    return await turns.in_turn(conn, NAME, ORGANIZATIONS, partial(_turn, conn, since))


def _turn(conn: Connection, since: datetime, row: asyncpg.Record, now: datetime) -> Turn:
    organization_id: UUID = row["id"]
    until = now - timedelta(days=row["days"])

    def swept(table: str, remove: Remove) -> SweptRows:
        async def change(start: datetime, end: datetime, budget: Budget) -> int:
            return await despite_deadlocks(partial(remove, conn, organization_id, start, end, until))

        return SweptRows(table, f"rows of {organization_id} in {table}", change)

    return Turn(organization_id, until, [swept(*one) for one in REMOVES.items()], ALSO, since)


async def _sms(conn: Connection, organization_id: UUID, start: datetime, end: datetime, until: datetime) -> int:
    async with conn.transaction():
        rows = await conn.fetch(PAST_SMS, organization_id, uuid7_floor(start), uuid7_floor(end), turns.STEP, until)
        if ids := [row["id"] for row in rows]:
            these = (organization_id, ids, ids[0], ids[-1])
            await conn.execute(REMOVE_ATTEMPTS, *these)
            for sql in (REMOVE_RECEIPTS, REMOVE_SUPPLIERS_IDS):
                await conn.execute(sql, organization_id, ids, start.astimezone(UTC).date())
            await conn.execute(REMOVE_SMS, *these)
    return len(ids)


async def _whatsapp(conn: Connection, organization_id: UUID, start: datetime, end: datetime, until: datetime) -> int:
    async with conn.transaction():
        reported = await conn.fetchval("SELECT now()") - CHARGED
        rows = await conn.fetch(
            PAST_WHATSAPP, organization_id, uuid7_floor(start), uuid7_floor(end), turns.STEP, until, reported
        )
        if ids := [row["id"] for row in rows]:
            these = (organization_id, ids, ids[0], ids[-1])
            await conn.execute(REMOVE_ATTEMPTS, *these)
            await conn.execute(REMOVE_WHATSAPP, *these)
    return len(ids)


async def _received(conn: Connection, organization_id: UUID, start: datetime, end: datetime, until: datetime) -> int:
    between = (uuid7_floor(start), uuid7_floor(end))
    parts = (uuid7_floor(start - PARTS), uuid7_floor(end + PARTS))
    done = await conn.execute(REMOVE_RECEIVED, organization_id, *between, turns.STEP, until, *parts)
    return int(done.rpartition(" ")[2])


async def _events(conn: Connection, organization_id: UUID, start: datetime, end: datetime, until: datetime) -> int:
    between = (uuid7_floor(start), uuid7_floor(end))
    done = await conn.execute(REMOVE_EVENTS, organization_id, *between, turns.STEP, until)
    return int(done.rpartition(" ")[2])


REMOVES: dict[str, Remove] = {
    "messages": _sms,
    "whatsapp_messages": _whatsapp,
    "received_messages": _received,
    "events": _events,
}
