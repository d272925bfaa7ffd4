"""Operators pause, resume or cancel an organization's campaign, like `heliograph campaign` and by the rules of the
organization's dashboard.

The rule nobody may break: every action is recorded in the organization's own audit log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.campaigns import plan, record
from heliograph.campaigns.plan import CampaignNotCancelable, CampaignNotPausable
from heliograph.campaigns.record import Campaign
from heliograph.console.acting import acting_for, organization
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.why.words import why


async def pause(request: Request) -> Answer:
    """Stop it until somebody resumes it."""
    said = request.text("The campaign is paused. Messages already handed over are still sent.")
    return await _act(request, plan.pause, said, "paused")


async def resume(request: Request) -> Answer:
    """Continue from where it stopped; where a second person's approval is required, the operator takes responsibility.
    One that waits for something else stays paused, and continues by itself."""
    return await _act(request, plan.resume, request.text("The campaign is resumed."), "running")


async def show_cancel(request: Request) -> Answer:
    """What canceling would do, in numbers; back to the list if it has ended meanwhile."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        campaign = await _find(conn, request, acting_for(request, one))
    if "cancel" not in plan.acts(campaign):
        said = request.text(CampaignNotCancelable().message)
        return Redirect(location=_list(request, campaign), notice=said, is_refusal=True)
    values = {"one": one, "campaign": campaign, "back": _list(request, campaign)}
    return Page(template="organizations/campaign_cancel.html", values=values)


async def cancel(request: Request) -> Answer:
    """Cancel it for good."""
    said = request.text("The campaign is canceled; messages not sent are refunded.")
    return await _act(request, plan.cancel, said, "canceled")


async def _act(request: Request, act: Callable[..., Awaitable[Campaign]], said: str, status: str) -> Answer:
    """Do it, and show the notice if it then has this status, otherwise why it does not resume yet."""
    is_refusal = False
    async with request.writing() as conn, conn.transaction():
        one = await organization(conn, request, "id")
        actor = acting_for(request, one)
        campaign = await _find(conn, request, actor)
        try:
            after = await act(conn, actor, id=campaign.id, channel=campaign.channel)
            if after.status != status:
                known = why("campaign", after.status_reason or "")
                reason = "" if known is None else known.words(request.locale.language).operator
                said = request.text(
                    "The campaign resumes automatically as soon as it can. %(reason)s", reason=reason
                ).strip()
                is_refusal = True
        except (CampaignNotPausable, CampaignNotCancelable) as refusal:
            said, is_refusal = request.text(refusal.message), True
    return Redirect(location=_list(request, campaign), notice=said, is_refusal=is_refusal)


async def _find(conn: Connection, request: Request, actor: Actor) -> Campaign:
    """The campaign in the address, of either channel. Raises NotFound."""
    try:
        return await record.get(conn, actor, id=request.id("campaign"))
    except NotFound:
        return await record.get(conn, actor, id=request.id("campaign"), channel="whatsapp")


def _list(request: Request, campaign: Campaign) -> str:
    channel = "?channel=whatsapp" if campaign.channel == "whatsapp" else ""
    return f"/console/organizations/{request.id()}/campaigns{channel}"
