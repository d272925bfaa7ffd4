"""Finds what an id, name or supplier's id stands for in the whole installation: one search for whatever an operator
pasted.

The rule nobody may break: what the operator's role may not see is not found.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of, uuid7_floor, uuid_in
from heliograph.overview.finding import SearchResult
from heliograph.suppliers import message_ids


class Owned(SearchResult, frozen=True):
    """A search result, and the organization it belongs to; None: the installation."""

    organization_id: UUID | None


BY_ID = """
SELECT kind, id FROM (
    SELECT 'organization' AS kind, id FROM organizations WHERE id = $1
    UNION ALL
    SELECT 'supplier', id FROM suppliers WHERE id = $1
    UNION ALL
    SELECT 'route', id FROM routes WHERE id = $1
    UNION ALL
    SELECT 'operator', user_id FROM operators WHERE user_id = $1
) found WHERE kind = ANY ($2) LIMIT 1
"""
# An organization by its full name or, if unique, by the beginning of it. A supplier's message id is searched for in the
# forms that it may be stored in ($3), most likely first.
BY_NAME = """
SELECT kind, id FROM (
    (SELECT 'organization' AS kind, id FROM organizations WHERE lower(name) = lower(normalize($1)) LIMIT 1)
    UNION ALL
    (SELECT 'supplier', id FROM suppliers WHERE lower(name) = lower(normalize($1)) LIMIT 1)
    UNION ALL
    (SELECT 'route', id FROM routes WHERE lower(name) = lower(normalize($1)) LIMIT 1)
    UNION ALL
    (SELECT 'operator', o.user_id FROM operators o JOIN users u ON u.id = o.user_id WHERE u.email = lower($1) LIMIT 1)
    UNION ALL
    (SELECT 'message', message_id FROM attempts WHERE supplier_message_id = ANY ($3)
      ORDER BY array_position($3, supplier_message_id), ended_at DESC LIMIT 1)
    UNION ALL
    (SELECT 'message', message_id FROM sms_parts WHERE id_key = ANY ($3)
      ORDER BY array_position($3, id_key), created_at DESC LIMIT 1)
    UNION ALL
    (SELECT 'message', message_id FROM whatsapp_wamids
      WHERE $1 LIKE 'wamid.%' AND number_id = ANY (ARRAY(SELECT id FROM whatsapp_numbers)) AND wamid = $1 LIMIT 1)
) found WHERE kind = ANY ($2) LIMIT 1
"""

# A supplier's id as in `BY_NAME`, of the latest message that had it. Meta's ids are keyed with a number and a day: all
# numbers are searched at once by the key of each partition, of which only those of the last months are kept.
BY_FOREIGN_ID = """
SELECT id FROM (
    (SELECT message_id AS id, array_position($2, supplier_message_id) AS form, ended_at AS at FROM attempts
      WHERE supplier_message_id = ANY ($2) ORDER BY form, at DESC LIMIT 1)
    UNION ALL
    (SELECT message_id, array_position($2, id_key) AS form, created_at FROM sms_parts
      WHERE id_key = ANY ($2) ORDER BY form, created_at DESC LIMIT 1)
    UNION ALL
    (SELECT message_id, 1, created_at FROM whatsapp_wamids
      WHERE $1 LIKE 'wamid.%' AND number_id = ANY (ARRAY(SELECT id FROM whatsapp_numbers)) AND wamid = $1 LIMIT 1)
) found ORDER BY form, at DESC LIMIT 1
"""


async def by_foreign_id(conn: Connection, *, id: str) -> UUID | None:
    """The message to which a supplier or Meta gave this id, the latest if it was used twice; None: there is none."""
    found: UUID | None = await conn.fetchval(BY_FOREIGN_ID, id, message_ids.forms(id))
    return found


# Most tables are keyed by organization and id: querying each organization in turn costs one look-up each, while a
# search by id alone would read whole tables. A number or template at Meta leads to its account, and an event to its
# message if it has one.
OWNED = """
SELECT kind, id, organization_id FROM (
    SELECT 'lookup' AS kind, id, NULL::uuid AS organization_id FROM lookup_suppliers WHERE id = $1
    UNION ALL
    SELECT 'tariff', id, NULL FROM tariffs WHERE id = $1
    UNION ALL
    SELECT 'dead_letter', id, NULL FROM whatsapp_dead_letters WHERE id = $1
    UNION ALL
    SELECT 'key', id, organization_id FROM api_keys WHERE id = $1
    UNION ALL
    SELECT 'received', id, organization_id FROM inbound_messages WHERE id = $1
    UNION ALL
    SELECT found.kind, found.id, o.id FROM organizations o CROSS JOIN LATERAL (
        SELECT channel || '_campaign' AS kind, id FROM campaigns WHERE organization_id = o.id AND id = $1
        UNION ALL
        SELECT 'sender', id FROM sender_ids WHERE organization_id = o.id AND id = $1
        UNION ALL
        SELECT 'endpoint', id FROM webhook_endpoints WHERE organization_id = o.id AND id = $1
        UNION ALL
        SELECT CASE WHEN message_id IS NULL THEN 'told' ELSE 'event' END, coalesce(message_id, id)
          FROM events WHERE organization_id = o.id AND id = $1
        UNION ALL
        SELECT 'account', id FROM whatsapp_accounts WHERE organization_id = o.id AND id = $1
        UNION ALL
        SELECT 'account', account_id FROM whatsapp_numbers WHERE organization_id = o.id AND id = $1
        UNION ALL
        SELECT 'account', account_id FROM whatsapp_templates WHERE organization_id = o.id AND id = $1
        UNION ALL
        SELECT 'contact', id FROM contacts WHERE organization_id = o.id AND mode IN ('live', 'test') AND id = $1
        UNION ALL
        SELECT 'import', id FROM contact_imports WHERE organization_id = o.id AND id = $1
        UNION ALL
        SELECT 'received', id FROM received_messages WHERE organization_id = o.id AND id = $1
        UNION ALL
        SELECT 'person', user_id FROM memberships WHERE organization_id = o.id AND user_id = $1
    ) found
) found WHERE kind = ANY ($2) LIMIT 1
"""


# The time in the id narrows the search to a few rows: by the key of messages, and by the log's index in the partitions
# of that day.
OWNER_OF_REQUEST = """
SELECT o.id FROM organizations o CROSS JOIN LATERAL (
    (SELECT FROM requests
      WHERE organization_id = o.id AND request_id = $1 AND id >= $2 AND id < $4 LIMIT 1)
    UNION ALL
    (SELECT FROM messages
      WHERE organization_id = o.id AND id >= $2 AND id < $3 AND request_id = $1 LIMIT 1)
    UNION ALL
    (SELECT FROM whatsapp_messages
      WHERE organization_id = o.id AND id >= $2 AND id < $3 AND request_id = $1 LIMIT 1)) found
 LIMIT 1
"""
#: Processes' clocks differ by less; a message is accepted this long after its request began, and the request is
#: answered and logged this long after that, at most.
EARLIER, ACCEPTED, ANSWERED = timedelta(seconds=1), timedelta(seconds=30), timedelta(minutes=5)


async def owner_of_request(conn: Connection, *, request_id: str) -> UUID | None:
    """The organization whose request has this `x-request-id`; None: it is no longer known, or the id does not contain a
    time, unlike those generated by the API (UUIDv7)."""
    at = made_at(request_id)
    if at is None:
        return None
    bounds = (uuid7_floor(at + gap) for gap in (-EARLIER, ACCEPTED, ANSWERED))
    owner: UUID | None = await conn.fetchval(OWNER_OF_REQUEST, request_id, *bounds)
    return owner


# If a message of any organization has this id, it is what was meant.
IS_MESSAGE = """
SELECT FROM organizations o CROSS JOIN LATERAL (
    (SELECT FROM messages WHERE organization_id = o.id AND id = $1 LIMIT 1)
    UNION ALL (SELECT FROM whatsapp_messages WHERE organization_id = o.id AND id = $1 LIMIT 1)) found LIMIT 1
"""


async def is_request(conn: Connection, *, request_id: str) -> bool:
    """True if a request has this id, and no message does."""
    if await conn.fetchrow(IS_MESSAGE, uuid_in(request_id)) is not None:
        return False
    return await owner_of_request(conn, request_id=request_id) is not None


def made_at(text: str) -> datetime | None:
    """When an id was generated, if it is a UUIDv7 with a plausible year (2001 to 6429)."""
    id = uuid_in(text)
    return time_of(id) if id is not None and id.version == 7 and 10**12 < id.int >> 80 < 2**47 else None


async def by_id(conn: Connection, *, id: UUID, kinds: Collection[str]) -> SearchResult | None:
    """The thing with this id, of these kinds. Messages are found separately (`sms.timeline`)."""
    row = await conn.fetchrow(BY_ID, id, list(kinds))
    return None if row is None else SearchResult(*row)


async def owned(conn: Connection, *, id: UUID, kinds: Collection[str]) -> Owned | None:
    """The thing with this id, of these kinds that `by_id` does not know, in any organization."""
    row = await conn.fetchrow(OWNED, id, list(kinds))
    return None if row is None else Owned(*row)


async def by_name(conn: Connection, *, name: str, kinds: Collection[str]) -> SearchResult | None:
    """The thing with this name: organization or supplier by name, operator by e-mail, message by its supplier's id."""
    row = await conn.fetchrow(BY_NAME, name, list(kinds), message_ids.forms(name))
    return None if row is None else SearchResult(*row)


# If an organization's name begins with it, that was meant; otherwise each organization is queried in turn, by key.
IS_SENDER = """
SELECT FROM organizations o CROSS JOIN LATERAL (
    SELECT FROM sender_ids WHERE organization_id = o.id AND lower(value) = lower($1) LIMIT 1) found
 WHERE NOT EXISTS (SELECT FROM organizations WHERE starts_with(lower(name), lower($1))) LIMIT 1
"""


async def is_sender(conn: Connection, *, value: str) -> bool:
    """True if somebody has or requested this sender ID, and no organization's name begins with it."""
    return await conn.fetchrow(IS_SENDER, value) is not None
