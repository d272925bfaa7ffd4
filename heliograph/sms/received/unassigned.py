"""Unassigned messages from handsets: to which numbers they were sent, why they belong to no organization, and what can
be done; also, floods from handsets that write more often than people do.

The rule nobody may break: scans are bounded, and texts are shown only for a stated reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Actor, Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import RANGE_PLANS, Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7_floor
from heliograph.sms.accepting import sender_choice, sender_ids
from heliograph.sms.accepting.sender_ids import SenderId
from heliograph.sms.received import at_rest, handsets, inbound
from heliograph.sms.received.assembly import Group, Row, text_of

#: How many of the newest messages are scanned, and how many have their text shown.
LOOK, TEXTS = 1000, 50
#: A handset that writes at least OFTEN times WITHIN this time is a flood; the maximum number of floods reported, and of
#: messages scanned.
OFTEN, WITHIN, FLOODS, SCANNED = 20, timedelta(hours=1), 20, 20_000
#: Keywords are counted over this time, among at most this many messages.
COUNTED, KEYWORDS = timedelta(days=1), 10_000

#: `approved_since`: one organization has the number by now, and the messages can be retried.
Why = Literal["nobody", "not_approved", "several", "approved_since"]


class UnassignedNumber(msgspec.Struct, frozen=True, kw_only=True):
    """Unassigned messages to one number from one supplier."""

    supplier_id: UUID
    supplier: str
    #: In the supplier's form.
    recipient: str
    #: Its form as a sender ID: digits with the country code, where known.
    number: str
    why: Why
    #: Names of organizations that have it, approved or not.
    organizations: Sequence[str]
    count: int
    last_at: datetime
    #: The last digits of the latest sender.
    tail: str


NEWEST = """
SELECT m.supplier_id, m.recipient, m.recipient_ton, count(*) AS count, max(m.received_at) AS last_at,
       (array_agg(m.sender ORDER BY m.id DESC))[1] AS sender
  FROM (SELECT * FROM inbound_messages WHERE state = 'unassigned' ORDER BY id DESC LIMIT $1) m
 GROUP BY 1, 2, 3 ORDER BY last_at DESC
"""
HOLDERS = """
SELECT lower(s.value) AS value, s.status, o.name FROM sender_ids s JOIN organizations o ON o.id = s.organization_id
 WHERE lower(s.value) = ANY ($1) AND o.state <> 'closed' ORDER BY o.name LIMIT 1000
"""
SUPPLIERS = "SELECT id, name FROM suppliers WHERE id = ANY ($1)"


async def listed(conn: Connection) -> list[UnassignedNumber]:
    """Numbers to which the newest LOOK unassigned messages were sent, latest first."""
    rows = await conn.fetch(NEWEST, LOOK)
    if not rows:
        return []
    ids = list({row["supplier_id"] for row in rows})
    known = {row["id"]: row for row in await conn.fetch(handsets.SUPPLIERS, ids)}
    names = {row["id"]: row["name"] for row in await conn.fetch(SUPPLIERS, ids)}
    called = [handsets.called(row["recipient"], row["recipient_ton"], known.get(row["supplier_id"])) for row in rows]
    holders: dict[str, list[asyncpg.Record]] = {}
    for one in await conn.fetch(HOLDERS, list({name for some in called for name in some})):
        holders.setdefault(one["value"], []).append(one)
    found = []
    for row, some in zip(rows, called, strict=True):
        of = [one for name in dict.fromkeys(some) for one in holders.get(name, ())]
        approved = {one["name"] for one in of if one["status"] == "approved"}
        found.append(
            UnassignedNumber(
                supplier_id=row["supplier_id"],
                supplier=names.get(row["supplier_id"], ""),
                recipient=row["recipient"],
                number=some[-1],
                why=_why(of, len(approved)),
                organizations=list(dict.fromkeys(one["name"] for one in of)),
                count=row["count"],
                last_at=row["last_at"],
                tail=row["sender"][-4:],
            )
        )
    return found


def _why(holders: Sequence[asyncpg.Record], approved: int) -> Why:
    """Why a number belonged to no organization, by who has it now, and how many of these are approved."""
    if not approved:
        return "not_approved" if holders else "nobody"
    return "several" if approved > 1 else "approved_since"


# Operators take turns: two of them must not give one number to two organizations.
TURN = "SELECT pg_advisory_xact_lock(hashtextextended('numbers are assigned', 0))"
PLACED = "SELECT supplier_id, recipient_ton FROM inbound_messages WHERE state = 'unassigned' AND recipient = $1 LIMIT 1"


async def assign(conn: Connection, actor: Actor, *, recipient: str) -> int | None:
    """Assign a number that received messages, in the supplier's form, to an organization: as its approved sender ID.
    Messages to it are processed again; returns the number of parts. None: a second operator has to approve it, and
    until then they stay unassigned.

    Raises NotFound if no message to it is waiting, Invalid if it is not a valid sender ID, or another organization has
    it.
    """
    async with conn.transaction():
        await conn.execute(TURN)
        row = await conn.fetchrow(PLACED, recipient)
        if row is None:
            raise NotFound("No unassigned message came to this number.", recipient=recipient)
        suppliers = await conn.fetch(handsets.SUPPLIERS, [row["supplier_id"]])
        names = handsets.called(recipient, row["recipient_ton"], suppliers[0] if suppliers else None)
        holders = await conn.fetch(OTHERS, names, actor.organization_id)
        if holders:
            told = ", ".join(one["name"] for one in holders)
            raise Invalid(("organization", "taken", f"The number is a sender ID of {told}: suspend it there first."))
        mine = await sender_choice.named(conn, actor, names=names)
        if mine is None:
            mine = await sender_ids.request(conn, actor, value=names[-1])
        mine = await sender_ids.review(conn, actor, id=mine.id, status="approved")
        if mine.status != "approved":
            return None
    return await inbound.retry(conn, recipient=recipient)


OTHERS = """
SELECT o.name FROM sender_ids s JOIN organizations o ON o.id = s.organization_id
 WHERE lower(s.value) = ANY ($1) AND s.status = 'approved' AND s.organization_id <> $2 AND o.state <> 'closed'
 ORDER BY o.name LIMIT 5
"""


# Numbers with the same last digits, whatever stands before them. $2: how many digits these are.
ENDING_ALIKE = """
SELECT DISTINCT value FROM sender_ids
 WHERE status = 'approved' AND organization_id <> $3 AND right(value, $2) = right($1, $2) AND value ~ '^[0-9]+$'
 LIMIT 1000
"""
#: Digits that a number has at least without what stands before it: a calling code, or a prefix of a supplier.
SHORTEST = 5


async def also_of(conn: Connection, actor: Actor, sender: SenderId) -> list[str]:
    """Names of other organizations of which a number is an approved sender ID too, in whichever form: what handsets
    send to it, except STOP and the like, belongs to none of them. Empty for a name, to which handsets cannot write."""
    mine = sender.value
    if sender.status != "approved" or not mine.isdecimal():
        return []
    alike = [row["value"] for row in await conn.fetch(ENDING_ALIKE, mine, SHORTEST, actor.organization_id)]
    suppliers = await conn.fetch(handsets.EVERY_SUPPLIER) if alike else []
    forms = [(supplier, ton) for supplier in suppliers for ton in (handsets.UNKNOWN, handsets.NATIONAL)]

    def is_called(written: str, other: str) -> bool:
        return any(other in handsets.called(written, ton, supplier) for supplier, ton in forms)

    values = {mine, *(one for one in alike if is_called(mine, one) or is_called(one, mine))}
    return [row["name"] for row in await conn.fetch(OTHERS, list(values), actor.organization_id)]


class RawPart(msgspec.Struct, frozen=True):
    """A part of a message as it was received, with its text and whole numbers."""

    received_at: datetime
    sender: str
    recipient: str
    #: None: it is not text.
    text: str | None


LATEST = """
SELECT id, supplier_id, sender, recipient, form, body, concatenation, received_at, state, message_id,
       sender_ton, recipient_ton, organization_id, sealed, asked
  FROM inbound_messages WHERE state = 'unassigned' ORDER BY id DESC LIMIT $1
"""


async def words(conn: Connection, *, by: Principal = SYSTEM) -> list[RawPart]:
    """The newest TEXTS unassigned messages with text and numbers; this is recorded in the audit log with the reason
    given in `by`."""
    async with conn.transaction():
        rows = await at_rest.opened(conn, [at_rest.row_of(row) for row in await conn.fetch(LATEST, TEXTS)])
        suppliers = {
            row["id"]: row for row in await conn.fetch(handsets.SUPPLIERS, list({one.supplier_id for one in rows}))
        }
        await audit.record(conn, by, "message.revealed", object_id="unassigned", after={"received": len(rows)})
    return [RawPart(one.received_at, one.sender, one.recipient, _text(one, suppliers)) for one in rows]


def _text(one: Row, suppliers: dict[UUID, asyncpg.Record]) -> str | None:
    return text_of(Group(one.id, one, 1, {1: one}), handsets.reading(suppliers.get(one.supplier_id)))


class Flood(msgspec.Struct, frozen=True):
    """A handset that wrote often."""

    tail: str
    recipient: str
    supplier: str
    count: int
    last_at: datetime


# By primary key, since ids contain times.
OFTEN_SEEN = """
SELECT right(found.sender, 4) AS tail, found.recipient, coalesce(s.name, '') AS supplier, found.count, found.last_at
  FROM (SELECT supplier_id, sender, recipient, count(*) AS count, max(received_at) AS last_at
          FROM (SELECT supplier_id, sender, recipient, received_at FROM inbound_messages
                 WHERE id >= $1 ORDER BY id DESC LIMIT $2) recent
         GROUP BY 1, 2, 3 HAVING count(*) >= $3 ORDER BY 4 DESC LIMIT $4) found
  LEFT JOIN suppliers s ON s.id = found.supplier_id
 ORDER BY found.count DESC
"""


async def floods(conn: Connection) -> list[Flood]:
    """Handsets that wrote at least OFTEN times during the last WITHIN, the most frequent first."""
    since = uuid7_floor(clock.now() - WITHIN)
    return [Flood(**row) for row in await conn.fetch(OFTEN_SEEN, since, SCANNED, OFTEN, FLOODS)]


# For all organizations, by scanning the blocks of the last day.
SAID = """
SELECT keyword, sum(count)::bigint AS count, count(*) AS organizations
  FROM (SELECT coalesce(keyword, '') AS keyword, organization_id, count(*) AS count
          FROM (SELECT keyword, organization_id FROM received_messages
                 WHERE received_at > now() - $1::interval AND id >= $2 LIMIT $3) recent
         GROUP BY 1, 2) by_organization
 GROUP BY 1 ORDER BY 1
"""


class KeywordCount(msgspec.Struct, frozen=True):
    """How often a keyword was received, and by how many organizations; "": messages without one."""

    keyword: str
    count: int
    organizations: int


async def keywords(conn: Connection) -> list[KeywordCount]:
    """Keywords received within COUNTED, among at most KEYWORDS messages."""
    since = uuid7_floor(clock.now() - COUNTED - timedelta(hours=1))
    # With the primary key, rows would be read in the order of organizations, which takes three times as long.
    async with conn.transaction():
        await conn.execute(RANGE_PLANS)
        return [KeywordCount(**row) for row in await conn.fetch(SAID, COUNTED, since, KEYWORDS)]
