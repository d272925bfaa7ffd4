"""Redacts bodies: keeps the structure of a request, removes texts, numbers and secrets.

The rule nobody may break: a value is kept only if its name is one of KEPT, or in our own answers of _KEPT_OF_OURS, and
it looks neither like a phone number nor like one of our secrets.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

#: Maximum size of a body that is examined, in bytes, and how many characters of it are kept.
LONGEST, KEPT_CHARACTERS = 8_192, 4_096
#: Replaces whatever was redacted.
BLANK = "•••"
#: Names of fields that hold choices, ids, times and counts.
KEPT = frozenset(
    [
        *("senderId", "senderName", "sender", "type", "category", "language", "clientReference", "campaignId"),
        *("phoneNumberId", "templateId", "sendAt", "validitySeconds", "deliveryGuarantee", "mode", "profile", "scopes"),
        *("class",),
        *("expiresAt", "events", "eventTypes", "status", "channel", "tags", "tagsAny", "tagsAll", "messagesPerMinute"),
        *("scheduledAt", "from", "until", "dateFrom", "dateTo", "limit", "smartEncoding", "enabled", "allowedIps"),
        *("eventId", "country"),
    ]
)
#: Names that do so in our answers. In a request they may hold anything, such as why a person opted out, or a one-time
#: code in a field that does not exist.
_KEPT_OF_OURS = KEPT | {
    *("code", "field", "issue", "details", "fields", "requestId", "docsUrl", "success", "error", "required", "allowed"),
    *("bucket", "retryAfterSeconds", "maxBytes", "remainingQuota", "requested", "active", "resource", "reason"),
    *("expected", "received", "available", "currency", "since"),
}
#: Names whose whole subtree is user content, whatever its keys are.
_WRITTEN = frozenset({"parameters", "values", "recipients", "contacts", "numbers", "variables"})
_is_name = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}").fullmatch
_DIGITS = re.compile(r"\+?\d[\d ().-]{5,}\d")
#: An API key, or the secret of a webhook endpoint: somebody may put one into the wrong field.
_SECRET = re.compile(r"(?:hg_(?:live|test)|whsec)_[A-Za-z0-9+/=]{8,}")
_is_id_or_time = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\d{4}-\d\d-\d\d(?:[T ][0-9:.]{5,12}(?:Z|[+-]\d\d:\d\d)?)?"
).fullmatch
#: A larger integer may be a phone number.
_LONGEST_NUMBER = 999_999


def body(raw: bytes) -> str:
    """The part of a request's body that is kept; "" if there is none, or it is not JSON or too long to be examined."""
    if not raw or len(raw) > LONGEST:
        return ""
    try:
        return _text(_blanked(msgspec.json.decode(raw), "", depth=0))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ""


def answer(raw: bytes) -> str:
    """The part of a refusal that is kept: its message is ours, but it may repeat parts of the request."""
    if len(raw) > LONGEST:
        return ""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return ""
    return _text(_blanked(found, "", depth=0, is_ours=True))


def scrubbed(text: str) -> str:
    """The text without anything that may be a phone number or a secret."""
    return _DIGITS.sub(BLANK, _SECRET.sub(BLANK, text))


def path(template: str, parameters: dict[str, str]) -> str:
    """The path of a request, with only those of its parameters filled in that are ids."""
    for name, value in parameters.items():
        template = template.replace(f"{{{name}}}", value if _is_id_or_time(value) else BLANK)
    return template


def _text(value: Any) -> str:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return text if len(text) <= KEPT_CHARACTERS else text[: KEPT_CHARACTERS - 1] + "…"


def _blanked(value: Any, name: str, *, depth: int, is_ours: bool = False) -> Any:
    if depth > 20:
        return BLANK
    if isinstance(value, dict):
        return {
            key if _is_name(key) and not _SECRET.search(key) and name not in _WRITTEN else BLANK: _blanked(
                one, "" if name in _WRITTEN else key, depth=depth + 1, is_ours=is_ours
            )
            for key, one in list(value.items())[:100]
        }
    if isinstance(value, list):
        return [_blanked(one, name, depth=depth + 1, is_ours=is_ours) for one in value[:50]]
    if value is None or isinstance(value, bool):
        return value
    is_kept = name in (_KEPT_OF_OURS if is_ours else KEPT)
    if isinstance(value, str):
        if is_kept and (_is_id_or_time(value) or not (_DIGITS.search(value) or _SECRET.search(value))):
            return value[:200]
        if is_ours and name == "message":
            return scrubbed(value)
        return f"{BLANK} ({len(value)})"
    return value if is_kept and abs(value) <= _LONGEST_NUMBER else BLANK
