"""The names by which people know an organization: its own, its sender IDs and the verified names of its WhatsApp
numbers. "STOP ACME" is meant for the organization of that name."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.consent import keywords

NAMES = """
SELECT id AS organization_id, name FROM organizations WHERE id = ANY ($1)
 UNION ALL
SELECT organization_id, value FROM sender_ids WHERE organization_id = ANY ($1) AND status = 'approved'
 UNION ALL
SELECT organization_id, verified_name FROM whatsapp_numbers WHERE organization_id = ANY ($1) AND verified_name <> ''
"""


async def of(conn: Connection, said: Collection[tuple[UUID, str]]) -> dict[UUID, frozenset[str]]:
    """The names, as `keywords.find` takes them, of the organizations that got one of these texts with STOP and other
    words in it. Hardly any text is like that, so there is usually no query."""
    asked = {organization_id for organization_id, text in said if keywords.is_directed(text)}
    if not asked:
        return {}
    found: dict[UUID, set[str]] = {}
    for organization_id, name in await conn.fetch(NAMES, list(asked)):
        found.setdefault(organization_id, set()).add(keywords.fold_name(name))
    return {organization_id: frozenset(names - {""}) for organization_id, names in found.items()}
