"""SMS: the shapes and handlers of sending and of its preview. The rules are
`sms.accepting.accept` and `sms.accepting.preview`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.accounts.idempotency import request_hash
from heliograph.accounts.organizations import DestinationNotAllowed, OrganizationSuspended
from heliograph.accounts.requests import Answer
from heliograph.accounts.spending import SpendLimitReached
from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import NUMBER, AcceptedMessage, Queued, Success, Time, TrafficClass
from heliograph.base import phones
from heliograph.base.database.clock import iso, iso_or_none
from heliograph.base.errors import Invalid, Problems
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.guard.book import ChallengeRequired, DestinationSuspicious
from heliograph.sms.accepting import encoding, preview
from heliograph.sms.accepting.accept import MAX_REFERENCE, MAX_TEXT, VALIDITY, QuotaExceeded, Send, unfit
from heliograph.sms.accepting.sender_ids import SenderIdNotAllowed, SenderIdNotApproved


class SendSms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel", gc=False):
    """A message to one recipient."""

    to: Annotated[
        str,
        Meta(
            description="Recipient's phone number: digits with country code, leading `+` optional.",
            examples=["+258841234567"],
            extra_json_schema={"pattern": NUMBER},
        ),
    ]
    message: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MAX_TEXT,
            description=(
                "The text, at most ten segments: 1,530 characters if all are in the GSM alphabet, otherwise "
                "670. `POST /v1/sms/preview` counts them."
            ),
        ),
    ]
    sender_id: Annotated[UUID | None, Meta(description="Id of an approved sender ID.")] = None
    sender_name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=64)] | None,
        Meta(
            description=(
                "Value of an approved sender ID, case-insensitive. Without `senderId` and `senderName`, the "
                "default sender ID is used."
            )
        ),
    ] = None
    client_reference: Annotated[
        Annotated[str, Meta(max_length=MAX_REFERENCE)] | None,
        Meta(description="Your own reference, returned in the response and in events."),
    ] = None
    validity_seconds: Annotated[
        # In JSON 60.0 is the same number as 60, so it is accepted as an integer.
        Annotated[float, Meta(ge=VALIDITY[0], le=VALIDITY[1], multiple_of=1, extra_json_schema={"type": "integer"})]
        | None,
        Meta(description="Validity of the message, in seconds from the time it is due."),
    ] = None
    send_at: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description="Earliest time to send it, with a time zone; up to 365 days ahead."),
    ] = None
    traffic_class: Annotated[
        TrafficClass | None,
        Meta(
            description=(
                "What the message is: a one-time code (`otp`), `transactional` (default) or `marketing`. Routes, "
                "limits and quiet hours may differ between classes."
            )
        ),
    ] = msgspec.field(default=None, name="class")
    delivery_guarantee: Annotated[
        Literal["at_least_once", "at_most_once"] | None,
        Meta(
            description=(
                "What to do if a supplier's response is lost: `at_least_once` (default) may send again, "
                "`at_most_once` does not."
            )
        ),
    ] = None
    challenge_passed: Annotated[
        bool | None,
        Meta(
            description=(
                "After `challenge_required`: `true` states that you made sure that a person requested this message, "
                "so that it is accepted. Repeat the send with the same `Idempotency-Key`. Otherwise it has no effect."
            )
        ),
    ] = None


class AcceptedProvider(msgspec.Struct, rename="camel"):
    """The provider: always this service."""

    code: Annotated[str, Meta(description="Always `heliograph`.", examples=["heliograph"])]
    message_id: Annotated[None, Meta(description="Always null.")]
    http_status: Annotated[Literal[202], Meta(description="Always 202.")]


class SmsAccepted(msgspec.Struct, rename="camel"):
    """The message is stored and queued, not delivered yet."""

    success: Success
    queued: Queued
    status: Annotated[
        Literal["accepted"], Meta(description="Accepted does not mean delivered: events report the outcome.")
    ]
    count: Annotated[Literal[1], Meta(description="Number of messages accepted.")]
    remaining_quota: Annotated[int, Meta(description="Quota left after this send.")]
    message: Annotated[AcceptedMessage, Meta(description="The message.")]
    provider: Annotated[AcceptedProvider, Meta(description="The provider.")]


class PreviewedSender(msgspec.Struct):
    """The sender of the message."""

    id: Annotated[UUID, Meta(description="Id of the sender ID.")]
    value: Annotated[str, Meta(description="The sender that the recipient would see.", examples=["HELIOGRAPH"])]


class PreviewedSegment(msgspec.Struct, rename="camel"):
    """One segment of the text."""

    number: Annotated[int, Meta(ge=1, description="Number of the segment, from 1.")]
    units: Annotated[int, Meta(description="Its length: septets in GSM-7, 16-bit units in UCS-2.")]
    max_units: Annotated[
        int, Meta(description="Its capacity: 160 or 70 for a single segment, 153 or 67 for one of several.")
    ]
    text: Annotated[str, Meta(description="Its characters.")]


class PreviewedQuota(msgspec.Struct, rename="camel"):
    """The cost of the message."""

    cost: Annotated[int, Meta(description="Units of quota it would use: 1, or 0 with a test key.")]
    remaining: Annotated[int, Meta(description="Quota remaining now.")]
    remaining_after: Annotated[int, Meta(description="Quota remaining after the send.")]


class PreviewWarning(msgspec.Struct):
    """Something that may be unintended. It does not prevent the send."""

    code: Annotated[
        str,
        Meta(
            description="Code of the warning; new codes may be added.",
            examples=["unicode", "changed", "several_segments", "quiet_hours", "held", "last_of_quota", "test_key"],
        ),
    ]
    message: Annotated[str, Meta(description="Explanation for humans.")]


class Previewed(msgspec.Struct, rename="camel"):
    """The message as it would be sent."""

    to: Annotated[str, Meta(description="Recipient in E.164 format.", examples=["+258841234567"])]
    sender: Annotated[PreviewedSender, Meta(description="The sender.")]
    encoding: Annotated[Literal["gsm7", "ucs2"], Meta(description="Encoding of the whole text.")]
    text: Annotated[str, Meta(description="The text that would be sent, after smart encoding.")]
    units: Annotated[int, Meta(description="Total length: septets in GSM-7, 16-bit units in UCS-2.")]
    segments: Annotated[int, Meta(description="Number of segments.")]
    parts: Annotated[list[PreviewedSegment], Meta(description="The segments.")]
    send_at: Annotated[Time | None, Meta(description="Earliest time to send it, if one was requested.")]
    quiet_until: Annotated[
        Time | None,
        Meta(description="For marketing in the recipient's quiet hours: until when it would wait."),
    ]
    expires_at: Annotated[Time, Meta(description="It is not sent after this time.")]
    quota: Annotated[PreviewedQuota, Meta(description="The cost.")]
    warnings: Annotated[list[PreviewWarning], Meta(description="Things that may be unintended.")]


class SmsPreviewed(msgspec.Struct):
    """The effect of a send. Nothing was stored."""

    success: Success
    preview: Annotated[Previewed, Meta(description="The message as it would be sent.")]


#: Refusals of both a send and its preview.
REFUSALS = (
    *(OrganizationSuspended, DestinationNotAllowed, DestinationSuspicious, ChallengeRequired),
    *(RecipientOptedOut, SenderIdNotApproved, SenderIdNotAllowed, SpendLimitReached, QuotaExceeded),
)


@operation(status=202, refusals=REFUSALS)
async def send_sms(call: Call, body: SendSms) -> Annotated[Answer, SmsAccepted]:
    """Send an SMS.

    The message is stored and queued; events report its delivery. Repeating the request with the same `Idempotency-Key`
    and payload returns the first response, byte for byte.
    """
    return await call.services.acceptor.accept(_send(call, body))


@operation(refusals=REFUSALS)
async def preview_sms(call: Call, body: SendSms) -> SmsPreviewed:
    """Preview an SMS.

    Takes the body of a send and returns its encoding, segments and cost, or the error that the send would return.
    Nothing is stored.
    """
    found = await preview.preview(call.conn, call.services.acceptor, _send(call, body))
    return SmsPreviewed(
        True,
        Previewed(
            to=found.to,
            sender=PreviewedSender(found.sender.id, found.sender.value),
            encoding="gsm7" if found.encoding == "gsm7" else "ucs2",
            text=found.text,
            units=found.units,
            segments=len(found.parts),
            parts=[PreviewedSegment(part.number, part.units, part.holds, part.text) for part in found.parts],
            send_at=iso_or_none(found.send_at),
            quiet_until=iso_or_none(found.quiet_until),
            expires_at=iso(found.expires_at),
            quota=PreviewedQuota(found.cost, found.remaining, found.remaining_after),
            warnings=[PreviewWarning(warning.code, warning.message) for warning in found.warnings],
        ),
    )


def _without_number(call: Call, body: SendSms) -> Invalid:
    """Everything that is wrong with a send whose `to` is not a number."""
    wrong, actor = Problems(), call.actor
    wrong.add("to", "pattern", "`to` must be a phone number with country code: `+258841234567`")
    _, segments = encoding.count(body.message, smart=actor.smart_encoding, accents=actor.replace_accents)
    also = unfit(Send(actor, body.to, body.message, send_at=body.send_at), segments)
    if also is not None:
        with wrong.gathering():
            raise also
    return wrong.refusal()


def _send(call: Call, body: SendSms) -> Send:
    to = phones.parse(body.to)
    if to is None:
        raise _without_number(call, body)
    # Two spellings of one number are the same payload, and so is an explicit default. The organization's own default is
    # not part of the payload: it may change between a request and its repetition.
    guarantee = body.delivery_guarantee or "at_least_once"
    traffic_class = body.traffic_class or "transactional"
    # A send repeated after a challenge counts as the same send.
    canonical = msgspec.structs.replace(
        body, to=to, delivery_guarantee=guarantee, traffic_class=traffic_class, challenge_passed=None
    )
    # The first three by position: more than 15 keywords would be passed in a dict, which takes four times as long.
    return Send(
        call.actor,
        to,
        body.message,
        sender_id=body.sender_id,
        sender_name=body.sender_name,
        client_reference=body.client_reference,
        request_id=call.request_id,
        trace=call.trace,
        key_hash=call.key_hash,
        request_hash=request_hash(canonical),
        send_at=body.send_at,
        validity_seconds=None if body.validity_seconds is None else int(body.validity_seconds),
        guarantee=body.delivery_guarantee,
        traffic_class=traffic_class,
        challenge_passed=bool(body.challenge_passed),
        rate_unit=call.rate_unit,
    )
