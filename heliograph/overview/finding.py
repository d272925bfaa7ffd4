"""Finds what an id or name stands for in an organization: one search for whatever somebody pasted.

The rule nobody may break: what the caller may not see is not found, indistinguishable from what does not exist.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection

#: Campaigns, newest first, that are searched for a name: names have no index.
EXAMINED = 500


class SearchResult(msgspec.Struct, frozen=True):
    """A search result. `kind`: one of KINDS."""

    kind: str
    id: UUID


#: What can be found. Messages and requests are found separately (`overview.messages`, `overview.requests`). A listed
#: import is one of the command line, which has no page.
KINDS = (
    *("campaign", "endpoint", "event", "contact", "import", "listed_import"),
    *("number", "template", "key", "sender", "person"),
)

BY_ID = """
SELECT kind, id FROM (
    SELECT 'campaign' AS kind, id FROM campaigns WHERE organization_id = $1 AND id = $2 AND mode = $3
    UNION ALL
    SELECT 'endpoint', id FROM webhook_endpoints WHERE organization_id = $1 AND id = $2 AND mode = $3
    UNION ALL
    SELECT 'event', message_id FROM events
     WHERE organization_id = $1 AND id = $2 AND mode = $3 AND message_id IS NOT NULL
    UNION ALL
    SELECT 'contact', id FROM contacts WHERE organization_id = $1 AND id = $2 AND mode = $3
    UNION ALL
    SELECT CASE WHEN is_uploaded THEN 'import' ELSE 'listed_import' END, id FROM contact_imports
     WHERE organization_id = $1 AND id = $2 AND mode = $3
    UNION ALL
    SELECT 'number', id FROM whatsapp_numbers WHERE organization_id = $1 AND id = $2 AND state = 'active'
    UNION ALL
    SELECT 'template', id FROM whatsapp_templates WHERE organization_id = $1 AND id = $2 AND status <> 'removed'
    UNION ALL
    SELECT 'key', id FROM api_keys WHERE organization_id = $1 AND id = $2 AND mode = $3
    UNION ALL
    SELECT 'sender', id FROM sender_ids WHERE organization_id = $1 AND id = $2
    UNION ALL
    SELECT 'person', user_id FROM memberships WHERE organization_id = $1 AND user_id = $2
) found WHERE kind = ANY ($4) LIMIT 1
"""
# A key is recognized by its ends, as shown in lists; the part between them does not matter.
BY_NAME = """
SELECT kind, id FROM (
    (SELECT 'key' AS kind, id FROM api_keys
      WHERE organization_id = $1 AND starts_with($2, prefix) AND right($2, 4) = last4 AND mode = $3
      ORDER BY id DESC LIMIT 1)
    UNION ALL
    (SELECT 'person', m.user_id FROM memberships m JOIN users u ON u.id = m.user_id
      WHERE m.organization_id = $1 AND u.email = lower($2) LIMIT 1)
    UNION ALL
    (SELECT 'template', id FROM whatsapp_templates
      WHERE organization_id = $1 AND name = $2 AND status <> 'removed' ORDER BY id LIMIT 1)
    UNION ALL
    (SELECT 'sender', id FROM sender_ids WHERE organization_id = $1 AND lower(value) = lower($2) LIMIT 1)
    UNION ALL
    (SELECT 'campaign', id FROM (SELECT id, name, mode FROM campaigns WHERE organization_id = $1
                                  ORDER BY id DESC LIMIT $5) latest
      WHERE lower(name) = lower(normalize($2)) AND mode = $3 ORDER BY id DESC LIMIT 1)
    UNION ALL
    (SELECT 'endpoint', id FROM webhook_endpoints
      WHERE organization_id = $1 AND url = $2 AND mode = $3 ORDER BY id DESC LIMIT 1)
) found WHERE kind = ANY ($4) LIMIT 1
"""


async def by_id(conn: Connection, actor: Actor, *, id: UUID, kinds: Collection[str]) -> SearchResult | None:
    """The thing with this id, of these kinds, and in the actor's mode if it has one. For an event, its message."""
    row = await conn.fetchrow(BY_ID, actor.organization_id, id, actor.mode, list(kinds))
    return None if row is None else SearchResult(*row)


async def by_name(conn: Connection, actor: Actor, *, name: str, kinds: Collection[str]) -> SearchResult | None:
    """The thing with this name: a key by its ends, a person by e-mail, others by name, value or address."""
    row = await conn.fetchrow(BY_NAME, actor.organization_id, name, actor.mode, list(kinds), EXAMINED)
    return None if row is None else SearchResult(*row)
