"""SMS: the shapes and handlers of sending and of its preview. The rules are `sms.accept` and `sms.preview`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.accounts.organizations import DestinationNotAllowed, OrganizationSuspended
from heliograph.accounts.requests import Answer
from heliograph.api.door.idempotency import request_hash
from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import NUMBER, AcceptedMessage, Queued, Success, Time
from heliograph.base import phones
from heliograph.base.clock import iso
from heliograph.base.errors import Invalid
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.sms import preview
from heliograph.sms.accept import QuotaExceeded, Send
from heliograph.sms.sender_ids import SenderIdNotApproved


class SendSms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    """A message to one recipient."""

    to: Annotated[
        str,
        Meta(
            description="Recipient: digits with country code, `+` optional.",
            examples=["+258841234567"],
            extra_json_schema={"pattern": NUMBER},
        ),
    ]
    message: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1600,
            description="The text. Ten segments are the limit: 1,530 characters of the GSM alphabet, or 670 if any"
            " other character is among them. `POST /v1/sms/preview` counts.",
        ),
    ]
    sender_id: Annotated[UUID | None, Meta(description="An approved sender ID.")] = None
    sender_name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=64)] | None,
        Meta(description="An approved sender's value, in any case. Neither of the two: the default sender."),
    ] = None
    client_reference: Annotated[
        Annotated[str, Meta(max_length=255)] | None, Meta(description="Comes back in the answer and in events.")
    ] = None
    validity_seconds: Annotated[
        # In JSON 60.0 is the same number as 60, so it is taken for one.
        Annotated[float, Meta(ge=60, le=259_200, multiple_of=1, extra_json_schema={"type": "integer"})] | None,
        Meta(description="Not worth delivering later than this many seconds after it was due."),
    ] = None
    send_at: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description="Send not before this; up to 365 days ahead, with a zone."),
    ] = None
    delivery_guarantee: Annotated[
        Literal["at_least_once", "at_most_once"] | None,
        Meta(description="What to do when a supplier's answer was lost: send again, or rather not."),
    ] = None


class AcceptedProvider(msgspec.Struct, rename="camel"):
    """Who will carry it: always this service."""

    code: Annotated[str, Meta(description="Always this service.", examples=["heliograph"])]
    message_id: Annotated[None, Meta(description="Always null.")]
    http_status: Annotated[Literal[202], Meta(description="Always 202.")]


class SmsAccepted(msgspec.Struct, rename="camel"):
    """The message is stored and queued; it is not delivered yet."""

    success: Success
    queued: Queued
    status: Annotated[Literal["accepted"], Meta(description="Accepted is not delivered: events say what comes of it.")]
    count: Annotated[Literal[1], Meta(description="How many messages this is.")]
    remaining_quota: Annotated[int, Meta(description="Units of quota that are left.")]
    message: Annotated[AcceptedMessage, Meta(description="The message.")]
    provider: Annotated[AcceptedProvider, Meta(description="Who will carry it.")]


class PreviewedSender(msgspec.Struct):
    """Who the message would come from."""

    id: Annotated[UUID, Meta(description="Id of the sender ID.")]
    value: Annotated[str, Meta(description="What the recipient would see.", examples=["HELIOGRAPH"])]


class PreviewedSegment(msgspec.Struct, rename="camel"):
    """One of the pieces that the text would be sent in."""

    number: Annotated[int, Meta(ge=1, description="Its place, from 1.")]
    units: Annotated[int, Meta(description="What it holds: septets of GSM-7, or 16-bit units of UCS-2.")]
    max_units: Annotated[int, Meta(description="What would fit: 160 or 70 alone, 153 or 67 as one of several.")]
    text: Annotated[str, Meta(description="The characters in it.")]


class PreviewedQuota(msgspec.Struct, rename="camel"):
    """What the message would cost."""

    cost: Annotated[int, Meta(description="Units it would take: 1, with a test key 0.")]
    remaining: Annotated[int, Meta(description="What remains now.")]
    remaining_after: Annotated[int, Meta(description="What would remain then.")]


class PreviewWarning(msgspec.Struct):
    """Something that may not be meant. It keeps nothing from being sent."""

    code: Annotated[
        str,
        Meta(
            description="More may come.",
            examples=["unicode", "changed", "several_segments", "last_of_quota", "test_key"],
        ),
    ]
    message: Annotated[str, Meta(description="For people.")]


class Previewed(msgspec.Struct, rename="camel"):
    """The message as it would be."""

    to: Annotated[str, Meta(description="Recipient, with `+` and country code.", examples=["+258841234567"])]
    sender: Annotated[PreviewedSender, Meta(description="Who it would come from.")]
    encoding: Annotated[Literal["gsm7", "ucs2"], Meta(description="One of them for the whole text.")]
    text: Annotated[str, Meta(description="What would be sent, which smart encoding may have changed.")]
    units: Annotated[int, Meta(description="Septets of GSM-7, or 16-bit units of UCS-2, in all.")]
    segments: Annotated[int, Meta(description="How many segments it would be sent in.")]
    parts: Annotated[list[PreviewedSegment], Meta(description="Each segment.")]
    send_at: Annotated[Time | None, Meta(description="Not before this, if that is asked for.")]
    expires_at: Annotated[Time, Meta(description="Not sent any more after this.")]
    quota: Annotated[PreviewedQuota, Meta(description="What it would cost.")]
    warnings: Annotated[list[PreviewWarning], Meta(description="What may not be meant.")]


class SmsPreviewed(msgspec.Struct):
    """What a send would do. Nothing was stored."""

    success: Success
    preview: Annotated[Previewed, Meta(description="The message as it would be.")]


#: Of a send, and of its preview.
REFUSALS = (OrganizationSuspended, DestinationNotAllowed, RecipientOptedOut, SenderIdNotApproved, QuotaExceeded)


@operation(status=202, refusals=REFUSALS)
async def send_sms(call: Call, body: SendSms) -> Annotated[Answer, SmsAccepted]:
    """Send an SMS.

    The message is stored and queued; delivery is reported by events. The same `Idempotency-Key` and payload give
    the first answer again, byte for byte.
    """
    return await call.services.acceptor.accept(_send(call, body))


@operation(refusals=REFUSALS)
async def preview_sms(call: Call, body: SendSms) -> SmsPreviewed:
    """See what a send would do.

    Takes the body of a send and says how it would be encoded, cut and paid for, or refuses it as the send would be
    refused. Nothing is stored.
    """
    found = await preview.preview(call.conn, _send(call, body))
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
            send_at=None if found.send_at is None else iso(found.send_at),
            expires_at=iso(found.expires_at),
            quota=PreviewedQuota(found.cost, found.remaining, found.remaining_after),
            warnings=[PreviewWarning(warning.code, warning.message) for warning in found.warnings],
        ),
    )


def _send(call: Call, body: SendSms) -> Send:
    to = phones.parse(body.to)
    if to is None:
        raise Invalid(("to", "pattern", "`to` must be a phone number with country code: `+258841234567`"))
    # Two spellings of one number are the same payload, and so is a default that is said.
    guarantee = body.delivery_guarantee or "at_least_once"
    canonical = msgspec.structs.replace(body, to=to, delivery_guarantee=guarantee)
    return Send(
        actor=call.actor,
        to=to,
        text=body.message,
        sender_id=body.sender_id,
        sender_name=body.sender_name,
        client_reference=body.client_reference,
        request_id=call.request_id,
        key_hash=call.key_hash,
        request_hash=request_hash(canonical),
        send_at=body.send_at,
        validity_seconds=None if body.validity_seconds is None else int(body.validity_seconds),
        guarantee=guarantee,
        rate_unit=call.rate_unit,
    )
