"""WhatsApp messages and conversations: shapes and handlers of their lists, and of reading one message. The rules are
`whatsapp.messages` and `whatsapp.reads`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, get_args
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call
from heliograph.api.door.reading import one_of
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import NUMBER, HasMore, Items, NextCursor, Success, TemplateName, Time, alias_of
from heliograph.api.shapes.paging import DateFrom, DateTo, PageQuery
from heliograph.base import phones
from heliograph.base.clock import iso
from heliograph.base.errors import Invalid
from heliograph.suppliers.whatsapp_cloud.bodies import is_user_id
from heliograph.whatsapp import messages, reads
from heliograph.whatsapp.messages import Filters
from heliograph.whatsapp.reads import ConversationFilters
from heliograph.whatsapp.status import FAILURES, RANK

USER_ID = r"^[A-Z]{2}\.(?:ENT\.)?[A-Za-z0-9]{1,128}$"

Recipient = Annotated[
    Annotated[str, Meta(max_length=160, extra_json_schema={"pattern": f"{NUMBER}|{USER_ID}"})] | None,
    Meta(description="Those with this user: a number with country code, or a user id as `recipient` shows it."),
]
BillingCategory = Literal["utility", "authentication", "marketing", "service"]
BILLING_CATEGORIES = get_args(BillingCategory)
NumberId = Annotated[UUID, Meta(description="Your WhatsApp number, as `/whatsapp/phone-numbers` lists it.")]
#: A user, as they are written in answers.
User = Annotated[str, Meta(examples=["+258841234567"])]


class WhatsAppMessageQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Which messages to list."""

    status: Annotated[
        Literal["accepted", "queued", "sent", "delivered", "read", "failed", "canceled"] | None,
        Meta(description="Those that are in this state now."),
    ] = None
    billing_category: Annotated[
        BillingCategory | None, Meta(description="Those that are billed as this. `service` is a text reply.")
    ] = None
    category: Annotated[BillingCategory | None, alias_of("billingCategory")] = None
    template_name: Annotated[TemplateName | None, Meta(description="Those sent from a template of this name.")] = None
    recipient: Recipient = None
    date_from: DateFrom = None
    date_to: DateTo = None


class WhatsAppConversationQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Which conversations to list."""

    status: Annotated[
        Literal["open", "closed"] | None, Meta(description="Those whose service window is open now, or is not.")
    ] = None
    recipient: Recipient = None
    date_from: DateFrom = None
    date_to: DateTo = None


class WhatsAppFailure(msgspec.Struct):
    """Why a message failed, in words of this service."""

    code: Annotated[str, Meta(description="Decide by this.", extra_json_schema={"enum": list(FAILURES)})]
    message: Annotated[str, Meta(description="For people.")]


class WhatsAppMessage(msgspec.Struct, rename="camel", kw_only=True):
    """A message to or from a user, as it is now."""

    id: Annotated[UUID, Meta(description="Of a message that was sent: as it was answered to the send.")]
    client_reference: Annotated[str | None, Meta(description="As it was sent.")]
    direction: Annotated[
        Literal["outbound", "inbound"], Meta(description="`outbound` goes to the user, `inbound` came from them.")
    ]
    type: Annotated[
        str,
        Meta(
            description="`template` or `text`; of an inbound message also `image`, `button`, `location` and others.",
            examples=["template"],
        ),
    ]
    status: Annotated[
        str,
        Meta(description="Where it stands now. Inbound: `delivered`.", extra_json_schema={"enum": list(RANK)}),
    ]
    recipient: Annotated[
        User,
        Meta(
            description="The user, in either direction, with `+` and country code. For a user who hides their number, "
            "a user id such as `MZ.1349000000000001`."
        ),
    ]
    phone_number_id: NumberId
    template_name: Annotated[str | None, Meta(description="The template that it was sent from.")]
    template_language: Annotated[str | None, Meta(description="The template's language.", examples=["pt_PT"])]
    billing_category: Annotated[
        BillingCategory | None, Meta(description="What it is billed as; null: nothing is billed, as for inbound ones.")
    ]
    conversation_id: Annotated[UUID, Meta(description="The conversation that it belongs to.")]
    accepted_at: Annotated[Time, Meta(description="When it was stored here.")]
    sent_at: Annotated[Time | None, Meta(description="When WhatsApp took it.")]
    delivered_at: Annotated[
        Time | None, Meta(description="When it reached the user's device; of an inbound one, when they wrote it.")
    ]
    read_at: Annotated[
        Time | None, Meta(description="When the user read it; null too if they keep that to themselves.")
    ]
    failed_at: Annotated[Time | None, Meta(description="When it failed.")]
    failure: Annotated[WhatsAppFailure | None, Meta(description="Why it failed, if it did.")]


class WhatsAppMessageList(msgspec.Struct, rename="camel"):
    """A page of messages, newest first. One with filters may hold fewer than asked for, though there are more."""

    success: Success
    items: Items[WhatsAppMessage]
    next_cursor: NextCursor
    has_more: HasMore


class WhatsAppMessageRead(msgspec.Struct):
    """The message as it is now."""

    success: Success
    message: Annotated[WhatsAppMessage, Meta(description="The message.")]


class WhatsAppConversation(msgspec.Struct, rename="camel", kw_only=True):
    """What goes on between one of your numbers and one user, with the user's service window."""

    id: Annotated[UUID, Meta(description="`conversationId` of its messages.")]
    recipient: Annotated[User, Meta(description="The user, as in messages.")]
    phone_number_id: NumberId
    status: Annotated[
        Literal["open", "closed"],
        Meta(
            description="`open`: the user wrote within 24 hours, and may be answered with a text. Else: templates only."
        ),
    ]
    service_window_opened_at: Annotated[
        Time | None, Meta(description="When the user last opened the window; null: they never wrote.")
    ]
    service_window_expires_at: Annotated[
        Time | None, Meta(description="When it closes or did; each message of the user's puts this off.")
    ]
    last_inbound_at: Annotated[Time | None, Meta(description="When the user last wrote.")]
    last_outbound_at: Annotated[Time | None, Meta(description="When the user was last sent something.")]


class WhatsAppConversationList(msgspec.Struct, rename="camel"):
    """A page of conversations, the one that began last first."""

    success: Success
    items: Items[WhatsAppConversation]
    next_cursor: NextCursor
    has_more: HasMore


async def list_whatsapp_messages(call: Call, query: WhatsAppMessageQuery) -> WhatsAppMessageList:
    """List WhatsApp messages.

    What was sent and what came in, newest first; `dateFrom` and `dateTo` are of `acceptedAt`. One page is looked
    for among 20,000 messages at most (with `recipient`, of that user's): with filters it may hold fewer than asked
    for, or none, while `hasMore` is true; `nextCursor` then goes on from there. A live key sees live messages, a
    test key what test keys sent.
    """
    call.query = query = msgspec.structs.replace(
        query,
        recipient=_user(query.recipient),
        billing_category=one_of("category", query.billing_category, "billingCategory", query.category),
        category=None,
    )
    filters = Filters(**{name: getattr(query, name) for name in Filters.__struct_fields__})
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
    """Read a WhatsApp message.

    Where a message stands, with the time of each step, and why it failed if it did.
    """
    return WhatsAppMessageRead(True, _message(await messages.get(call.conn, call.actor, id=message_id)))


async def list_whatsapp_conversations(call: Call, query: WhatsAppConversationQuery) -> WhatsAppConversationList:
    """List WhatsApp conversations.

    One for each of your numbers and each user that it wrote to or heard from, the one that began last first;
    `dateFrom` and `dateTo` are of the last message in either direction. With filters a page may hold fewer than
    asked for, or none, while `hasMore` is true: `nextCursor` goes on from there. A test key has conversations of
    its own, which are always open.
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
    """`recipient` as it is stored, so that two spellings of a number are one filter, also in cursors."""
    if given is None or is_user_id(given):
        return given
    # A `+` that was not encoded arrives as a space.
    number = phones.parse(given.lstrip(" "))
    if number is None:
        raise Invalid(("recipient", "pattern", "`recipient` must be a phone number with country code, or a user id"))
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
        sent_at=_time(message.sent_at),
        delivered_at=_time(message.delivered_at),
        read_at=_time(message.read_at),
        failed_at=_time(message.failed_at),
        failure=_failure(message.failure_code),
    )


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
        service_window_opened_at=_time(conversation.opened_at),
        service_window_expires_at=_time(conversation.expires_at),
        last_inbound_at=_time(conversation.last_inbound_at),
        last_outbound_at=_time(conversation.last_outbound_at),
    )


def _time(at: datetime | None) -> str | None:
    return None if at is None else iso(at)
