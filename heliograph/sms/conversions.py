"""Conversions: messages that had their effect, such as a code that was entered or a link that was followed.
Organizations report them, and the guard compares their rates (`guard/conversion.py`).

The rule nobody may break: a message converts once; a repeated report gets the first answer.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound

# A repetition that arrives while the first report is being committed waits for it, and then finds it.
CONVERT = """
WITH theirs AS MATERIALIZED (
    SELECT organization_id, id, recipient, mode FROM messages WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3)
), made AS (
    INSERT INTO guard_conversions (organization_id, message_id, recipient, mode, converted_at)
    SELECT organization_id, id, recipient, mode, date_trunc('milliseconds', now()) FROM theirs
        ON CONFLICT (organization_id, message_id) DO UPDATE SET message_id = excluded.message_id
    RETURNING converted_at
)
SELECT converted_at FROM made
"""


async def convert(conn: Connection, actor: Actor, *, id: UUID) -> datetime:
    """Record that a message converted; returns when this was first reported. Raises NotFound."""
    at: datetime | None = await conn.fetchval(CONVERT, actor.organization_id, id, actor.modes)
    if at is None:
        raise NotFound(resource="message", id=str(id))
    return at
