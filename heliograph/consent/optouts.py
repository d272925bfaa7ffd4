"""Opt-outs: numbers that an organization may not write to, because they said so.

They are looked at when a message is accepted, when a campaign is staged, and again when a message is about to leave.
The rule nobody may break: a number that opted out stays so until it asks for messages again itself, or an operator
answers for it. An opt-out raises `contact.opted_out` in its own transaction, once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.clock import iso, now
from heliograph.base.db import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7
from heliograph.webhooks import events


class RecipientOptedOut(Refusal):
    """The recipient has opted out of messages from this organization."""

    code, status = "recipient_opted_out", 409


KEYWORD, OPERATOR = "keyword", "operator"

#: An organization and a recipient in E.164.
Pair = tuple[UUID, str]


class OptOut(msgspec.Struct, frozen=True, gc=False):
    """A number that asked one organization for no more messages."""

    organization_id: UUID
    recipient: str
    since: datetime
    #: How it came here: "keyword", "operator".
    source: str
    #: The word, as `keywords.fold` writes it, and the received message that was it.
    keyword: str | None = None
    message_id: UUID | None = None


COLUMNS = "organization_id, recipient, since, source, keyword, message_id"

# In one order, so that two who suppress the same numbers wait for each other in no circle.
SUPPRESS = f"""
INSERT INTO opt_outs ({COLUMNS})
SELECT * FROM unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::text[], $5::text[], $6::uuid[])
    AS item ({COLUMNS})
 ORDER BY organization_id, recipient
ON CONFLICT DO NOTHING
RETURNING organization_id, recipient
"""


async def suppress(conn: Connection, wanted: Sequence[OptOut]) -> int:
    """Opt numbers out; those that are already stay as they were. Runs in the caller's transaction.

    Returns how many webhook deliveries were queued.
    """
    if not wanted:
        return 0
    rows = await conn.fetch(
        SUPPRESS,
        [one.organization_id for one in wanted],
        [one.recipient for one in wanted],
        [one.since for one in wanted],
        [one.source for one in wanted],
        [one.keyword for one in wanted],
        [one.message_id for one in wanted],
    )
    new = {tuple(row) for row in rows}
    by_pair = {(one.organization_id, one.recipient): one for one in wanted}
    return await events.record(conn, [_event(one) for pair, one in by_pair.items() if pair in new])


LIFT = """
DELETE FROM opt_outs USING unnest($1::uuid[], $2::text[]) AS item (organization_id, recipient)
 WHERE opt_outs.organization_id = item.organization_id AND opt_outs.recipient = item.recipient
RETURNING opt_outs.organization_id, opt_outs.recipient
"""


async def lift(conn: Connection, pairs: Collection[Pair]) -> set[Pair]:
    """Let numbers be written to again; returns those that had opted out."""
    if not pairs:
        return set()
    rows = await conn.fetch(LIFT, [organization for organization, _ in pairs], [recipient for _, recipient in pairs])
    return {(row["organization_id"], row["recipient"]) for row in rows}


LIFT_EARLIER = """
DELETE FROM opt_outs USING unnest($1::uuid[], $2::text[], $3::timestamptz[]) AS item (organization_id, recipient, at)
 WHERE opt_outs.organization_id = item.organization_id AND opt_outs.recipient = item.recipient
   AND opt_outs.since <= item.at
RETURNING opt_outs.organization_id, opt_outs.recipient
"""


async def lift_earlier(conn: Connection, said: Mapping[Pair, datetime]) -> set[Pair]:
    """As `lift`, for words that may come late: an opt-out that is later than the word stays."""
    if not said:
        return set()
    rows = await conn.fetch(
        LIFT_EARLIER, [organization for organization, _ in said], [recipient for _, recipient in said], [*said.values()]
    )
    return {(row["organization_id"], row["recipient"]) for row in rows}


CURRENT = """
SELECT opt_outs.organization_id, opt_outs.recipient
  FROM unnest($1::uuid[], $2::text[]) AS item (organization_id, recipient) CROSS JOIN LATERAL (
       SELECT organization_id, recipient FROM opt_outs
        WHERE organization_id = item.organization_id AND recipient = item.recipient LIMIT 1) opt_outs
"""


async def current(conn: Connection, pairs: Collection[Pair]) -> set[Pair]:
    """Those of the pairs that have opted out."""
    if not pairs:
        return set()
    rows = await conn.fetch(CURRENT, [organization for organization, _ in pairs], [recipient for _, recipient in pairs])
    return {(row["organization_id"], row["recipient"]) for row in rows}


LIST = f"SELECT {COLUMNS} FROM opt_outs WHERE organization_id = $1 ORDER BY since DESC, recipient DESC LIMIT $2"


async def list_all(conn: Connection, actor: Actor, *, limit: int = 1000) -> list[OptOut]:
    """An organization's opt-outs, newest first."""
    return [OptOut(*row.values()) for row in await conn.fetch(LIST, actor.organization_id, limit)]


GET = f"SELECT {COLUMNS} FROM opt_outs WHERE organization_id = $1 AND recipient = $2"


async def add(conn: Connection, actor: Actor, *, phone: str) -> OptOut:
    """An operator opts a number out for its owner; one that had opted out already stays as it was. Raises Invalid."""
    recipient = _number(phone)
    async with conn.transaction():
        await suppress(conn, [OptOut(actor.organization_id, recipient, now(), OPERATOR)])
        row = await conn.fetchrow(GET, actor.organization_id, recipient)
    assert row is not None
    return OptOut(*row.values())


async def remove(conn: Connection, actor: Actor, *, phone: str) -> OptOut:
    """An operator answers for a number that wants messages again; returns what it was. Raises Invalid, NotFound."""
    recipient = _number(phone)
    async with conn.transaction():
        row = await conn.fetchrow(GET, actor.organization_id, recipient)
        if row is None or not await lift(conn, {(actor.organization_id, recipient)}):
            raise NotFound("This number has not opted out.", resource="opt_out")
    return OptOut(*row.values())


def _number(phone: str) -> str:
    recipient = phones.normalize(phone)
    if recipient is None:
        raise Invalid(("phone", "pattern", "`phone` must be a phone number with its country's code"))
    return recipient


def _event(one: OptOut) -> events.Event:
    data = {
        "contact": {
            "phone": one.recipient,
            "optedOutAt": iso(one.since),
            "source": one.source,
            "keyword": one.keyword,
            "messageId": one.message_id,
        }
    }
    return events.Event(
        organization_id=one.organization_id,
        id=uuid7(),
        kind="contact.opted_out",
        request_id=str(one.message_id or uuid7()),
        data=msgspec.json.encode(data).decode(),
        created_at=one.since,
    )
