"""The bodies of callbacks, and of the items of `GET /events`, by kind. What raises an event makes its `data`; here
stands what clients are told of it, and a test compares the two.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from heliograph.api.operations.sender_ids import SenderId
from heliograph.api.operations.whatsapp.reads import WhatsAppPhoneNumber, WhatsAppTemplate
from heliograph.api.shapes.fields import CreatedAt, Time

Channel = Literal["sms", "whatsapp"]


class EventFailure(msgspec.Struct):
    """Why a message failed, in words of this service."""

    code: Annotated[str, Meta(description="Decide by this.", examples=["undelivered"])]
    message: Annotated[str, Meta(description="For people.")]


class EventMessage(msgspec.Struct, rename="camel", kw_only=True):
    """A message that was sent, as it was when the event happened."""

    id: Annotated[UUID, Meta(description="As it was answered to the send.")]
    client_reference: Annotated[str | None, Meta(description="As it was sent.")]
    channel: Annotated[Channel, Meta(description="How it is carried.")]
    to: Annotated[str, Meta(description="Recipient: E.164, or a user id.", examples=["+258841234567"])]
    status: Annotated[str, Meta(description="Where it stood then.", examples=["delivered"])]
    segments: Annotated[int | None, Meta(description="How many it is sent in; null on WhatsApp.")]
    accepted_at: Annotated[Time, Meta(description="When it was stored.")]
    sent_at: Annotated[Time | None, Meta(description="When it was handed over.")]
    delivered_at: Annotated[Time | None, Meta(description="When it reached the recipient.")]
    read_at: Annotated[Time | UnsetType | None, Meta(description="When the user read it. WhatsApp only.")] = UNSET
    failed_at: Annotated[Time | None, Meta(description="When it failed.")]
    failure: Annotated[EventFailure | None, Meta(description="Why it failed, if it did.")]


class MessageData(msgspec.Struct):
    """What became of a message."""

    message: Annotated[EventMessage, Meta(description="The message.")]


class ReceivedMessage(msgspec.Struct, rename="camel", kw_only=True):
    """What somebody wrote."""

    id: Annotated[UUID, Meta(description="Id of the message. Parts that come late tell it again under the same id.")]
    channel: Annotated[Channel, Meta(description="How it came.")]
    type: Annotated[
        str | UnsetType, Meta(description="As Meta calls it. WhatsApp only.", examples=["text", "image", "location"])
    ] = UNSET
    conversation_id: Annotated[UUID | UnsetType, Meta(description="Its conversation. WhatsApp only.")] = UNSET
    phone_number_id: Annotated[UUID | UnsetType, Meta(description="The number to answer from. WhatsApp only.")] = UNSET
    from_: Annotated[
        str, Meta(description="Who wrote: E.164, or as the network or WhatsApp names them.", examples=["+258841234567"])
    ] = msgspec.field(name="from")
    to: Annotated[str, Meta(description="The number of yours that they wrote to.")]
    text: Annotated[str | None, Meta(description="What they wrote or chose; null: no text.")]
    truncated: Annotated[bool, Meta(description="Whether the text is cut here.")]
    segments: Annotated[int | None, Meta(description="How many parts it came in; null on WhatsApp.")]
    missing_segments: Annotated[int | None, Meta(description="How many parts never came; null on WhatsApp.")]
    keyword: Annotated[
        Literal["stop", "start", "help"] | None, Meta(description="The word that it was, and that was obeyed.")
    ]
    received_at: Annotated[Time, Meta(description="When it came.")]


class ReceivedData(msgspec.Struct):
    """Somebody wrote to a number of yours."""

    message: Annotated[ReceivedMessage, Meta(description="The message.")]


class OptedOutContact(msgspec.Struct, rename="camel"):
    """A recipient who wants no more messages."""

    phone: Annotated[str, Meta(description="E.164, or a user id.", examples=["+258841234567"])]
    opted_out_at: Annotated[Time, Meta(description="When they said so.")]
    source: Annotated[str, Meta(description="How it became known.", examples=["keyword", "operator"])]
    keyword: Annotated[str | None, Meta(description="The word that they wrote, if they did.")]
    message_id: Annotated[UUID | None, Meta(description="The message that it stood in, if it did.")]


class OptedOutData(msgspec.Struct):
    """A recipient asked for no more messages."""

    contact: Annotated[OptedOutContact, Meta(description="Who it is.")]


class CompletedCounts(msgspec.Struct, kw_only=True):
    """Recipients by what became of them: disjoint, and `total` is the sum of the others."""

    total: Annotated[int, Meta(description="All of them.")]
    pending: Annotated[int, Meta(description="Never staged.")]
    queued: Annotated[int, Meta(description="Staged, and never sent.")]
    sent: Annotated[int, Meta(description="Sent; how it ended was not known an hour later.")]
    delivered: Annotated[int, Meta(description="Reached the recipient.")]
    read: Annotated[int | UnsetType, Meta(description="Read by the recipient. WhatsApp only.")] = UNSET
    failed: Annotated[int, Meta(description="Could not be delivered.")]
    unknown: Annotated[int | UnsetType, Meta(description="Sent, and nothing was ever heard of it. SMS only.")] = UNSET
    canceled: Annotated[int, Meta(description="Not sent any more: the campaign was canceled.")]
    opted_out: Annotated[int, Meta(description="Skipped: they asked for no more messages.")]
    invalid: Annotated[int, Meta(description="Skipped: not a number, or values that the text cannot be filled with.")]


class CompletedCampaign(msgspec.Struct, kw_only=True):
    """A campaign at its end."""

    id: Annotated[UUID, Meta(description="Id of the campaign.")]
    channel: Annotated[Channel, Meta(description="How its messages are carried.")]
    name: Annotated[str, Meta(description="What it is called.")]
    status: Annotated[Literal["completed"], Meta(description="Where it stands.")]
    status_reason: Annotated[str | None, Meta(description="Null.")]
    message_template: Annotated[str | UnsetType, Meta(description="The text, with its places. SMS only.")] = UNSET
    sender_id: Annotated[UUID | UnsetType, Meta(description="The sender ID it was sent as. SMS only.")] = UNSET
    number_id: Annotated[UUID | UnsetType, Meta(description="The number it was sent from. WhatsApp only.")] = UNSET
    template_id: Annotated[UUID | UnsetType, Meta(description="The template's id. WhatsApp only.")] = UNSET
    template_name: Annotated[str | UnsetType, Meta(description="The template's name. WhatsApp only.")] = UNSET
    template_language: Annotated[str | UnsetType, Meta(description="The template's language. WhatsApp only.")] = UNSET
    audience_tags: Annotated[list[str] | None, Meta(description="Null: the recipients were listed.")]
    audience_tag_match_mode: Annotated[str, Meta(description="`any` or `all` of the tags.")]
    messages_per_minute: Annotated[int | None, Meta(description="No faster than this; null: as fast as it goes.")]
    recipient_count: Annotated[int | None, Meta(description="How many recipients there were.")]
    scheduled_at: Annotated[Time | None, Meta(description="When it was to start; null: at once.")]
    started_at: Annotated[Time | None, Meta(description="When it started.")]
    completed_at: Annotated[Time | None, Meta(description="When it ended.")]
    created_at: CreatedAt
    counts: Annotated[CompletedCounts, Meta(description="What became of its recipients.")]


class CampaignData(msgspec.Struct):
    """A campaign has ended."""

    campaign: Annotated[CompletedCampaign, Meta(description="The campaign.")]


class SenderIdData(msgspec.Struct, rename="camel"):
    """A sender ID was decided on."""

    sender_id: Annotated[SenderId, Meta(description="The sender ID.")]


class TemplateData(msgspec.Struct):
    """A WhatsApp template came, changed, or is gone: its `status` is `removed` then."""

    template: Annotated[WhatsAppTemplate, Meta(description="The template.")]


class PhoneNumberData(msgspec.Struct, rename="camel"):
    """A WhatsApp number came or changed."""

    phone_number: Annotated[WhatsAppPhoneNumber, Meta(description="The number.")]


class TestedEndpoint(msgspec.Struct):
    """The endpoint that the example goes to."""

    id: Annotated[UUID, Meta(description="Id of the endpoint.")]
    subscribed_events: Annotated[list[str], Meta(description="The kinds of events that go there.")]


class TestData(msgspec.Struct, rename="camel"):
    """An example that somebody asked for."""

    webhook_endpoint: Annotated[TestedEndpoint, Meta(description="The endpoint.")]
    message: Annotated[EventMessage, Meta(description="A message as real events have it; its id is all zeros.")]


#: What `data` is, by kind of event.
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
    "webhook.test": TestData,
}

#: When each is raised, for the document.
SUMMARIES: dict[str, str] = {
    "message.delivered": "A message was delivered",
    "message.failed": "A message was not delivered, or never will be",
    "message.sent": "A supplier took a message",
    "message.read": "The user read a WhatsApp message",
    "message.received": "Somebody wrote to one of your numbers",
    "contact.opted_out": "A recipient asked for no more messages",
    "campaign.completed": "Every message of a campaign has ended",
    "sender_id.approved": "A sender ID was approved",
    "sender_id.rejected": "A sender ID was rejected",
    "whatsapp.template.updated": "A WhatsApp template came, changed, or is gone",
    "whatsapp.phone_number.updated": "A WhatsApp number came or changed",
    "webhook.test": "Somebody asked for an example",
}


def body(kind: str, data: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of the whole body of an event; `data` is described under its own name."""
    fields: dict[str, dict[str, Any]] = {
        "id": {"type": "string", "format": "uuid", "description": "Id of the event, the same at every attempt."},
        "type": {"type": "string", "const": kind, "description": "What kind of event it is."},
        "timestamp": {"type": "string", "format": "date-time", "description": "When it happened."},
        "requestId": {"type": "string", "description": "Id of the request that caused it."},
        "apiVersion": {"type": "string", "description": "Version of this form.", "examples": ["v1"]},
        "data": {"$ref": f"#/components/schemas/{data.__name__}", "description": "What happened."},
    }
    return {
        "title": name(kind),
        "description": f"{SUMMARIES[kind]}.",
        "type": "object",
        "properties": fields,
        "required": list(fields),
    }


def name(kind: str) -> str:
    """What the schema of an event is called: `MessageDeliveredEvent`."""
    return "".join(word.capitalize() for word in kind.replace(".", "_").split("_")) + "Event"
