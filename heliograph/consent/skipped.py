"""Recipients that a campaign skipped, and why: one row each, stored during staging and kept as long as messages.

The rule nobody may break: rows are stored in the commit that counts them, so that rows and counts agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of, uuid7

OPTED_OUT, RECENTLY_WRITTEN = "opted_out", "recently_written"
#: The reasons counted in `invalid`: not a phone number, a country that is not allowed, values that yield no message.
NO_NUMBER, NOT_ALLOWED, UNFIT = "no_number", "not_allowed", "unfit"
REASONS = (OPTED_OUT, RECENTLY_WRITTEN, NOT_ALLOWED, UNFIT, NO_NUMBER)

#: Characters kept of a listed text that is not a number.
LONGEST = 64
#: (recipient, reason)
SkippedRecipient = tuple[str, str]

KEEP = """
INSERT INTO campaign_skipped (organization_id, campaign_id, id, recipient, reason)
SELECT $1, $2, item.* FROM unnest($3::uuid[], $4::text[], $5::text[]) AS item
"""


def printable(text: str) -> str:
    """A listed text that is not a number, in the form in which it is kept."""
    return "".join(one for one in text[:LONGEST] if one.isprintable())


async def keep(conn: Connection, organization_id: UUID, campaign_id: UUID, passed: Sequence[SkippedRecipient]) -> None:
    """Store skipped recipients. Runs in the caller's transaction."""
    if passed:
        ids = [uuid7() for _ in passed]
        await conn.execute(
            KEEP, organization_id, campaign_id, ids, [one for one, _ in passed], [reason for _, reason in passed]
        )


class Skipped(msgspec.Struct, frozen=True):
    """One skipped recipient. `recipient`: a number, or the text that was listed as one."""

    id: UUID
    recipient: str
    #: Name of the contact with this number, in any spelling; None: there is no contact.
    name: str | None
    reason: str

    @property
    def at(self) -> datetime:
        """When the recipient was skipped."""
        return time_of(self.id)


# Contacts' current names, in any spelling of their numbers, read through the index on these.
LIST = """
SELECT s.id, s.recipient, c.name, s.reason
  FROM (SELECT id, recipient, reason FROM campaign_skipped
         WHERE organization_id = $1 AND campaign_id = $2 AND reason = $3 AND id > $4 ORDER BY id LIMIT $5) s
       LEFT JOIN LATERAL (
            SELECT known.name FROM unnest(spellings_of(person_of(s.recipient))) AS item (spelled) CROSS JOIN LATERAL (
                   SELECT phone, name FROM contacts
                    WHERE organization_id = $1 AND mode = $6 AND phone = item.spelled LIMIT 1) known
             ORDER BY known.phone <> s.recipient LIMIT 1) c ON true
 ORDER BY s.id
"""


async def list_page(
    conn: Connection, actor: Actor, *, campaign_id: UUID, reason: str, after: UUID | None = None, limit: int
) -> list[Skipped]:
    """Recipients skipped for a reason, in the order in which they were skipped, after `after`: up to `limit` + 1."""
    rows = await conn.fetch(
        LIST, actor.organization_id, campaign_id, reason, after or UUID(int=0), limit + 1, actor.mode
    )
    return [Skipped(**row) for row in rows]


FOUND = """
SELECT one.reason FROM unnest($3::text[]) WITH ORDINALITY AS one (reason, n) CROSS JOIN LATERAL (
       SELECT FROM campaign_skipped
        WHERE organization_id = $1 AND campaign_id = $2 AND reason = one.reason LIMIT 1) s
 ORDER BY n
"""


async def reasons(conn: Connection, actor: Actor, *, campaign_id: UUID) -> list[str]:
    """The reasons for which the campaign skipped somebody."""
    rows = await conn.fetch(FOUND, actor.organization_id, campaign_id, list(REASONS))
    return [row["reason"] for row in rows]
