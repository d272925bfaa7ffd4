"""Campaigns: shapes and handlers. The rules are `campaigns.plan`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import (
    CreatedAt,
    HasMore,
    Items,
    NextCursor,
    Success,
    Time,
    TrafficClass,
    alias_of,
    needed,
)
from heliograph.api.shapes.paging import PageQuery
from heliograph.base.database.clock import now
from heliograph.base.errors import Problems
from heliograph.campaigns import audience, plan, record, template
from heliograph.campaigns.approval.rule import CampaignApprovalRequired
from heliograph.campaigns.audience import MAX_RECIPIENTS, MAX_TAGS, MOST_DAYS
from heliograph.campaigns.channels import sms as sms_channel
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.campaigns.plan import (
    MAX_NAME,
    MAX_PACE,
    STATES,
    CampaignAudienceEmpty,
    CampaignNotCancelable,
    CampaignNotPausable,
)
from heliograph.campaigns.template import MAX_LENGTH
from heliograph.campaigns.views import warnings
from heliograph.campaigns.views.warnings import CampaignWarning
from heliograph.contacts.records import MAX_TAG
from heliograph.sms.accepting.sender_ids import SenderIdNotApproved

COLLECTION = "campaigns"

Text = Annotated[str, Meta(min_length=1, max_length=MAX_LENGTH, extra_json_schema={"pattern": r"\S"})]
SenderName = Annotated[str, Meta(min_length=1, max_length=64)]
Moment = Annotated[datetime, Meta(tz=True)]
#: In JSON 60.0 is the same number as 60, so these are accepted as integers.
Pace = Annotated[float, Meta(ge=1, le=MAX_PACE, multiple_of=1, extra_json_schema={"type": "integer"})]
Days = Annotated[float, Meta(ge=1, le=MOST_DAYS, multiple_of=1, extra_json_schema={"type": "integer"})]

#: The other names that fields may be given under.
OTHER_NAMES = {
    "message_template": "content",
    "sender_id": "senderId",
    "sender_name": "senderName",
    "scheduled_at": "scheduledAt",
    "audience_tags": "audienceTags",
    "audience_tag_match_mode": "audienceTagMatchMode",
    "audience_import": "audienceImport",
    "excluded_tags": "excludedTags",
    "not_written_days": "notWrittenDays",
    "messages_per_minute": "messagesPerMinute",
}
_MODES = Literal["any", "all"]
_Tag = Annotated[str, Meta(min_length=1, max_length=MAX_TAG)]
_Audience = Annotated[list[_Tag], Meta(min_length=1, max_length=MAX_TAGS)]
_Excluded = Annotated[list[_Tag], Meta(max_length=MAX_TAGS)]


class CreateCampaign(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    rename={
        "other_sender_id": "senderId",
        "other_sender_name": "senderName",
        "other_scheduled_at": "scheduledAt",
        "other_audience_tags": "audienceTags",
        "other_audience_tag_match_mode": "audienceTagMatchMode",
        "other_audience_import": "audienceImport",
        "other_excluded_tags": "excludedTags",
        "other_not_written_days": "notWrittenDays",
        "other_messages_per_minute": "messagesPerMinute",
        "traffic_class": "class",
    },
):
    """A campaign to create: a text, and contact tags, an import or a list of recipients."""

    name: Annotated[
        str,
        Meta(
            description="Name of the campaign.",
            min_length=1,
            max_length=MAX_NAME,
            extra_json_schema={"pattern": r"\S"},
        ),
    ]
    message_template: Annotated[
        Text | None,
        needed(
            "The text. Placeholders filled in for each recipient: `{{name}}`, `{{first_name}}`, "
            "`{{last_name}}`, `{{phone}}`; with a default for recipients without a value: `{{first_name|customer}}`."
        ),
    ] = None
    content: Annotated[Text | None, alias_of("message_template")] = None
    scheduled_at: Annotated[
        Moment | None,
        Meta(description="When to start, with a time zone, up to 365 days ahead. Leave out to start immediately."),
    ] = None
    other_scheduled_at: Annotated[Moment | None, alias_of("scheduled_at")] = None
    sender_id: Annotated[
        UUID | None, Meta(description="Id of an approved sender ID. Defaults to the organization's default sender ID.")
    ] = None
    other_sender_id: Annotated[UUID | None, alias_of("sender_id")] = None
    sender_name: Annotated[SenderName | None, Meta(description="Value of an approved sender ID, case-insensitive.")] = (
        None
    )
    other_sender_name: Annotated[SenderName | None, alias_of("sender_name")] = None
    audience_tags: Annotated[
        _Audience | None,
        Meta(
            description="Send to contacts with these tags. Either this, `audience_import` or `recipients` is required."
        ),
    ] = None
    other_audience_tags: Annotated[_Audience | None, alias_of("audience_tags")] = None
    audience_tag_match_mode: Annotated[
        _MODES | None, Meta(description="Whether contacts need `any` (default) or `all` of the tags.")
    ] = None
    other_audience_tag_match_mode: Annotated[_MODES | None, alias_of("audience_tag_match_mode")] = None
    audience_import: Annotated[
        UUID | None,
        Meta(
            description=(
                "Send to the contacts that an imported file lists. It is available for as long as texts are kept, and "
                "until every campaign scheduled for it has started."
            )
        ),
    ] = None
    other_audience_import: Annotated[UUID | None, alias_of("audience_import")] = None
    excluded_tags: Annotated[
        _Excluded | None,
        Meta(description="Exclude contacts that have any of these tags. Not allowed with `recipients`."),
    ] = None
    other_excluded_tags: Annotated[_Excluded | None, alias_of("excluded_tags")] = None
    not_written_days: Annotated[
        Days | None,
        Meta(
            description=(
                "Skip contacts who were sent a message within this many days, in either channel, or for whom one of "
                "another campaign waits. Checked to the hour, and for contacts only."
            )
        ),
    ] = None
    other_not_written_days: Annotated[Days | None, alias_of("not_written_days")] = None
    recipients: Annotated[
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(min_length=1, max_length=MAX_RECIPIENTS)
        ]
        | None,
        Meta(
            description=(
                "Phone numbers with country code. Duplicates are sent to once; invalid numbers are skipped and counted."
            )
        ),
    ] = None
    traffic_class: Annotated[
        TrafficClass | None,
        Meta(
            description=(
                "What its messages are: `marketing` (default), `transactional` or one-time codes (`otp`). Routes, "
                "limits and quiet hours may differ between classes."
            )
        ),
    ] = None
    messages_per_minute: Annotated[
        Pace | None,
        Meta(
            description=(
                "Maximum rate at which messages become due. Messages that are delayed, for example by quiet hours, are "
                "not paced again. Omit it to send as fast as possible."
            )
        ),
    ] = None
    other_messages_per_minute: Annotated[Pace | None, alias_of("messages_per_minute")] = None


class CampaignCounts(msgspec.Struct):
    """Recipients by outcome. The counts are disjoint and add up to `total`."""

    total: Annotated[int, Meta(description="All recipients.")]
    pending: Annotated[int, Meta(description="Not staged yet.")]
    queued: Annotated[int, Meta(description="Queued, not sent yet.")]
    sent: Annotated[int, Meta(description="Sent; the outcome is not known yet.")]
    delivered: Annotated[int, Meta(description="Delivered to the recipient.")]
    failed: Annotated[int, Meta(description="`undelivered`, `failed`, `expired` or `rejected`.")]
    unknown: Annotated[int, Meta(description="Sent, but no delivery receipt ever arrived.")]
    canceled: Annotated[int, Meta(description="Not sent because the campaign was canceled.")]
    opted_out: Annotated[int, Meta(description="Skipped: the recipient opted out.")]
    recently_written: Annotated[int, Meta(description="Skipped: sent a message within `not_written_days`.")]
    invalid: Annotated[
        int,
        Meta(
            description=(
                "Skipped: the number is invalid or not allowed, or the text is too long, or empty, once its "
                "placeholders are filled."
            )
        ),
    ]


class Campaign(msgspec.Struct):
    """One text for many recipients."""

    id: Annotated[UUID, Meta(description="Id of the campaign.")]
    name: Annotated[str, Meta(description="Name of the campaign.")]
    status: Annotated[str, Meta(description="Current status.", extra_json_schema={"enum": list(STATES)})]
    status_reason: Annotated[
        str | None,
        Meta(
            description=(
                "Why the campaign is paused or failed: `quota_exceeded`, `spend_limit_reached`, "
                "`organization_suspended`, `sender_id_not_approved`, `text_erased`, `paused_by_request`, "
                "`approval_required`. A paused campaign resumes automatically, unless somebody paused it or has to "
                "approve it. While it is running, what its messages are waiting for: `held_by_operator`, "
                "`no_supplier_connected`, `organization_suspended`, `quiet_hours`, or `waiting_for_receipts` once "
                "everything is sent."
            )
        ),
    ]
    message_template: Annotated[str, Meta(description="The text, with its placeholders.")]
    traffic_class: Annotated[TrafficClass, Meta(description="What its messages are.")] = msgspec.field(name="class")
    sender_id: Annotated[UUID, Meta(description="The sender ID it is sent from.")]
    audience_tags: Annotated[
        list[str] | None, Meta(description="Tags that select the recipients; null: they are selected otherwise.")
    ]
    audience_import: Annotated[
        UUID | None, Meta(description="The import whose contacts are the recipients; null: they are not an import's.")
    ]
    audience_tag_match_mode: Annotated[_MODES, Meta(description="Whether contacts need `any` or `all` of the tags.")]
    excluded_tags: Annotated[list[str], Meta(description="Tags whose contacts are excluded; empty: none.")]
    not_written_days: Annotated[
        int | None,
        Meta(description="Contacts who were sent a message within this many days are skipped; null: none are."),
    ]
    messages_per_minute: Annotated[int | None, Meta(description="Maximum sending rate; null: as fast as possible.")]
    recipient_count: Annotated[
        int | None, Meta(description="Number of recipients; null until the audience is resolved at the start.")
    ]
    scheduled_at: Annotated[Time | None, Meta(description="When it is scheduled to start; null: immediately.")]
    started_at: Annotated[Time | None, Meta(description="When it started; null if it has not.")]
    completed_at: Annotated[
        Time | None, Meta(description="When it was completed; null for one that was canceled or has failed.")
    ]
    approved_at: Annotated[
        Time | None, Meta(description="When a second person approved it; null if nobody has, or needs to.")
    ]
    created_at: CreatedAt
    counts: Annotated[CampaignCounts, Meta(description="Recipients by outcome.")]


class CampaignAnswer(msgspec.Struct):
    """The campaign in its current state."""

    success: Success
    campaign: Annotated[Campaign, Meta(description="The campaign.")]


class CreatedCampaign(CampaignAnswer):
    """The new campaign."""

    warnings: Annotated[list[CampaignWarning], Meta(description="Things that may be unintended.")]


class CampaignList(msgspec.Struct, rename="camel"):
    """A page of campaigns, newest first."""

    success: Success
    items: Items[Campaign]
    next_cursor: NextCursor
    has_more: HasMore


async def canonical(body: CreateCampaign) -> SmsCampaignSpec:
    """Merge both forms of the request, with numbers and tags normalized. Raises Invalid."""
    wrong = Problems()
    spec = _spec(body, wrong)
    with wrong.gathering():
        name = plan.checked_name(spec.name)
    with wrong.gathering():
        template.check_places(spec.message_template, "message_template")
    with wrong.gathering():
        recipients, tags = audience.named(spec.recipients, spec.audience_tags, spec.audience_import)
    with wrong.gathering():
        excluded = audience.excluded(spec.excluded_tags, is_listed=spec.recipients is not None)
    wrong.report()
    if recipients is not None:
        recipients = await audience.spelled(recipients)
    return msgspec.structs.replace(spec, name=name, recipients=recipients, audience_tags=tags, excluded_tags=excluded)


@operation(
    status=201,
    canonical=canonical,
    presently=lambda call, body: plan.checked_time(body.scheduled_at or body.other_scheduled_at, now()),
    unordered=("recipients", "audience_tags", "excluded_tags"),
    other_names=tuple(OTHER_NAMES.items()),
    refusals=(SenderIdNotApproved, CampaignAudienceEmpty),
)
async def create_campaign(call: Call, body: SmsCampaignSpec) -> CreatedCampaign:
    """Create a campaign.

    One text to many recipients, immediately or at a scheduled time: to contacts by tag, to those of an import, or to a
    list of numbers. Each recipient gets it once; recipients who opted out are skipped. If the quota runs out, the
    campaign pauses until there is more.
    """
    made = await sms_channel.create(call.conn, call.actor, spec=body, request_id=call.request_id)
    found = await warnings.read(call.conn, call.actor, campaign=made)
    return CreatedCampaign(True, _shown(made), found)


async def list_campaigns(call: Call, query: PageQuery) -> CampaignList:
    """List campaigns."""
    found = await record.list_page(
        call.conn, call.actor, after=paging.after_id(call, COLLECTION), limit=query.limit + 1
    )
    return CampaignList(True, *paging.page(call, COLLECTION, found, position=lambda row: [row.id], shown=_shown))


async def get_campaign(call: Call, campaign_id: UUID) -> CampaignAnswer:
    """Get a campaign."""
    return _answer(await record.get(call.conn, call.actor, id=campaign_id))


@operation(refusals=(CampaignNotCancelable,), while_stopped=True)
async def cancel_campaign(call: Call, campaign_id: UUID) -> CampaignAnswer:
    """Cancel a campaign.

    No further messages are staged. Messages that have not been handed to a supplier are canceled within seconds, and
    their quota is refunded.
    """
    return _answer(await plan.cancel(call.conn, call.actor, id=campaign_id))


@operation(refusals=(CampaignNotPausable,), while_stopped=True)
async def pause_campaign(call: Call, campaign_id: UUID) -> CampaignAnswer:
    """Pause a campaign.

    No further messages are staged, and messages that have not been handed to a supplier wait. Nothing is refunded.
    Pausing again changes nothing.
    """
    return _answer(await plan.pause(call.conn, call.actor, id=campaign_id))


@operation(refusals=(CampaignNotPausable, CampaignApprovalRequired))
async def resume_campaign(call: Call, campaign_id: UUID) -> CampaignAnswer:
    """Resume a campaign.

    A campaign that was paused by a request continues where it stopped; nobody receives it twice. One that is running,
    or waiting for quota, is returned unchanged. One that waits for a second person's approval has to be approved on the
    dashboard.
    """
    return _answer(await plan.resume(call.conn, call.actor, id=campaign_id))


def _spec(body: CreateCampaign, wrong: Problems) -> SmsCampaignSpec:
    """A field that is given under two names must have the same value in both; those that have not are added to
    `wrong`."""
    values: dict[str, Any] = {}
    for name, other in OTHER_NAMES.items():
        given = [
            value
            for value in (getattr(body, name), getattr(body, other if other == "content" else f"other_{name}"))
            if value is not None
        ]
        if len(given) == 2 and given[0] != given[1]:
            wrong.add(name, "disagrees", f"`{name}` and `{other}` disagree")
        values[name] = given[0] if given else None
    if values["message_template"] is None:
        wrong.add("message_template", "required", "`message_template` is required")
        values["message_template"] = ""
    for name in ("messages_per_minute", "not_written_days"):
        if values[name] is not None:
            values[name] = int(values[name])
    values["audience_tag_match_mode"] = values["audience_tag_match_mode"] or "any"
    values["traffic_class"] = body.traffic_class or "marketing"
    return SmsCampaignSpec(name=body.name, recipients=body.recipients, **values)


def _answer(campaign: record.Campaign) -> CampaignAnswer:
    return CampaignAnswer(True, _shown(campaign))


def _shown(campaign: record.Campaign) -> Campaign:
    return msgspec.convert(record.shown(campaign), Campaign)
