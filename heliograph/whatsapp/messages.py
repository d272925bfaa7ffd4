"""An organization's WhatsApp messages, in either direction: listed and read.

The rule nobody may break: everything returned here is for customers. It contains no id, code, text or price of Meta's.
A key sees only messages of its own mode: the holder of a test key cannot read messages of real people.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan
from heliograph.base.database.bounded_scan import LOOK
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.consent import people
from heliograph.sealing import text_keys
from heliograph.sending import listing
from heliograph.sending import timeline as timelines
from heliograph.sending.listing import MessagePage, shown_among, shown_status
from heliograph.webhooks import timeline as webhook_timeline
from heliograph.whatsapp import timeline
from heliograph.whatsapp.accepting.accept import TABLE
from heliograph.whatsapp.mirror.warnings import REPLIES_ONLY
from heliograph.whatsapp.status import RANK


class Context(msgspec.Struct, frozen=True, rename="camel"):
    """The context of a user's message."""

    #: The message that it answers, reacts to, edits or deletes; None: none, or an older one.
    message_id: UUID | None
    #: Whether it was forwarded from somebody else.
    forwarded: bool


class Message(msgspec.Struct, frozen=True):
    """A message as its organization sees it."""

    id: UUID
    client_reference: str | None
    #: "outbound" or "inbound".
    direction: str
    type: str
    #: "live" or "test".
    mode: str
    status: str
    #: The user, in either direction: E.164 with `+`; for a user who hides the number, a user id.
    recipient: str
    number_id: UUID
    template_name: str | None
    template_language: str | None
    billing_category: str | None
    conversation_id: UUID
    campaign_id: UUID | None
    #: As for an SMS.
    key_id: UUID | None
    #: Who sent it on the dashboard.
    person_id: UUID | None
    request_id: str
    country: str | None
    #: When it was stored here, in either direction.
    accepted_at: datetime
    sent_at: datetime | None
    delivered_at: datetime | None
    read_at: datetime | None
    failed_at: datetime | None
    canceled_at: datetime | None
    failure_code: str | None
    #: Its content: for a text `body`, for a template `parameters`, for a user's message by its type, as in
    #: `suppliers.whatsapp_cloud.callbacks.content`; None: erased.
    content: dict[str, Any] | None = None
    context: Context | None = None
    #: The advertisement or post that brought the user, as far as known.
    referral: dict[str, Any] | None = None
    #: The user's profile name.
    profile_name: str | None = None


class Filters(listing.Filters, frozen=True, kw_only=True):
    """Filters of messages; None: all. A recipient means messages under any name of this person."""

    #: In addition to `statuses`.
    status: str | None = None
    #: One of the modes that the actor sees.
    mode: str | None = None
    billing_category: str | None = None
    template_name: str | None = None
    #: "outbound" or "inbound".
    direction: str | None = None


#: The public status once a message has been handed to Meta, until Meta reports more; the row still says `accepted`.
QUEUED = "queued"
#: All public statuses.
SHOWN_STATUSES = ("accepted", QUEUED, *(name for name in RANK if name != "accepted"))
_STORED = (
    "client_reference, direction, type, mode, recipient, number_id, template_name, template_language,"
    " billing_category, conversation_id, campaign_id, key_id, person_id, request_id, country,"
    " accepted_at, sent_at, delivered_at, read_at, failed_at, canceled_at, failure_code, content"
)
_COLUMNS = f"id, {shown_status('m', QUEUED)} AS status, {_STORED}"
# The queue is consulted last, and only for returned rows, as in `sms.messages`.
_SCANNED = f"id, status, {_STORED}"
_RETURNED = f"id, {shown_status('looked_at', QUEUED)} AS status, {_STORED}"
_FITS = f"""
           mode = ANY ($6)
           AND ($8::text IS NULL OR coalesce(billing_category = $8, false))
           AND ($9::text IS NULL OR coalesce(template_name = $9, false))
           AND ($10::timestamptz IS NULL OR accepted_at >= $10)
           AND ($11::timestamptz IS NULL OR accepted_at < $11)
           AND ($12::text IS NULL OR coalesce(client_reference = $12, false))
           AND ($14::uuid IS NULL OR coalesce(campaign_id = $14, false))
           AND ($15::text IS NULL OR coalesce(country = $15, false))
           AND ($16::text IS NULL OR coalesce(failure_code = $16, false))
           AND ($17::uuid IS NULL OR coalesce(key_id = $17, false)) AND ($18::text IS NULL OR request_id = $18)
           AND (NOT $19 OR key_id IS NOT NULL) AND ($20::uuid IS NULL OR coalesce(person_id = $20, false))
           AND ($21::text IS NULL OR direction = $21)
           AND {shown_among("looked_at", QUEUED, "$7::text[]")}
           AND {shown_among("looked_at", QUEUED, "$13::text[]")}"""
LIST = bounded_scan.statement("whatsapp_messages m", _SCANNED, fits=_FITS, returned=_RETURNED)
# The only filter with an index: the messages between an organization and one user are requested most. A user may have
# several names; each is scanned separately, so that none reads more than the bound.
_OF_NAMES = """
(SELECT message.* FROM unnest($22::text[]) AS given (name) CROSS JOIN LATERAL (
        SELECT * FROM whatsapp_messages
         WHERE organization_id = $1 AND recipient = given.name AND id < $2 AND id >= $3
         ORDER BY id DESC LIMIT $5) message) m"""
LIST_OF_RECIPIENT = bounded_scan.statement(_OF_NAMES, _SCANNED, fits=_FITS, returned=_RETURNED)


async def list_page(
    conn: Connection, actor: Actor, *, filters: Filters, after: UUID | None = None, limit: int = 50, look: int = LOOK
) -> MessagePage[Message]:
    """Messages older than `after`, newest first: up to `limit` + 1, so that the caller knows whether there are more.

    Scans at most `look` messages, of the recipient if one is given. A scan that ends there returns in `seen` where the
    next one continues, even if it found fewer, or none.
    """
    modes = [mode for mode in actor.modes if filters.mode in (None, mode)]
    if not modes:
        return MessagePage([], None)
    values = (
        actor.organization_id,
        *bounded_scan.bounds(after, date_from=filters.date_from, date_to=filters.date_to),
        limit + 1,
        look,
        modes,
        None if filters.status is None else [filters.status],
        filters.billing_category,
        filters.template_name,
        filters.date_from,
        filters.date_to,
        filters.client_reference,
        filters.statuses,
        filters.campaign_id,
        filters.country,
        filters.failure_code,
        filters.key_id,
        filters.request_id,
        filters.is_requested,
        filters.person_id,
        filters.direction,
    )
    if filters.recipient is None:
        rows = await conn.fetch(LIST, *values)
    else:
        names = await people.names(conn, actor.organization_id, filters.recipient)
        written = dict.fromkeys([filters.recipient, *(one for name in names for one in phones.spellings(name))])
        rows = await conn.fetch(LIST_OF_RECIPIENT, *values, list(written))
    found, seen = bounded_scan.judged(rows, limit=limit, look=look)
    return MessagePage(await _messages(conn, actor, found), seen)


#: Fields that are columns of the same name.
_PLAIN = [name for name in Message.__struct_fields__ if name not in ("content", "context", "referral", "profile_name")]

RAISING = """
SELECT id, mode, event_id, accepted_at, sent_at, delivered_at, read_at, failed_at FROM whatsapp_messages
 WHERE organization_id = $1 AND id = $2
"""
SELECT = f"SELECT {_COLUMNS} FROM whatsapp_messages m WHERE organization_id = $1 AND id = $2"


async def get(conn: Connection, actor: Actor, *, id: UUID) -> Message:
    """A message. Raises NotFound."""
    row = await conn.fetchrow(SELECT, actor.organization_id, id)
    if row is None or row["mode"] not in actor.modes:
        raise NotFound(resource="message", id=str(id))
    (message,) = await _messages(conn, actor, [row])
    return message


# While a message waits for its template, its queue row is in the template's line. Holds and limits are for live
# messages only.
WAITING = f"""
SELECT q.due_at, q.lease_until IS NOT NULL AND q.lease_until > now() AS is_begun,
       nullif(greatest(n.held_until, a.held_until, now(),
                       CASE WHEN m.type = 'template' AND coalesce(c.expires_at <= now(), true)
                            THEN {REPLIES_ONLY} END), now()) AS held_until,
       t.status AS template_status,
       CASE WHEN p.users >= n.messaging_limit AND coalesce(c.expires_at <= now(), true)
             AND NOT EXISTS (SELECT FROM whatsapp_reached known
                              WHERE known.portfolio = a.portfolio AND known.recipient = person_of(m.recipient)
                                AND known.reached_at > now() - interval '24 hours')
            THEN n.messaging_limit END AS reached_limit
  FROM queue q CROSS JOIN LATERAL (
       SELECT number_id, type, recipient, conversation_id FROM whatsapp_messages
        WHERE organization_id = $1 AND id = $2 AND status = 'accepted' AND mode = 'live' LIMIT 1) m
  JOIN whatsapp_numbers n ON n.organization_id = $1 AND n.id = m.number_id
  JOIN whatsapp_accounts a ON a.organization_id = $1 AND a.id = n.account_id
  LEFT JOIN whatsapp_templates t ON t.organization_id = $1 AND t.id = q.line
  LEFT JOIN whatsapp_portfolios p ON p.portfolio = a.portfolio
  LEFT JOIN LATERAL (
       SELECT max(expires_at) AS expires_at FROM whatsapp_conversations known
        WHERE known.organization_id = $1 AND known.id IN (
              SELECT unnest(ARRAY[id, merged_into]) FROM whatsapp_conversations
               WHERE organization_id = $1 AND id = m.conversation_id)) c ON true
 WHERE q.id = $2 AND q.organization_id = $1 AND q.kind || '' = 'whatsapp' LIMIT 1
"""


class Waiting(msgspec.Struct, frozen=True):
    """Why a live message has not been sent yet."""

    due_at: datetime
    #: It is being handed over.
    is_begun: bool
    #: Until when nothing is sent from its number; None: no hold.
    held_until: datetime | None
    #: The status of its template, if it waits for that; None: it does not.
    template_status: str | None
    #: The messaging limit of its number, if that many people were reached in 24 hours and its recipient, whose window
    #: is closed, is none of them.
    reached_limit: int | None


async def waiting(conn: Connection, organization_id: UUID, *, id: UUID) -> Waiting | None:
    """Why a message waits; None: it does not wait to be sent, or is a test message."""
    row = await conn.fetchrow(WAITING, organization_id, id)
    return None if row is None else Waiting(*row)


PRICES = """
SELECT m.id, m.reserved + m.consumed AS amount, w.currency, m.charge = 'consumed' AS is_due
  FROM whatsapp_messages m JOIN wallets w ON w.organization_id = $1
 WHERE m.organization_id = $1 AND m.id = ANY ($2) AND m.mode = 'live' AND m.charge IN ('reserved', 'consumed')
"""


async def prices(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> dict[UUID, tuple[int, str, bool]]:
    """(millionths, currency, whether it has been charged) for those of the messages that cost something."""
    rows = await conn.fetch(PRICES, actor.organization_id, list(ids)) if ids else []
    return {row["id"]: (row["amount"], row["currency"], row["is_due"]) for row in rows}


BY_IDS = f"SELECT {_COLUMNS} FROM whatsapp_messages m WHERE organization_id = $1 AND id = ANY ($2)"


async def by_ids(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> list[Message]:
    """Those of the messages that exist."""
    rows = await conn.fetch(BY_IDS, actor.organization_id, list(ids)) if ids else []
    return await _opened(conn, actor, [row for row in rows if row["mode"] in actor.modes])


async def deliveries(conn: Connection, actor: Actor, *, id: UUID) -> tuple[list[asyncpg.Record], list[asyncpg.Record]]:
    """(the events that a message raised, as from `sending.timeline.raised`; its webhook attempts, as from
    `webhooks.timeline.tried`)."""
    row = await conn.fetchrow(RAISING, actor.organization_id, id)
    if row is None or row["mode"] not in actor.modes:
        return [], []
    raised = await timelines.raised(conn, timeline.SOURCE, actor.organization_id, row)
    tried = await webhook_timeline.tried(conn, actor.organization_id, raised)
    return raised, tried


# A conversation may have been merged into another one of the same user since.
MERGED = """
SELECT id, merged_into FROM whatsapp_conversations
 WHERE organization_id = $1 AND id = ANY ($2) AND merged_into IS NOT NULL
"""


async def _messages(conn: Connection, actor: Actor, rows: Sequence[asyncpg.Record]) -> list[Message]:
    threads = list({row["conversation_id"] for row in rows})
    into = await conn.fetch(MERGED, actor.organization_id, threads) if threads else []
    merged: dict[UUID, UUID] = {row["id"]: row["merged_into"] for row in into}
    found = await _opened(conn, actor, rows)
    return [
        msgspec.structs.replace(one, conversation_id=merged[one.conversation_id])
        if one.conversation_id in merged
        else one
        for one in found
    ]


async def _opened(conn: Connection, actor: Actor, rows: Sequence[asyncpg.Record]) -> list[Message]:
    contents = await text_keys.opened_of(
        conn, actor.organization_id, TABLE, [(row["id"], row["content"]) for row in rows]
    )
    return [_message(row, contents[row["id"]]) for row in rows]


def _message(row: asyncpg.Record, content: str | None) -> Message:
    """A message from its row. `content`: decrypted; None: erased, or its key was discarded."""
    stored = read_content(content)
    context = stored.pop("context", None)
    found = Message(
        **{name: row[name] for name in _PLAIN},
        context=msgspec.convert(context, Context) if row["direction"] == "inbound" and context else None,
        referral=stored.pop("referral", None),
        profile_name=stored.pop("profileName", None),
    )
    stored.pop("type", None)
    return msgspec.structs.replace(found, content=stored if content is not None else None)


def read_content(stored: str | None) -> dict[str, Any]:
    """The content of a row, decrypted; empty if it was erased."""
    if stored is None:
        return {}
    try:
        return msgspec.json.decode(stored, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}
