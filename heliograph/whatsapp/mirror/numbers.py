"""Numbers: an organization's WhatsApp senders, mirrored from Meta by syncs and by events.

The rule nobody may break: of two reports on the same matter the newer one counts, in whatever order they arrive; and a
customer reads only values from closed sets, never an id or a text of Meta's.

It has over 400 lines because events and readings are merged into the same facets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph import notices
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.errors import Invalid, Refusal
from heliograph.base.ids import uuid7
from heliograph.base.loading_cache import LoadingCache
from heliograph.notices import Notice
from heliograph.suppliers.whatsapp_cloud.callbacks.items import AccountItem, CapabilityItem, NumberItem, Tier
from heliograph.suppliers.whatsapp_cloud.objects import CloudNumber
from heliograph.webhooks.recording import events
from heliograph.webhooks.recording.events import Event
from heliograph.whatsapp import reads
from heliograph.whatsapp.mirror import qualities
from heliograph.whatsapp.mirror.facets import merge, quality


class PhoneNumberUnavailable(Refusal):
    """This WhatsApp number cannot send at the moment."""

    code, status = "whatsapp_phone_number_unavailable", 409


class Number(msgspec.Struct, frozen=True):
    """A number, as needed for sending."""

    id: UUID
    organization_id: UUID
    account_id: UUID
    #: Meta's id, only for requests to Meta.
    graph_id: str
    digits: str
    #: The account's, ISO 4217.
    currency: str
    #: Whether neither it nor its account is paused, removed, banned or disconnected.
    sendable: bool
    #: Why it is not sendable: removed, paused, banned or disconnected.
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
    """A cache of numbers, at most half a second old."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._fresh: LoadingCache[tuple[UUID, UUID], Number] = LoadingCache(self._load, indivisible=is_down)

    async def find(self, actor: Actor, number_id: UUID) -> Number:
        """The number named by `phoneNumberId`, whether it can send or not.

        Raises Invalid for an id that is not of this organization. The answer that it cannot send is always based on the
        database's current state.
        """
        key = (actor.organization_id, number_id)
        fresh, number = self._fresh.peek(key)
        if not fresh or number is None or not number.sendable:
            number = await self._fresh.get(key, bypass_cache=True)
        if number is None:
            raise Invalid(("phoneNumberId", "unknown", "`phoneNumberId` is not a WhatsApp number of this organization"))
        return number

    async def resolve(self, actor: Actor, number_id: UUID) -> Number:
        """The number, able to send. Raises Invalid as `find` does, and PhoneNumberUnavailable."""
        number = await self.find(actor, number_id)
        if not number.sendable:
            raise unavailable(number)
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


def unavailable(number: Number) -> PhoneNumberUnavailable:
    """The refusal for a number that cannot send."""
    return PhoneNumberUnavailable(phoneNumberId=str(number.id), reason=number.reason)


#: The columns that `shown` needs from a number and its account.
COLUMNS = """
n.id, n.display_phone_number, n.verified_name,
CASE a.state WHEN 'paused' THEN 'paused' ELSE n.connection_status END AS connection_status, n.quality_rating,
n.messaging_tier, n.messaging_limit, n.throughput_per_second, a.credential_status, n.last_checked_at
"""
OF_ACCOUNT = f"""
SELECT {COLUMNS} FROM whatsapp_numbers n JOIN whatsapp_accounts a ON (a.organization_id, a.id) = (n.organization_id,
       n.account_id)
 WHERE n.organization_id = $1 AND n.account_id = $2 AND n.state = 'active' ORDER BY n.id
"""


def shown(row: asyncpg.Record) -> dict[str, object]:
    """The number as customers see it, as in the list of numbers. `row`: COLUMNS."""
    return {
        "id": str(row["id"]),
        "displayPhoneNumber": row["display_phone_number"],
        "verifiedName": row["verified_name"],
        "connectionStatus": row["connection_status"],
        "qualityRating": row["quality_rating"],
        "messagingTier": reads.tier(row["messaging_tier"]),
        "messagingLimit": row["messaging_limit"],
        "throughputPerSecond": row["throughput_per_second"],
        "credentialStatus": row["credential_status"],
        "lastCheckedAt": iso(row["last_checked_at"]) if row["last_checked_at"] else None,
    }


async def of_account(conn: Connection, organization_id: UUID, account_id: UUID) -> dict[UUID, dict[str, object]]:
    """The account's active numbers as customers see them, by id."""
    return {row["id"]: shown(row) for row in await conn.fetch(OF_ACCOUNT, organization_id, account_id)}


#: Quality ratings of a number that cause a notice.
FALLEN = ("yellow", "red")


async def announce(
    conn: Connection,
    organization_id: UUID,
    account_id: UUID,
    before: dict[UUID, dict[str, object]],
    *,
    at: datetime | None = None,
) -> int:
    """Record an event for each number of the account that differs from `before` (from `of_account`, in the same
    transaction); returns the number of deliveries queued."""
    at = at or clock.now()
    now = await of_account(conn, organization_id, account_id)
    raised, told = [], []
    for id in sorted(before.keys() | now.keys()):
        new = now.get(id) or {**before[id], "connectionStatus": "disconnected"}
        # The time of the last check is not a change.
        old = {**before.get(id, {}), "lastCheckedAt": new["lastCheckedAt"]}
        if new["qualityRating"] in FALLEN and old.get("qualityRating") not in (None, new["qualityRating"]):
            facts = {"rating": str(new["qualityRating"])}
            name = str(new["displayPhoneNumber"])
            told.append(Notice(organization_id, "number.quality", str(id), name, facts=facts))
        if new != old:
            data = msgspec.json.encode({"phoneNumber": new}).decode()
            raised.append(Event(organization_id, uuid7(), "whatsapp.phone_number.updated", str(uuid7()), data, at))
    await notices.record_many(conn, [one for one in told if one.facts["rating"] != "red"])
    # It has fallen further since yellow was reported.
    await notices.record_many(conn, [one for one in told if one.facts["rating"] == "red"], quiet=None)
    return await events.record(conn, raised)


#: Seconds by which Meta's readings may lag behind its events. A reading counts as that much older than it is, and the
#: subject of an event is reread only after that.
LAG = 60.0
#: Seconds from an event to the resulting reading.
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
    """Schedule a sync of the account in `after` seconds, including its numbers or all of its templates if requested.

    Locks the account. Returns the times as of which its numbers and templates are known, None if it was removed.
    """
    row = await conn.fetchrow(WAKE, organization_id, account_id, numbers, templates, after)
    return None if row is None else (row["numbers_read_at"], row["templates_read_at"])


#: Meta's terms → ours; a new one becomes `unknown`, which may send.
CONNECTIONS = {
    "CONNECTED": "connected",
    "FLAGGED": "connected",
    "LINKED": "connected",
    "PENDING": "pending",
    "UNVERIFIED": "pending",
    "RESTRICTED": "restricted",
    "RATE_LIMITED": "restricted",
    "BANNED": "banned",
    "DISCONNECTED": "disconnected",
    "UNLINKED": "disconnected",
    "DELETED": "disconnected",
    "MIGRATED": "disconnected",
}
TIERS = frozenset({50, 250, 1_000, 2_000, 10_000, 100_000})
#: Account events → connection of all its numbers.
ACCOUNT_EVENTS = {
    "ACCOUNT_RESTRICTION": "restricted",
    "ACCOUNT_DELETED": "disconnected",
    "ACCOUNT_OFFBOARDED": "disconnected",
    "ACCOUNT_RECONNECTED": "connected",
}
BANS = {"DISABLE": "banned", "REINSTATE": "connected"}
#: Restrictions of an account that leave its numbers able to send.
HARMLESS = frozenset(
    {"RESTRICTED_ADD_PHONE_NUMBER_ACTION", "RESTRICTED_UTILITY_TEMPLATES", "RESTRICTED_DIRECT_SEND_UTILITY_TEMPLATES"}
)
#: A number that exists at Meta but has been missing from its account's listings for this long belongs to another
#: account.
LACKED = timedelta(minutes=5)
#: Messages a second after THROUGHPUT_UPGRADE.
HIGH = 1000

_ROW = (
    "id, graph_id, display_phone_number, digits, verified_name, state, connection_status, quality_rating,"
    " messaging_tier, messaging_limit, throughput_per_second, applied, applied_at, last_checked_at,"
    " missing_at"
)
ROWS = f"""
SELECT {_ROW} FROM whatsapp_numbers WHERE organization_id = $1 AND account_id = $2 ORDER BY id FOR NO KEY UPDATE
"""
# A hold of a number that is connected again, perhaps because it was registered, has one message probe.
_ENDS_HOLD = "$7 = 'connected' AND connection_status <> 'connected' AND held_until > now()"
WRITE = f"""
UPDATE whatsapp_numbers
   SET display_phone_number = $3, digits = $4, verified_name = $5, state = $6, connection_status = $7,
       quality_rating = $8, messaging_tier = $9, messaging_limit = $10, throughput_per_second = $11,
       applied = $12::text::jsonb, applied_at = $13, last_checked_at = $14, missing_at = $15, changed_at = $16,
       held_until = CASE WHEN {_ENDS_HOLD} THEN now() ELSE held_until END,
       trying_id = CASE WHEN {_ENDS_HOLD} THEN NULL ELSE trying_id END,
       trying_at = CASE WHEN {_ENDS_HOLD} THEN NULL ELSE trying_at END
 WHERE organization_id = $1 AND id = $2
"""
# A number belongs to one account at a time: if another one here still has it, that account's next reading releases it.
INSERT = """
INSERT INTO whatsapp_numbers (organization_id, account_id, id, graph_id, display_phone_number, digits, created_at,
                              changed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $7) ON CONFLICT DO NOTHING RETURNING id
"""


async def apply_items(
    conn: Connection,
    organization_id: UUID,
    account_id: UUID,
    items: Sequence[tuple[NumberItem | CapabilityItem | AccountItem, datetime]],
) -> int:
    """Apply events of one account, in order; returns the number of deliveries queued. Beside each: its arrival, the
    latest possible time of the event.

    An event older than the known state changes nothing; either way, the numbers are read from Meta a little later.
    """
    heard = [(item, at, facets) for item, at in items if (facets := _said(item))]
    latest = max(at for _, at in items)
    async with conn.transaction():
        known = await wake_mirror(conn, organization_id, account_id, numbers=True)
        if known is None or not heard:
            return 0
        before = await of_account(conn, organization_id, account_id)
        for found in await conn.fetch(ROWS, organization_id, account_id):
            if found["state"] != "active":
                continue
            row = dict(found)
            for item, at, facets in heard:
                if isinstance(item, NumberItem) and item.digits != found["digits"]:
                    continue
                for facet, values in facets.items():
                    merge(row, facet, min(item.at or at, at), known[0], values, alone=True)
            await _write(conn, organization_id, found, row, latest)
        return await announce(conn, organization_id, account_id, before, at=latest)


async def store_numbers(
    conn: Connection,
    organization_id: UUID,
    account_id: UUID,
    listing: Sequence[CloudNumber],
    *,
    at: datetime,
    asked: Mapping[str, CloudNumber | None] | None = None,
) -> list[str]:
    """Update an account's numbers from a full listing.

    A number that was deleted at Meta and added again keeps its id here, with its queued messages and service windows.
    A missing number is removed if an individual look-up said that it is gone (`asked`, by Graph id); if Meta still
    has it, it is removed once it has been missing for as long as LACKED, since it then belongs to another account.
    Otherwise it stays: a listing may be incomplete. The caller has locked the account, and announces. `at`: the time
    that the listing reflects. Returns the Graph ids of numbers that another account still has.
    """
    asked = asked or {}
    # A number that moves to the next page while the pages are read is listed twice.
    listing = list({one.id: one for one in listing}.values())
    now = clock.now()
    listed = {one.id for one in listing}
    rows = await _renewed(conn, organization_id, account_id, listing)
    for graph_id, row in rows.items():
        if row["state"] == "active" and graph_id not in listed:
            since = row["missing_at"] or now
            one = asked.get(graph_id)
            lacked = one is not None and now - since >= LACKED
            gone = (graph_id in asked and one is None) or lacked
            changed = {"state": "removed", "missing_at": None} if gone else {"missing_at": since}
            await _write(conn, organization_id, row, {**row, **changed}, now)
    taken = []
    for one in listing:
        if one.id in rows:
            free = rows[one.id]["state"] == "active" or not await conn.fetchval(TAKEN, one.id)
        else:
            values = (uuid7(), one.id, one.display, one.digits or "", now)
            free = await conn.fetchval(INSERT, organization_id, account_id, *values) is not None
        if not free:
            taken.append(one.id)
    rows = await _by_graph_id(conn, organization_id, account_id)
    for one in listing:
        if one.id not in taken:
            await _write(conn, organization_id, rows[one.id], _read(rows[one.id], one, at, now), now)
    return taken


# One message probes if it was held because Meta did not know it anymore.
RENEW = """
UPDATE whatsapp_numbers
   SET graph_id = $3, applied = '{}', trying_id = NULL, trying_at = NULL,
       held_until = CASE WHEN held_until > now() THEN now() ELSE held_until END
 WHERE organization_id = $1 AND id = $2
"""


async def _renewed(
    conn: Connection, organization_id: UUID, account_id: UUID, listing: Sequence[CloudNumber]
) -> dict[str, asyncpg.Record]:
    """The account's numbers by Graph id, after those that are listed under another one have got it."""
    rows = await _by_graph_id(conn, organization_id, account_id)
    listed = {one.id for one in listing}
    former = {row["digits"]: row for row in rows.values() if row["state"] != "active" and row["graph_id"] not in listed}
    former |= {
        row["digits"]: row for row in rows.values() if row["state"] == "active" and row["graph_id"] not in listed
    }
    again = {one.id: former[one.digits] for one in listing if one.id not in rows and one.digits in former}
    renewed = [(id, row) for id, row in again.items() if not await conn.fetchval(TAKEN, id)]
    for graph_id, row in renewed:
        await conn.execute(RENEW, organization_id, row["id"], graph_id)
    return await _by_graph_id(conn, organization_id, account_id) if renewed else rows


TAKEN = "SELECT EXISTS (SELECT FROM whatsapp_numbers WHERE graph_id = $1 AND state <> 'removed')"


async def _by_graph_id(conn: Connection, organization_id: UUID, account_id: UUID) -> dict[str, asyncpg.Record]:
    return {row["graph_id"]: row for row in await conn.fetch(ROWS, organization_id, account_id)}


def connection_of(one: CloudNumber) -> str:
    """A number's connection status for customers, from its status and its obstacles."""
    found = CONNECTIONS.get(one.status or "", "unknown")
    if found == "connected":
        if one.platform == "NOT_APPLICABLE":
            return "pending"
        # A portfolio that is merely not verified yet is also limited, but can send.
        if one.can_send == "BLOCKED" or any(obstacle.entity in ("WABA", "PHONE_NUMBER") for obstacle in one.obstacles):
            return "restricted"
    return found


def tier_values(tier: Tier) -> dict[str, Any]:
    """The columns of a messaging limit."""
    if tier.name == "TIER_UNLIMITED":
        return {"messaging_tier": "unlimited", "messaging_limit": None}
    name = tier.name.lower() if tier.limit in TIERS else "unknown"
    return {"messaging_tier": name, "messaging_limit": tier.limit}


def _said(item: NumberItem | CapabilityItem | AccountItem) -> dict[str, dict[str, Any]]:
    """The content of an event, by facet."""
    if isinstance(item, AccountItem):
        connection = None
        named = {one.type for one in item.restrictions}
        if item.field == "account_update" and not (named and named <= HARMLESS):
            connection = BANS.get(item.ban_state or "") or ACCOUNT_EVENTS.get(item.event or "")
        return {"connection": {"connection_status": connection}} if connection else {}
    facets: dict[str, dict[str, Any]] = {}
    if item.tier is not None and item.tier.name != "unknown":
        facets["tier"] = tier_values(item.tier)
    if isinstance(item, NumberItem):
        if item.field == "phone_number_name_update":
            if item.event == "APPROVED" and item.verified_name:
                facets["name"] = {"verified_name": item.verified_name}
        elif item.event == "THROUGHPUT_UPGRADE":
            facets["throughput"] = {"throughput_per_second": HIGH}
    return facets


def _read(found: asyncpg.Record, one: CloudNumber, at: datetime, now: datetime) -> dict[str, Any]:
    row = {
        **found,
        "state": "active",
        "display_phone_number": one.display or found["display_phone_number"],
        "digits": one.digits or found["digits"],
        "last_checked_at": now,
        "missing_at": None,
    }
    connection = connection_of(one)
    if connection == "restricted" and one.can_send == "BLOCKED" and found["connection_status"] == "banned":
        # A number does not show that its account is banned, only that nothing can be sent; the event was more specific.
        connection = "banned"
    merge(row, "connection", at, None, {"connection_status": connection}, alone=False)
    merge(row, "quality", at, None, {"quality_rating": quality(one.quality)}, alone=False)
    if one.tier.name != "unknown":  # a limit that Meta does not report is not thereby lifted
        merge(row, "tier", at, None, tier_values(one.tier), alone=False)
    if one.throughput is not None or one.on_business_app:
        values = {"throughput_per_second": one.messages_per_second}
        merge(row, "throughput", at, None, values, alone=False)
    if one.verified_name is not None:
        merge(row, "name", at, None, {"verified_name": one.verified_name}, alone=False)
    return row


_WRITTEN = (
    "display_phone_number",
    "digits",
    "verified_name",
    "state",
    "connection_status",
    "quality_rating",
    "messaging_tier",
    "messaging_limit",
    "throughput_per_second",
    "applied",
    "applied_at",
    "last_checked_at",
    "missing_at",
)


async def _write(conn: Connection, organization_id: UUID, old: Any, row: Mapping[str, Any], at: datetime) -> None:
    if any(row[name] != old[name] for name in _WRITTEN):
        await conn.execute(WRITE, organization_id, row["id"], *(row[name] for name in _WRITTEN), at)
    if any(row[name] != old[name] for name in ("quality_rating", "messaging_limit")):
        noted = qualities.QualityNote(row["id"], row["quality_rating"], row["messaging_limit"])
        await qualities.note(conn, organization_id, [noted], at)
