"""Whether a campaign may begin without a second person's approval.

The organization sets the number of recipients above which approval is required (`organizations.approval_above`). This
is decided once, when the audience is known and nothing has been staged; test mode reaches nobody and needs no approval.
An approval given before that covers a number of recipients, not whatever the audience becomes, and only as long as its
approver may create campaigns.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Refusal
from heliograph.people import roles

#: Why such a campaign is paused.
REASON = "approval_required"
#: An approval covers this many times the recipients expected when it was given: a list that gains a few people until
#: the start is still what was approved, one that has become another list is not.
GROWTH = 2


class CampaignApprovalRequired(Refusal):
    """This campaign has more recipients than one person may decide on: somebody else has to approve it first."""

    code, status = "campaign_approval_required", 409


#: Roles whose members may approve.
APPROVERS = roles.holders(scope="campaigns:write")
#: Of campaigns `c`, the number of recipients that the approval covers. NULL without one, or if its approver has left
#: the organization or lost their role. $3: APPROVERS.
APPROVED_FOR = """
(SELECT c.approved_for FROM memberships m
  WHERE m.organization_id = c.organization_id AND m.user_id = c.approved_by AND m.role = ANY ($3))
"""
# GREATEST ignores NULL.
MISSING = f"""
SELECT above
  FROM campaigns c JOIN organizations o ON o.id = c.organization_id
       CROSS JOIN LATERAL (SELECT greatest(o.approval_above, {APPROVED_FOR}) AS above) allowed
 WHERE c.organization_id = $1 AND c.id = $2 AND c.mode = 'live' AND o.approval_above IS NOT NULL AND c.staged_to = ''
   AND c.total > above
"""


async def missing(conn: Connection, organization_id: UUID, id: UUID) -> int | None:
    """The limit of recipients without approval, or without another one, if a campaign exceeds it; None: it may
    begin."""
    found: int | None = await conn.fetchval(MISSING, organization_id, id, APPROVERS)
    return found


# Contacts with several of the tags are counted several times, and excluded ones are counted too: this is only an
# estimate before the audience is gathered, so that people are told early.
TAGGED = """
SELECT (CASE $4 WHEN 'all' THEN min(people) ELSE sum(people) END)::bigint
  FROM unnest($3::text[]) AS wanted (tag) CROSS JOIN LATERAL (
       SELECT count(*) AS people FROM (
              SELECT FROM contact_tags t
               WHERE t.organization_id = $1 AND t.mode = $2 AND t.tag = wanted.tag LIMIT $5) tagged) counted
"""
IMPORTED = """
SELECT sum(cardinality(people)) FROM contact_import_batches WHERE organization_id = $1 AND import_id = $2
"""


async def estimate(
    conn: Connection,
    organization_id: UUID,
    *,
    mode: str,
    tags: Sequence[str] | None,
    match_mode: str,
    imported: UUID | None,
    most: int,
) -> int:
    """About how many people have these tags, or are in this import: rather too many than too few. `most`: how many are
    counted of each tag."""
    if tags is not None:
        found = await conn.fetchval(TAGGED, organization_id, mode, tags, match_mode, most)
    else:
        found = await conn.fetchval(IMPORTED, organization_id, imported)
    return found or 0


AUDIENCE = f"""
SELECT c.total, c.mode, c.audience_tags AS tags, c.audience_tag_match_mode AS match_mode, c.audience_import AS imported,
       c.excluded_tags AS without, covered IS NOT NULL AS is_approved,
       c.status IN ('scheduled', 'staging') AND (c.audience_tags IS NOT NULL OR c.audience_import IS NOT NULL) AS grows,
       CASE WHEN c.mode = 'live' AND o.approval_above IS NOT NULL THEN greatest(o.approval_above, covered) END AS above
  FROM campaigns c JOIN organizations o ON o.id = c.organization_id
       CROSS JOIN LATERAL (SELECT {APPROVED_FOR} AS covered) approval
 WHERE c.organization_id = $1 AND c.id = $2
"""


async def expected(conn: Connection, organization_id: UUID, id: UUID) -> int | None:
    """Like `missing`, for a campaign whose audience is not known yet: it may need approval once it is."""
    row = await conn.fetchrow(AUDIENCE, organization_id, id, APPROVERS)
    if row is None or row["above"] is None:
        return None
    above: int = row["above"]
    wanted = {name: row[name] for name in ("mode", "tags", "match_mode", "imported")}
    is_more = row["total"] > above or (
        row["grows"] and await estimate(conn, organization_id, **wanted, most=above + 1) > above
    )
    # What is approved was counted exactly: it has not outgrown that because the estimate counts somebody twice.
    if is_more and row["is_approved"]:
        is_more = await _size(conn, organization_id, row) > above
    return above if is_more else None


# As gathered at the start: each contact once, and none that is excluded.
_EXACTLY = """
SELECT count(*)
  FROM ({people}
        EXCEPT
        SELECT contact_id FROM contact_tags WHERE organization_id = $1 AND mode = $2 AND tag = ANY ($3)) found
"""
TAGGED_EXACTLY = _EXACTLY.format(
    people="""SELECT contact_id FROM contact_tags WHERE organization_id = $1 AND mode = $2 AND tag = ANY ($4)
         GROUP BY contact_id HAVING $5 <> 'all' OR count(*) = cardinality($4)"""
)
IMPORTED_EXACTLY = _EXACTLY.format(
    people="""SELECT one.id FROM contact_import_batches b CROSS JOIN LATERAL unnest(b.people) AS one (id)
         WHERE b.organization_id = $1 AND b.import_id = $4"""
)


async def covered(conn: Connection, organization_id: UUID, id: UUID) -> int:
    """How many recipients an approval that is given now covers."""
    row = await conn.fetchrow(AUDIENCE, organization_id, id, APPROVERS)
    assert row is not None
    return min(GROWTH * await _size(conn, organization_id, row), _MOST)


#: The largest `integer`.
_MOST = 2**31 - 1


async def _size(conn: Connection, organization_id: UUID, row: asyncpg.Record) -> int:
    """How many recipients a campaign has, or will have if it began now, from its row of AUDIENCE."""
    total: int = row["total"]
    if not row["grows"]:
        return total
    if row["tags"] is not None:
        wanted = row["tags"], row["match_mode"]
        found = await conn.fetchval(TAGGED_EXACTLY, organization_id, row["mode"], row["without"], *wanted)
    else:
        found = await conn.fetchval(IMPORTED_EXACTLY, organization_id, row["mode"], row["without"], row["imported"])
    return max(total, found)
