"""What an id, a name or a supplier's id stands for in the whole installation: one look for whatever an operator pasted.

The rule nobody may break: what the operator's role may not see is not found.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.overview.finding import Thing

#: What can be found by id or name.
KINDS = ("organization", "supplier", "route", "operator", "message")

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
# An organization by its whole name or, if only one begins so, by how it begins. A supplier's id of a message is looked
# for as it came and in small letters: some write theirs in capitals, and receipts in small ones.
BY_NAME = """
SELECT kind, id FROM (
    (SELECT 'organization' AS kind, id FROM organizations WHERE lower(name) = lower($1) LIMIT 1)
    UNION ALL
    (SELECT 'supplier', id FROM suppliers WHERE lower(name) = lower($1) LIMIT 1)
    UNION ALL
    (SELECT 'route', id FROM routes WHERE lower(name) = lower($1) LIMIT 1)
    UNION ALL
    (SELECT 'operator', o.user_id FROM operators o JOIN users u ON u.id = o.user_id WHERE u.email = lower($1) LIMIT 1)
    UNION ALL
    (SELECT 'message', message_id FROM attempts WHERE supplier_message_id = ANY (ARRAY[$1, lower($1)])
      ORDER BY ended_at DESC LIMIT 1)
    UNION ALL
    (SELECT 'message', message_id FROM sms_parts WHERE id_key = ANY (ARRAY[$1, lower($1)])
      ORDER BY created_at DESC LIMIT 1)
) found WHERE kind = ANY ($2) LIMIT 1
"""


async def by_id(conn: Connection, *, id: UUID, kinds: Collection[str]) -> Thing | None:
    """What has this id, of these kinds. Messages have their own way (`sms.timeline`)."""
    row = await conn.fetchrow(BY_ID, id, list(kinds))
    return None if row is None else Thing(*row)


async def by_name(conn: Connection, *, name: str, kinds: Collection[str]) -> Thing | None:
    """What is called so: an organization or supplier by name, an operator by e-mail, a message by its supplier's id."""
    row = await conn.fetchrow(BY_NAME, name, list(kinds))
    return None if row is None else Thing(*row)
