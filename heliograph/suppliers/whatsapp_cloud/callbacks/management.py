"""Webhooks about templates, numbers and accounts, and Meta's words and numbers in them. Pure.

The rule nobody may break: an advance notice of a new category changes nothing yet. In it `new_category` is the one in
force and `correct_category` the future one; only in the final notice is `new_category` new.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from heliograph.suppliers.whatsapp_cloud.callbacks.content import capitals, part, text_id, words
from heliograph.suppliers.whatsapp_cloud.callbacks.items import (
    AccountItem,
    CapabilityItem,
    Item,
    NumberItem,
    Restriction,
    TemplateItem,
    Tier,
)

#: Seconds above this are milliseconds, and those above its thousandfold microseconds (year 5138 and beyond).
_NOT_SECONDS = 10**11
_TIER = re.compile(r"(?:TIER_)?(\d+)([KM]?)")
_NO_TIER = Tier("unknown", None)
#: Types of a time. A tuple: `A | B` would be built anew for each callback.
_TIMES = (str, int, float)


def time_of(value: object) -> datetime:
    """A Unix time, in seconds as text or number; milliseconds are recognized by their size. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, _TIMES):
        raise ValueError("no time")
    try:
        seconds = int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdigit()) else float(value)
        if seconds == math.inf:  # "1e999", which no division makes smaller
            raise ValueError("no time")
        while seconds >= _NOT_SECONDS:
            seconds /= 1000
        if seconds <= 0:
            raise ValueError("no time")
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError):
        raise ValueError("no time") from None


def time_or_none(value: object) -> datetime | None:
    """`time_of`, or None if no time can be read."""
    if value is None:  # as in most callbacks
        return None
    try:
        return time_of(value)
    except ValueError:
        return None


def id_of(value: object) -> str | None:
    """An id as text. Meta writes some as numbers above 2^53, so they are never converted to float."""
    return text_id(str(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def number_of(value: object) -> int | None:
    """An integer, written as a number or text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def digits_of(value: object) -> str | None:
    """Digits of a phone number as Meta writes it, with or without `+`, spaces and hyphens; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return None
    found = value if value.isdigit() else value.translate(_PUNCTUATION)
    return found if found.isdigit() and found.isascii() and 5 <= len(found) <= 20 else None


def tier_of(value: object) -> Tier:
    """A messaging limit in any of Meta's notations: 2000, "2000", "TIER_2K", -1, "TIER_UNLIMITED", "NOT_SET"."""
    if isinstance(value, str):
        name = value.strip().upper()
        if name.removeprefix("TIER_") == "UNLIMITED":
            return Tier("TIER_UNLIMITED", None)
        if name == "-1":
            value = -1
        elif match := _TIER.fullmatch(name):
            value = int(match[1]) * {"": 1, "K": 1_000, "M": 1_000_000}[match[2]]
    if not isinstance(value, int) or isinstance(value, bool):
        return _NO_TIER
    if value == -1:
        return Tier("TIER_UNLIMITED", None)
    if not 0 < value < 1 << 31:
        return _NO_TIER
    return Tier(f"TIER_{value // 1000}K" if value % 1000 == 0 else f"TIER_{value}", value)


def language_of(value: object) -> str | None:
    """A language as in listings; events sometimes use a hyphen: en-US becomes en_US."""
    return value.replace("-", "_") if isinstance(value, str) else None


def fingerprint(value: object) -> str:
    """SHA-256 of a value in canonical form, hex."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def event_item(waba_id: str, field: str, at: datetime | None, value: Mapping[str, Any]) -> Item | None:
    """The item of one change; None: the field is not one of these. Raises ValueError if it cannot be read."""
    make = _FIELDS.get(field)
    if make is None:
        return None
    return make(value, {"waba_id": waba_id, "field": field, "at": at, "fingerprint": fingerprint(value)})


def _template(value: Mapping[str, Any], common: dict[str, Any]) -> TemplateItem:
    template_id = id_of(value.get("message_template_id"))
    if template_id is None:
        raise ValueError("no template id")
    more: dict[str, Any] = {}
    match common["field"]:
        case "message_template_status_update":
            more = {
                "kind": "status",
                "event": capitals(value.get("event")),
                "category": capitals(value.get("message_template_category")),
                "reason": capitals(value.get("reason")),
                "pause": capitals(part(value, "other_info").get("title")),
            }
        case "message_template_quality_update":
            more = {
                "kind": "quality",
                "quality": capitals(value.get("new_quality_score")),
                "previous_quality": capitals(value.get("previous_quality_score")),
            }
        case "template_category_update":
            future = capitals(value.get("correct_category"))
            more = {
                "kind": "category",
                "category": capitals(value.get("new_category")),
                "previous_category": capitals(value.get("previous_category")),
                "future_category": future,
            }
        case _:
            more = {"kind": "components"}
    return TemplateItem(
        **common,
        **more,
        template_id=template_id,
        name=words(value.get("message_template_name")),
        language=language_of(value.get("message_template_language")),
    )


def _number(value: Mapping[str, Any], common: dict[str, Any]) -> NumberItem:
    digits = digits_of(value.get("display_phone_number"))
    if digits is None:
        raise ValueError("no number")
    return NumberItem(
        **common,
        digits=digits,
        event=capitals(value.get("event")) or capitals(value.get("decision")),
        tier=_limit(value),
        verified_name=words(value.get("requested_verified_name")),
    )


def _capability(value: Mapping[str, Any], common: dict[str, Any]) -> CapabilityItem:
    numbers = value.get("max_phone_numbers_per_waba") or value.get("max_phone_numbers_per_business")
    return CapabilityItem(**common, tier=_limit(value), max_numbers=numbers if isinstance(numbers, int) else None)


def _account(value: Mapping[str, Any], common: dict[str, Any]) -> AccountItem:
    # Partner events arrive under the portfolio's id and name the account inside.
    named = id_of(part(value, "waba_info").get("waba_id"))
    portfolio_id = None
    if named is not None and named != common["waba_id"]:
        portfolio_id, common = common["waba_id"], {**common, "waba_id": named}
    ban = part(value, "ban_info")
    restrictions = value.get("restriction_info")
    return AccountItem(
        **common,
        event=capitals(
            value.get("event")
            or value.get("decision")
            or value.get("alert_type")
            or part(value, "alert_info").get("alert_type")
        ),
        portfolio_id=portfolio_id,
        restrictions=tuple(
            Restriction(kind, time_or_none(one.get("expiration")))
            for one in (restrictions if isinstance(restrictions, list) else ())
            if isinstance(one, Mapping) and (kind := capitals(one.get("restriction_type")))
        ),
        ban_state=capitals(words(ban.get("waba_ban_state")) or _first(ban.get("waba_ban_state"))),
        ban_date=words(ban.get("waba_ban_date")),
        violation=capitals(part(value, "violation_info").get("violation_type")),
        entity=id_of(value.get("entity_id")),
        severity=capitals(value.get("alert_severity") or part(value, "alert_info").get("alert_severity")),
        is_over=capitals(value.get("alert_status") or part(value, "alert_info").get("alert_status")) in _ENDED,
        detail=words(value.get("alert_description") or part(value, "alert_info").get("alert_description"))
        or words(value.get("rejection_reason")),
    )


def _limit(value: Mapping[str, Any]) -> Tier | None:
    """Newest name first; Meta planned to remove the others in February 2026."""
    for name in ("max_daily_conversations_per_business", "current_limit", "max_daily_conversation_per_phone"):
        if value.get(name) is not None:
            return tier_of(value[name])
    return None


def _first(value: object) -> str | None:
    return words(value[0]) if isinstance(value, list) and value else None


#: States of an alert that has ended.
_ENDED = ("RESOLVED", "NONE", "CLOSED", "INACTIVE")
_PUNCTUATION = str.maketrans("", "", "+ -().\xa0")

_FIELDS: dict[str, Callable[[Mapping[str, Any], dict[str, Any]], Item]] = {
    "message_template_status_update": _template,
    "message_template_quality_update": _template,
    "template_category_update": _template,
    "message_template_components_update": _template,
    "phone_number_quality_update": _number,
    "phone_number_name_update": _number,
    "business_capability_update": _capability,
    "account_update": _account,
    "account_review_update": _account,
    "account_alerts": _account,
    "security": _account,
}
#: All fields that are read here.
FIELDS = tuple(_FIELDS)
