"""SMS: the shapes of `POST /sms/send`, and its handler. The rule is `sms.accept`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.idempotency import request_hash
from heliograph.api.operation import Call
from heliograph.base import clock, phones
from heliograph.base.errors import Invalid
from heliograph.sms.accept import Answer, Send

MAX_AHEAD = timedelta(days=365)
MAX_PAST = timedelta(seconds=60)


def _number_pattern() -> str:
    """What `phones.parse` takes, as a pattern for the document: a known calling code, 7 to 15 digits in all."""
    by_length: dict[int, list[str]] = {}
    for code in phones.REGIONS:
        by_length.setdefault(len(code), []).append(code)
    return "|".join(
        rf"^\+?(?:{'|'.join(codes)})[0-9]{{{7 - length},{15 - length}}}$" for length, codes in sorted(by_length.items())
    )


NUMBER = _number_pattern()


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
        str, Meta(min_length=1, max_length=1600, description="The text; at most 10 segments when encoded.")
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


class AcceptedMessage(msgspec.Struct, rename="camel"):
    """The message, as far as it is known when it is accepted."""

    id: UUID
    client_reference: str | None


class AcceptedProvider(msgspec.Struct, rename="camel"):
    """Who will carry it: always this service."""

    code: Annotated[str, Meta(examples=["heliograph"])]
    message_id: None
    http_status: Literal[202]


class SmsAccepted(msgspec.Struct, rename="camel"):
    """The message is stored and queued; it is not delivered yet."""

    success: Literal[True]
    queued: Literal[True]
    status: Literal["accepted"]
    count: Literal[1]
    remaining_quota: int
    message: AcceptedMessage
    provider: AcceptedProvider


async def send_sms(call: Call) -> Answer:
    """POST /sms/send"""
    body: SendSms = call.body
    to = phones.parse(body.to)
    if to is None:
        raise Invalid(("to", "pattern", "`to` must be a phone number with country code: `+258841234567`"))
    send_at = _send_at(body.send_at)
    # Two spellings of one number or instant are the same payload.
    canonical = body if to == body.to and send_at is None else msgspec.structs.replace(body, to=to, send_at=send_at)
    return await call.services.acceptor.accept(
        Send(
            actor=call.actor,
            to=to,
            text=body.message,
            sender_id=body.sender_id,
            sender_name=body.sender_name,
            client_reference=body.client_reference,
            request_id=call.request_id,
            key_hash=call.key_hash,
            request_hash=request_hash(canonical),
            send_at=send_at,
            validity_seconds=None if body.validity_seconds is None else int(body.validity_seconds),
            guarantee=body.delivery_guarantee or "at_least_once",
            toll=call.toll,
        )
    )


def _send_at(at: datetime | None) -> datetime | None:
    if at is None:
        return None
    now = clock.now()
    if not now - MAX_PAST <= at <= now + MAX_AHEAD:
        raise Invalid(("sendAt", "range", "`sendAt` must be between 60 seconds ago and 365 days ahead"))
    return at.astimezone(UTC)
