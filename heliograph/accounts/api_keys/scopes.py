"""What a key allows: scopes, and profiles, which are named sets of scopes.

The rule nobody may break: only operators can grant what they neither hold nor were authorized to grant, and a test key
can create only test keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.base.actor import Actor
from heliograph.base.errors import Invalid, Refusal

#: Every scope, and what it allows.
SCOPES = {
    "sms:send": "Send SMS",
    "sms:read": "Read SMS",
    "whatsapp:send": "Send WhatsApp messages",
    "whatsapp:read": "Read WhatsApp messages, templates, conversations, numbers, campaigns and the wallet",
    "account:read": "Read the account and its usage",
    "account:write": "Change the organization's settings",
    "contacts:read": "Read contacts",
    "contacts:write": "Create and delete contacts",
    "campaigns:read": "Read campaigns",
    "campaigns:write": "Create campaigns",
    "sender_ids:read": "Read sender IDs",
    "sender_ids:write": "Request sender IDs",
    "api_keys:read": "Read API keys",
    "api_keys:write": "Create and revoke API keys",
    "webhooks:read": "Read webhook endpoints",
    "webhooks:write": "Create and disable webhook endpoints",
}

#: A profile is a named set of scopes, resolved when a key is issued.
PROFILES: dict[str, frozenset[str]] = {
    "sms_only": frozenset({"sms:send"}),
    "sms": frozenset({"sms:send", "sms:read", "sender_ids:read", "account:read", "webhooks:read", "webhooks:write"}),
    "whatsapp": frozenset({"whatsapp:send", "whatsapp:read", "account:read", "webhooks:read", "webhooks:write"}),
    "read_only": frozenset(scope for scope in SCOPES if scope.endswith(":read")),
    "full_access": frozenset(SCOPES),
}

MODES = ("live", "test")


class ScopeRequired(Refusal):
    """This API key lacks the scope that the operation requires."""

    code, status = "api_key_scope_required", 403


class LiveKeyRequired(Refusal):
    """This requires a live key: a test key can create and change test resources only."""

    code, status = "live_key_required", 403


def named_scopes(profile: str | None, scopes: Sequence[str] | None) -> frozenset[str]:
    """The scopes of a profile, or the listed ones. Raises Invalid for both, neither, or unknown ones."""
    if (profile is None) == (scopes is None):
        raise Invalid(("profile", "one_of", "give either `profile` or `scopes`"))
    if profile is not None:
        if profile not in PROFILES:
            raise Invalid(("profile", "enum", f"`profile` must be one of {', '.join(PROFILES)}"))
        return PROFILES[profile]
    named = frozenset(scopes or ())
    unknown = sorted(named - SCOPES.keys())
    if unknown or not named:
        which = f": {', '.join(unknown)} is unknown" if unknown else ""
        raise Invalid(("scopes", "enum", f"`scopes` must list one or more known scopes{which}"))
    return named


def demand_grants(actor: Actor, named: frozenset[str], mode: str) -> None:
    """Check that the actor may create a key for `mode` with these scopes. Raises ScopeRequired, and LiveKeyRequired if
    a test key would create a live key."""
    missing = named - actor.scopes - actor.grants
    if not actor.is_operator and missing:
        raise ScopeRequired("A key can grant only scopes that it holds itself.", required=sorted(missing))
    if not actor.is_operator and (actor.mode, mode) == ("test", "live"):
        # Otherwise whoever holds a test key could spend the organization's quota.
        raise LiveKeyRequired("A test key can create only test keys.")
