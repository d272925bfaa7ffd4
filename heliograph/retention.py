"""Forgetting: text, metadata, evidence and idempotency keys after their time, in steps that hold nobody up.

Every time here is the database's. Each step stands by itself: one that fails or takes too long is logged as what it is,
and the next one goes on; what a round leaves, the next round takes up.

The rule nobody may break: nothing here runs in a transaction of the caller's, and no statement takes long. To drop a
partition locks its whole table, and whoever sends would wait for that until the last row is deleted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Protocol
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph import requests
from heliograph.accounts import usage
from heliograph.base.database import clock
from heliograph.base.database.migrate import make_days, make_partitions
from heliograph.base.database.pool import RANGED, Connection, is_open
from heliograph.base.ids import uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.contacts.imports.drafts import KEPT as IMPORTS_KEPT
from heliograph.contacts.marked import UNDONE_FOR
from heliograph.people import links, sessions, tries
from heliograph.people.passkeys import keeping
from heliograph.whatsapp.money import closing

log = structlog.get_logger()

#: Rows deleted by one statement: some 50 ms of work.
STEP = 5000
#: A statement that takes longer than this is given up, milliseconds; a step that takes longer than that many seconds,
#: or has forgotten so many rows, goes on in the next round.
STATEMENT_MS, SECONDS, ROWS = 10_000, 60.0, 1_000_000
#: Receipts and ids of suppliers are evidence and a way to match late receipts; networks send none after a week.
EVIDENCE = timedelta(days=14)
WEBHOOK_ATTEMPT_DAYS = 30
#: Events are fetched and sent again soon or never; what became of a message stands in its own row.
EVENT_DAYS = 90
RECEIPT_DAYS = 93
#: Meta repeats a callback for up to 7 days. A message waits for up to 30 to be sent, and Meta speaks of it for 30 more.
CALLBACK_DAYS, WAMIDS, WORD_DAYS = 8, timedelta(days=62), 45
#: Users count toward a portfolio's messaging limit for 24.
REACHED_HOURS = 25
#: A sweep through time begins so long before where the last one ended: ids are made before their rows are committed.
OVERLAP = timedelta(minutes=10)
#: Longest and shortest stretch of time that one statement of a sweep looks at.
LONGEST, SHORTEST = timedelta(days=1), timedelta(seconds=1)


class Step(msgspec.Struct, frozen=True):
    """One thing to forget. `run` returns False if it is to go on in the next round."""

    name: str
    run: Callable[[Connection], Awaitable[bool]]


class Count(Protocol):
    """Adds some rows of a partition to the sums that will stand for them; None: that was all."""

    async def __call__(
        self, conn: Connection, *, partition: str, month: date, after: tuple[UUID, UUID], limit: int
    ) -> usage.Counted | None: ...


#: What is summed up by the month before it goes, so that balances can be added up for ever.
SUMMED: dict[str, Count] = {"messages": usage.count, "wallet_movements": closing.count}


class _Budget:
    """What one step may take in one round."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + SECONDS
        self._left = ROWS

    def spent(self, rows: int) -> bool:
        self._left -= rows
        return self._left <= 0 or time.monotonic() >= self._ends


DELETE_KEYS = """
DELETE FROM idempotency WHERE (organization_id, key_hash) IN (
    SELECT organization_id, key_hash FROM idempotency WHERE created_at < $1 LIMIT $2)
"""
DELETE_INBOUND = """
DELETE FROM inbound_messages WHERE id IN (SELECT id FROM inbound_messages WHERE id < $1 LIMIT $2)
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
DELETE_EARLY = """
DELETE FROM whatsapp_early_statuses WHERE (number_id, wamid, status) IN (
    SELECT number_id, wamid, status FROM whatsapp_early_statuses WHERE received_at < $1 LIMIT $2)
"""
# Sealed under a key that no worker has any more, or they would have been processed by now.
DELETE_CALLBACKS = """
WITH due AS MATERIALIZED (
    SELECT id FROM queue WHERE kind = 'whatsapp_in' AND id < $1 LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM whatsapp_callbacks USING due WHERE whatsapp_callbacks.id = due.id
)
DELETE FROM queue USING due WHERE queue.id = due.id
"""
# Sealed under such a key, of a supplier that was removed, or nothing that its supplier's file can read.
DELETE_SUPPLIER_CALLBACKS = """
WITH due AS MATERIALIZED (
    SELECT id FROM queue WHERE kind = 'sms_in' AND id < $1 LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM supplier_callbacks USING due WHERE supplier_callbacks.id = due.id
)
DELETE FROM queue USING due WHERE queue.id = due.id
"""
DELETE_DEAD_LETTERS = """
DELETE FROM whatsapp_dead_letters WHERE id IN (SELECT id FROM whatsapp_dead_letters WHERE id < $1 LIMIT $2)
"""
# Who was imported and what they were before is theirs as much as a text is; the import itself stays listed.
DELETE_IMAGES = """
DELETE FROM contact_import_images WHERE (organization_id, import_id, batch, contact_id) IN (
    SELECT organization_id, import_id, batch, contact_id FROM contact_import_images WHERE import_id < $1 LIMIT $2)
"""
DELETE_BATCHES = """
DELETE FROM contact_import_batches WHERE (organization_id, import_id, batch) IN (
    SELECT organization_id, import_id, batch FROM contact_import_batches WHERE import_id < $1 LIMIT $2)
"""
# What was uploaded is kept for as long as it may be gone on with.
DELETE_CHUNKS = """
DELETE FROM contact_import_chunks WHERE (organization_id, import_id, number) IN (
    SELECT organization_id, import_id, number FROM contact_import_chunks WHERE import_id < $1 LIMIT $2)
"""
DELETE_IMPORT_REJECTS = """
DELETE FROM contact_import_rejects WHERE (organization_id, import_id, row) IN (
    SELECT organization_id, import_id, row FROM contact_import_rejects WHERE import_id < $1 LIMIT $2)
"""
DELETE_DRAFTS = """
DELETE FROM contact_imports WHERE (organization_id, id) IN (
    SELECT organization_id, id FROM contact_imports
     WHERE id < $1 AND state IN ('uploading', 'reading', 'checking', 'checked') LIMIT $2)
"""
# They hold people who were deleted.
DELETE_CHANGES = """
DELETE FROM contact_changes WHERE (organization_id, mode, change_id, contact_id) IN (
    SELECT organization_id, mode, change_id, contact_id FROM contact_changes WHERE changed_at < $1 LIMIT $2)
"""
DELETE_TAG_CHANGES = """
DELETE FROM tag_changes WHERE (organization_id, mode, id) IN (
    SELECT organization_id, mode, id FROM tag_changes WHERE finished_at < $1 LIMIT $2)
"""
# An older word for STOP or START comes no more that this one would have to hold up.
DELETE_WORDS = """
DELETE FROM whatsapp_words WHERE (organization_id, person) IN (
    SELECT organization_id, person FROM whatsapp_words WHERE said_at < $1 LIMIT $2)
"""
# With the last of its messages a conversation is forgotten, and by which names Meta knows the user.
DELETE_THREADS = """
DELETE FROM inbox_threads WHERE (organization_id, id) IN (
    SELECT organization_id, id FROM inbox_threads WHERE heard_at < $1 LIMIT $2)
"""
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
DELETE_REPLAYS = """
DELETE FROM webhook_replays WHERE ctid IN (
    SELECT ctid FROM webhook_replays WHERE status <> 'running' AND created_at < $1 LIMIT $2)
"""
# By blocks: the roll-ups of an endpoint that was disabled long ago stand among those of its time.
DELETE_WEBHOOK_TRAFFIC = """
DELETE FROM webhook_traffic WHERE ctid IN (SELECT ctid FROM webhook_traffic WHERE hour < $1 LIMIT $2)
"""
DELETE_REQUEST_COUNTS = """
DELETE FROM request_counts WHERE ctid IN (SELECT ctid FROM request_counts WHERE hour < $1 LIMIT $2)
"""
DELETE_WORKERS = "DELETE FROM workers WHERE id IN (SELECT id FROM workers WHERE seen_at < $1 LIMIT $2)"
PARTITIONS = """
SELECT child.relname
  FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
 WHERE parent.relname = $1 ORDER BY child.relname
"""

DROP = "SELECT drop_partition($1)"

#: Tables that are kept for as many months as the settings say.
OF_MONTHS = ("messages", "attempts", "received_messages", "whatsapp_messages")
#: Columns with texts, which are erased long before their month may be dropped, and when their row was written.
TEXTS = {
    "messages": ("body", "accepted_at"),
    "received_messages": ("body", "received_at"),
    "whatsapp_messages": ("content", "accepted_at"),
}
#: Where each table's rows have a time of their own, to be compared with what their ids say.
NEWEST = {
    "messages": "accepted_at",
    "attempts": "ended_at",
    "send_keys": "created_at",
    "sms_parts": "created_at",
    "receipt_bytes": "received_at",
    "requests": "at",
    "whatsapp_wamids": "created_at",
    "events": "created_at",
    "received_messages": "received_at",
    "whatsapp_messages": "accepted_at",
    "wallet_movements": "created_at",
    "receipts": "received_at",
    "webhook_attempts": "started_at",
    "webhook_successes": "started_to",
    "audit_log": "at",
}
#: The audit log takes no deletions, and a wallet's entries add up.
UNDELETED = ("audit_log", "wallet_movements")
NIL = UUID(int=0)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


async def forget_keys(conn: Connection, settings: Settings) -> int:
    """Idempotency keys past their time; returns how many went, at most ROWS."""
    before = await conn.fetchval("SELECT now() - make_interval(hours => $1)", settings.idempotency_hours)
    budget, gone = _Budget(), 0
    while True:
        done = await _once(conn, DELETE_KEYS, before, STEP)
        gone += done
        if done < STEP or budget.spent(done):
            return gone


async def forget(conn: Connection, settings: Settings, *, also: Sequence[Step] = ()) -> bool:
    """Make the partitions ahead, drop those that are wholly past, and delete what is past in the others, and what
    `also` names. Returns False if there is more to be done soon. Commits as it goes.

    Does nothing while this machine's clock and the database's differ: nobody can tell which one is wrong, and what was
    deleted does not come back.
    """
    if clock.differs():
        log.warning("retention suspended while the clocks differ", ahead_seconds=round(clock.ahead(), 1))
        return True
    present: datetime = await conn.fetchval("SELECT now()")
    finished = True
    for step in (*_steps(settings, present.astimezone(UTC)), *also):
        began = time.monotonic()
        try:
            if not await step.run(conn):
                finished = False
                log.info("retention continues in the next round", step=step.name)
        except Exception as error:
            if not is_open(conn):
                raise
            took = round(time.monotonic() - began, 1)
            if isinstance(error, asyncpg.LockNotAvailableError):
                log.warning("retention blocked by readers", step=step.name)
            elif isinstance(error, asyncpg.QueryCanceledError | TimeoutError):
                log.warning("retention step timed out", step=step.name, seconds=took)
            else:
                log.exception("retention step failed", step=step.name)
    return finished


def _steps(settings: Settings, now: datetime) -> list[Step]:
    # A message's row makes the answer of its idempotency key again.
    kept = timedelta(days=31 * settings.metadata_retention_months)
    months = now - max(kept, timedelta(hours=settings.idempotency_hours + 24))
    keys = now - timedelta(hours=settings.idempotency_hours)
    text = now - timedelta(days=settings.text_retention_days)
    webhook = now - timedelta(days=WEBHOOK_ATTEMPT_DAYS)
    receipts = now - timedelta(days=RECEIPT_DAYS)
    logged = now - timedelta(days=requests.DAYS)
    dropped = [
        *((table, months) for table in OF_MONTHS),
        ("receipts", receipts),
        ("sms_parts", now - EVIDENCE),
        ("whatsapp_wamids", now - WAMIDS),
        # Behind the messages that they are of.
        ("wallet_movements", months),
        ("events", max(months, now - timedelta(days=EVENT_DAYS))),
        ("webhook_attempts", webhook),
        ("webhook_successes", webhook),
        ("audit_log", now - timedelta(days=31 * settings.audit_retention_months)),
    ]

    # What a supplier wrote in a receipt may repeat the beginning of the text.
    days = [("send_keys", keys), ("receipt_bytes", text), ("requests", logged)]

    def deletes(name: str, sql: str, *arguments: object) -> Step:
        return Step(name, partial(_delete, sql=sql, arguments=arguments))

    return [
        Step("partitions ahead", partial(_make_partitions, now=now)),
        *(Step(f"days of {table}", partial(_drop_days, table=table, bound=at)) for table, at in days),
        # What came with an id of another time lies in no partition of its own.
        *(deletes(f"stray {table}", _stray(table), at) for table, at in (*days, *dropped) if table not in UNDELETED),
        *(Step(f"partitions of {table}", partial(_drop_before, table=table, bound=at)) for table, at in dropped),
        *(Step(f"text in {table}", partial(_sweep, table=table, until=text)) for table in TEXTS),
        deletes("parts of received messages", DELETE_INBOUND, uuid7_floor(text)),
        deletes("contacts before imports", DELETE_IMAGES, uuid7_floor(text)),
        deletes("batches of imports", DELETE_BATCHES, uuid7_floor(text)),
        deletes("uploaded files", DELETE_CHUNKS, uuid7_floor(now - IMPORTS_KEPT)),
        deletes("rejected rows", DELETE_IMPORT_REJECTS, uuid7_floor(now - IMPORTS_KEPT)),
        deletes("imports that nobody went on with", DELETE_DRAFTS, uuid7_floor(now - IMPORTS_KEPT)),
        deletes("changes of contacts", DELETE_CHANGES, now - UNDONE_FOR),
        deletes("changes of tags", DELETE_TAG_CHANGES, now - timedelta(days=7)),
        deletes("text in events", BLANK_EVENTS, uuid7_floor(text)),
        deletes("automatic replies", DELETE_REPLIES, text),
        deletes("words for STOP", DELETE_WORDS, now - timedelta(days=WORD_DAYS)),
        deletes("early statuses", DELETE_EARLY, now - timedelta(days=CALLBACK_DAYS)),
        deletes("dead letters", DELETE_DEAD_LETTERS, uuid7_floor(now - timedelta(days=CALLBACK_DAYS))),
        deletes("callbacks of suppliers", DELETE_SUPPLIER_CALLBACKS, uuid7_floor(text)),
        deletes("callbacks", DELETE_CALLBACKS, uuid7_floor(text)),
        deletes("reached users", DELETE_REACHED, now - timedelta(hours=REACHED_HOURS)),
        deletes("conversations", DELETE_CONVERSATIONS, months),
        deletes("threads of the inbox", DELETE_THREADS, months),
        deletes("replays", DELETE_REPLAYS, webhook),
        deletes("roll-ups of webhook attempts", DELETE_WEBHOOK_TRAFFIC, webhook),
        deletes("counts of requests", DELETE_REQUEST_COUNTS, logged),
        deletes("sessions", sessions.FORGET, now),
        deletes("links to sign in", links.FORGET, now),
        deletes("used challenges", keeping.FORGET, now - keeping.REMEMBERED),
        deletes("failures to sign in", tries.FORGET, now - tries.FORGOTTEN),
        deletes("workers", DELETE_WORKERS, now - timedelta(days=1)),
    ]


async def _once(conn: Connection, sql: str, *arguments: object) -> int:
    """One statement in a transaction of its own; how many rows it changed."""
    async with conn.transaction():
        await conn.execute(RANGED)
        await conn.execute(f"SET LOCAL statement_timeout = {STATEMENT_MS}")
        return int((await conn.execute(sql, *arguments)).rpartition(" ")[2])


async def _delete(conn: Connection, *, sql: str, arguments: Sequence[object]) -> bool:
    budget = _Budget()
    while True:
        done = await _once(conn, sql, *arguments, STEP)
        if done < STEP:
            return True
        if budget.spent(done):
            return False


PLACE = "SELECT done_until, mark FROM retention_places WHERE name = $1"
MOVE = """
INSERT INTO retention_places (name, done_until, mark) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET done_until = excluded.done_until, mark = excluded.mark
"""


async def _sweep(conn: Connection, *, table: str, until: datetime) -> bool:
    """Erase the texts of up to `until`, from where the last sweep ended: no round looks through what is left.

    The stretch of time that a statement looks at grows while it finds little, and halves when it finds too much.
    """
    budget = _Budget()
    place = await conn.fetchrow(PLACE, table)
    if place is None:  # the first time, whatever there is
        if not await _delete(conn, sql=_swept(table), arguments=(BEGINNING, until)):
            return False
        await conn.execute(MOVE, table, until, None)
        return True
    start, stretch = place["done_until"] - OVERLAP, timedelta(hours=1)
    while start < until:
        end = min(start + stretch, until)
        done = await _once(conn, _swept(table), start, end, STEP)
        if done < STEP:
            start, stretch = end, min(stretch * 2, LONGEST)
            await conn.execute(MOVE, table, max(end, place["done_until"]), None)
        else:
            stretch = max(stretch / 2, SHORTEST)
        if budget.spent(done):
            return start >= until
    return True


async def _make_partitions(conn: Connection, *, now: datetime) -> bool:
    await make_days(conn, now.date())
    await make_partitions(conn, now.date())
    return True


async def _drop_days(conn: Connection, *, table: str, bound: datetime) -> bool:
    """Drop daily partitions that ended before `bound`. Only names that are ours go into the SQL."""
    for row in await conn.fetch(PARTITIONS, table):
        named = re.fullmatch(rf"{table}_(\d{{4}})_(\d{{2}})_(\d{{2}})", row["relname"])
        if named is None:
            continue
        day = datetime(int(named[1]), int(named[2]), int(named[3]), tzinfo=UTC)
        if day + timedelta(days=1) <= bound:
            async with conn.transaction():
                await conn.execute("SET LOCAL lock_timeout = '500ms'")
                await conn.execute(DROP, row["relname"])
    return True


async def _drop_before(conn: Connection, *, table: str, bound: datetime) -> bool:
    """Drop monthly partitions that end before `bound`, unless one holds a row that is younger by its own time: its id
    was made by a wrong clock. Only names that are ours go into the SQL."""
    for row in await conn.fetch(PARTITIONS, table):
        named = re.fullmatch(rf"{table}_((\d{{4}})_(\d{{2}}))", row["relname"])
        if named is None:
            continue
        year, month = int(named[2]), int(named[3])
        end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        if end > bound:
            continue
        name = row["relname"]
        if await _holds_young(conn, name, NEWEST[table], bound):
            log.warning("expired partition contains recent rows", partition=name)
            continue
        first = datetime(year, month, 1, tzinfo=UTC)
        if table == "wallet_movements" and not await closing.is_ready(conn, month=first.date()):
            continue
        if table in SUMMED and not await _sum_up(conn, SUMMED[table], name, first):
            return False
        async with conn.transaction():
            await conn.execute("SET LOCAL lock_timeout = '500ms'")
            await conn.execute(DROP, name)
            if table == "messages":
                await usage.close(conn, source=name)
            elif table == "wallet_movements":
                await closing.close(conn, month=first.date())
    return True


async def _sum_up(conn: Connection, count: Count, partition: str, month: datetime) -> bool:
    """Write down the sums of a partition that is about to go, from where the last round ended. Nothing reads them
    before it is gone."""
    budget, name = _Budget(), f"sums of {partition}"
    while True:
        place = await conn.fetchrow(PLACE, name)
        after = msgspec.json.decode(place["mark"]) if place is not None else [str(NIL), str(NIL)]
        async with conn.transaction():
            await conn.execute(RANGED)
            await conn.execute(f"SET LOCAL statement_timeout = {STATEMENT_MS}")
            counted = await count(
                conn, partition=partition, month=month.date(), after=(UUID(after[0]), UUID(after[1])), limit=STEP
            )
            if counted is None:
                return True
            mark = msgspec.json.encode([str(counted.last[0]), str(counted.last[1])]).decode()
            await conn.execute(MOVE, name, month, mark)
        if budget.spent(counted.rows):
            return False


async def _holds_young(conn: Connection, partition: str, column: str, bound: datetime) -> bool:
    async with conn.transaction():
        await conn.execute(f"SET LOCAL statement_timeout = {STATEMENT_MS}")
        # An index by blocks (BRIN) of the column answers this; without sequential scans it is what is used.
        found: bool = await conn.fetchval(f"SELECT EXISTS (SELECT FROM {partition} WHERE {column} >= $1)", bound)
        return found


def _swept(table: str) -> str:
    # By blocks: an index (BRIN) of the times finds those that hold the stretch. No index has the text, so a row that
    # loses it stays where it is, and costs no more than its deletion would (HOT).
    text, time = TEXTS[table]
    return f"""
UPDATE {table} SET {text} = NULL WHERE (organization_id, id) IN (
    SELECT organization_id, id FROM {table} WHERE {time} >= $1 AND {time} < $2 AND {text} IS NOT NULL LIMIT $3)
"""


def _stray(table: str) -> str:
    past = f"SELECT ctid FROM {table}_rest WHERE {NEWEST[table]} < $1 LIMIT $2"
    gone = f"DELETE FROM {table}_rest WHERE ctid IN ({past})"
    return usage.stray(gone) if table == "messages" else gone
