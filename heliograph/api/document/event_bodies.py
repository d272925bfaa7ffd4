"""The bodies of webhook callbacks, and of the items of `GET /events`, by kind. The `data` is built where an event is
raised; this documents it, and a test compares the two.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from heliograph.api.operations.organization.notices import Notice
from heliograph.api.operations.sender_ids import SenderId
from heliograph.api.operations.whatsapp.reads import WhatsAppPhoneNumber, WhatsAppTemplate
from heliograph.api.shapes.fields import CreatedAt, Time, TrafficClass
from heliograph.webhooks.samples import SUMMARIES

Channel = Literal["sms", "whatsapp"]


class EventFailure(msgspec.Struct):
    """Why a message failed."""

    code: Annotated[str, Meta(description="Stable code: base decisions on this.", examples=["undelivered"])]
    message: Annotated[str, Meta(description="Explanation for humans.")]


class EventMessage(msgspec.Struct, rename="camel", kw_only=True):
    """An outbound message, as it was when the event happened."""

    id: Annotated[UUID, Meta(description="Id of the message, as returned by the send.")]
    client_reference: Annotated[str | None, Meta(description="The reference given in the send, or null.")]
    channel: Annotated[Channel, Meta(description="The channel.")]
    to: Annotated[
        str, Meta(description="Recipient: a phone number in E.164 format, or a user id.", examples=["+258841234567"])
    ]
    status: Annotated[str, Meta(description="Status at the time of the event.", examples=["delivered"])]
    segments: Annotated[int | None, Meta(description="Number of segments; null for WhatsApp.")]
    accepted_at: Annotated[Time, Meta(description="When the message was accepted and stored.")]
    sent_at: Annotated[Time | None, Meta(description="When it was handed to the network.")]
    delivered_at: Annotated[Time | None, Meta(description="When it was delivered to the recipient.")]
    read_at: Annotated[Time | UnsetType | None, Meta(description="When the user read it (WhatsApp only).")] = UNSET
    failed_at: Annotated[Time | None, Meta(description="When it failed.")]
    failure: Annotated[EventFailure | None, Meta(description="Why it failed; null unless it did.")]


class MessageData(msgspec.Struct):
    """The outcome of a message."""

    message: Annotated[EventMessage, Meta(description="The message.")]


class ReceivedMessage(msgspec.Struct, rename="camel", kw_only=True):
    """An inbound message."""

    id: Annotated[
        UUID, Meta(description="Id of the message. If missing parts arrive late, another event carries the same id.")
    ]
    channel: Annotated[Channel, Meta(description="The channel it arrived on.")]
    type: Annotated[
        str | UnsetType,
        Meta(description="Message type, as named by Meta (WhatsApp only).", examples=["text", "image", "location"]),
    ] = UNSET
    conversation_id: Annotated[UUID | UnsetType, Meta(description="Id of the conversation (WhatsApp only).")] = UNSET
    phone_number_id: Annotated[
        UUID | UnsetType, Meta(description="Id of your number, to reply from (WhatsApp only).")
    ] = UNSET
    from_: Annotated[
        str,
        Meta(
            description="The sender: a phone number in E.164 format, or the id given by the network or WhatsApp.",
            examples=["+258841234567"],
        ),
    ] = msgspec.field(name="from")
    to: Annotated[str, Meta(description="Your number that the message was sent to.")]
    text: Annotated[str | None, Meta(description="The text written or chosen; null if there is none.")]
    truncated: Annotated[bool, Meta(description="Whether the text is truncated here.")]
    segments: Annotated[int | None, Meta(description="Number of parts; null for WhatsApp.")]
    missing_segments: Annotated[int | None, Meta(description="Number of parts that never arrived; null for WhatsApp.")]
    keyword: Annotated[
        Literal["stop", "start", "help"] | None,
        Meta(description="The keyword, if the message was one and was acted on."),
    ]
    received_at: Annotated[Time, Meta(description="When it was received.")]


class ReceivedData(msgspec.Struct):
    """A message to one of your numbers."""

    message: Annotated[ReceivedMessage, Meta(description="The message.")]


class OptedOutContact(msgspec.Struct, rename="camel"):
    """A recipient who opted out."""

    phone: Annotated[str, Meta(description="Phone number in E.164 format, or a user id.", examples=["+258841234567"])]
    opted_out_at: Annotated[Time, Meta(description="When they opted out.")]
    source: Annotated[
        str, Meta(description="Where the opt-out came from.", examples=["keyword", "operator", "supplier"])
    ]
    keyword: Annotated[str | None, Meta(description="The keyword they wrote, if any.")]
    message_id: Annotated[UUID | None, Meta(description="The message that contained it, if any.")]


class OptedOutData(msgspec.Struct):
    """A recipient opted out."""

    contact: Annotated[OptedOutContact, Meta(description="The recipient.")]


class CompletedCounts(msgspec.Struct, kw_only=True):
    """Recipients by outcome. The counts are disjoint and add up to `total`."""

    total: Annotated[int, Meta(description="All recipients.")]
    pending: Annotated[int, Meta(description="Never staged.")]
    queued: Annotated[int, Meta(description="Queued, but never sent.")]
    sent: Annotated[int, Meta(description="Sent; the outcome was still unknown an hour later.")]
    delivered: Annotated[int, Meta(description="Delivered to the recipient.")]
    read: Annotated[int | UnsetType, Meta(description="Read by the recipient (WhatsApp only).")] = UNSET
    failed: Annotated[int, Meta(description="Could not be delivered.")]
    unknown: Annotated[int | UnsetType, Meta(description="Sent, but no delivery receipt ever arrived (SMS only).")] = (
        UNSET
    )
    canceled: Annotated[int, Meta(description="Not sent because the campaign was canceled.")]
    opted_out: Annotated[int, Meta(description="Skipped: the recipient opted out.")]
    recently_written: Annotated[int, Meta(description="Skipped: sent a message within `not_written_days`.")]
    invalid: Annotated[
        int, Meta(description="Skipped: the number is invalid, or the contact's values do not fit the text.")
    ]


class CompletedCampaign(msgspec.Struct, kw_only=True):
    """A campaign that has ended."""

    id: Annotated[UUID, Meta(description="Id of the campaign.")]
    channel: Annotated[Channel, Meta(description="The channel of its messages.")]
    name: Annotated[str, Meta(description="Name of the campaign.")]
    status: Annotated[Literal["completed"], Meta(description="Always `completed`.")]
    status_reason: Annotated[str | None, Meta(description="Always null.")]
    message_template: Annotated[str | UnsetType, Meta(description="The text, with its placeholders (SMS only).")] = (
        UNSET
    )
    sender_id: Annotated[UUID | UnsetType, Meta(description="The sender ID it was sent from (SMS only).")] = UNSET
    number_id: Annotated[UUID | UnsetType, Meta(description="Id of the number it was sent from (WhatsApp only).")] = (
        UNSET
    )
    template_id: Annotated[UUID | UnsetType, Meta(description="Id of the template (WhatsApp only).")] = UNSET
    template_name: Annotated[str | UnsetType, Meta(description="Name of the template (WhatsApp only).")] = UNSET
    template_language: Annotated[str | UnsetType, Meta(description="Language of the template (WhatsApp only).")] = UNSET
    audience_tags: Annotated[
        list[str] | None, Meta(description="Tags that select the recipients; null: they are selected otherwise.")
    ]
    audience_import: Annotated[
        UUID | None, Meta(description="The import whose contacts are the recipients; null: they are not an import's.")
    ]
    audience_tag_match_mode: Annotated[str, Meta(description="Whether contacts needed `any` or `all` of the tags.")]
    excluded_tags: Annotated[list[str], Meta(description="Tags whose contacts were excluded; empty: none.")]
    not_written_days: Annotated[
        int | None,
        Meta(description="Contacts who were sent a message within this many days were skipped; null: none were."),
    ]
    messages_per_minute: Annotated[int | None, Meta(description="Maximum sending rate; null: as fast as possible.")]
    recipient_count: Annotated[int | None, Meta(description="Number of recipients.")]
    scheduled_at: Annotated[Time | None, Meta(description="When it was scheduled to start; null: immediately.")]
    started_at: Annotated[Time | None, Meta(description="When it started.")]
    completed_at: Annotated[Time | None, Meta(description="When it ended.")]
    approved_at: Annotated[Time | None, Meta(description="When a second person approved it, if that was required.")]
    created_at: CreatedAt
    traffic_class: Annotated[TrafficClass | UnsetType, Meta(description="What its messages are (SMS only).")] = (
        msgspec.field(default=UNSET, name="class")
    )
    counts: Annotated[CompletedCounts, Meta(description="Recipients by outcome.")]


class CampaignData(msgspec.Struct):
    """A campaign has ended."""

    campaign: Annotated[CompletedCampaign, Meta(description="The campaign.")]


class SenderIdData(msgspec.Struct, rename="camel"):
    """A sender ID was approved or rejected."""

    sender_id: Annotated[SenderId, Meta(description="The sender ID.")]


class TemplateData(msgspec.Struct):
    """A WhatsApp template was added, changed or removed. If removed, its `status` is `removed`."""

    template: Annotated[WhatsAppTemplate, Meta(description="The template.")]


class PhoneNumberData(msgspec.Struct, rename="camel"):
    """A WhatsApp number was added or changed."""

    phone_number: Annotated[WhatsAppPhoneNumber, Meta(description="The number.")]


class NoticeData(msgspec.Struct):
    """Something needs somebody's attention."""

    notice: Annotated[Notice, Meta(description="The notice.")]


class TestedEndpoint(msgspec.Struct):
    """The endpoint being tested."""

    id: Annotated[UUID, Meta(description="Id of the endpoint.")]
    subscribed_events: Annotated[list[str], Meta(description="Kinds of events to send to this endpoint.")]


class TestData(msgspec.Struct, rename="camel"):
    """A test event."""

    webhook_endpoint: Annotated[TestedEndpoint, Meta(description="The endpoint.")]
    message: Annotated[EventMessage, Meta(description="An example message, as in real events; its id is all zeros.")]


#: The type of `data`, by kind of event.
DATA: dict[str, type[msgspec.Struct]] = {
    "message.delivered": MessageData,
    "message.failed": MessageData,
    "message.sent": MessageData,
    "message.read": MessageData,
    "message.received": ReceivedData,
    "contact.opted_out": OptedOutData,
    "campaign.completed": CampaignData,
    "sender_id.approved": SenderIdData,
    "sender_id.rejected": SenderIdData,
    "whatsapp.template.updated": TemplateData,
    "whatsapp.phone_number.updated": PhoneNumberData,
    "notice.created": NoticeData,
    "webhook.test": TestData,
}


def body(kind: str, data: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of an event's whole body; `data` is a component with a name of its own."""
    fields: dict[str, dict[str, Any]] = {
        "id": {"type": "string", "format": "uuid", "description": "Id of the event, the same in every attempt."},
        "type": {"type": "string", "const": kind, "description": "Kind of event."},
        "timestamp": {"type": "string", "format": "date-time", "description": "When the event happened."},
        "requestId": {"type": "string", "description": "Id of the request that caused the event."},
        "apiVersion": {"type": "string", "description": "Version of the event format.", "examples": ["v1"]},
        "data": {"$ref": f"#/components/schemas/{data.__name__}", "description": "The payload."},
    }
    return {
        "title": name(kind),
        "description": f"{SUMMARIES[kind]}.",
        "type": "object",
        "properties": fields,
        "required": list(fields),
    }


def name(kind: str) -> str:
    """Name of an event's schema: `MessageDeliveredEvent`."""
    return "".join(word.capitalize() for word in kind.replace(".", "_").split("_")) + "Event"
