"""WhatsApp templates, numbers and the wallet: shapes and handlers for reading them. The rules are `whatsapp.reads`."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call
from heliograph.api.door.reading import one_of
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import HasMore, Items, NextCursor, Success, TemplateName, Time, alias_of
from heliograph.api.shapes.paging import DateFrom, DateTo, PageQuery
from heliograph.base.database.clock import iso, iso_or_none
from heliograph.whatsapp import reads
from heliograph.whatsapp.money import wallet
from heliograph.whatsapp.reads import TemplateFilters

Category = Literal["utility", "authentication", "marketing"]
Currency = Annotated[str, Meta(extra_json_schema={"pattern": "^[A-Z]{3}$"}, examples=["EUR"])]
Amount = Annotated[str, Meta(extra_json_schema={"pattern": r"^-?[0-9]+\.[0-9]{6}$"}, examples=["12.340000"])]


class WhatsAppTemplateQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Filters for templates."""

    status: Annotated[
        Literal["approved", "pending", "rejected", "paused", "disabled", "in_appeal"] | None,
        Meta(description="Only those currently in this status."),
    ] = None
    category: Annotated[Category | None, Meta(description="Only templates in this category.")] = None
    name: Annotated[
        TemplateName | None, Meta(description="Only templates with exactly this name, in any language.")
    ] = None
    template_name: Annotated[TemplateName | None, alias_of("name")] = None
    date_from: DateFrom = None
    date_to: DateTo = None


class WhatsAppTemplateButton(msgspec.Struct, rename="camel", kw_only=True):
    """A button of a template."""

    type: Annotated[str, Meta(description="What the button does.", extra_json_schema={"enum": list(reads.BUTTONS)})]
    text: Annotated[str | None, Meta(description="Label of the button.")]
    url: Annotated[str | None, Meta(description="URL that it opens; may end in a variable.")]
    phone_number: Annotated[str | None, Meta(description="Phone number that it calls.")]
    otp_type: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": list(reads.OTP_TYPES)})] | None,
        Meta(description="How a one-time code is transferred to the app, for a button that does this."),
    ]


class WhatsAppTemplateComponent(msgspec.Struct, rename="camel", kw_only=True):
    """A component of a template. Variables are written in double braces: `{{1}}` or `{{name}}`."""

    type: Annotated[str, Meta(description="Kind of component.", extra_json_schema={"enum": list(reads.PARTS)})]
    format: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": list(reads.FORMATS)})] | None,
        Meta(description="Content type of a header; null for other components."),
    ]
    text: Annotated[str | None, Meta(description="Text of the component.")]
    buttons: Annotated[
        list[WhatsAppTemplateButton], Meta(description="The buttons, for a component of type `buttons`.")
    ]
    add_security_recommendation: Annotated[
        bool | None, Meta(description="For one-time code templates: whether the body warns not to share the code.")
    ]
    code_expiration_minutes: Annotated[
        int | None, Meta(description="For one-time code templates: how long the code is valid, if the footer says so.")
    ]


class WhatsAppTemplate(msgspec.Struct, rename="camel", kw_only=True):
    """A template, as reviewed by WhatsApp. A send identifies it by `name` and `language`."""

    id: Annotated[UUID, Meta(description="Id of the template.")]
    name: Annotated[str, Meta(description="Name; pass it as `template.name` in a send.", examples=["order_shipped"])]
    language: Annotated[
        str, Meta(description="Language; pass it as `template.language` in a send.", examples=["pt_PT"])
    ]
    category: Annotated[
        Category,
        Meta(
            description=(
                "Category; pass it as `template.category` in a send. This service does not send `marketing` templates."
            )
        ),
    ]
    status: Annotated[
        Literal["approved", "pending", "rejected", "paused", "disabled", "in_appeal", "removed"],
        Meta(
            description=(
                "Only an `approved` template can be sent. `removed` occurs only in the event that reports the removal."
            )
        ),
    ]
    sendable: Annotated[
        bool,
        Meta(
            description=(
                "Whether it can be sent now: it is approved, not a marketing template, and has no "
                "component that this service cannot fill, such as an image header."
            )
        ),
    ]
    parameter_count: Annotated[int, Meta(description="Number of `template.parameters` that a send must give.")]
    body_preview: Annotated[
        str, Meta(description="The body, with its variables.", examples=["Hello {{1}}, your order {{2}} was shipped."])
    ]
    components: Annotated[list[WhatsAppTemplateComponent], Meta(description="All components, in order.")]
    rejection_reason: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": list(reads.REASONS)})] | None,
        Meta(description="Why it was rejected, if a reason was given."),
    ]
    updated_at: Annotated[Time, Meta(description="When the template last changed.")]


class WhatsAppTemplateList(msgspec.Struct, rename="camel"):
    """A page of templates, newest first."""

    success: Success
    items: Items[WhatsAppTemplate]
    next_cursor: NextCursor
    has_more: HasMore


class WhatsAppPhoneNumber(msgspec.Struct, rename="camel", kw_only=True):
    """One of your WhatsApp numbers, and its health."""

    id: Annotated[UUID, Meta(description="Id of the number; pass it as `phoneNumberId` in a send.")]
    display_phone_number: Annotated[
        str, Meta(description="The number, formatted for display.", examples=["+258 84 123 4567"])
    ]
    verified_name: Annotated[str, Meta(description="The name that users see.", examples=["Acme"])]
    connection_status: Annotated[
        Literal["connected", "pending", "disconnected", "restricted", "banned", "paused", "unknown"],
        Meta(description="Whether the number can send. `paused`: the operator of this service has paused it."),
    ]
    quality_rating: Annotated[
        Literal["green", "yellow", "red", "unknown"],
        Meta(description="Quality rating, based on blocks and reports by users; `red` leads to restrictions."),
    ]
    messaging_tier: Annotated[
        str,
        Meta(
            description="WhatsApp's messaging limit tier: `tier_250`, `tier_2k`, …, `unlimited` or `unknown`.",
            examples=["tier_2k"],
        ),
    ]
    messaging_limit: Annotated[
        int | None,
        Meta(
            description=(
                "How many users can be messaged in 24 hours outside service windows; null if unlimited or unknown."
            )
        ),
    ]
    throughput_per_second: Annotated[int, Meta(description="Maximum sending rate, in messages per second.")]
    credential_status: Annotated[
        Literal["ok", "expiring", "missing_scope", "invalid", "unknown"],
        Meta(description="State of the credential for WhatsApp. While it is `invalid`, messages wait."),
    ]
    last_checked_at: Annotated[Time | None, Meta(description="When this was last read from WhatsApp.")]


class WhatsAppPhoneNumberHealth(msgspec.Struct):
    """All of the organization's numbers, oldest first."""

    success: Success
    items: Items[WhatsAppPhoneNumber]


class WhatsAppWallet(msgspec.Struct, rename="camel", kw_only=True):
    """The balance for WhatsApp messages, as decimal strings with six places. It changes in the transaction that
    accepts a message."""

    currency: Annotated[
        Currency | None,
        Meta(description="Currency of all amounts, ISO 4217; null if there is no WhatsApp account yet."),
    ]
    available: Annotated[
        Amount,
        Meta(
            description=(
                "Available to spend. Negative only if a message that was given up was delivered after all, "
                "or cost more than reserved."
            )
        ),
    ]
    reserved: Annotated[Amount, Meta(description="Reserved for messages in progress.")]
    consumed: Annotated[Amount, Meta(description="Spent on messages that were delivered.")]
    total: Annotated[
        Amount, Meta(description="Always the sum of the other three: everything ever paid in or adjusted.")
    ]
    updated_at: Annotated[Time | None, Meta(description="When it last changed; null if nothing was ever paid in.")]


class WhatsAppWalletSummary(msgspec.Struct):
    """The current state of the wallet."""

    success: Success
    wallet: Annotated[WhatsAppWallet, Meta(description="The wallet; all amounts are zero if nothing was paid in.")]


async def list_whatsapp_templates(call: Call, query: WhatsAppTemplateQuery) -> WhatsAppTemplateList:
    """List WhatsApp templates.

    Newest first; `dateFrom` and `dateTo` refer to `updatedAt`. Each language of a template is a separate entry.
    Templates disabled by the operator of this service are not listed and cannot be sent. The event
    `whatsapp.template.updated` reports changes.
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
    """Get the health of WhatsApp numbers.

    All numbers, oldest first: connection, quality, messaging limit and credential. The event
    `whatsapp.phone_number.updated` reports changes.
    """
    return WhatsAppPhoneNumberHealth(
        True, [_phone_number(one) for one in await reads.phone_numbers(call.conn, call.actor)]
    )


async def get_whatsapp_wallet_summary(call: Call) -> WhatsAppWalletSummary:
    """Get the WhatsApp wallet.

    The price of a message is reserved when it is accepted, consumed when it is delivered and released when it fails.
    `total` always equals `available` + `reserved` + `consumed`.
    """
    balance = await wallet.show(call.conn, call.actor)
    return WhatsAppWalletSummary(
        True,
        WhatsAppWallet(
            currency=balance.currency,
            available=amount(balance.available),
            reserved=amount(balance.reserved),
            consumed=amount(balance.consumed),
            total=amount(balance.total),
            updated_at=iso_or_none(balance.updated_at),
        ),
    )


def amount(millionths: int) -> str:
    """Format money for responses: -12300 as `-0.012300`."""
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
        last_checked_at=iso_or_none(number.last_checked_at),
    )
