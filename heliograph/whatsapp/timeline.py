"""All that happened to one WhatsApp message, in order of time, for operators: Meta's ids, codes and words are in it.

The rule nobody may break: this is for operators only. What a customer may see of a message is in `messages`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

import asyncpg

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Who
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7_floor
from heliograph.sending import attempts
from heliograph.webhooks import timeline
from heliograph.webhooks.timeline import Entry, Timeline, known
from heliograph.whatsapp.callbacks.matching import born_on
from heliograph.whatsapp.money.amounts import decimal

# Messages are found by organization and id: asking for each organization in turn costs a look-up each.
MESSAGE = """
SELECT found.*, o.name AS organization_name, n.display_phone_number
  FROM organizations o CROSS JOIN LATERAL (
       SELECT * FROM whatsapp_messages WHERE organization_id = o.id AND id = $1) found
  LEFT JOIN whatsapp_numbers n ON n.organization_id = o.id AND n.id = found.number_id
 LIMIT 1
"""
# Meta's ids are found by the time of their answer, which their index (BRIN) narrows to a few pages of their month.
WAMIDS = """
SELECT DISTINCT w.wamid, w.created_at FROM unnest($3::timestamptz[]) AS answer (at) CROSS JOIN LATERAL (
       SELECT wamid, created_at FROM whatsapp_wamids
        WHERE organization_id = $1 AND message_id = $2 AND born_on = $4
          AND created_at BETWEEN answer.at - interval '5 s' AND answer.at + interval '5 s') w
"""
MONEY = """
SELECT movement, key, available, reserved, consumed, created_at FROM wallet_ledger
 WHERE organization_id = $1 AND message_id = $2 AND message_id IS NOT NULL
"""
# Events have no index by message: but for the first one they are looked for around the times that they tell of.
EVENTS = """
SELECT id, kind, created_at FROM events WHERE organization_id = $1 AND id = $3
UNION
SELECT e.id, e.kind, e.created_at FROM unnest($4::uuid[], $5::uuid[]) AS around (first, last) CROSS JOIN LATERAL (
       SELECT id, kind, created_at FROM events
        WHERE organization_id = $1 AND id BETWEEN around.first AND around.last AND message_id = $2) e
"""
QUEUE = """
SELECT q.kind, q.due_at, q.tries, q.attempt, q.lane, q.lease_until, n.display_phone_number AS number,
       greatest(n.held_until, a.held_until) AS held_until, coalesce(n.held_reason, a.held_reason) AS held, e.url
  FROM queue q
  LEFT JOIN whatsapp_numbers n ON n.organization_id = $1 AND n.id = q.line
  LEFT JOIN whatsapp_accounts a ON a.organization_id = $1 AND a.id = n.account_id
  LEFT JOIN webhook_endpoints e ON e.organization_id = $1 AND e.id = q.line
 WHERE q.id = ANY ($2) ORDER BY q.due_at
"""

#: An event is made this long before or after the time that Meta gives to what it tells of.
BEFORE, AFTER = timedelta(seconds=2), timedelta(minutes=2)
STAMPS = ("sent", "delivered", "read", "failed")


async def of_message(conn: Connection, *, id: UUID, with_text: bool = False, by: Who = SYSTEM) -> Timeline:
    """The story of a message in either direction. Raises NotFound."""
    row = await conn.fetchrow(MESSAGE, id)
    if row is None:
        raise NotFound("There is no such message.", id=str(id))
    if with_text:
        await audit.record(conn, by, "message.revealed", object_id=id, organization_id=row["organization_id"])
    organization_id = row["organization_id"]
    tried = await conn.fetch(attempts.OF_MESSAGE, organization_id, id)
    answers = list({one["ended_at"] for one in tried if one["ended_at"]})
    times = [row[f"{name}_at"] for name in STAMPS if row[f"{name}_at"]] or [row["accepted_at"]]
    events = await conn.fetch(
        EVENTS,
        organization_id,
        id,
        row["event_id"],
        [uuid7_floor(at - BEFORE) for at in times],
        [uuid7_floor(at + AFTER) for at in times],
    )
    wamids = await conn.fetch(WAMIDS, organization_id, id, answers, born_on(id))
    entries = [
        Entry(row["accepted_at"], "accepted", {"status": "accepted", "request_id": row["request_id"]}),
        *_attempts(tried),
        *(Entry(one["created_at"], "wamid", {"wamid": one["wamid"]}) for one in wamids),
        *_doubled(wamids),
        *_moves(row),
        *(_money(one) for one in await conn.fetch(MONEY, organization_id, id)),
        *(timeline.of_event(one) for one in events),
        *(timeline.of_webhook(one) for one in await timeline.tried(conn, organization_id, events)),
    ]  # fmt: skip
    queued = await conn.fetch(QUEUE, organization_id, [id, *(one["id"] for one in events)])
    return Timeline(
        message={name: value for name, value in row.items() if name != "content"}
        | {name: decimal(row[name]) for name in ("reserved", "consumed")},
        text=row["content"] if with_text else None,
        entries=sorted(entries, key=lambda entry: entry.at),
        queued=[known(dict(one.items())) for one in queued],
    )


def _attempts(rows: Iterable[asyncpg.Record]) -> Iterable[Entry]:
    for row in rows:
        which = {"attempt": row["attempt"]}
        yield Entry(row["started_at"], "attempt", which)
        if row["ended_at"]:
            answer = {"state": row["state"], "code": row["code"], "detail": row["detail"]}
            yield Entry(row["ended_at"], "answer", known(which | answer))


def _doubled(wamids: Iterable[asyncpg.Record]) -> Iterable[Entry]:
    """A message with two ids of Meta's went out twice: a worker was stopped for longer than its lease."""
    in_order = sorted(wamids, key=lambda one: one["created_at"])
    for one in in_order[1:]:
        yield Entry(one["created_at"], "sent twice", {"wamids": [in_order[0]["wamid"], one["wamid"]]})


def _moves(row: asyncpg.Record) -> Iterable[Entry]:
    for name in STAMPS:
        if row[f"{name}_at"]:
            values = {"status": name, "failure": row["failure_code"] if name == "failed" else None}
            yield Entry(row[f"{name}_at"], "status", known(values))


def _money(row: asyncpg.Record) -> Entry:
    amounts = {name: decimal(row[name]) for name in ("available", "reserved", "consumed") if row[name]}
    return Entry(row["created_at"], "money", known({"movement": row["movement"], "key": row["key"]} | amounts))
