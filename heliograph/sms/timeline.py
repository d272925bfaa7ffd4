"""All that happened to one message, in order of time, for operators: suppliers' names and words are in it.

The rule nobody may break: this is for operators only. What a customer may see of a message is in `messages`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Who
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7_floor
from heliograph.sending import attempts
from heliograph.sms.dispatch import test_mode
from heliograph.webhooks import timeline
from heliograph.webhooks.timeline import Entry, Timeline, known

# No organization is given, and messages are found by organization and id: asking for each organization in turn costs a
# look-up each, where a search by id alone would read a month of messages.
MESSAGE = """
SELECT found.*, o.name AS organization_name
  FROM organizations o CROSS JOIN LATERAL (SELECT * FROM messages WHERE organization_id = o.id AND id = $1) found
 LIMIT 1
"""
ATTEMPTS = f"""
SELECT a.attempt, a.target_id, s.name, a.state, a.reference, a.started_at, a.ended_at, a.code, a.detail
  FROM ({attempts.OF_MESSAGE}) a LEFT JOIN suppliers s ON s.id = a.target_id
"""
PARTS = """
SELECT p.attempt, p.part, p.parts, p.id_key, p.state, p.created_at, s.name FROM (
       SELECT target_id AS supplier_id, attempt, 1 AS part, 1 AS parts, supplier_message_id AS id_key,
              NULL AS state, ended_at AS created_at
         FROM attempts WHERE organization_id = $1 AND message_id = $2 AND supplier_message_id IS NOT NULL
       UNION ALL
       SELECT supplier_id, attempt, part, parts, id_key, state, created_at FROM sms_parts WHERE message_id = $2) p
  LEFT JOIN suppliers s ON s.id = p.supplier_id
 ORDER BY p.attempt, p.part
"""
RECEIPTS = """
SELECT r.attempt, r.part, r.state, r.error, r.keys, r.received_at, s.name FROM (
       SELECT a.target_id AS supplier_id, m.receipt_attempt AS attempt, 1 AS part, m.receipt_state AS state,
              m.receipt_error AS error, ARRAY[a.supplier_message_id] AS keys, m.receipt_at AS received_at
         FROM messages m CROSS JOIN LATERAL (
              SELECT target_id, supplier_message_id FROM attempts
               WHERE organization_id = $1 AND message_id = $2 AND attempt = m.receipt_attempt LIMIT 1) a
        WHERE m.organization_id = $1 AND m.id = $2 AND m.receipt IS NOT NULL
       UNION ALL
       SELECT supplier_id, attempt, part, state, error, keys, received_at FROM receipts
        WHERE message_id = $2 AND received_on >= $3) r
  LEFT JOIN suppliers s ON s.id = r.supplier_id
"""
# Events other than the contract's one have no index by message; they are made at once with the move that they tell of,
# and found among those of that moment.
EVENTS = """
SELECT id, kind, created_at FROM events WHERE organization_id = $1 AND id = $3
UNION
SELECT id, kind, created_at FROM events WHERE organization_id = $1 AND id BETWEEN $4 AND $5 AND message_id = $2
"""
QUEUE = """
SELECT q.kind, q.id, q.line, q.lane, q.due_at, q.tries, q.attempt, q.lease_until, s.name, e.url
  FROM queue q LEFT JOIN suppliers s ON s.id = q.line
       LEFT JOIN webhook_endpoints e ON e.organization_id = $1 AND e.id = q.line
 WHERE q.id = ANY ($2) ORDER BY q.due_at
"""

#: The event of a move is made this long before or after the time that the move is stamped with.
BEFORE, AFTER = timedelta(milliseconds=100), timedelta(seconds=2)


async def of_message(conn: Connection, *, id: UUID, with_text: bool = False, by: Who = SYSTEM) -> Timeline:
    """The story of a message. Raises NotFound."""
    row = await conn.fetchrow(MESSAGE, id)
    if row is None:
        raise NotFound("There is no such message.", id=str(id))
    if with_text:
        await audit.record(conn, by, "message.revealed", object_id=id, organization_id=row["organization_id"])
    message = {name: value for name, value in row.items() if name != "body"}
    organization_id, accepted_at = row["organization_id"], row["accepted_at"]
    tried = await conn.fetch(ATTEMPTS, organization_id, id)
    parts = await conn.fetch(PARTS, organization_id, id)
    received = await conn.fetch(RECEIPTS, organization_id, id, (accepted_at - timedelta(days=1)).date())
    events = await raised(conn, organization_id, row)
    posted = await timeline.tried(conn, organization_id, events)
    queued = await conn.fetch(QUEUE, organization_id, [id, *(one["id"] for one in events)])
    return Timeline(
        message=message,
        text=row["body"] if with_text else None,
        entries=sorted(
            [
                Entry(accepted_at, "accepted", {"status": "accepted", "request_id": row["request_id"]}),
                *_attempts(tried),
                *(_part(one) for one in parts),
                *_doubled(parts),
                *(_receipt(one) for one in received),
                *_moves(row),
                *(timeline.of_event(one) for one in events),
                *(timeline.of_webhook(one) for one in posted),
            ],
            key=lambda entry: entry.at,
        ),
        queued=[_queued(one) for one in queued],
    )


async def raised(conn: Connection, organization_id: UUID, message: asyncpg.Record) -> list[asyncpg.Record]:
    """id, kind and created_at of the events that a message (a row of `messages`) raised."""
    sent_at = message["sent_at"] or message["accepted_at"]
    around = uuid7_floor(sent_at - BEFORE), uuid7_floor(sent_at + AFTER)
    return await conn.fetch(EVENTS, organization_id, message["id"], message["event_id"], *around)


STATUS = """
SELECT found.status
  FROM organizations o CROSS JOIN LATERAL (SELECT status FROM messages WHERE organization_id = o.id AND id = $1) found
 LIMIT 1
"""


async def status_of(conn: Connection, *, id: UUID) -> str:
    """A message's status now. Raises NotFound."""
    status: str | None = await conn.fetchval(STATUS, id)
    if status is None:
        raise NotFound("There is no such message.", id=str(id))
    return status


def _attempts(rows: Iterable[asyncpg.Record]) -> Iterable[Entry]:
    for row in rows:
        which = {"attempt": row["attempt"], "supplier": _supplier(row)}
        yield Entry(row["started_at"], "attempt", which | {"reference": row["reference"]})
        if row["ended_at"]:
            answer = {"state": row["state"], "code": row["code"], "detail": row["detail"]}
            yield Entry(row["ended_at"], "answer", known(which | answer))


def _part(row: asyncpg.Record) -> Entry:
    values = {"attempt": row["attempt"], "part": f"{row['part']}/{row['parts']}", "supplier_message_id": row["id_key"]}
    return Entry(row["created_at"], "part", known(values | {"supplier": row["name"], "state": row["state"]}))


def _doubled(rows: Iterable[asyncpg.Record]) -> Iterable[Entry]:
    """A part that suppliers took in two attempts went out twice: a worker was stopped for longer than its lease."""
    first: dict[int, asyncpg.Record] = {}
    for row in sorted(rows, key=lambda row: row["created_at"]):
        known_as = first.setdefault(row["part"], row)
        if known_as["attempt"] != row["attempt"]:
            both = [known_as["attempt"], row["attempt"]]
            yield Entry(row["created_at"], "sent twice", {"part": f"{row['part']}/{row['parts']}", "attempts": both})


def _receipt(row: asyncpg.Record) -> Entry:
    values = {"state": row["state"], "err": row["error"], "supplier": row["name"], "ids": list(row["keys"])}
    return Entry(row["received_at"], "receipt", known(values | {"attempt": row["attempt"], "part": row["part"]}))


def _moves(row: asyncpg.Record) -> Iterable[Entry]:
    if row["sent_at"]:
        yield Entry(row["sent_at"], "status", {"status": "sent"})
    if row["delivered_at"]:
        yield Entry(row["delivered_at"], "status", {"status": "delivered"})
    if row["failed_at"]:
        yield Entry(row["failed_at"], "status", {"status": row["status"], "failure": row["failure_code"]})
    if row["ended_at"]:
        yield Entry(row["ended_at"], "status", known({"status": row["status"], "failure": row["failure_code"]}))


def _queued(row: asyncpg.Record) -> dict[str, Any]:
    values = {name: row[name] for name in ("kind", "due_at", "tries", "attempt", "lane", "lease_until")}
    return known(values | {"supplier": row["name"], "url": row["url"]})


def _supplier(row: asyncpg.Record) -> str:
    return row["name"] or ("test" if row["target_id"] == test_mode.SUPPLIER else str(row["target_id"]))
