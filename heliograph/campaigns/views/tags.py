"""Tags of contacts with the last campaign to each: the last one that began with the tag in its audience.

The rule nobody may break: at most LOOK of an organization's campaigns are examined, however many it has.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.contacts import tags

#: Latest campaigns of both modes and channels that are examined.
LOOK = 1_000


class TagUse(msgspec.Struct, frozen=True):
    """A tag, and the last campaign to it among those examined."""

    name: str
    #: How many contacts have it; `is_more`: there are more than were counted.
    contacts: int
    is_more: bool
    #: When that campaign began; None: none was to this tag.
    last_campaign_at: datetime | None
    campaign_id: UUID | None


# The limit is applied before the filter: even if few are of this mode, no more are read.
LAST = """
SELECT DISTINCT ON (tag) tag, id, started_at
  FROM (SELECT mode, id, audience_tags, started_at FROM campaigns
         WHERE organization_id = $1 ORDER BY id DESC LIMIT $4) latest
       CROSS JOIN LATERAL unnest(latest.audience_tags) AS tag
 WHERE latest.mode = $2 AND started_at IS NOT NULL AND tag = ANY ($3)
 ORDER BY tag, started_at DESC
"""


async def list_page(
    conn: Connection, actor: Actor, *, after: str = "", limit: int, counted: int = tags.COUNTED, look: int = LOOK
) -> list[TagUse]:
    """Up to `limit` tags in alphabetical order, after `after`."""
    listed = await tags.list_page(conn, actor, after=after, limit=limit, counted=counted)
    names = [one.name for one in listed]
    rows = await conn.fetch(LAST, actor.organization_id, actor.mode, names, look) if names else []
    last = {row["tag"]: (row["started_at"], row["id"]) for row in rows}
    return [TagUse(one.name, one.contacts, one.is_more, *last.get(one.name, (None, None))) for one in listed]
