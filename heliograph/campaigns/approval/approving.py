"""Granting an approval: by somebody who may create campaigns, but did not create this one.

The rule nobody may break: API keys cannot approve, since it is not known who uses them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from heliograph import notices
from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Refusal
from heliograph.campaigns import plan, record
from heliograph.campaigns.approval import rule
from heliograph.campaigns.record import Campaign
from heliograph.notices import Notice


class CampaignApprovalByAnother(Refusal):
    """The creator of a campaign cannot approve it: somebody else who may create campaigns has to."""

    code, status = "campaign_approval_by_another", 409


class ApprovalState(msgspec.Struct, frozen=True):
    """The state of a campaign's approval."""

    #: The limit of recipients without approval, if approval is missing, or may be once the audience is known.
    above: int | None
    #: The actor created it.
    is_own: bool
    #: Name of the person or API key that created it; None: it is not known, or gone.
    author: str | None
    approved_at: datetime | None
    approver: str | None
    #: How many recipients the approval covers.
    approved_for: int | None
    #: Why the approval counts no longer, though it is needed: its approver has left the organization, or lost the role.
    lapsed: Literal["left", "role"] | None


GET = f"""
SELECT coalesce(author_id = $4, false) AS is_own,
       coalesce((SELECT name FROM users WHERE id = author_id),
                (SELECT name FROM api_keys WHERE organization_id = $1 AND id = author_id)) AS author,
       approved_at, approver, approved_for,
       CASE WHEN $5 OR approved_at IS NULL OR {rule.APPROVED_FOR} IS NOT NULL THEN NULL
            WHEN EXISTS (SELECT FROM memberships m WHERE m.organization_id = $1 AND m.user_id = c.approved_by)
            THEN 'role' ELSE 'left' END AS lapsed
  FROM campaigns c
 WHERE organization_id = $1 AND id = $2
"""


async def standing(conn: Connection, actor: Actor, *, campaign: Campaign) -> ApprovalState:
    """The state of a campaign's approval, for a page."""
    above = await _lacking(conn, actor, campaign)
    place = actor.organization_id, campaign.id
    row = await conn.fetchrow(GET, *place, rule.APPROVERS, actor.principal.id, above is None)
    assert row is not None
    return ApprovalState(above, **row)


async def _lacking(conn: Connection, actor: Actor, campaign: Campaign) -> int | None:
    """The limit of recipients that a campaign exceeds without approval, or may exceed once its audience is known."""
    if campaign.status in ("scheduled", "staging"):
        return await rule.expected(conn, actor.organization_id, campaign.id)
    return await rule.missing(conn, actor.organization_id, campaign.id) if campaign.status == "paused" else None


LOCK = "SELECT author_id, author_kind FROM campaigns WHERE organization_id = $1 AND id = $2 FOR UPDATE"
APPROVE = """
UPDATE campaigns SET approved_at = now(), approved_by = $3, approver = $4, approved_for = $5
 WHERE organization_id = $1 AND id = $2
"""


async def approve(conn: Connection, actor: Actor, *, id: UUID, channel: str = "sms") -> Campaign:
    """Approve a campaign, so that it begins now or at its time; repeating changes nothing, unless its audience has
    outgrown the approval. Runs in the caller's transaction. Raises NotFound, CampaignApprovalByAnother, and
    CampaignNotPausable if it is being sent or has ended.
    """
    locked = await conn.fetchrow(LOCK, actor.organization_id, id)
    before = await record.get(conn, actor, id=id, channel=channel)
    if before.approved_at is not None and await _lacking(conn, actor, before) is None:
        return before
    assert locked is not None, "it was found"
    if actor.user_id is None or actor.user_id == locked["author_id"]:
        raise CampaignApprovalByAnother
    waits = before.status == "paused" and before.status_reason in (rule.REASON, plan.BY_REQUEST)
    if not waits and before.status not in ("scheduled", "staging"):
        raise plan.CampaignNotPausable(id=str(id), status=before.status)
    covered = await rule.covered(conn, actor.organization_id, id)
    await conn.execute(APPROVE, actor.organization_id, id, actor.user_id, actor.principal.name, covered)
    after = {"recipients": before.counts.total or None, "approved_for": covered}
    await audit.record(conn, actor, "campaign.approved", object_id=id, name=before.name, after=after)
    await notices.withdraw(conn, actor.organization_id, "campaign.approval", str(id))
    if locked["author_kind"] == "person":
        facts, author = {"channel": channel, "by": actor.principal.name}, locked["author_id"]
        told = Notice(actor.organization_id, "campaign.approved", str(id), before.name, facts=facts, user_id=author)
        await notices.record(conn, told, quiet=None)
    if before.status_reason == rule.REASON:
        await plan.move(conn, actor.organization_id, id, "running", was="paused", by=actor.principal)
    return await record.get(conn, actor, id=id, channel=channel)
