"""WhatsApp templates, numbers and the wallet: shapes and handlers of what is read of them. The rules are
`whatsapp.reads`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call
from heliograph.api.door.reading import one_of
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import HasMore, Items, NextCursor, Success, TemplateName, Time, alias_of
from heliograph.api.shapes.paging import DateFrom, DateTo, PageQuery
from heliograph.base.clock import iso
from heliograph.whatsapp import reads
from heliograph.whatsapp.reads import TemplateFilters

Category = Literal["utility", "authentication", "marketing"]
Currency = Annotated[str, Meta(extra_json_schema={"pattern": "^[A-Z]{3}$"}, examples=["EUR"])]
Amount = Annotated[str, Meta(extra_json_schema={"pattern": r"^-?[0-9]+\.[0-9]{6}$"}, examples=["12.340000"])]


class WhatsAppTemplateQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Which templates to list."""

    status: Annotated[
        Literal["approved", "pending", "rejected", "paused", "disabled", "in_appeal"] | None,
        Meta(description="Those that are in this state now."),
    ] = None
    category: Annotated[Category | None, Meta(description="Those of this category.")] = None
    name: Annotated[TemplateName | None, Meta(description="Those of exactly this name, in every language.")] = None
    template_name: Annotated[TemplateName | None, alias_of("name")] = None
    date_from: DateFrom = None
    date_to: DateTo = None


class WhatsAppTemplateButton(msgspec.Struct, rename="camel", kw_only=True):
    """A button below a template."""

    type: Annotated[str, Meta(description="What it does.", extra_json_schema={"enum": list(reads.BUTTONS)})]
    text: Annotated[str | None, Meta(description="What stands on it.")]
    url: Annotated[str | None, Meta(description="Where it leads; may end in a variable.")]
    phone_number: Annotated[str | None, Meta(description="Whom it calls.")]
    otp_type: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": list(reads.OTP_TYPES)})] | None,
        Meta(description="How a one-time code is taken over, of a button that does so."),
    ]


class WhatsAppTemplateComponent(msgspec.Struct, rename="camel", kw_only=True):
    """A part of a template. Variables stand in double braces: `{{1}}`, or `{{name}}`."""

    type: Annotated[str, Meta(description="Which part it is.", extra_json_schema={"enum": list(reads.PARTS)})]
    format: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": list(reads.FORMATS)})] | None,
        Meta(description="What a header shows; null in other parts."),
    ]
    text: Annotated[str | None, Meta(description="What it says.")]
    buttons: Annotated[list[WhatsAppTemplateButton], Meta(description="The buttons, of the part that holds them.")]
    add_security_recommendation: Annotated[
        bool | None, Meta(description="Whether it warns not to share the code, in a template for codes.")
    ]
    code_expiration_minutes: Annotated[
        int | None, Meta(description="How long a code is good, where the footer of a template for codes says so.")
    ]


class WhatsAppTemplate(msgspec.Struct, rename="camel", kw_only=True):
    """A template, as WhatsApp reviewed it. Sends name it by `name` and `language`."""

    id: Annotated[UUID, Meta(description="Id of the template.")]
    name: Annotated[str, Meta(description="`template.name` of a send.", examples=["order_shipped"])]
    language: Annotated[str, Meta(description="`template.language` of a send.", examples=["pt_PT"])]
    category: Annotated[
        Category, Meta(description="`template.category` of a send. One of `marketing` cannot be sent by this service.")
    ]
    status: Annotated[
        Literal["approved", "pending", "rejected", "paused", "disabled", "in_appeal", "removed"],
        Meta(description="Only an `approved` one can be sent. `removed`: in the event that tells of it."),
    ]
    sendable: Annotated[
        bool,
        Meta(
            description=(
                "Whether it can be sent now: it is approved, not for marketing, and has no part that this service"
                " cannot fill, such as an image in its header."
            )
        ),
    ]
    parameter_count: Annotated[int, Meta(description="How many `template.parameters` a send gives.")]
    body_preview: Annotated[
        str, Meta(description="The body with its variables.", examples=["Hello {{1}}, your order {{2}} was shipped."])
    ]
    components: Annotated[list[WhatsAppTemplateComponent], Meta(description="All its parts, in order.")]
    rejection_reason: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": list(reads.REASONS)})] | None,
        Meta(description="Why it was rejected, if a reason was given."),
    ]
    updated_at: Annotated[Time, Meta(description="When any of this last changed.")]


class WhatsAppTemplateList(msgspec.Struct, rename="camel"):
    """A page of templates, newest first."""

    success: Success
    items: Items[WhatsAppTemplate]
    next_cursor: NextCursor
    has_more: HasMore


class WhatsAppPhoneNumber(msgspec.Struct, rename="camel", kw_only=True):
    """A number of yours, and how WhatsApp sees it."""

    id: Annotated[UUID, Meta(description="`phoneNumberId` of a send.")]
    display_phone_number: Annotated[str, Meta(description="As people read it.", examples=["+258 84 123 4567"])]
    verified_name: Annotated[str, Meta(description="The name that users see.", examples=["Acme"])]
    connection_status: Annotated[
        Literal["connected", "pending", "disconnected", "restricted", "banned", "paused", "unknown"],
        Meta(description="Whether it can send. `paused`: this service's operator stopped it for now."),
    ]
    quality_rating: Annotated[
        Literal["green", "yellow", "red", "unknown"],
        Meta(description="What users' blocks and reports make of it; `red` leads to restrictions."),
    ]
    messaging_tier: Annotated[
        str,
        Meta(
            description="WhatsApp's class for the limit: `tier_250`, `tier_2k`, …, `unlimited` or `unknown`.",
            examples=["tier_2k"],
        ),
    ]
    messaging_limit: Annotated[
        int | None,
        Meta(
            description="How many users may be written to in 24 hours outside of windows; null: unlimited or unknown."
        ),
    ]
    throughput_per_second: Annotated[int, Meta(description="How many messages a second it may send.")]
    credential_status: Annotated[
        Literal["ok", "expiring", "missing_scope", "invalid", "unknown"],
        Meta(description="How the access to WhatsApp stands. While it is `invalid`, messages wait."),
    ]
    last_checked_at: Annotated[Time | None, Meta(description="When WhatsApp was last asked for all this.")]


class WhatsAppPhoneNumberHealth(msgspec.Struct):
    """All of the organization's numbers, oldest first."""

    success: Success
    items: Items[WhatsAppPhoneNumber]


class WhatsAppWallet(msgspec.Struct, rename="camel", kw_only=True):
    """The balance for WhatsApp messages: decimal numbers with six places, as text. It changes with the commit that
    accepts a message."""

    currency: Annotated[
        Currency | None, Meta(description="Of all four amounts, ISO 4217; null: there is no WhatsApp account yet.")
    ]
    available: Annotated[
        Amount,
        Meta(
            description="What can be spent. Below zero only where a message came that was taken for lost, or cost more."
        ),
    ]
    reserved: Annotated[Amount, Meta(description="Set aside for messages on their way.")]
    consumed: Annotated[Amount, Meta(description="Spent on messages that were delivered.")]
    total: Annotated[Amount, Meta(description="The sum of the three, always: all that was ever paid in or adjusted.")]
    updated_at: Annotated[Time | None, Meta(description="When it last changed; null: nothing was ever paid in.")]


class WhatsAppWalletSummary(msgspec.Struct):
    """The wallet as it is now."""

    success: Success
    wallet: Annotated[WhatsAppWallet, Meta(description="The wallet; all zero where nothing was paid in.")]


async def list_whatsapp_templates(call: Call, query: WhatsAppTemplateQuery) -> WhatsAppTemplateList:
    """List WhatsApp templates.

    Newest first; `dateFrom` and `dateTo` are of `updatedAt`. A template has an entry for each language. Those that
    this service's operator took out of use are not listed, and cannot be sent. `whatsapp.template.updated` tells of
    changes.
    """
    call.query = query = msgspec.structs.replace(
        query, name=one_of("templateName", query.name, "name", query.template_name), template_name=None
    )
    filters = TemplateFilters(**{name: getattr(query, name) for name in TemplateFilters.__struct_fields__})
    after = paging.after_id(call, "whatsapp_templates")
    rows, seen = await reads.templates(call.conn, call.actor, filters=filters, after=after, limit=query.limit)
    return WhatsAppTemplateList(
        True,
        *paging.page(
            call,
            "whatsapp_templates",
            rows,
            position=lambda row: [row.id],
            shown=_template,
            seen=None if seen is None else [seen],
        ),
    )


async def get_whatsapp_phone_number_health(call: Call) -> WhatsAppPhoneNumberHealth:
    """Show the health of WhatsApp numbers.

    All numbers, oldest first: connection, quality, messaging limit and credential. `whatsapp.phone_number.updated`
    tells of changes.
    """
    return WhatsAppPhoneNumberHealth(
        True, [_phone_number(one) for one in await reads.phone_numbers(call.conn, call.actor)]
    )


async def get_whatsapp_wallet_summary(call: Call) -> WhatsAppWalletSummary:
    """Show the WhatsApp wallet.

    A message's price is reserved when it is accepted, spent when it is delivered, and released when it fails.
    `total` is `available` + `reserved` + `consumed`, at every moment.
    """
    wallet = await reads.wallet(call.conn, call.actor)
    return WhatsAppWalletSummary(
        True,
        WhatsAppWallet(
            currency=wallet.currency,
            available=amount(wallet.available),
            reserved=amount(wallet.reserved),
            consumed=amount(wallet.consumed),
            total=amount(wallet.total),
            updated_at=_time(wallet.updated_at),
        ),
    )


def amount(millionths: int) -> str:
    """Money as answers show it: `-0.012300` of -12300."""
    units, rest = divmod(abs(millionths), 1_000_000)
    return f"{'-' if millionths < 0 else ''}{units}.{rest:06d}"


def _template(template: reads.Template) -> WhatsAppTemplate:
    return WhatsAppTemplate(
        id=template.id,
        name=template.name,
        language=template.language,
        category=template.category,  # type: ignore[arg-type]
        status=template.status,  # type: ignore[arg-type]
        sendable=template.sendable,
        parameter_count=template.parameter_count,
        body_preview=template.body_preview,
        components=[msgspec.convert(part, WhatsAppTemplateComponent, from_attributes=True) for part in template.parts],
        rejection_reason=template.rejection_reason,
        updated_at=iso(template.updated_at),
    )


def _phone_number(number: reads.PhoneNumber) -> WhatsAppPhoneNumber:
    return WhatsAppPhoneNumber(
        id=number.id,
        display_phone_number=number.display_phone_number,
        verified_name=number.verified_name,
        connection_status=number.connection_status,  # type: ignore[arg-type]
        quality_rating=number.quality_rating,  # type: ignore[arg-type]
        messaging_tier=number.messaging_tier,
        messaging_limit=number.messaging_limit,
        throughput_per_second=number.throughput_per_second,
        credential_status=number.credential_status,  # type: ignore[arg-type]
        last_checked_at=_time(number.last_checked_at),
    )


def _time(at: datetime | None) -> str | None:
    return None if at is None else iso(at)
