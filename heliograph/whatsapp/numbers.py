"""Numbers: an organization's WhatsApp senders, mirrored from Meta by readings and by events.

The rule nobody may break: of two words on the same matter the newer one stays, in whatever order they come; and a
customer reads closed values only, never an id or a text of Meta's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import clock
from heliograph.base.actor import Actor
from heliograph.base.clock import iso
from heliograph.base.db import Connection, Pool, is_down
from heliograph.base.errors import Invalid, Refusal
from heliograph.base.fresh import Fresh
from heliograph.base.ids import uuid7
from heliograph.webhooks import events
from heliograph.webhooks.events import Event


class PhoneNumberUnavailable(Refusal):
    """This WhatsApp number cannot send at present."""

    code, status = "whatsapp_phone_number_unavailable", 409


class Number(msgspec.Struct, frozen=True):
    """A number as far as sending needs it."""

    id: UUID
    organization_id: UUID
    account_id: UUID
    #: Meta's id, for nobody but Meta.
    graph_id: str
    digits: str
    #: The account's, ISO 4217.
    currency: str
    #: Neither it nor its account is paused, removed, banned or disconnected.
    sendable: bool
    #: Why it is not: removed, paused, banned or disconnected.
    reason: str | None = None


LOAD = """
SELECT n.organization_id, n.id, n.account_id, n.graph_id, n.digits, a.currency,
       CASE WHEN n.state <> 'active' OR a.state = 'removed' THEN 'removed'
            WHEN a.state <> 'active' THEN 'paused'
            WHEN n.connection_status IN ('banned', 'disconnected') THEN n.connection_status END AS reason
  FROM unnest($1::uuid[], $2::uuid[]) AS asked (organization_id, id)
  JOIN whatsapp_numbers n ON n.organization_id = asked.organization_id AND n.id = asked.id
  JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
"""


class NumberBook:
    """Numbers as they were at most half a second ago."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._fresh: Fresh[tuple[UUID, UUID], Number] = Fresh(self._load, indivisible=is_down)

    async def resolve(self, actor: Actor, number_id: UUID) -> Number:
        """The number that is meant by `phoneNumberId`, able to send.

        Raises Invalid for an id that is not of this organization, and PhoneNumberUnavailable. An answer of no is given
        only on what is in the database now.
        """
        key = (actor.organization_id, number_id)
        fresh, number = self._fresh.peek(key)
        if not fresh or number is None or not number.sendable:
            number = await self._fresh.get(key, anew=True)
        if number is None:
            raise Invalid(("phoneNumberId", "unknown", "`phoneNumberId` is not a WhatsApp number of this organization"))
        if not number.sendable:
            raise PhoneNumberUnavailable(phoneNumberId=str(number.id), reason=number.reason)
        return number

    async def _load(self, keys: Sequence[tuple[UUID, UUID]]) -> dict[tuple[UUID, UUID], Number]:
        rows = await self._pool.fetch(LOAD, [one for one, _ in keys], [id for _, id in keys])
        return {
            (row["organization_id"], row["id"]): Number(
                row["id"],
                row["organization_id"],
                row["account_id"],
                row["graph_id"],
                row["digits"],
                row["currency"],
                row["reason"] is None,
                row["reason"],
            )
            for row in rows
        }


#: What `shown` needs of a number and its account.
COLUMNS = """
n.id, n.display_phone_number, n.verified_name, n.connection_status, n.quality_rating, n.messaging_tier,
n.messaging_limit, n.throughput_per_second, a.credential_status, n.last_checked_at
"""
OF_ACCOUNT = f"""
SELECT {COLUMNS} FROM whatsapp_numbers n JOIN whatsapp_accounts a ON (a.organization_id, a.id) = (n.organization_id,
       n.account_id)
 WHERE n.organization_id = $1 AND n.account_id = $2 AND n.state = 'active' ORDER BY n.id
"""


def shown(row: asyncpg.Record) -> dict[str, object]:
    """The record as customers see it. `row`: COLUMNS."""
    return {
        "id": str(row["id"]),
        "displayPhoneNumber": row["display_phone_number"],
        "verifiedName": row["verified_name"],
        "connectionStatus": row["connection_status"],
        "qualityRating": row["quality_rating"],
        "messagingTier": row["messaging_tier"],
        "messagingLimit": row["messaging_limit"],
        "throughputPerSecond": row["throughput_per_second"],
        "credentialStatus": row["credential_status"],
        "lastCheckedAt": iso(row["last_checked_at"]) if row["last_checked_at"] else None,
    }


async def of_account(conn: Connection, organization_id: UUID, account_id: UUID) -> dict[UUID, dict[str, object]]:
    """The account's active numbers as customers see them, by id."""
    return {row["id"]: shown(row) for row in await conn.fetch(OF_ACCOUNT, organization_id, account_id)}


async def announce(
    conn: Connection,
    organization_id: UUID,
    account_id: UUID,
    before: dict[UUID, dict[str, object]],
    *,
    at: datetime | None = None,
) -> int:
    """Record an event for each number of the account that looks otherwise than `before` (of `of_account`, in the same
    transaction); returns the deliveries queued."""
    at = at or clock.now()
    now = await of_account(conn, organization_id, account_id)
    raised = []
    for id in sorted(before.keys() | now.keys()):
        new = now.get(id) or {**before[id], "connectionStatus": "disconnected"}
        # When it was looked at is no change of what it is.
        old = {**before.get(id, {}), "lastCheckedAt": new["lastCheckedAt"]}
        if new != old:
            data = msgspec.json.encode({"phoneNumber": new}).decode()
            raised.append(Event(organization_id, uuid7(), "whatsapp.phone_number.updated", str(uuid7()), data, at))
    return await events.record(conn, raised)


#: Seconds for which Meta's readings may lag behind its events. A reading counts as that much older than it is, and
#: what an event spoke of is read again only after that.
LAG = 60.0
#: Seconds from an event to the reading that it asks for.
AGAIN = 75.0

# The account's row is always locked before those of its numbers and templates.
WAKE = """
UPDATE whatsapp_accounts
   SET numbers_at = CASE WHEN $3 THEN least(numbers_at, now() + make_interval(secs => $5)) ELSE numbers_at END,
       templates_at = CASE WHEN $4 THEN least(templates_at, now() + make_interval(secs => $5)) ELSE templates_at END,
       mirror_at = least(mirror_at, now() + make_interval(secs => $5))
 WHERE organization_id = $1 AND id = $2 AND state <> 'removed'
RETURNING numbers_read_at, templates_read_at
"""


async def wake_mirror(
    conn: Connection,
    organization_id: UUID,
    account_id: UUID,
    *,
    numbers: bool = False,
    templates: bool = False,
    after: float = AGAIN,
) -> tuple[datetime | None, datetime | None] | None:
    """Have the account looked at in `after` seconds, its numbers or all of its templates too if asked for.

    Locks the account. Returns the times as of which its numbers and templates are known, None if it was removed.
    """
    row = await conn.fetchrow(WAKE, organization_id, account_id, numbers, templates, after)
    return None if row is None else (row["numbers_read_at"], row["templates_read_at"])
