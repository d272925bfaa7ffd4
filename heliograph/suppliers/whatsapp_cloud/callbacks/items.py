"""The items of WhatsApp webhooks. Shapes only; `webhooks.parse` creates them.

Times are Meta's own, in UTC, and may lie in the future: code that uses one as a bound clamps it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

#: Progress of a message, by status; `played` is `read` for voice. `failed` has no place in this order.
RANK = {"sent": 1, "delivered": 2, "read": 3, "played": 3}
#: Types of messages that open the service window for 24 hours.
OPENING = frozenset(
    {
        "text",
        "button",
        "interactive",
        "image",
        "video",
        "audio",
        "document",
        "sticker",
        "location",
        "contacts",
        "order",
    }
)


class ErrorNote(msgspec.Struct, frozen=True, gc=False):
    """An error attached to a status, a message or a value. The texts are for operators."""

    #: None: no readable code, which differs from 0, the code of an invalid credential.
    code: int | None
    title: str = ""
    details: str = ""


class Pricing(msgspec.Struct, frozen=True, gc=False):
    """Meta's information on the price, in lower case: type `regular`, `free_customer_service`, `free_entry_point` …;
    category `utility`, `authentication`, `authentication-international`, `service` …; model `PMP` or `CBP`
    unchanged."""

    type: str | None = None
    category: str | None = None
    billable: bool | None = None
    model: str | None = None


class StatusItem(msgspec.Struct, frozen=True, kw_only=True):
    """A status of a message that we sent. It may arrive twice, late, early, or before the answer to the send."""

    waba_id: str
    phone_number_id: str
    #: The digits of that number; None: unreadable.
    number_digits: str | None = None
    wamid: str
    #: In lower case: one of RANK, "failed", or an unknown word.
    status: str
    at: datetime
    #: The recipient's digits; None if the number is hidden.
    recipient: str | None = None
    #: Business-scoped user id.
    user_id: str | None = None
    #: Our id, as passed with the send.
    opaque: str | None = None
    pricing: Pricing | None = None
    #: Proof of a free entry point.
    free_entry: bool = False
    errors: tuple[ErrorNote, ...] = ()
    group: bool = False


class MessageItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message from a user to one of our numbers."""

    waba_id: str
    phone_number_id: str
    #: The digits of that number; None: unreadable.
    number_digits: str | None = None
    wamid: str
    #: Digits; None if the number is hidden.
    sender: str | None
    user_id: str | None = None
    at: datetime
    type: str
    #: What the user wrote or chose: text, caption, or the title of a button.
    text: str | None = None
    #: For the customer, without Meta's ids. Its keys depend on the type: see `content`.
    content: dict[str, Any] = {}
    opens_window: bool = False
    #: The advertisement or page button that brought the user: what is known about it, possibly nothing.
    referral: dict[str, Any] | None = None
    #: Meta's id of the message that it answers, reacts to, edits or deletes.
    quoted: str | None = None
    is_forwarded: bool = False
    #: The name that the user has chosen.
    profile_name: str | None = None
    group: bool = False
    #: For `system`: the user's new digits and user id.
    new_sender: str | None = None
    new_user_id: str | None = None


class CallItem(msgspec.Struct, frozen=True, kw_only=True):
    """A user called one of our numbers."""

    waba_id: str
    phone_number_id: str
    #: The digits of that number; None: unreadable.
    number_digits: str | None = None
    #: Digits; None if the number is hidden.
    sender: str | None
    user_id: str | None = None
    #: When the call began.
    at: datetime


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    """Common fields of events of accounts, numbers and templates."""

    waba_id: str
    field: str
    #: `entry.time`; None if there was none.
    at: datetime | None
    #: SHA-256 of the value in canonical form, hex: with account, field and time it identifies a repeated event.
    fingerprint: str


class TemplateItem(_Event, frozen=True, kw_only=True):
    """Something about a template changed; reread the template.

    `kind` status: `event`, `category`, `reason`, `pause`. quality: `quality`, `previous_quality`. category: `category`
    is the one now in force; in an advance notice `future_category` is the one in 24 hours. Words are in capitals.
    """

    kind: Literal["status", "quality", "category", "components"]
    template_id: str
    name: str | None = None
    #: With an underscore, as in listings: en_US.
    language: str | None = None
    event: str | None = None
    category: str | None = None
    future_category: str | None = None
    previous_category: str | None = None
    quality: str | None = None
    previous_quality: str | None = None
    reason: str | None = None
    #: FIRST_PAUSE, SECOND_PAUSE, RATE_LIMITING_PAUSE, UNPAUSE or DISABLED.
    pause: str | None = None


class Tier(msgspec.Struct, frozen=True, gc=False):
    """A messaging limit. `limit`: unique users a day; None: unlimited, or unknown if `name` is "unknown"."""

    #: TIER_250, TIER_2K, TIER_UNLIMITED … or "unknown".
    name: str
    limit: int | None


class NumberItem(_Event, frozen=True, kw_only=True):
    """Something about a number changed. It is identified by its digits, within its account."""

    digits: str
    #: ONBOARDING, THROUGHPUT_UPGRADE, FLAGGED …; for its name: APPROVED, REJECTED …
    event: str | None = None
    tier: Tier | None = None
    #: The requested name, for `phone_number_name_update`.
    verified_name: str | None = None


class CapabilityItem(_Event, frozen=True, kw_only=True):
    """The account's permitted limits changed."""

    tier: Tier | None = None
    max_numbers: int | None = None


class Restriction(msgspec.Struct, frozen=True, gc=False):
    """A restriction such as RESTRICTED_BIZ_INITIATED_MESSAGING (no templates), in force until `until`."""

    type: str
    until: datetime | None = None


class AccountItem(_Event, frozen=True, kw_only=True):
    """Something about the account changed: restriction, ban, violation, partner, review, alert, security."""

    event: str | None = None
    #: For partner events, whose entry is the portfolio's; `waba_id` then comes from the value.
    portfolio_id: str | None = None
    restrictions: tuple[Restriction, ...] = ()
    #: DISABLE, REINSTATE or SCHEDULE_FOR_DISABLE, and the date in Meta's words.
    ban_state: str | None = None
    ban_date: str | None = None
    violation: str | None = None
    #: For alerts: what it is about, severity, and whether it is over. `detail`: Meta's words, for operators.
    entity: str | None = None
    severity: str | None = None
    is_over: bool = False
    detail: str | None = None


class AlarmItem(_Event, frozen=True, kw_only=True):
    """Errors of the app, the account or a number that belong to no message."""

    phone_number_id: str | None = None
    errors: tuple[ErrorNote, ...] = ()


class UnknownItem(msgspec.Struct, frozen=True, kw_only=True):
    """An unknown field, to be counted."""

    field: str
    waba_id: str | None = None


class PoisonItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that could not be read, with its bytes. The other items are not affected."""

    reason: str
    raw: bytes
    waba_id: str | None = None


Item: TypeAlias = (
    StatusItem
    | MessageItem
    | CallItem
    | TemplateItem
    | NumberItem
    | CapabilityItem
    | AccountItem
    | AlarmItem
    | UnknownItem
    | PoisonItem
)
