"""Whether a campaign may begin without a second person's approval.

The organization sets the number of recipients above which approval is required (`organizations.approval_above`). This
is decided once, when the audience is known and nothing has been staged; test mode reaches nobody and needs no approval.
"""

from __future__ import annotations

from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Refusal

#: Why such a campaign is paused.
REASON = "approval_required"


class CampaignApprovalRequired(Refusal):
    """This campaign has more recipients than one person may decide on: somebody else has to approve it first."""

    code, status = "campaign_approval_required", 409


MISSING = """
SELECT o.approval_above
  FROM campaigns c JOIN organizations o ON o.id = c.organization_id
 WHERE c.organization_id = $1 AND c.id = $2 AND c.mode = 'live' AND c.approved_at IS NULL AND c.staged_to = ''
   AND c.total > o.approval_above
"""


async def missing(conn: Connection, organization_id: UUID, id: UUID) -> int | None:
    """The limit of recipients without approval, if a campaign exceeds it and is not approved; None: it may begin."""
    found: int | None = await conn.fetchval(MISSING, organization_id, id)
    return found


# Contacts with several of the tags are counted several times, and excluded ones are counted too: this is only an
# estimate before the audience is gathered, so that people are told early.
EXPECTED = """
SELECT o.approval_above
  FROM campaigns c JOIN organizations o ON o.id = c.organization_id
 WHERE c.organization_id = $1 AND c.id = $2 AND c.mode = 'live' AND c.approved_at IS NULL
   AND c.status IN ('scheduled', 'staging')
   AND (c.total > o.approval_above OR c.audience_tags IS NOT NULL AND o.approval_above < (
        SELECT count(*) FROM (
               SELECT FROM contact_tags t
                WHERE t.organization_id = $1 AND t.mode = c.mode AND t.tag = ANY (c.audience_tags)
                LIMIT o.approval_above::bigint + 1) tagged)
        OR c.audience_import IS NOT NULL AND o.approval_above < (
        SELECT sum(cardinality(people)) FROM contact_import_batches
         WHERE organization_id = $1 AND import_id = c.audience_import))
"""


async def expected(conn: Connection, organization_id: UUID, id: UUID) -> int | None:
    """Like `missing`, for a campaign whose audience is not known yet: it may need approval once it is."""
    found: int | None = await conn.fetchval(EXPECTED, organization_id, id)
    return found
