"""WhatsApp: the shapes and the handler of sending. The rule is `whatsapp.accepting.accept`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.accounts.idempotency import request_hash
from heliograph.accounts.organizations import DestinationNotAllowed
from heliograph.accounts.requests import Answer
from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import NUMBER, AcceptedMessage, Queued, Success
from heliograph.base import phones
from heliograph.base.errors import Invalid
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.suppliers.whatsapp_cloud.bodies import USER_ID, is_user_id
from heliograph.whatsapp.accepting.accept import Send, TemplateSend, TextReply, WindowClosed
from heliograph.whatsapp.mirror.numbers import PhoneNumberUnavailable
from heliograph.whatsapp.mirror.templates import (
    TemplateNotApproved,
    TemplateNotFound,
    TemplateNotSendable,
    TemplateParameterMismatch,
)
from heliograph.whatsapp.money.wallet import WalletInsufficientFunds

Recipient = Annotated[
    str,
    Meta(
        description=(
            "Recipient: phone number with country code, leading `+` optional; or the user id of a user "
            "who hides their number, for texts and for templates other than `authentication`."
        ),
        examples=["+258841234567"],
        extra_json_schema={"pattern": f"{NUMBER}|^{USER_ID}$"},
    ),
]
PhoneNumberId = Annotated[UUID, Meta(description="Id of the WhatsApp number to send from.")]
ClientReference = Annotated[
    Annotated[str, Meta(max_length=255)] | None,
    Meta(description="Your own reference, returned in the response and in events."),
]


class WhatsAppTemplateContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """An approved template and its parameters."""

    name: Annotated[str, Meta(min_length=1, max_length=512, description="Name of the template.")]
    language: Annotated[
        str, Meta(min_length=2, max_length=15, description="Must match the template.", examples=["en", "pt_PT"])
    ]
    category: Annotated[Literal["utility", "authentication"], Meta(description="Must match the template.")]
    parameters: Annotated[
        list[Annotated[str, Meta(max_length=1024)]],
        Meta(
            max_length=50,
            description=(
                "Values in order: the header's variable, the body's variables, then the suffixes of URL "
                "buttons. An authentication template takes one value, the code."
            ),
        ),
    ]


class WhatsAppTextContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A free-form text."""

    body: Annotated[str, Meta(min_length=1, max_length=4096, description="The text.")]
    preview_url: Annotated[bool | None, Meta(description="Whether to show a preview of the first link.")] = False


class SendWhatsAppTemplate(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", tag_field="type", tag="template"
):
    """A template message to one recipient, possible at any time."""

    to: Recipient
    phone_number_id: PhoneNumberId
    template: Annotated[WhatsAppTemplateContent, Meta(description="The template.")]
    client_reference: ClientReference = None


class SendWhatsAppText(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", tag_field="type", tag="text"
):
    """A text reply to a user who wrote within the last 24 hours."""

    to: Recipient
    phone_number_id: PhoneNumberId
    text: Annotated[WhatsAppTextContent, Meta(description="The text.")]
    client_reference: ClientReference = None


#: The body of a send; `type` says which.
SendWhatsAppMessage: TypeAlias = SendWhatsAppTemplate | SendWhatsAppText


class WhatsAppAccepted(msgspec.Struct, rename="camel"):
    """The message is stored and queued, not delivered yet."""

    success: Success
    queued: Queued
    status: Annotated[
        Literal["accepted"], Meta(description="Accepted does not mean delivered: events report the outcome.")
    ]
    message: Annotated[AcceptedMessage, Meta(description="The message.")]


@operation(
    status=202,
    refusals=(
        TemplateNotFound,
        TemplateParameterMismatch,
        DestinationNotAllowed,
        RecipientOptedOut,
        PhoneNumberUnavailable,
        TemplateNotSendable,
        TemplateNotApproved,
        WindowClosed,
        WalletInsufficientFunds,
    ),
)
async def send_whatsapp_message(call: Call, body: SendWhatsAppMessage) -> Annotated[Answer, WhatsAppAccepted]:
    """Send a WhatsApp message.

    Either an approved utility or authentication template, at any time, or a text reply to a user who wrote within the
    last 24 hours. Its price is reserved in the wallet and charged when the message is delivered.
    """
    to = body.to if is_user_id(body.to) else phones.parse(body.to)
    if to is None:
        rule = "`to` must be a phone number with country code: `+258841234567`, or a user id"
        raise Invalid(("to", "pattern", rule))
    if isinstance(body, SendWhatsAppTemplate) and body.template.category == "authentication" and is_user_id(to):
        # Meta refuses it (131062): a code proves that someone holds a number.
        raise Invalid(
            ("to", "user_id", "`to` must be a phone number: authentication templates cannot be sent to a user id")
        )
    # Two spellings of one number are the same payload, and so are null and an omitted field.
    canonical = body if to == body.to else msgspec.structs.replace(body, to=to)
    if isinstance(canonical, SendWhatsAppText) and canonical.text.preview_url is None:
        text = msgspec.structs.replace(canonical.text, preview_url=False)
        canonical = msgspec.structs.replace(canonical, text=text)
    return await call.services.whatsapp.accept(
        Send(
            actor=call.actor,
            to=to,
            number_id=body.phone_number_id,
            content=_content(body),
            client_reference=body.client_reference,
            request_id=call.request_id,
            trace=call.trace,
            key_hash=call.key_hash,
            request_hash=None if call.key_hash is None else request_hash(canonical),
            rate_unit=call.rate_unit,
        )
    )


def _content(body: SendWhatsAppMessage) -> TemplateSend | TextReply:
    if isinstance(body, SendWhatsAppText):
        return TextReply(body.text.body, bool(body.text.preview_url))
    template = body.template
    return TemplateSend(template.name, template.language, template.category, tuple(template.parameters))
