"""Campaigns: shapes and handlers. The rules are `campaigns.plan`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import CreatedAt, HasMore, Items, NextCursor, Success, Time, alias_of, needed
from heliograph.api.shapes.paging import PageQuery
from heliograph.base.errors import Invalid
from heliograph.campaigns import audience, plan, sms_channel, template
from heliograph.campaigns.audience import MAX_RECIPIENTS, MAX_TAGS
from heliograph.campaigns.plan import MAX_NAME, MAX_PACE, STATES, CampaignAudienceEmpty, CampaignNotCancelable
from heliograph.campaigns.sms_channel import Wish
from heliograph.campaigns.template import MAX_LENGTH
from heliograph.contacts.records import MAX_TAG
from heliograph.sms.sender_ids import SenderIdNotApproved

COLLECTION = "campaigns"

Text = Annotated[str, Meta(min_length=1, max_length=MAX_LENGTH, extra_json_schema={"pattern": r"\S"})]
SenderName = Annotated[str, Meta(min_length=1, max_length=64)]
Moment = Annotated[datetime, Meta(tz=True)]
#: In JSON 60.0 is the same number as 60, so it is taken for one.
Pace = Annotated[float, Meta(ge=1, le=MAX_PACE, multiple_of=1, extra_json_schema={"type": "integer"})]

#: The other names that fields may be given under.
OTHER_NAMES = {
    "message_template": "content",
    "sender_id": "senderId",
    "sender_name": "senderName",
    "scheduled_at": "scheduledAt",
    "audience_tags": "audienceTags",
    "audience_tag_match_mode": "audienceTagMatchMode",
    "messages_per_minute": "messagesPerMinute",
}
_MODES = Literal["any", "all"]


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
        "other_messages_per_minute": "messagesPerMinute",
    },
):
    """A campaign to create: a text, and either tags of contacts or recipients."""

    name: Annotated[
        str,
        Meta(
            description="What the campaign is called.",
            min_length=1,
            max_length=MAX_NAME,
            extra_json_schema={"pattern": r"\S"},
        ),
    ]
    message_template: Annotated[
        Text | None,
        needed(
            "The text. Places that are filled for each recipient: `{{name}}`, `{{first_name}}`, `{{last_name}}`,"
            " `{{phone}}`."
        ),
    ] = None
    content: Annotated[Text | None, alias_of("message_template")] = None
    scheduled_at: Annotated[
        Moment | None, Meta(description="When to start, with a zone, up to 365 days ahead; left out: at once.")
    ] = None
    other_scheduled_at: Annotated[Moment | None, alias_of("scheduled_at")] = None
    sender_id: Annotated[UUID | None, Meta(description="An approved sender ID; left out: the default one.")] = None
    other_sender_id: Annotated[UUID | None, alias_of("sender_id")] = None
    sender_name: Annotated[SenderName | None, Meta(description="An approved sender's value, in any case.")] = None
    other_sender_name: Annotated[SenderName | None, alias_of("sender_name")] = None
    audience_tags: Annotated[
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=MAX_TAG)]], Meta(min_length=1, max_length=MAX_TAGS)]
        | None,
        Meta(description="Contacts with these tags get it. Either this or `recipients` is needed."),
    ] = None
    other_audience_tags: Annotated[
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=MAX_TAG)]], Meta(min_length=1, max_length=MAX_TAGS)]
        | None,
        alias_of("audience_tags"),
    ] = None
    audience_tag_match_mode: Annotated[
        _MODES | None, Meta(description="Contacts with `any` (default) of the tags, or with `all` of them.")
    ] = None
    other_audience_tag_match_mode: Annotated[_MODES | None, alias_of("audience_tag_match_mode")] = None
    recipients: Annotated[
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(min_length=1, max_length=MAX_RECIPIENTS)
        ]
        | None,
        Meta(
            description="Phone numbers with country code. Doubles get it once; those that are no numbers are counted."
        ),
    ] = None
    messages_per_minute: Annotated[
        Pace | None, Meta(description="No faster than this; left out: as fast as it goes.")
    ] = None
    other_messages_per_minute: Annotated[Pace | None, alias_of("messages_per_minute")] = None


class CampaignCounts(msgspec.Struct):
    """Recipients by what became of them: disjoint, and `total` is the sum of the others."""

    total: Annotated[int, Meta(description="All of them.")]
    pending: Annotated[int, Meta(description="Still to be staged.")]
    queued: Annotated[int, Meta(description="Staged, and not sent yet.")]
    sent: Annotated[int, Meta(description="Sent; how it ended is not known yet.")]
    delivered: Annotated[int, Meta(description="Reached the recipient.")]
    failed: Annotated[int, Meta(description="`undelivered`, `failed`, `expired` or `rejected`.")]
    unknown: Annotated[int, Meta(description="Sent, and nothing was ever heard of it.")]
    canceled: Annotated[int, Meta(description="Not sent any more: the campaign was canceled.")]
    opted_out: Annotated[int, Meta(description="Skipped: they asked for no more messages.")]
    invalid: Annotated[
        int, Meta(description="Skipped: not a number that may be sent to, or too long a text with its places filled.")
    ]


class Campaign(msgspec.Struct):
    """One text for many recipients."""

    id: Annotated[UUID, Meta(description="Id of the campaign.")]
    name: Annotated[str, Meta(description="What it is called.")]
    status: Annotated[str, Meta(description="Where it stands now.", extra_json_schema={"enum": list(STATES)})]
    status_reason: Annotated[
        str | None,
        Meta(
            description="Why it is paused or has failed: `quota_exceeded`, `organization_suspended`,"
            " `sender_id_not_approved`. A paused one goes on by itself. Of a running one, what its messages wait for:"
            " `held_by_operator`, `no_supplier_connected`, `organization_suspended`; `waiting_for_receipts`: all of it"
            " was sent."
        ),
    ]
    message_template: Annotated[str, Meta(description="The text, with its places.")]
    sender_id: Annotated[UUID, Meta(description="The sender ID that it is sent as.")]
    audience_tags: Annotated[list[str] | None, Meta(description="Null: the recipients were listed.")]
    audience_tag_match_mode: Annotated[_MODES, Meta(description="Whether one of the tags is enough.")]
    messages_per_minute: Annotated[int | None, Meta(description="No faster than this; null: as fast as it goes.")]
    recipient_count: Annotated[int | None, Meta(description="Null until the audience is gathered, at the start.")]
    scheduled_at: Annotated[Time | None, Meta(description="When it is to start; null: at once.")]
    started_at: Annotated[Time | None, Meta(description="When it started; null: not yet.")]
    completed_at: Annotated[Time | None, Meta(description="When it ended; null: not yet.")]
    created_at: CreatedAt
    counts: Annotated[CampaignCounts, Meta(description="What became of its recipients.")]


class CampaignAnswer(msgspec.Struct):
    """The campaign as it is now."""

    success: Success
    campaign: Annotated[Campaign, Meta(description="The campaign.")]


class CampaignList(msgspec.Struct, rename="camel"):
    """A page of campaigns, newest first."""

    success: Success
    items: Items[Campaign]
    next_cursor: NextCursor
    has_more: HasMore


async def canonical(body: CreateCampaign) -> Wish:
    """Both forms of the request as one, with its numbers and tags as they are stored. Raises Invalid."""
    wish = _wish(body)
    template.check_places(wish.message_template, "message_template")
    recipients, tags = audience.named(wish.recipients, wish.audience_tags)
    if recipients is not None:
        recipients = await audience.spelled(recipients)
    return msgspec.structs.replace(wish, name=plan.checked_name(wish.name), recipients=recipients, audience_tags=tags)


@operation(status=201, canonical=canonical, refusals=(SenderIdNotApproved, CampaignAudienceEmpty))
async def create_campaign(call: Call, body: Wish) -> CampaignAnswer:
    """Create a campaign.

    One text to many recipients, at once or at a set time: to contacts by tag, or to a list of numbers. Everybody
    gets it once; who opted out gets none. When the quota runs out it waits for more.
    """
    return _answer(await sms_channel.create(call.conn, call.actor, wish=body, request_id=call.request_id))


async def list_campaigns(call: Call, query: PageQuery) -> CampaignList:
    """List campaigns."""
    found = await plan.list_page(call.conn, call.actor, after=paging.after_id(call, COLLECTION), limit=query.limit + 1)
    return CampaignList(True, *paging.page(call, COLLECTION, found, position=lambda row: [row.id], shown=_shown))


async def get_campaign(call: Call, campaign_id: UUID) -> CampaignAnswer:
    """Show a campaign."""
    return _answer(await plan.get(call.conn, call.actor, id=campaign_id))


@operation(refusals=(CampaignNotCancelable,))
async def cancel_campaign(call: Call, campaign_id: UUID) -> CampaignAnswer:
    """Cancel a campaign.

    Nothing more is staged from this answer on. What no supplier has yet is canceled in the following seconds, and
    its quota comes back.
    """
    return _answer(await plan.cancel(call.conn, call.actor, id=campaign_id))


def _wish(body: CreateCampaign) -> Wish:
    """A field that is given twice must say the same twice."""
    values: dict[str, Any] = {}
    for name, other in OTHER_NAMES.items():
        given = [
            value
            for value in (getattr(body, name), getattr(body, other if other == "content" else f"other_{name}"))
            if value is not None
        ]
        if len(given) == 2 and given[0] != given[1]:
            raise Invalid((name, "disagrees", f"`{name}` and `{other}` say different things"))
        values[name] = given[0] if given else None
    if values["message_template"] is None:
        raise Invalid(("message_template", "required", "`message_template` is required"))
    if values["messages_per_minute"] is not None:
        values["messages_per_minute"] = int(values["messages_per_minute"])
    values["audience_tag_match_mode"] = values["audience_tag_match_mode"] or "any"
    return Wish(name=body.name, recipients=body.recipients, **values)


def _answer(campaign: plan.Campaign) -> CampaignAnswer:
    return CampaignAnswer(True, _shown(campaign))


def _shown(campaign: plan.Campaign) -> Campaign:
    return msgspec.convert(plan.shown(campaign), Campaign)
