"""Templates, numbers, accounts and tokens as returned by Graph, read tolerantly. Pure.

Meta's own pages disagree about the possible values of fields, so values are kept as received, in capitals; code that
shows one to a customer maps the known ones and calls the rest unknown. A field that is missing or malformed is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from heliograph.base.sentences import said
from heliograph.suppliers.whatsapp_cloud.callbacks.content import capitals, part, words
from heliograph.suppliers.whatsapp_cloud.callbacks.items import Tier
from heliograph.suppliers.whatsapp_cloud.callbacks.management import (
    digits_of,
    id_of,
    language_of,
    tier_of,
    time_or_none,
)

TEMPLATE_FIELDS = (
    "id,name,language,status,category,components,parameter_format,quality_score,rejected_reason,previous_category,"
    "correct_category,message_send_ttl_seconds"
)
NUMBER_FIELDS = (
    "id,display_phone_number,verified_name,status,quality_rating,name_status,code_verification_status,platform_type,"
    "account_mode,throughput,is_on_biz_app,whatsapp_business_manager_messaging_limit,health_status"
)
ACCOUNT_FIELDS = "id,name,currency,timezone_id,account_review_status,owner_business_info,health_status"

#: Permissions that a token must have.
SCOPES = ("whatsapp_business_management", "whatsapp_business_messaging")
NOT_GRANTED = {
    "whatsapp_business_management": said("whatsapp_business_management is not granted"),
    "whatsapp_business_messaging": said("whatsapp_business_messaging is not granted"),
}
NOT_GRANTED_HERE = {
    "whatsapp_business_management": said("whatsapp_business_management is not granted for this account"),
    "whatsapp_business_messaging": said("whatsapp_business_messaging is not granted for this account"),
}
#: A token that expires within this time is reported as expiring.
EXPIRING = timedelta(days=7)
#: `message_send_ttl_seconds` of -1.
_LONGEST_TTL = 30 * 86_400
#: Characters of a template's name and language together; Meta allows 512 for a name.
_LONGEST_NAME = 600


class CloudTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A template as listed. Sendable only if `status` is APPROVED."""

    id: str
    name: str
    language: str
    status: str
    category: str
    components: list[dict[str, Any]]
    #: POSITIONAL or NAMED; None in older listings.
    parameter_format: str | None = None
    #: GREEN, YELLOW, RED or UNKNOWN.
    quality: str | None = None
    rejected_reason: str | None = None
    previous_category: str | None = None
    correct_category: str | None = None
    #: None: the category's default.
    ttl_seconds: int | None = None


class Obstacle(msgspec.Struct, frozen=True):
    """An obstacle to sending: the entity, its state (LIMITED or BLOCKED), and Meta's codes and words for it."""

    entity: str
    state: str
    codes: tuple[int, ...] = ()
    detail: str = ""


class CloudNumber(msgspec.Struct, frozen=True, kw_only=True):
    """A phone number. Without `fields`, Graph gives only id, display number, name and quality."""

    id: str
    display: str
    digits: str | None
    verified_name: str | None = None
    #: CONNECTED, PENDING, DISCONNECTED, FLAGGED, RESTRICTED, BANNED … (an open set).
    status: str | None = None
    quality: str | None = None
    name_status: str | None = None
    #: Often EXPIRED for working numbers: no obstacle to sending.
    verification: str | None = None
    platform: str | None = None
    mode: str | None = None
    #: STANDARD, HIGH or NOT_APPLICABLE.
    throughput: str | None = None
    #: It is on the WhatsApp Business app as well (coexistence).
    on_business_app: bool = False
    tier: Tier = Tier("unknown", None)
    #: AVAILABLE, LIMITED or BLOCKED: the worst of number, account, portfolio and app.
    can_send: str | None = None
    obstacles: tuple[Obstacle, ...] = ()

    @property
    def messages_per_second(self) -> int:
        """The rate of its throughput level; a number also on the Business app has the lowest, whatever its level."""
        if self.on_business_app:
            return 20
        return 1_000 if self.throughput == "HIGH" else 80


class CloudAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A WhatsApp Business Account."""

    id: str
    name: str | None = None
    currency: str | None = None
    timezone_id: str | None = None
    review: str | None = None
    #: The business portfolio that owns it and whose messaging limit it shares.
    portfolio_id: str | None = None
    can_send: str | None = None
    obstacles: tuple[Obstacle, ...] = ()


class TokenReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of `debug_token` about a token."""

    #: None: the answer does not say.
    valid: bool | None
    app_id: str | None = None
    #: None: it does not expire.
    expires_at: datetime | None = None
    scopes: frozenset[str] = frozenset()
    #: scope → accounts for which it is granted; a scope that is absent is granted for all.
    targets: dict[str, frozenset[str]] = {}
    detail: str = ""


def template(value: Mapping[str, Any]) -> CloudTemplate | None:
    """Parse a template. None if id, name, language, status or category is missing, or a name is longer than any."""
    id = id_of(value.get("id"))
    name, language = words(value.get("name")), language_of(value.get("language"))
    status, category = capitals(value.get("status")), capitals(value.get("category"))
    if not (id and name and language and status and category) or len(name) + len(language) > _LONGEST_NAME:
        return None
    parts = value.get("components")
    quality = value.get("quality_score")
    ttl = value.get("message_send_ttl_seconds")
    if not isinstance(ttl, int) or isinstance(ttl, bool) or ttl < -1 or ttl == 0:
        ttl = None
    return CloudTemplate(
        id=id,
        name=name,
        language=language,
        status=status,
        category=category,
        components=[one for one in parts if isinstance(one, dict)] if isinstance(parts, list) else [],
        parameter_format=capitals(value.get("parameter_format")),
        quality=capitals(quality) or capitals(part(value, "quality_score").get("score")),
        rejected_reason=capitals(value.get("rejected_reason")),
        previous_category=capitals(value.get("previous_category")),
        correct_category=capitals(value.get("correct_category")),
        ttl_seconds=_LONGEST_TTL if ttl == -1 else ttl and min(ttl, _LONGEST_TTL),
    )


def number(value: Mapping[str, Any]) -> CloudNumber | None:
    """Parse a number. None if it has no id."""
    id = id_of(value.get("id"))
    if id is None:
        return None
    display = words(value.get("display_phone_number")) or ""
    can_send, obstacles = _health(value)
    # The older name of the limit was dropped after v23.
    tier = value.get("whatsapp_business_manager_messaging_limit") or value.get("messaging_limit_tier")
    return CloudNumber(
        id=id,
        display=display,
        digits=digits_of(display),
        verified_name=words(value.get("verified_name")),
        status=capitals(value.get("status")),
        quality=capitals(value.get("quality_rating")),
        name_status=capitals(value.get("name_status")),
        verification=capitals(value.get("code_verification_status")),
        platform=capitals(value.get("platform_type")),
        mode=capitals(value.get("account_mode")),
        throughput=capitals(part(value, "throughput").get("level")),
        on_business_app=value.get("is_on_biz_app") is True,
        tier=tier_of(tier),
        can_send=can_send,
        obstacles=obstacles,
    )


def account(value: Mapping[str, Any]) -> CloudAccount | None:
    """Parse an account. None if it has no id."""
    id = id_of(value.get("id"))
    if id is None:
        return None
    can_send, obstacles = _health(value)
    owner = id_of(part(value, "owner_business_info").get("id"))
    for entity in _objects(part(value, "health_status").get("entities")):
        if owner is None and entity.get("entity_type") == "BUSINESS":
            owner = id_of(entity.get("id"))
    return CloudAccount(
        id=id,
        name=words(value.get("name")),
        currency=capitals(value.get("currency")),
        timezone_id=id_of(value.get("timezone_id")),
        review=capitals(value.get("account_review_status")),
        portfolio_id=owner,
        can_send=can_send,
        obstacles=obstacles,
    )


def token_report(value: Mapping[str, Any]) -> TokenReport:
    """Parse `data` of the answer."""
    data = part(value, "data")
    error = part(data, "error")
    granted = {
        scope: frozenset(filter(None, map(id_of, targets)))
        for one in _objects(data.get("granular_scopes"))
        if isinstance(targets := one.get("target_ids"), list) and (scope := words(one.get("scope")))
    }
    scopes = data.get("scopes")
    return TokenReport(
        valid=data["is_valid"] if isinstance(data.get("is_valid"), bool) else None,
        app_id=id_of(data.get("app_id")),
        # 0: never.
        expires_at=time_or_none(data.get("expires_at")),
        scopes=frozenset(filter(None, map(words, scopes))) if isinstance(scopes, list) else frozenset(),
        targets=granted,
        detail=words(error.get("message")) or "",
    )


def credential_state(report: TokenReport, waba_id: str, now: datetime) -> tuple[str, str]:
    """(`ok`, `expiring`, `missing_scope`, `invalid` or `unknown`; what is wrong, for operators: a Sentence, or Meta's
    own).

    Only a definite no is `invalid`: it stops the account.
    """
    if report.valid is None:
        return "unknown", said("Meta's answer does not say whether the token is valid")
    if not report.valid:
        return "invalid", report.detail or said("the token is not valid")
    if report.expires_at is not None and report.expires_at <= now:
        return "invalid", said("the token has expired")
    for scope in SCOPES:
        if scope not in report.scopes:
            return "missing_scope", NOT_GRANTED[scope]
        if scope in report.targets and waba_id not in report.targets[scope]:
            return "missing_scope", NOT_GRANTED_HERE[scope]
    if report.expires_at is not None and report.expires_at - now < EXPIRING:
        return "expiring", said("the token expires at %(at)s", at=report.expires_at)
    return "ok", ""


def subscribed(value: Mapping[str, Any]) -> frozenset[str]:
    """Ids of the apps that receive an account's webhooks, from `subscribed_apps`."""
    found = (
        id_of(part(one, "whatsapp_business_api_data").get("id")) or id_of(one.get("id"))
        for one in _objects(value.get("data"))
    )
    return frozenset(filter(None, found))


def _health(value: Mapping[str, Any]) -> tuple[str | None, tuple[Obstacle, ...]]:
    status = part(value, "health_status")
    obstacles = []
    for entity in _objects(status.get("entities")):
        state = capitals(entity.get("can_send_message"))
        if state in (None, "AVAILABLE"):
            continue
        errors = _objects(entity.get("errors"))
        notes = [words(error.get("error_description")) or "" for error in errors]
        more = entity.get("additional_info")
        notes += [words(note) or "" for note in more] if isinstance(more, list) else []
        obstacles.append(
            Obstacle(
                capitals(entity.get("entity_type")) or "",
                state,
                tuple(code for error in errors if isinstance(code := error.get("error_code"), int)),
                "; ".join(filter(None, notes))[:300],
            )
        )
    return capitals(status.get("can_send_message")), tuple(obstacles)


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
