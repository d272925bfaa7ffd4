"""WhatsApp messages and conversations: shapes and handlers for listing them, and for reading one message. The rules are
`whatsapp.messages` and `whatsapp.reads`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call
from heliograph.api.door.reading import one_of
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import (
    NUMBER,
    Country,
    HasMore,
    Items,
    NextCursor,
    Success,
    TemplateName,
    Time,
    alias_of,
    checked_country,
)
from heliograph.api.shapes.paging import DateFrom, DateTo, PageQuery
from heliograph.base import phones
from heliograph.base.database.clock import iso, iso_or_none
from heliograph.base.errors import Invalid
from heliograph.suppliers.whatsapp_cloud.bodies import is_user_id
from heliograph.whatsapp import messages, reads
from heliograph.whatsapp.messages import SHOWN_STATUSES, Filters
from heliograph.whatsapp.reads import ConversationFilters
from heliograph.whatsapp.status import FAILURES

USER_ID = r"^[A-Z]{2}\.(?:ENT\.)?[A-Za-z0-9]{1,128}$"

Recipient = Annotated[
    Annotated[str, Meta(max_length=160, extra_json_schema={"pattern": f"{NUMBER}|{USER_ID}"})] | None,
    Meta(
        description="Only those with this user: a phone number with country code, or a user id as shown in `recipient`."
    ),
]
BillingCategory = Literal["utility", "authentication", "marketing", "service"]
BILLING_CATEGORIES = get_args(BillingCategory)
NumberId = Annotated[UUID, Meta(description="Id of your WhatsApp number, as listed by `/whatsapp/phone-numbers`.")]
#: A user's id in the form used in responses.
User = Annotated[str, Meta(examples=["+258841234567"])]


class WhatsAppMessageQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Filters for messages."""

    status: Annotated[
        Literal["accepted", "queued", "sent", "delivered", "read", "failed", "canceled"] | None,
        Meta(description="Only those currently in this status."),
    ] = None
    billing_category: Annotated[
        BillingCategory | None,
        Meta(description="Only messages billed in this category; `service` stands for text replies."),
    ] = None
    category: Annotated[BillingCategory | None, alias_of("billingCategory")] = None
    template_name: Annotated[
        TemplateName | None, Meta(description="Only messages sent from a template with this name.")
    ] = None
    recipient: Recipient = None
    client_reference: Annotated[
        Annotated[str, Meta(max_length=255)] | None, Meta(description="Only messages with exactly this reference.")
    ] = None
    campaign_id: Annotated[UUID | None, Meta(description="Only messages of this campaign.")] = None
    api_key_id: Annotated[UUID | None, Meta(description="Only messages sent with this API key.")] = None
    country: Country = None
    failure_code: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": list(FAILURES)})] | None,
        Meta(description="Only messages that failed for this reason."),
    ] = None
    date_from: DateFrom = None
    date_to: DateTo = None


class WhatsAppConversationQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Filters for conversations."""

    status: Annotated[
        Literal["open", "closed"] | None,
        Meta(description="Only conversations whose service window is currently open, or closed."),
    ] = None
    recipient: Recipient = None
    date_from: DateFrom = None
    date_to: DateTo = None


class WhatsAppFailure(msgspec.Struct):
    """Why a message failed."""

    code: Annotated[
        str, Meta(description="Stable code: base decisions on this.", extra_json_schema={"enum": list(FAILURES)})
    ]
    message: Annotated[str, Meta(description="Explanation for humans.")]


class WhatsAppContext(msgspec.Struct, rename="camel"):
    """The context of a user's message."""

    message_id: Annotated[
        UUID | None,
        Meta(
            description="The message that it replies or reacts to, edits (`edit`) or deletes (`revoke`); null if there"
            " is none, or it is over 60 days old."
        ),
    ]
    forwarded: Annotated[bool, Meta(description="Whether the user forwarded it from somebody else.")]


class WhatsAppReferral(msgspec.Struct, rename="camel"):
    """What led a user to write."""

    source_type: Annotated[str | None, Meta(description="`ad` or `post`.", examples=["ad"])]
    headline: Annotated[str | None, Meta(description="Its headline.")]
    body: Annotated[str | None, Meta(description="Its text.")]
    media_type: Annotated[str | None, Meta(description="`image` or `video`.")]


class WhatsAppMessage(msgspec.Struct, rename="camel", kw_only=True):
    """A message to or from a user, in its current state."""

    id: Annotated[UUID, Meta(description="Id of the message; for an outbound message, as returned by the send.")]
    client_reference: Annotated[str | None, Meta(description="The reference given in the send, or null.")]
    direction: Annotated[
        Literal["outbound", "inbound"], Meta(description="`outbound`: to the user. `inbound`: from the user.")
    ]
    type: Annotated[
        str,
        Meta(
            description="`template` or `text`; inbound messages can also be `image`, `button`, `location` and others.",
            examples=["template"],
        ),
    ]
    status: Annotated[
        str,
        Meta(
            description="Current status. Inbound messages are `delivered`.",
            extra_json_schema={"enum": list(SHOWN_STATUSES)},
        ),
    ]
    recipient: Annotated[
        User,
        Meta(
            description=(
                "The user, for both directions: a phone number in E.164 format, or a user id such as "
                "`MZ.1349000000000001` if the user hides their number."
            )
        ),
    ]
    phone_number_id: NumberId
    template_name: Annotated[str | None, Meta(description="Name of the template, if it was sent from one.")]
    template_language: Annotated[str | None, Meta(description="Language of the template.", examples=["pt_PT"])]
    billing_category: Annotated[
        BillingCategory | None,
        Meta(description="Category it is billed in; null if it is not billed, as for inbound messages."),
    ]
    conversation_id: Annotated[UUID, Meta(description="The conversation it belongs to.")]
    accepted_at: Annotated[Time, Meta(description="When the message was accepted, or received if inbound.")]
    sent_at: Annotated[Time | None, Meta(description="When WhatsApp accepted it.")]
    delivered_at: Annotated[
        Time | None,
        Meta(description="When it reached the user's device; for an inbound message, when the user wrote it."),
    ]
    read_at: Annotated[
        Time | None, Meta(description="When the user read it; also null if the user has turned read receipts off.")
    ]
    failed_at: Annotated[Time | None, Meta(description="When it failed.")]
    canceled_at: Annotated[
        Time | None, Meta(description="When it was canceled, by your operator or with its campaign.")
    ]
    failure: Annotated[WhatsAppFailure | None, Meta(description="Why it failed; null unless it did.")]
    content: Annotated[
        dict[str, Any] | None,
        Meta(
            description=(
                "Its content, by `type`: `body` of a text, `parameters` of a template, `text` and `payload` of a "
                "button, `kind`, `id` and `title` of an interactive reply, `mimeType` and `caption` of media, `emoji` "
                "of a reaction; other types have what WhatsApp reports about them, without files. Null after it has "
                "been erased, which is after 30 days by default."
            ),
            examples=[{"body": "Where is my order?"}],
        ),
    ]
    context: Annotated[
        WhatsAppContext | None,
        Meta(description="What the user's message refers to; null if it refers to nothing, and for your messages."),
    ]
    referral: Annotated[
        WhatsAppReferral | None,
        Meta(description="The advertisement or post that led the user to write; null if there was none."),
    ]
    profile_name: Annotated[
        str | None, Meta(description="The user's profile name, as of this message.", examples=["Ana"])
    ]


class WhatsAppMessageList(msgspec.Struct, rename="camel"):
    """A page of messages, newest first. With filters it can hold fewer than `limit` items although there are more."""

    success: Success
    items: Items[WhatsAppMessage]
    next_cursor: NextCursor
    has_more: HasMore


class WhatsAppMessageRead(msgspec.Struct):
    """The message in its current state."""

    success: Success
    message: Annotated[WhatsAppMessage, Meta(description="The message.")]


class WhatsAppConversation(msgspec.Struct, rename="camel", kw_only=True):
    """The conversation between one of your numbers and one user, with its service window."""

    id: Annotated[UUID, Meta(description="Id of the conversation: `conversationId` of its messages.")]
    recipient: Annotated[User, Meta(description="The user, in the same form as in messages.")]
    phone_number_id: NumberId
    status: Annotated[
        Literal["open", "closed"],
        Meta(
            description=(
                "`open`: the user wrote within the last 24 hours, so you can reply with a text. `closed`: "
                "only templates can be sent."
            )
        ),
    ]
    service_window_opened_at: Annotated[
        Time | None, Meta(description="When the user last opened the window; null if they never wrote.")
    ]
    service_window_expires_at: Annotated[
        Time | None, Meta(description="When the window closes or closed; each message from the user extends it.")
    ]
    last_inbound_at: Annotated[Time | None, Meta(description="When the user last wrote.")]
    last_outbound_at: Annotated[Time | None, Meta(description="When the last message was sent to the user.")]


class WhatsAppConversationList(msgspec.Struct, rename="camel"):
    """A page of conversations, the most recently started first."""

    success: Success
    items: Items[WhatsAppConversation]
    next_cursor: NextCursor
    has_more: HasMore


async def list_whatsapp_messages(call: Call, query: WhatsAppMessageQuery) -> WhatsAppMessageList:
    """List WhatsApp messages.

    Outbound and inbound messages, newest first; `dateFrom` and `dateTo` refer to `acceptedAt`. A page scans at most
    20,000 messages (with `recipient`, at most 20,000 of that user's): with filters it can hold fewer than `limit`
    items, or none, while `hasMore` is true; `nextCursor` continues from there. A live key sees live messages, a test
    key sees what test keys sent.
    """
    call.query = query = msgspec.structs.replace(
        query,
        recipient=_user(query.recipient),
        billing_category=one_of("category", query.billing_category, "billingCategory", query.category),
        category=None,
    )
    filters = Filters(
        status=query.status,
        billing_category=query.billing_category,
        template_name=query.template_name,
        recipient=query.recipient,
        client_reference=query.client_reference,
        campaign_id=query.campaign_id,
        key_id=query.api_key_id,
        country=checked_country(query.country),
        failure_code=query.failure_code,
        date_from=query.date_from,
        date_to=query.date_to,
    )
    found = await messages.list_page(
        call.conn, call.actor, filters=filters, after=paging.after_id(call, "whatsapp_messages"), limit=query.limit
    )
    return WhatsAppMessageList(
        True,
        *paging.page(
            call,
            "whatsapp_messages",
            found.messages,
            position=lambda row: [row.id],
            shown=_message,
            seen=None if found.seen is None else [found.seen],
        ),
    )


async def get_whatsapp_message(call: Call, message_id: UUID) -> WhatsAppMessageRead:
    """Get a WhatsApp message.

    Its content, its current status, the time of each step and, if it failed, the reason.
    """
    return WhatsAppMessageRead(True, _message(await messages.get(call.conn, call.actor, id=message_id)))


async def list_whatsapp_conversations(call: Call, query: WhatsAppConversationQuery) -> WhatsAppConversationList:
    """List WhatsApp conversations.

    One for each pair of one of your numbers and a user it has exchanged messages with, the most recently started first;
    `dateFrom` and `dateTo` refer to the last message in either direction. With filters a page can hold fewer than
    `limit` items, or none, while `hasMore` is true; `nextCursor` continues from there. Test keys have separate
    conversations, which are always open.
    """
    call.query = query = msgspec.structs.replace(query, recipient=_user(query.recipient))
    is_open = None if query.status is None else query.status == "open"
    filters = ConversationFilters(is_open, query.recipient, query.date_from, query.date_to)
    after = paging.after_id(call, "whatsapp_conversations")
    rows, seen = await reads.conversations(call.conn, call.actor, filters=filters, after=after, limit=query.limit)
    return WhatsAppConversationList(
        True,
        *paging.page(
            call,
            "whatsapp_conversations",
            rows,
            position=lambda row: [row.id],
            shown=_conversation,
            seen=None if seen is None else [seen],
        ),
    )


def _user(given: str | None) -> str | None:
    """Normalize `recipient`, so that two spellings of a number are one filter, also in cursors."""
    if given is None or is_user_id(given):
        return given
    # An unencoded `+` arrives as a space.
    number = phones.parse(given.lstrip(" "))
    if number is None:
        raise Invalid(("recipient", "pattern", "`recipient` must be a phone number with country code or a user id"))
    return number


def _message(message: messages.Message) -> WhatsAppMessage:
    return WhatsAppMessage(
        id=message.id,
        client_reference=message.client_reference,
        direction=message.direction,  # type: ignore[arg-type]
        type=message.type,
        status=message.status,
        recipient=message.recipient,
        phone_number_id=message.number_id,
        template_name=message.template_name,
        template_language=message.template_language,
        billing_category=_billed(message.billing_category),
        conversation_id=message.conversation_id,
        accepted_at=iso(message.accepted_at),
        sent_at=iso_or_none(message.sent_at),
        delivered_at=iso_or_none(message.delivered_at),
        read_at=iso_or_none(message.read_at),
        failed_at=iso_or_none(message.failed_at),
        canceled_at=iso_or_none(message.canceled_at),
        failure=_failure(message.failure_code),
        content=message.content,
        context=_context(message.context),
        referral=_referral(message.referral),
        profile_name=message.profile_name,
    )


def _context(found: messages.Context | None) -> WhatsAppContext | None:
    return None if found is None else WhatsAppContext(found.message_id, found.forwarded)


def _referral(found: dict[str, Any] | None) -> WhatsAppReferral | None:
    if found is None:
        return None
    return WhatsAppReferral(*(found.get(name) for name in ("sourceType", "headline", "body", "mediaType")))


def _billed(category: str | None) -> BillingCategory | None:
    return category if category in BILLING_CATEGORIES else None  # type: ignore[return-value]


def _failure(code: str | None) -> WhatsAppFailure | None:
    if code is None:
        return None
    known = code if code in FAILURES else "unknown"
    return WhatsAppFailure(known, FAILURES[known])


def _conversation(conversation: reads.Conversation) -> WhatsAppConversation:
    return WhatsAppConversation(
        id=conversation.id,
        recipient=conversation.recipient,
        phone_number_id=conversation.number_id,
        status="open" if conversation.is_open else "closed",
        service_window_opened_at=iso_or_none(conversation.opened_at),
        service_window_expires_at=iso_or_none(conversation.expires_at),
        last_inbound_at=iso_or_none(conversation.last_inbound_at),
        last_outbound_at=iso_or_none(conversation.last_outbound_at),
    )
