"""What operators see of one message, whatever its channel: what happened to it, in order of time, causes first.

The engine reads what is the same for all channels: acceptance, attempts and their answers, events, webhooks, and what
is still queued. A channel says where its messages stand and adds what only it knows (receipts, Meta's ids, money).
The rule nobody may break: this is for operators only. What a customer may see of a message is its channel's to say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Who
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7_floor
from heliograph.base.money import decimal
from heliograph.base.sentences import Sentence, unpacked
from heliograph.sending import attempts
from heliograph.webhooks import timeline as webhooks
from heliograph.webhooks.timeline import Entry, known
from heliograph.why.words import Kind, Why, why


class Timeline(msgspec.Struct, frozen=True):
    """A message and what happened to it."""

    #: Its row, with its organization's name.
    message: dict[str, Any]
    #: What it says; None unless asked for, or when it was erased.
    text: str | None
    entries: list[Entry]
    #: Its rows in the queue, and those of its webhook deliveries.
    queued: list[dict[str, Any]]
    #: Why it stands where it stands: its failure, or its status where it has none.
    why: Why | None = None
    #: What whoever carried it said of its failure, where that is known: a code and its meaning.
    evidence: Sentence | None = None


class Source(msgspec.Struct, frozen=True):
    """Where a channel's timeline is read."""

    #: The message by its id alone (`by_id`).
    message: str
    #: The column with what it says.
    text: str
    #: When it reached which status: (column, status; None: the one that it has now).
    states: Sequence[tuple[str, str | None]]
    #: Of these columns, those near whose time its events were made.
    told_at: Sequence[str]
    #: How long before and after.
    around: tuple[timedelta, timedelta]
    #: Its rows in the queue ($2: ids of the message and of its events; $1: its organization).
    queue: str
    #: What only the channel knows. It gets the message's row and its attempts.
    evidence: Callable[[Connection, asyncpg.Record, Sequence[asyncpg.Record]], Awaitable[Iterable[Entry]]]
    #: The kind of its failures in the words of why.
    failures: Kind
    #: The public status of one that was tried and is still `accepted` in its row.
    under_way: str
    #: Attempts, with the name of their target as `supplier` where there is one to tell.
    attempts: str = attempts.OF_MESSAGE


#: Columns of states that a failure leads to.
FAILED = ("failed_at", "ended_at")


def by_id(table: str, *, columns: str = "", join: str = "") -> str:
    """The statement that finds a message of `table` by its id ($1), with its organization's name.

    Messages are found by organization and id: asking for each organization in turn costs a look-up each, where a search
    by id alone would read a month of messages.
    """
    return f"""
SELECT found.*, o.name AS organization_name, sent_by.name AS person_name{columns}
  FROM organizations o CROSS JOIN LATERAL (SELECT * FROM {table} WHERE organization_id = o.id AND id = $1) found
  LEFT JOIN users sent_by ON sent_by.id = found.person_id
  {join}
 LIMIT 1
"""


async def of_message(conn: Connection, source: Source, *, id: UUID, with_text: bool, by: Who = SYSTEM) -> Timeline:
    """The timeline of a message. Raises NotFound. That its text was read is in the audit log."""
    row = await conn.fetchrow(source.message, id)
    if row is None:
        raise NotFound(resource="message", id=str(id))
    organization_id = row["organization_id"]
    if with_text:
        await audit.record(conn, by, "message.revealed", object_id=id, organization_id=organization_id)
    tried = await conn.fetch(source.attempts, organization_id, id)
    events = await raised(conn, source, organization_id, row)
    entries = [
        Entry(row["accepted_at"], "accepted", known(_accepted(row))),
        *_attempts(tried),
        *await source.evidence(conn, row, tried),
        *_states(row, source.states),
        *(webhooks.of_event(one) for one in events),
        *(webhooks.of_webhook(one) for one in await webhooks.tried(conn, organization_id, events)),
    ]
    status = source.under_way if tried and row["status"] == "accepted" else row["status"]
    queued = await conn.fetch(source.queue, organization_id, [id, *(one["id"] for one in events)])
    return Timeline(
        message={name: value for name, value in row.items() if name != source.text},
        text=row[source.text] if with_text else None,
        entries=_in_order(entries, tried),
        queued=[known(dict(one.items())) for one in queued],
        why=_why(source.failures, row["failure_code"]) or why("status", status),
    )


#: States of attempts that certainly brought the message to nobody.
NOT_TAKEN = ("refused", "busy", "unreachable")


def _in_order(entries: Iterable[Entry], tried: Iterable[asyncpg.Record]) -> list[Entry]:
    """By time; a status stands no earlier than the attempt that it tells of, whose supplier may say whole seconds."""
    began = min((one["started_at"] for one in tried if one["state"] not in NOT_TAKEN), default=None)

    def place(one: Entry) -> datetime:
        return max(one.at, began) if began is not None and one.what == "status" else one.at

    return sorted(entries, key=place)


def _why(kind: Kind, code: str | None) -> Why | None:
    return None if code is None else why(kind, code)


# Events have no index by message: but for the one that the message's row names, they are looked for around the times of
# what they tell of. Without OFFSET 0 a plan for any arrays goes through all events of the organization.
EVENTS = """
SELECT id, kind, created_at FROM events WHERE organization_id = $1 AND id = $3
UNION
SELECT e.id, e.kind, e.created_at FROM unnest($4::uuid[], $5::uuid[]) AS around (first, last) CROSS JOIN LATERAL (
       SELECT id, kind, created_at, message_id FROM events
        WHERE organization_id = $1 AND id BETWEEN around.first AND around.last ORDER BY id OFFSET 0) e
 WHERE e.message_id = $2
"""


async def raised(
    conn: Connection, source: Source, organization_id: UUID, message: asyncpg.Record
) -> list[asyncpg.Record]:
    """id, kind and created_at of the events that a message (its row) raised."""
    before, after = source.around
    times = [message[name] for name in source.told_at if message[name]] or [message["accepted_at"]]
    first, last = [uuid7_floor(at - before) for at in times], [uuid7_floor(at + after) for at in times]
    return await conn.fetch(EVENTS, organization_id, message["id"], message["event_id"], first, last)


def _accepted(row: asyncpg.Record) -> dict[str, Any]:
    return {"status": "accepted", "request_id": row["request_id"], "by": row["person_name"] or row["person_id"]}


def _states(row: asyncpg.Record, states: Iterable[tuple[str, str | None]]) -> Iterable[Entry]:
    for column, status in states:
        if row[column]:
            failure = row["failure_code"] if column in FAILED else None
            yield Entry(row[column], "status", known({"status": status or row["status"], "failure": failure}))


def _cost(row: asyncpg.Record) -> str | None:
    """What the target charges for an attempt that it accepts."""
    return None if row["cost"] is None else f"{decimal(row['cost'])} {row['cost_currency']}"


def _attempts(rows: Iterable[asyncpg.Record]) -> Iterable[Entry]:
    for row in rows:
        which = known({"attempt": row["attempt"], "supplier": row.get("supplier")})
        because = row.get("because") and unpacked(row["because"])
        yield Entry(
            row["started_at"],
            "attempt",
            known(which | {"reference": row["reference"], "because": because}),
        )
        if row["ended_at"]:
            answer = {"state": row["state"], "code": row["code"], "detail": row["detail"], "cost": _cost(row)}
            answer["sent_as"] = row.get("sent_as")
            yield Entry(row["ended_at"], "answer", known(which | answer))
