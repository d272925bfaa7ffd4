"""Tags of contacts with when each was last used: as the audience of a campaign that began.

The rule nobody may break: no more of an organization's campaigns are looked at than LOOK, however many it has.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.contacts import tags

#: Latest campaigns of both modes and channels that are looked at.
LOOK = 1_000


class TagUse(msgspec.Struct, frozen=True):
    """A tag, and when it was last used."""

    name: str
    #: How many contacts have it; more than were counted if `is_more`.
    contacts: int
    is_more: bool
    #: When the last campaign to it began; None: none of those that were looked at was to this tag.
    last_used_at: datetime | None


# The limit stands before the filter: where few are of this mode, no more are read.
LAST_USED = """
SELECT tag, max(started_at) AS at
  FROM (SELECT mode, audience_tags, started_at FROM campaigns
         WHERE organization_id = $1 ORDER BY id DESC LIMIT $4) latest
       CROSS JOIN LATERAL unnest(latest.audience_tags) AS tag
 WHERE latest.mode = $2 AND started_at IS NOT NULL AND tag = ANY ($3)
 GROUP BY tag
"""


async def list_page(
    conn: Connection, actor: Actor, *, after: str = "", limit: int, counted: int = tags.COUNTED, look: int = LOOK
) -> list[TagUse]:
    """Up to `limit` tags in the order of the alphabet, after `after`."""
    listed = await tags.list_page(conn, actor, after=after, limit=limit, counted=counted)
    names = [one.name for one in listed]
    rows = await conn.fetch(LAST_USED, actor.organization_id, actor.mode, names, look) if names else []
    used = {row["tag"]: row["at"] for row in rows}
    return [TagUse(one.name, one.contacts, one.is_more, used.get(one.name)) for one in listed]
