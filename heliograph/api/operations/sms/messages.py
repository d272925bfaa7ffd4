"""SMS messages: the shapes and handlers of list, read and cancel. The rules are `sms.messages`."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import (
    NUMBER,
    Country,
    HasMore,
    Items,
    NextCursor,
    Success,
    Time,
    TrafficClass,
    checked_country,
)
from heliograph.api.shapes.paging import DateFrom, DateTo, PageQuery
from heliograph.base import phones
from heliograph.base.database.clock import iso, iso_or_none
from heliograph.base.errors import Invalid
from heliograph.sms import conversions, messages
from heliograph.sms.arrivals import FAILURES
from heliograph.sms.messages import SHOWN_STATUSES, Filters, MessageNotCancelable, Step

StatusName = Annotated[str, Meta(extra_json_schema={"enum": list(SHOWN_STATUSES)})]


class MessageQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Filters for messages."""

    status: Annotated[
        Literal[
            "accepted",
            "sending",
            "sent",
            "delivered",
            "undelivered",
            "failed",
            "expired",
            "rejected",
            "canceled",
            "unknown",
        ]
        | None,
        Meta(description="Only those currently in this status."),
    ] = None
    recipient: Annotated[
        Annotated[str, Meta(max_length=64, extra_json_schema={"pattern": NUMBER})] | None,
        Meta(description="Only messages to this number, with country code, in any spelling."),
    ] = None
    client_reference: Annotated[
        Annotated[str, Meta(max_length=255)] | None, Meta(description="Only messages with exactly this reference.")
    ] = None
    campaign_id: Annotated[UUID | None, Meta(description="Only messages of this campaign.")] = None
    api_key_id: Annotated[UUID | None, Meta(description="Only messages sent with this API key.")] = None
    sender: Annotated[
        Annotated[str, Meta(max_length=64)] | None, Meta(description="Only messages from this sender, by its value.")
    ] = None
    country: Country = None
    failure_code: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": list(FAILURES)})] | None,
        Meta(description="Only messages that failed for this reason."),
    ] = None
    date_from: DateFrom = None
    date_to: DateTo = None


class SmsFailure(msgspec.Struct):
    """Why a message failed."""

    code: Annotated[
        str, Meta(description="Stable code: base decisions on this.", extra_json_schema={"enum": list(FAILURES)})
    ]
    message: Annotated[str, Meta(description="Explanation for humans.")]


class SmsMessage(msgspec.Struct, rename="camel", kw_only=True):
    """A message in its current state."""

    id: Annotated[UUID, Meta(description="Id of the message, as returned by the send.")]
    client_reference: Annotated[str | None, Meta(description="The reference given in the send, or null.")]
    channel: Annotated[Literal["sms"], Meta(description="The channel.")]
    status: Annotated[StatusName, Meta(description="Current status.")]
    mode: Annotated[Literal["live", "test"], Meta(description="Mode of the key that sent it.")]
    to: Annotated[str, Meta(description="Recipient in E.164 format.", examples=["+258841234567"])]
    sender: Annotated[str, Meta(description="The sender that the recipient sees.", examples=["HELIOGRAPH"])]
    sender_id: Annotated[UUID, Meta(description="Id of the sender ID.")]
    encoding: Annotated[Literal["gsm7", "ucs2"], Meta(description="Encoding of the text.")]
    segments: Annotated[int, Meta(description="Number of segments.")]
    traffic_class: Annotated[TrafficClass, Meta(description="Class of the message, as given in the send.")] = (
        msgspec.field(name="class")
    )
    campaign_id: Annotated[UUID | None, Meta(description="The campaign it belongs to, if any.")]
    api_key_id: Annotated[
        UUID | None, Meta(description="The API key of the request that sent it; null if a campaign or a person did.")
    ]
    delivery_guarantee: Annotated[
        Literal["at_least_once", "at_most_once"],
        Meta(
            description=(
                "What happens if a supplier's response is lost: `at_least_once` may send again, `at_most_once` "
                "does not."
            )
        ),
    ]
    accepted_at: Annotated[Time, Meta(description="When the message was accepted and stored.")]
    send_at: Annotated[Time | None, Meta(description="Earliest time to send it, if one was requested.")]
    expires_at: Annotated[Time, Meta(description="It is not sent after this time.")]
    quiet_until: Annotated[
        Time | None,
        Meta(
            description=(
                "Marketing is not sent in quiet hours: when those of the recipient end or ended, if it had to wait for "
                "that; otherwise null."
            )
        ),
    ]
    sent_at: Annotated[Time | None, Meta(description="When it was handed to the network.")]
    delivered_at: Annotated[Time | None, Meta(description="When it was delivered to the recipient.")]
    failed_at: Annotated[
        Time | None, Meta(description="When it became `undelivered`, `failed`, `expired` or `rejected`.")
    ]
    canceled_at: Annotated[Time | None, Meta(description="When it was canceled.")]
    failure: Annotated[SmsFailure | None, Meta(description="Why it failed; null unless it did.")]


class SmsMessageWithText(SmsMessage, rename="camel", kw_only=True):
    """A message in its current state, with its text."""

    message: Annotated[
        str | None, Meta(description="The text; null after it has been erased, which is after 30 days by default.")
    ]


class SmsDelivery(msgspec.Struct, rename="camel"):
    """One attempt to deliver an event of the message to a webhook endpoint."""

    event_id: Annotated[UUID, Meta(description="Id of the event, the same in every attempt.")]
    type: Annotated[str, Meta(description="Kind of event.", examples=["message.delivered"])]
    webhook_endpoint_id: Annotated[UUID, Meta(description="The endpoint it was posted to.")]
    attempt: Annotated[int, Meta(description="Number of the attempt, from 1.")]
    result: Annotated[str, Meta(description="`delivered`, or the reason for the failure.", examples=["delivered"])]
    http_status: Annotated[int | None, Meta(description="Status of the receiver's response, if there was one.")]
    duration_ms: Annotated[int, Meta(description="Duration in milliseconds.")]


class SmsStep(msgspec.Struct, rename="camel"):
    """An entry of the timeline: the message reached a status, or an event was posted to a webhook endpoint."""

    at: Annotated[Time, Meta(description="When it happened.")]
    type: Annotated[
        Literal["status", "webhook"], Meta(description="Whether this is a change of status or a webhook delivery.")
    ]
    status: Annotated[StatusName | None, Meta(description="The status reached; null for a webhook delivery.")]
    failure: Annotated[
        SmsFailure | None, Meta(description="Why the message failed, if this is the step at which it did.")
    ]
    delivery: Annotated[SmsDelivery | None, Meta(description="The webhook delivery; null for a change of status.")]


class SmsMessageList(msgspec.Struct, rename="camel"):
    """A page of messages, newest first. With filters it can hold fewer than `limit` items although there are more."""

    success: Success
    items: Items[SmsMessage]
    next_cursor: NextCursor
    has_more: HasMore


class SmsMessageRead(msgspec.Struct):
    """A message with its text and its timeline."""

    success: Success
    message: Annotated[SmsMessageWithText, Meta(description="The message.")]
    timeline: Annotated[list[SmsStep], Meta(description="What happened to the message, in chronological order.")]


class SmsCanceled(msgspec.Struct):
    """The canceled message."""

    success: Success
    message: Annotated[SmsMessage, Meta(description="The canceled message.")]


class SmsConverted(msgspec.Struct, rename="camel"):
    """The conversion is recorded."""

    success: Success
    converted_at: Annotated[Time, Meta(description="When that was first reported.")]


async def list_sms_messages(call: Call, query: MessageQuery) -> SmsMessageList:
    """List messages.

    Newest first. A page scans at most 20,000 messages: with filters it can hold fewer than `limit` items, or none,
    while `hasMore` is true; `nextCursor` continues from there. Use `dateFrom` and `dateTo` to go straight to the right
    period.
    """
    if query.recipient is not None:
        # An unencoded `+` arrives as a space. Numbers are normalized, so that two spellings are one filter, also in
        # cursors.
        recipient = phones.parse(query.recipient.lstrip(" "))
        if recipient is None:
            raise Invalid(("recipient", "pattern", "`recipient` must be a phone number with country code"))
        call.query = query = msgspec.structs.replace(query, recipient=recipient)
    if query.sender is not None:
        call.query = query = msgspec.structs.replace(query, sender=query.sender.lower())
    filters = Filters(
        status=query.status,
        recipient=query.recipient,
        client_reference=query.client_reference,
        campaign_id=query.campaign_id,
        key_id=query.api_key_id,
        sender=query.sender,
        country=checked_country(query.country),
        failure_code=query.failure_code,
        date_from=query.date_from,
        date_to=query.date_to,
    )
    after = paging.after_id(call, "sms_messages")
    found = await messages.list_page(call.conn, call.actor, filters=filters, after=after, limit=query.limit)
    items, following, more = paging.page(
        call,
        "sms_messages",
        found.messages,
        position=lambda message: [message.id],
        shown=lambda message: SmsMessage(**_shown(message)),
        seen=None if found.seen is None else [found.seen],
    )
    return SmsMessageList(True, items, following, more)


async def get_sms_message(call: Call, message_id: UUID) -> SmsMessageRead:
    """Get a message and its timeline."""
    detail = await messages.get(call.conn, call.actor, id=message_id)
    message = SmsMessageWithText(message=detail.text, **_shown(detail.message))
    return SmsMessageRead(True, message, [_step(step) for step in detail.steps if step.quiet_until is None])


@operation(refusals=(MessageNotCancelable,), while_stopped=True)
async def cancel_sms_message(call: Call, message_id: UUID) -> SmsCanceled:
    """Cancel a message.

    Possible until it is handed to a supplier: while it is scheduled or queued, or waits to be tried again because
    suppliers refused it for now. Its unit of quota is refunded. Canceling it again returns the same response.
    """
    message = await messages.cancel(call.conn, call.actor, id=message_id)
    return SmsCanceled(True, SmsMessage(**_shown(message)))


async def convert_sms_message(call: Call, message_id: UUID) -> SmsConverted:
    """Report a conversion.

    For one-time codes: the person entered the code. If codes are usually entered but those sent to some range of
    numbers are not, somebody may be earning from that range, and the guard holds it. Reporting it again returns the
    first time.
    """
    return SmsConverted(True, iso(await conversions.convert(call.conn, call.actor, id=message_id)))


def _shown(message: messages.Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "client_reference": message.client_reference,
        "channel": "sms",
        "status": message.status,
        "mode": message.mode,
        "to": message.recipient,
        "sender": message.sender,
        "sender_id": message.sender_id,
        "encoding": message.encoding,
        "segments": message.segments,
        "traffic_class": message.traffic_class,
        "api_key_id": message.key_id,
        "campaign_id": message.campaign_id,
        "delivery_guarantee": message.guarantee,
        "accepted_at": iso(message.accepted_at),
        "send_at": iso_or_none(message.send_at),
        "expires_at": iso(message.expires_at),
        "quiet_until": iso_or_none(message.quiet_until),
        "sent_at": iso_or_none(message.sent_at),
        "delivered_at": iso_or_none(message.delivered_at),
        "failed_at": iso_or_none(message.failed_at),
        "canceled_at": iso_or_none(message.ended_at) if message.status == "canceled" else None,
        "failure": _failure(message.failure_code),
    }


def _step(step: Step) -> SmsStep:
    delivery = None
    if step.delivery is not None:
        delivery = SmsDelivery(
            event_id=step.delivery.event_id,
            type=step.delivery.kind,
            webhook_endpoint_id=step.delivery.endpoint_id,
            attempt=step.delivery.attempt,
            result=step.delivery.result,
            http_status=step.delivery.status,
            duration_ms=step.delivery.duration_ms,
        )
    kind: Literal["status", "webhook"] = "status" if delivery is None else "webhook"
    return SmsStep(iso(step.at), kind, step.status, _failure(step.failure_code), delivery)


def _failure(code: str | None) -> SmsFailure | None:
    return SmsFailure(code, FAILURES[code]) if code else None
