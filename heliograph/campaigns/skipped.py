"""Who a campaign skipped, and why: kept when staging passes them, a row each, for as long as messages are kept.

The rule nobody may break: they are kept in the commit that counts them, so that rows and counts add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7

OPTED_OUT, RECENTLY_WRITTEN = "opted_out", "recently_written"
#: Those that `invalid` counts: no phone number, a country that is not allowed, and values that make no message.
NO_NUMBER, NOT_ALLOWED, UNFIT = "no_number", "not_allowed", "unfit"
REASONS = (OPTED_OUT, RECENTLY_WRITTEN, NOT_ALLOWED, UNFIT, NO_NUMBER)

#: Characters of a listed text that is no number which are kept.
LONGEST = 64
#: (recipient, reason)
Skipped = tuple[str, str]

KEEP = """
INSERT INTO campaign_skipped (organization_id, campaign_id, id, recipient, reason)
SELECT $1, $2, item.* FROM unnest($3::uuid[], $4::text[], $5::text[]) AS item
"""


def printable(text: str) -> str:
    """A listed text that is no number, as it is kept."""
    return "".join(one for one in text[:LONGEST] if one.isprintable())


async def keep(conn: Connection, organization_id: UUID, campaign_id: UUID, skipped: Sequence[Skipped]) -> None:
    """Keep these. Runs in the caller's transaction."""
    if skipped:
        ids = [uuid7() for _ in skipped]
        await conn.execute(
            KEEP, organization_id, campaign_id, ids, [one for one, _ in skipped], [reason for _, reason in skipped]
        )
