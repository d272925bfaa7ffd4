"""WhatsApp campaigns: the progress of one. It is created on the dashboard or by the operator. The rules are in
`campaigns.plan`."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call
from heliograph.api.shapes.fields import Success, Time
from heliograph.base.database.clock import iso
from heliograph.campaigns import record
from heliograph.campaigns.channels.whatsapp import NAME
from heliograph.campaigns.plan import STATES


class WhatsAppCampaignCounts(msgspec.Struct, rename="camel"):
    """Recipients by outcome. The counts are disjoint and add up to `total`."""

    total: Annotated[int, Meta(description="All recipients.")]
    pending: Annotated[int, Meta(description="Not staged yet.")]
    queued: Annotated[int, Meta(description="Queued, not sent yet.")]
    sent: Annotated[int, Meta(description="Sent; not known to be delivered yet.")]
    delivered: Annotated[int, Meta(description="Delivered, not known to be read.")]
    read: Annotated[int, Meta(description="Read by the recipient.")]
    failed: Annotated[int, Meta(description="Could not be sent or delivered.")]
    canceled: Annotated[int, Meta(description="Not sent because the campaign was canceled or failed.")]
    opted_out: Annotated[int, Meta(description="Skipped: the recipient opted out.")]
    recently_written: Annotated[
        int, Meta(description="Skipped: messaged too recently, according to the campaign's `not_written_days`.")
    ]
    invalid: Annotated[
        int,
        Meta(
            description=(
                "Skipped: the country is not allowed or has no rate, or the contact's values do not fit the template."
            )
        ),
    ]


class WhatsAppCampaign(msgspec.Struct, rename="camel"):
    """Progress of a campaign, which is created on the dashboard or by the operator."""

    id: Annotated[UUID, Meta(description="Id of the campaign.")]
    name: Annotated[str, Meta(description="Name of the campaign.")]
    status: Annotated[str, Meta(description="Current status.", extra_json_schema={"enum": list(STATES)})]
    status_reason: Annotated[
        str | None,
        Meta(
            description=(
                "Why the campaign is paused or failed: `wallet_insufficient_funds`, "
                "`organization_suspended`, `whatsapp_phone_number_unavailable`, "
                "`whatsapp_template_not_approved`, `whatsapp_template_not_utility`, "
                "`whatsapp_template_parameter_mismatch`, `whatsapp_template_not_sendable`, "
                "`paused_by_request`, `approval_required`. A paused campaign resumes automatically, unless somebody "
                "paused it or has to approve it. While it is running, what its messages are waiting for: "
                "`whatsapp_number_held`, `whatsapp_account_paused`, `held_by_operator`, "
                "`whatsapp_template_not_approved`, `whatsapp_template_not_utility`, `whatsapp_template_unconfirmed`, "
                "`whatsapp_messaging_limit_reached`, `organization_suspended`, or `waiting_for_receipts` "
                "once everything is sent."
            )
        ),
    ]
    template_name: Annotated[str, Meta(description="Name of the template it sends.")]
    scheduled_at: Annotated[Time | None, Meta(description="When it is scheduled to start; null: immediately.")]
    started_at: Annotated[Time | None, Meta(description="When it started; null if it has not.")]
    completed_at: Annotated[
        Time | None, Meta(description="When it was completed; null for one that was canceled or has failed.")
    ]
    counts: Annotated[WhatsAppCampaignCounts, Meta(description="Recipients by outcome.")]


class WhatsAppCampaignRead(msgspec.Struct):
    """The campaign in its current state."""

    success: Success
    campaign: Annotated[WhatsAppCampaign, Meta(description="The campaign.")]


async def get_whatsapp_campaign_status(call: Call, campaign_id: UUID) -> WhatsAppCampaignRead:
    """Get the status of a WhatsApp campaign.

    `counts` are disjoint and add up to `total`; they lag the messages by a few seconds. The event `campaign.completed`
    reports the end.
    """
    found = await record.get(call.conn, call.actor, id=campaign_id, channel=NAME)
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
