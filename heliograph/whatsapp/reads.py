"""An organization's view of its templates, conversations and numbers.

The rule nobody may break: customers see values from closed sets, and their own texts. Everything else from Meta (ids,
reasons, uploaded examples, new values) stops here, in `parts`, `reason` and `tier`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan
from heliograph.base.database.bounded_scan import LOOK
from heliograph.base.database.pool import Connection
from heliograph.suppliers.whatsapp_cloud.bodies import layout

#: Why a template was rejected or disabled; anything else is "other".
REASONS = (
    "abusive_content",
    "incorrect_category",
    "invalid_format",
    "promotional",
    "scam",
    "tag_content_mismatch",
    "other",
)
#: WhatsApp's quality ratings of a template; anything else is "unknown".
QUALITIES = ("green", "yellow", "red")
#: Kinds of a template's parts, headers and buttons; anything else is "other".
PARTS = ("header", "body", "footer", "buttons", "other")
FORMATS = ("text", "image", "video", "document", "location", "other")
BUTTONS = ("url", "quick_reply", "phone_number", "otp", "copy_code", "flow", "catalog", "other")
OTP_TYPES = ("copy_code", "one_tap", "zero_tap", "other")


class Button(msgspec.Struct, frozen=True, rename="camel"):
    """A button of a template."""

    type: str
    text: str | None = None
    url: str | None = None
    phone_number: str | None = None
    #: For a one-time code: copy_code, one_tap or zero_tap.
    otp_type: str | None = None


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a template: its header, body or footer, or all its buttons."""

    type: str
    #: For a header.
    format: str | None = None
    text: str | None = None
    buttons: list[Button] = []
    #: For a template for one-time codes: its body warns not to share the code; its footer says how long the code is
    #: valid.
    add_security_recommendation: bool | None = None
    code_expiration_minutes: int | None = None


class Template(msgspec.Struct, frozen=True):
    """A template as its organization sees it."""

    id: UUID
    name: str
    language: str
    category: str
    status: str
    #: Whether nothing about the template itself would cause a send to be refused.
    sendable: bool
    #: One of QUALITIES, or "unknown".
    quality: str
    parameter_count: int
    body_preview: str
    parts: list[Part]
    rejection_reason: str | None
    updated_at: datetime


class Conversation(msgspec.Struct, frozen=True):
    """A conversation between a number and a user."""

    id: UUID
    recipient: str
    number_id: UUID
    #: Whether the user wrote within the last 24 hours, so that any text may be sent.
    is_open: bool
    opened_at: datetime | None
    expires_at: datetime | None
    last_inbound_at: datetime | None
    last_outbound_at: datetime | None


class PhoneNumber(msgspec.Struct, frozen=True):
    """A number and its state."""

    id: UUID
    display_phone_number: str
    verified_name: str
    #: As in whatsapp_numbers, or "paused": an operator stopped its account.
    connection_status: str
    quality_rating: str
    #: `tier_` and a number such as 250, 2k or 100k; or unlimited, or unknown.
    messaging_tier: str
    messaging_limit: int | None
    throughput_per_second: int
    credential_status: str
    last_checked_at: datetime | None


class TemplateFilters(msgspec.Struct, frozen=True):
    """Filters of templates; None: all."""

    status: str | None = None
    category: str | None = None
    name: str | None = None
    #: Last changed at this time or later.
    date_from: datetime | None = None
    #: Last changed before this.
    date_to: datetime | None = None


class ConversationFilters(msgspec.Struct, frozen=True):
    """Filters of conversations; None: all."""

    is_open: bool | None = None
    recipient: str | None = None
    #: The last message, in either direction, was at this time or later.
    date_from: datetime | None = None
    #: The last message was before this.
    date_to: datetime | None = None


# -- templates ---------------------------------------------------------------------------------------------------------

_TEMPLATE = (
    "id, name, language, category, status, parameter_count, parameter_format, body_preview, components,"
    " rejection_reason, updated_at, account_id, disabled_locally, quality"
)
# The accounts are looked up once for all rows.
TEMPLATES = bounded_scan.statement(
    "whatsapp_templates",
    _TEMPLATE,
    fits="""
           NOT disabled_locally AND status <> 'removed'
           AND account_id = ANY (ARRAY(SELECT a.id FROM whatsapp_accounts a
                                        WHERE a.organization_id = $1 AND a.state <> 'removed'))
           AND ($6::text IS NULL OR status = $6) AND ($7::text IS NULL OR category = $7)
           AND ($8::text IS NULL OR name = $8)
           AND ($9::timestamptz IS NULL OR updated_at >= $9) AND ($10::timestamptz IS NULL OR updated_at < $10)""",
)


async def templates(
    conn: Connection,
    actor: Actor,
    *,
    filters: TemplateFilters,
    after: UUID | None = None,
    limit: int = 50,
    look: int = LOOK,
) -> tuple[list[Template], UUID | None]:
    """Templates of the accounts in use, newest first, up to `limit` + 1; and where the scan ended (`bounded_scan`).

    Excludes templates that an operator disabled or that Meta no longer has.
    """
    rows = await conn.fetch(
        TEMPLATES,
        actor.organization_id,
        *bounded_scan.bounds(after),
        limit + 1,
        look,
        filters.status,
        filters.category,
        filters.name,
        filters.date_from,
        filters.date_to,
    )
    found, seen = bounded_scan.judged(rows, limit=limit, look=look)
    return [template_of(row) for row in found], seen


def template_of(row: asyncpg.Record) -> Template:
    """A template from its row."""
    return Template(
        id=row["id"],
        name=row["name"],
        language=row["language"],
        category=row["category"],
        status=row["status"],
        sendable=sendable(row),
        quality=quality if (quality := row["quality"].lower()) in QUALITIES else "unknown",
        parameter_count=row["parameter_count"],
        body_preview=row["body_preview"],
        parts=parts(msgspec.json.decode(row["components"])),
        rejection_reason=reason(row["rejection_reason"]),
        updated_at=row["updated_at"],
    )


def sendable(row: Mapping[str, Any] | asyncpg.Record) -> bool:
    """Whether a template can be sent: it is approved, of a supported category, and takes only text parameters.
    `row`: a row of the table, or the part needed here."""
    if row["status"] != "approved" or row["category"] not in ("utility", "authentication"):
        return False
    return not layout(msgspec.json.decode(row["components"]), row["parameter_format"], row["category"]).unsupported


def parts(components: object) -> list[Part]:
    """A template's components from Meta's list, without anything that the organization did not write."""
    return [_part(one) for one in _objects(components)]


def _part(component: dict[str, Any]) -> Part:
    type = _word(component.get("type"), PARTS)
    warns, minutes = component.get("add_security_recommendation"), component.get("code_expiration_minutes")
    return Part(
        type,
        _word(component.get("format", "TEXT"), FORMATS) if type == "header" else None,
        _text(component.get("text")) if type != "other" else None,
        [_button(one) for one in _objects(component.get("buttons"))] if type == "buttons" else [],
        warns if isinstance(warns, bool) else None,
        minutes if type == "footer" and isinstance(minutes, int) else None,
    )


def _button(button: dict[str, Any]) -> Button:
    type = _word(button.get("type"), BUTTONS)
    return Button(
        type,
        _text(button.get("text")),
        _text(button.get("url")),
        _text(button.get("phone_number")),
        _word(button["otp_type"], OTP_TYPES) if button.get("otp_type") else None,
    )


def reason(given: str | None) -> str | None:
    """Why a template is rejected, as one of REASONS; None: no reason was given."""
    if not given or given.upper() == "NONE":
        return None
    return _word(given, REASONS)


def _objects(value: object) -> Iterable[dict[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else ()


def _word(value: object, words: tuple[str, ...]) -> str:
    word = value.lower() if isinstance(value, str) else ""
    return word if word in words else "other"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


# -- conversations -----------------------------------------------------------------------------------------------------

# No user writes to a test key, so it may send text at any time.
_CONVERSATION = (
    "id, recipient, number_id, opened_at, expires_at, last_inbound_at, last_outbound_at, created_at,"
    " mode, (coalesce(expires_at > now(), false) OR mode = 'test') AS is_open"
)
_FITS = """
           mode = $6 AND ($7::boolean IS NULL OR is_open = $7)
           AND ($8::timestamptz IS NULL OR coalesce(greatest(last_inbound_at, last_outbound_at), created_at) >= $8)
           AND ($9::timestamptz IS NULL OR coalesce(greatest(last_inbound_at, last_outbound_at), created_at) < $9)"""
CONVERSATIONS = bounded_scan.statement("whatsapp_conversations", _CONVERSATION, fits=_FITS, where="merged_into IS NULL")
# Finds the person under any of their names.
CONVERSATIONS_OF_RECIPIENT = bounded_scan.statement(
    "whatsapp_conversations",
    _CONVERSATION,
    fits=_FITS,
    where="""merged_into IS NULL AND id = ANY (ARRAY(
               SELECT named.conversation_id FROM names_of_person($1, $10) names CROSS JOIN LATERAL (
                      SELECT conversation_id FROM whatsapp_aliases
                       WHERE organization_id = $1
                         AND alias = CASE WHEN $6 = 'test' THEN 'test:' || $10 ELSE ltrim(names.name, '+') END
                       LIMIT 1000) named))""",
)


async def conversations(
    conn: Connection,
    actor: Actor,
    *,
    filters: ConversationFilters,
    after: UUID | None = None,
    limit: int = 50,
    look: int = LOOK,
) -> tuple[list[Conversation], UUID | None]:
    """Conversations of the actor's mode, most recently begun first, up to `limit` + 1; and where the scan ended
    (`bounded_scan.judged`).

    `look`: maximum conversations scanned.
    """
    values = (
        actor.organization_id,
        *bounded_scan.bounds(after),
        limit + 1,
        look,
        actor.mode,
        filters.is_open,
        filters.date_from,
        filters.date_to,
    )
    if filters.recipient is None:
        rows = await conn.fetch(CONVERSATIONS, *values)
    else:
        rows = await conn.fetch(CONVERSATIONS_OF_RECIPIENT, *values, filters.recipient)
    found, seen = bounded_scan.judged(rows, limit=limit, look=look)
    return [Conversation(**{name: row[name] for name in Conversation.__struct_fields__}) for row in found], seen


OF_IDS = """
SELECT c.id AS thread, t.id, t.recipient, t.number_id, t.opened_at, t.expires_at, t.last_inbound_at,
       t.last_outbound_at, coalesce(t.expires_at > now(), false) AS is_open
  FROM whatsapp_conversations c
  JOIN whatsapp_conversations t ON t.organization_id = c.organization_id AND t.id = coalesce(c.merged_into, c.id)
 WHERE c.organization_id = $1 AND c.id = ANY ($2)
"""


async def conversations_of(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> dict[UUID, Conversation]:
    """Conversations by id; for a merged one, the conversation it was merged into."""
    rows = await conn.fetch(OF_IDS, actor.organization_id, list(ids)) if ids else []
    return {row["thread"]: Conversation(**{name: row[name] for name in Conversation.__struct_fields__}) for row in rows}


# Each part uses an index: with OR, all of an organization's conversations would be scanned.
MERGED_WITH = """
SELECT other.id
  FROM (SELECT coalesce(merged_into, id) AS id FROM whatsapp_conversations WHERE organization_id = $1 AND id = $2) kept
       CROSS JOIN LATERAL (
       SELECT kept.id UNION ALL
       SELECT id FROM whatsapp_conversations WHERE organization_id = $1 AND merged_into = kept.id) other
 WHERE other.id <> $2
"""


async def merged_with(conn: Connection, actor: Actor, *, id: UUID) -> list[UUID]:
    """The other conversations that turned out to have the same user on the same number."""
    return [row["id"] for row in await conn.fetch(MERGED_WITH, actor.organization_id, id)]


# -- numbers -----------------------------------------------------------------------------------------------------------

NUMBERS = """
SELECT n.id, n.display_phone_number, n.verified_name,
       CASE a.state WHEN 'paused' THEN 'paused' ELSE n.connection_status END AS connection_status, n.quality_rating,
       n.messaging_tier, n.messaging_limit, n.throughput_per_second, a.credential_status, n.last_checked_at
  FROM whatsapp_numbers n
  JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
 WHERE n.organization_id = $1 AND n.state = 'active' AND a.state <> 'removed'
 ORDER BY n.id
"""


async def phone_numbers(conn: Connection, actor: Actor) -> list[PhoneNumber]:
    """The organization's numbers, oldest first, as of the last sync with Meta."""
    return [
        PhoneNumber(**dict(row) | {"messaging_tier": tier(row["messaging_tier"])})
        for row in await conn.fetch(NUMBERS, actor.organization_id)
    ]


def tier(given: str) -> str:
    """A messaging tier in our notation, from Meta's (`TIER_2K`, `TIER_UNLIMITED`) or ours."""
    word = given.lower()
    if re.fullmatch(r"tier_[0-9]{1,9}[km]?", word):
        return word
    return "unlimited" if word.removeprefix("tier_") == "unlimited" else "unknown"
