"""What a WhatsApp webhook says, item by item. Shapes only; `webhooks.parse` makes them.

Times are Meta's own, in UTC, and may lie in the future: whoever uses one as a bound clamps it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

#: How far a message has come, by status; `played` is `read` for voice. `failed` has no place in this order.
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
    """One of the errors beside a status, a message or a value. The texts are for operators."""

    #: None: it has none that can be read. That is not 0, which condemns a credential.
    code: int | None
    title: str = ""
    details: str = ""


class Pricing(msgspec.Struct, frozen=True, gc=False):
    """What Meta says of the price, in lower case: type `regular`, `free_customer_service`, `free_entry_point` …;
    category `utility`, `authentication`, `authentication-international`, `service` …; model `PMP` or `CBP` as it is."""

    type: str | None = None
    category: str | None = None
    billable: bool | None = None
    model: str | None = None


class StatusItem(msgspec.Struct, frozen=True, kw_only=True):
    """A status of a message that we sent. It may come twice, late, early, or before the answer of the send."""

    waba_id: str
    phone_number_id: str
    wamid: str
    #: In lower case: one of RANK, "failed", or a word that nobody knows.
    status: str
    at: datetime
    #: The recipient's digits; None for one who hides the number.
    recipient: str | None = None
    #: Business-scoped user id.
    user_id: str | None = None
    #: Our id, given with the send.
    opaque: str | None = None
    pricing: Pricing | None = None
    #: Proof of a free entry point.
    free_entry: bool = False
    errors: tuple[ErrorNote, ...] = ()
    group: bool = False


class MessageItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a user to one of our numbers."""

    waba_id: str
    phone_number_id: str
    wamid: str
    #: Digits; None for one who hides the number.
    sender: str | None
    user_id: str | None = None
    at: datetime
    type: str
    #: What the user wrote or chose: text, caption, or the title of a button.
    text: str | None = None
    #: For the customer, without any id of Meta's. Its keys follow from the type: see `content`.
    content: dict[str, Any] = {}
    opens_window: bool = False
    #: The user came by an advertisement or a page's button: what is known of it, maybe nothing.
    referral: dict[str, Any] | None = None
    #: Meta's id of the message that it answers or reacts to.
    quoted: str | None = None
    is_forwarded: bool = False
    #: What the user calls themselves.
    profile_name: str | None = None
    group: bool = False
    #: Of `system`: the digits and the user id that the user has from now on.
    new_sender: str | None = None
    new_user_id: str | None = None


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    """What events of accounts, numbers and templates have in common."""

    waba_id: str
    field: str
    #: `entry.time`; None when there was none.
    at: datetime | None
    #: SHA-256 of the value in canonical form, hex: with account, field and time it tells a repeated event.
    fingerprint: str


class TemplateItem(_Event, frozen=True, kw_only=True):
    """Something about a template changed; it is best read again.

    `kind` status: `event`, `category`, `reason`, `pause`. quality: `quality`, `previous_quality`. category: `category`
    is the one in force now; in an advance notice `future_category` is the one in 24 hours. Words are in capitals.
    """

    kind: Literal["status", "quality", "category", "components"]
    template_id: str
    name: str | None = None
    #: With an underscore, as listings have it: en_US.
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
    """A messaging limit. `limit`: unique users a day; None: unlimited, or unknown when `name` is "unknown"."""

    #: TIER_250, TIER_2K, TIER_UNLIMITED … or "unknown".
    name: str
    limit: int | None


class NumberItem(_Event, frozen=True, kw_only=True):
    """Something about a number changed. It is named by its digits, within its account."""

    digits: str
    #: ONBOARDING, THROUGHPUT_UPGRADE, FLAGGED …; for its name: APPROVED, REJECTED …
    event: str | None = None
    tier: Tier | None = None
    #: The name asked for, of `phone_number_name_update`.
    verified_name: str | None = None


class CapabilityItem(_Event, frozen=True, kw_only=True):
    """What the account may do changed."""

    tier: Tier | None = None
    max_numbers: int | None = None


class Restriction(msgspec.Struct, frozen=True, gc=False):
    """Such as RESTRICTED_BIZ_INITIATED_MESSAGING (no templates), until `until`."""

    type: str
    until: datetime | None = None


class AccountItem(_Event, frozen=True, kw_only=True):
    """Something about the account changed: restriction, ban, violation, partner, review, alert, security."""

    event: str | None = None
    #: Of partner events, where the entry is the portfolio's and `waba_id` comes from the value.
    portfolio_id: str | None = None
    restrictions: tuple[Restriction, ...] = ()
    #: DISABLE, REINSTATE or SCHEDULE_FOR_DISABLE, and Meta's words for the day.
    ban_state: str | None = None
    ban_date: str | None = None
    violation: str | None = None
    #: Of alerts: how bad it is, and whether it is over. `detail`: Meta's words, for operators.
    severity: str | None = None
    is_over: bool = False
    detail: str | None = None


class AlarmItem(_Event, frozen=True, kw_only=True):
    """Errors of the app, the account or a number, which belong to no message."""

    phone_number_id: str | None = None
    errors: tuple[ErrorNote, ...] = ()


class UnknownItem(msgspec.Struct, frozen=True, kw_only=True):
    """A field that nobody here knows: to be counted."""

    field: str
    waba_id: str | None = None


class PoisonItem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that could not be read, with its bytes. It has cost nothing else."""

    reason: str
    raw: bytes
    waba_id: str | None = None


Item: TypeAlias = (
    StatusItem
    | MessageItem
    | TemplateItem
    | NumberItem
    | CapabilityItem
    | AccountItem
    | AlarmItem
    | UnknownItem
    | PoisonItem
)
