"""An operator's view of one message, whatever its channel: what happened to it, in chronological order, causes first.

The engine reads what all channels have in common: acceptance, attempts and their answers, events, webhooks, and what is
still queued. A channel names its tables and adds what only it knows (receipts, Meta's ids, money). The rule nobody may
break: this is for operators only. What a customer may see of a message is defined by its channel.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import time_of, uuid7_floor
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
    #: Its text; None unless requested, or if it has been erased.
    text: str | None
    entries: list[Entry]
    #: Its rows in the queue, and those of its webhook deliveries.
    queued: list[dict[str, Any]]
    #: The explanation of its state: that of its failure, or of its status if it has not failed. None: it was received.
    why: Why | None = None
    #: The carrier's own reason for the failure, if known: a code and its meaning.
    evidence: Sentence | None = None


class Source(msgspec.Struct, frozen=True):
    """Where to read a channel's timeline."""

    #: The message by its id alone (`by_id`).
    message: str
    #: The column with its text.
    text: str
    #: Columns that hold when a status was reached: (column, status); a status of None means the current one.
    states: Sequence[tuple[str, str | None]]
    #: Columns with times around which its events were created.
    told_at: Sequence[str]
    #: How long before and after these times to search.
    around: tuple[timedelta, timedelta]
    #: Its rows in the queue ($1: its organization; $2: ids of the message and of its events).
    queue: str
    #: Reads what only the channel knows. Called with the message's row and its attempts.
    evidence: Callable[[Connection, asyncpg.Record, Sequence[asyncpg.Record]], Awaitable[Iterable[Entry]]]
    #: The kind of its failures in the catalog of `why`.
    failures: Kind
    #: The public status of a message that was tried and is still `accepted` in its row.
    under_way: str
    #: Attempts, with the name of their target, if any, as `supplier`.
    attempts: str = attempts.OF_MESSAGE


#: Columns of statuses that mean failure.
FAILED = ("failed_at", "ended_at")


def by_id(table: str, *, columns: str = "", join: str = "") -> str:
    """The statement that finds a message of `table` by its id ($1), with its organization's name.

    Messages are indexed by organization and id: trying each organization in turn costs one look-up each, whereas a
    search by id alone would scan a month of messages.
    """
    return f"""
SELECT found.*, o.name AS organization_name, sent_by.name AS person_name{columns}
  FROM organizations o CROSS JOIN LATERAL (SELECT * FROM {table} WHERE organization_id = o.id AND id = $1) found
  LEFT JOIN users sent_by ON sent_by.id = found.person_id
  {join}
 LIMIT 1
"""


def snapshot(conn: Connection) -> AbstractAsyncContextManager[object]:
    """The transaction in which a timeline is read. What ends meanwhile is in all of it or in none: otherwise a delivery
    that was recorded while it was read could be neither queued nor made."""
    return conn.transaction(isolation="repeatable_read")


async def of_message(
    conn: Connection, source: Source, *, id: UUID, with_text: bool, by: Principal = SYSTEM
) -> Timeline:
    """The timeline of a message, in the caller's `snapshot`. Raises NotFound. Reading its text is recorded in the audit
    log."""
    row = await conn.fetchrow(source.message, id)
    if row is None:
        raise NotFound(resource="message", id=str(id))
    organization_id = row["organization_id"]
    if with_text:
        await audit.record(conn, by, "message.revealed", object_id=id, organization_id=organization_id)
    tried = await conn.fetch(source.attempts, organization_id, id)
    events = await raised(conn, source, organization_id, row)
    inbound = is_inbound(row)
    entries = [
        Entry(row["accepted_at"], "received" if inbound else "accepted", known(_accepted(row))),
        *_attempts(tried),
        *await source.evidence(conn, row, tried),
        # What was received has the columns of a delivered message, and an event with the time of its callback, which is
        # recorded with the message, however much later.
        *(() if inbound else _states(row, source.states)),
        *(
            webhooks.of_event(one, at=max(row["accepted_at"], time_of(one["id"])) if inbound else None)
            for one in events
        ),
        *(webhooks.of_webhook(one) for one in await webhooks.tried(conn, organization_id, events)),
    ]
    status = source.under_way if tried and row["status"] == "accepted" else row["status"]
    queued = await conn.fetch(source.queue, organization_id, [id, *(one["id"] for one in events)])
    return Timeline(
        message={name: value for name, value in row.items() if name != source.text},
        text=row[source.text] if with_text else None,
        entries=_in_order(entries, tried),
        queued=[known(dict(one.items())) for one in queued],
        why=None if inbound else _why(source.failures, row["failure_code"]) or why("status", status),
    )


def is_inbound(row: asyncpg.Record) -> bool:
    """Whether a message was received: of SMS, only sent ones have a timeline."""
    return bool(row.get("direction") == "inbound")


#: States of attempts that certainly did not deliver the message.
NOT_TAKEN = ("refused", "busy", "unreachable")


def _in_order(entries: Iterable[Entry], tried: Iterable[asyncpg.Record]) -> list[Entry]:
    """By time; a status never precedes the attempt that it results from, since suppliers may report whole seconds."""
    began = min((one["started_at"] for one in tried if one["state"] not in NOT_TAKEN), default=None)

    def place(one: Entry) -> datetime:
        return max(one.at, began) if began is not None and one.what == "status" else one.at

    return sorted(entries, key=place)


def _why(kind: Kind, code: str | None) -> Why | None:
    return None if code is None else why(kind, code)


# Events have no index by message: except for the one named in the message's row, they are searched for around the times
# that they report. Without OFFSET 0 a generic plan would scan all events of the organization.
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
    """id, kind and created_at of the events raised by a message, given its row."""
    before, after = source.around
    # That of a received message is recorded with it, however long after the time that its row has for delivery.
    told_at = () if is_inbound(message) else source.told_at
    times = [message[name] for name in told_at if message[name]] or [message["accepted_at"]]
    first, last = [uuid7_floor(at - before) for at in times], [uuid7_floor(at + after) for at in times]
    return await conn.fetch(EVENTS, organization_id, message["id"], message["event_id"], first, last)


def _accepted(row: asyncpg.Record) -> dict[str, Any]:
    status = "received" if is_inbound(row) else "accepted"
    return {"status": status, "request_id": row["request_id"], "by": row["person_name"] or row["person_id"]}


def _states(row: asyncpg.Record, states: Iterable[tuple[str, str | None]]) -> Iterable[Entry]:
    for column, status in states:
        if row[column]:
            failure = row["failure_code"] if column in FAILED else None
            yield Entry(row[column], "status", known({"status": status or row["status"], "failure": failure}))


def _cost(row: asyncpg.Record) -> str | None:
    """The target's charge for an attempt that it accepts."""
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
