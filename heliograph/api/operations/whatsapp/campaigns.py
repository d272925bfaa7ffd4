"""WhatsApp campaigns: how one goes. The rules are `campaigns.plan`; operators make them."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call
from heliograph.api.shapes.fields import Success, Time
from heliograph.base.clock import iso
from heliograph.campaigns import plan
from heliograph.campaigns.plan import STATES
from heliograph.campaigns.whatsapp_channel import NAME


class WhatsAppCampaignCounts(msgspec.Struct, rename="camel"):
    """Recipients by what became of them: disjoint, and `total` is the sum of the others."""

    total: Annotated[int, Meta(description="All of them.")]
    pending: Annotated[int, Meta(description="Still to be staged.")]
    queued: Annotated[int, Meta(description="Staged, and not sent yet.")]
    sent: Annotated[int, Meta(description="Sent; whether it arrived is not known yet.")]
    delivered: Annotated[int, Meta(description="Reached the recipient, who has not been seen to read it.")]
    read: Annotated[int, Meta(description="The recipient has read it.")]
    failed: Annotated[int, Meta(description="Could not be sent or delivered.")]
    canceled: Annotated[int, Meta(description="Not sent any more: the campaign was canceled or has failed.")]
    opted_out: Annotated[int, Meta(description="Skipped: they asked for no more messages.")]
    invalid: Annotated[
        int,
        Meta(
            description="Skipped: a country that may not be sent to or has no rate, or values that the template cannot"
            " be filled with."
        ),
    ]


class WhatsAppCampaign(msgspec.Struct, rename="camel"):
    """How one campaign goes."""

    id: Annotated[UUID, Meta(description="Id of the campaign.")]
    name: Annotated[str, Meta(description="What it is called.")]
    status: Annotated[str, Meta(description="Where it stands now.", extra_json_schema={"enum": list(STATES)})]
    status_reason: Annotated[
        str | None,
        Meta(
            description="Why it is paused or has failed: `wallet_insufficient_funds`, `organization_suspended`,"
            " `whatsapp_phone_number_unavailable`, `whatsapp_template_not_approved`, `whatsapp_template_not_utility`,"
            " `whatsapp_template_parameter_mismatch`, `whatsapp_template_not_sendable`. A paused one goes on by itself."
            " Of a running one, what its messages wait for: `whatsapp_number_held`, `whatsapp_account_paused`,"
            " `held_by_operator`, `whatsapp_template_not_approved`, `whatsapp_template_unconfirmed`,"
            " `whatsapp_messaging_limit_reached`, `organization_suspended`; `waiting_for_receipts`: all of it was sent."
        ),
    ]
    template_name: Annotated[str, Meta(description="The template that it sends.")]
    scheduled_at: Annotated[Time | None, Meta(description="When it is to start; null: at once.")]
    started_at: Annotated[Time | None, Meta(description="When it started; null: not yet.")]
    completed_at: Annotated[Time | None, Meta(description="When it ended; null: not yet.")]
    counts: Annotated[WhatsAppCampaignCounts, Meta(description="What became of its recipients.")]


class WhatsAppCampaignRead(msgspec.Struct):
    """The campaign as it is now."""

    success: Success
    campaign: Annotated[WhatsAppCampaign, Meta(description="The campaign.")]


async def get_whatsapp_campaign_status(call: Call, campaign_id: UUID) -> WhatsAppCampaignRead:
    """Show how a WhatsApp campaign goes.

    `counts` are disjoint and add up to `total`; they follow the messages by a second or a few. `campaign.completed`
    tells of the end.
    """
    found = await plan.get(call.conn, call.actor, id=campaign_id, channel=NAME)
    counts = {name: getattr(found.counts, name) for name in WhatsAppCampaignCounts.__struct_fields__}
    return WhatsAppCampaignRead(
        True,
        WhatsAppCampaign(
            id=found.id,
            name=found.name,
            status=found.status,
            status_reason=found.status_reason,
            template_name=found.content["template_name"],
            scheduled_at=iso(found.scheduled_at) if found.scheduled_at else None,
            started_at=iso(found.started_at) if found.started_at else None,
            completed_at=iso(found.completed_at) if found.completed_at else None,
            counts=WhatsAppCampaignCounts(**counts),
        ),
    )
