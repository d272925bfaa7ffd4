"""GETs of the Graph API: one object by its id, lists with cursors, and the description of a token.

`fields` selects what is shown; without it only a few fields are. Cursors are opaque and depend on the current list.
"""

from __future__ import annotations

import base64
from typing import Any

from heliograph.simulators.graph.objects import MANAGEMENT, Number, SimulatedAccount, Template, Token
from heliograph.simulators.graph.operations.errors import GraphError, missing_object
from heliograph.simulators.graph.state import World

_NUMBER_DEFAULT = ("id", "display_phone_number", "verified_name", "quality_rating")
_TEMPLATE_DEFAULT = (
    "id", "name", "language", "status", "category", "components", "parameter_format", "previous_category",
)  # fmt: skip
_ACCOUNT_DEFAULT = ("id", "name", "currency", "timezone_id", "message_template_namespace")
_LARGEST_PAGE = 250
_PAGE = 25
_WORST = ("AVAILABLE", "LIMITED", "BLOCKED")


def one(world: World, wanted: str, token: Token, fields: str, base: str) -> dict[str, Any]:
    """`GET /{id}` of a number, account, template, app or medium. Raises GraphError."""
    number = world.numbers.get(wanted)
    if number is not None:
        allowed(token, number.account, wanted)
        return chosen(number_view(world, number), fields, _NUMBER_DEFAULT)
    account = world.accounts.get(wanted)
    if account is not None:
        allowed(token, account.id, wanted)
        return chosen(account_view(world, account), fields, _ACCOUNT_DEFAULT)
    template = world.templates.get(wanted)
    if template is not None:
        allowed(token, template.account, wanted)
        return chosen(template_view(world, template), fields, _TEMPLATE_DEFAULT)
    app = world.apps.get(wanted)
    if app is not None:
        return {"id": app.id, "name": app.name, "link": f"{base}/apps/{app.id}"}
    if wanted in world.media:
        return {
            "messaging_product": "whatsapp",
            "url": f"{base}/media/{wanted}",
            "mime_type": "image/jpeg",
            "sha256": "0" * 64,
            "file_size": 4,
            "id": wanted,
        }
    raise missing_object(wanted)


def numbers(world: World, account: SimulatedAccount, query: dict[str, str], link: str) -> dict[str, Any]:
    """`GET /{waba}/phone_numbers`."""
    found = [number_view(world, one) for one in world.numbers.values() if one.account == account.id]
    return _page(found, query, _NUMBER_DEFAULT, link)


def templates(world: World, account: SimulatedAccount, query: dict[str, str], link: str) -> dict[str, Any]:
    """`GET /{waba}/message_templates`, with its filters and `summary`."""
    every = [template_view(world, one) for one in world.templates.values() if one.account == account.id]
    found = every
    for name in ("name", "status", "category", "language", "quality_score"):
        wanted = query.get(name)
        if not wanted:
            continue
        values = set(wanted.strip("[]").replace('"', "").split(","))
        if name == "name":
            found = [one for one in found if wanted in one["name"]]
        elif name == "quality_score":
            found = [one for one in found if one["quality_score"]["score"] in values]
        else:
            found = [one for one in found if one[name] in values]
    page = _page(found, query, _TEMPLATE_DEFAULT, link)
    if "summary" in query:
        page["summary"] = {
            "total_count": len(found),
            "message_template_count": len(every),
            "message_template_limit": 250,
            "are_translations_complete": True,
        }
    return page


def debug_token(world: World, shown: str) -> dict[str, Any]:
    """`GET /debug_token?input_token=`: a token's validity and scopes."""
    token = world.tokens.get(shown)
    if token is None:
        error = {"code": 190, "message": "Invalid OAuth access token.", "subcode": 467}
        return {"data": {"is_valid": False, "error": error, "scopes": []}}
    now = world.clock.now()
    data: dict[str, Any] = {
        "app_id": token.app,
        "type": "SYSTEM_USER",
        "application": "Simulated app",
        "is_valid": token.state == "valid" and not 0 < token.expires_at <= now,
        "expires_at": token.expires_at,
        "data_access_expires_at": 0,
        "issued_at": int(now) - 86_400,
        "scopes": list(token.scopes),
        "user_id": "122100000000000001",
    }
    if token.accounts is not None:
        data["granular_scopes"] = [{"scope": scope, "target_ids": list(token.accounts)} for scope in token.scopes]
    if not data["is_valid"]:
        gone = token_error(token)
        data["error"] = {"code": 190, "message": gone.message, "subcode": gone.subcode}
    return {"data": data}


def token_error(token: Token) -> GraphError:
    """The error for a token that is no longer valid."""
    if token.state == "revoked":
        return GraphError(
            190, message="Error validating access token: The user has not authorized application.", subcode=458
        )
    return GraphError(190, message="Error validating access token: Session has expired.", subcode=463)


def allowed(token: Token, account: str, wanted: str, method: str = "GET") -> None:
    """Raises GraphError if the token may not see this account (its objects do not exist for it) or lacks the scope."""
    if token.accounts is not None and account not in token.accounts:
        raise missing_object(wanted, method)
    if MANAGEMENT not in token.scopes:
        raise GraphError(200, "The token lacks whatsapp_business_management")


def number_view(world: World, number: Number) -> dict[str, Any]:
    """Every field of a number."""
    seen = world.view(number)
    digits = seen["digits"]
    blocked = seen["refusal"] or seen["status"] not in ("CONNECTED", "FLAGGED") or not seen["registered"]
    account = world.accounts.get(number.account)
    account_state = "AVAILABLE"
    if account is not None:
        shown = world.view(account)
        account_state = "BLOCKED" if shown["refusal"] else "LIMITED" if shown["restrictions"] else "AVAILABLE"
    entities: list[dict[str, Any]] = [
        {"entity_type": "PHONE_NUMBER", "id": number.id, "can_send_message": "BLOCKED" if blocked else "AVAILABLE"},
        {"entity_type": "WABA", "id": number.account, "can_send_message": account_state},
        {
            "entity_type": "BUSINESS",
            "id": account.business if account is not None else "",
            "can_send_message": "AVAILABLE",
        },
        *({"entity_type": "APP", "id": app, "can_send_message": "AVAILABLE"} for app in list(world.apps)[:1]),
    ]
    for entity in entities:
        if entity["can_send_message"] == "BLOCKED":
            entity["errors"] = [{"error_code": 141000, "error_description": "Blocked", "possible_solution": "Ask Meta"}]
        elif entity["can_send_message"] == "LIMITED":
            entity["additional_info"] = ["The account is restricted."]
    worst = max((one["can_send_message"] for one in entities), key=_WORST.index)
    return {
        "id": number.id,
        "display_phone_number": f"+{digits[:-10]} {digits[-10:-7]}-{digits[-7:-4]}-{digits[-4:]}",
        "verified_name": seen["verified_name"],
        "status": seen["status"],
        "quality_rating": seen["quality_rating"],
        "quality_score": {"score": seen["quality_rating"]},
        "name_status": seen["name_status"],
        "code_verification_status": seen["code_verification_status"],
        "platform_type": seen["platform_type"],
        "account_mode": seen["account_mode"],
        "is_official_business_account": False,
        "is_pin_enabled": True,
        "last_onboarded_time": "2026-11-01T00:00:00+0000",
        "throughput": {"level": seen["throughput"]},
        "is_on_biz_app": seen["is_on_biz_app"],
        "whatsapp_business_manager_messaging_limit": seen["limit"],
        "messaging_limit_tier": seen["limit"],
        "health_status": {"can_send_message": worst, "entities": entities},
        "webhook_configuration": {"application": next((app.webhook_url for app in world.apps.values()), "")},
    }


def account_view(world: World, account: SimulatedAccount) -> dict[str, Any]:
    """Every field of an account."""
    seen = world.view(account)
    state = "BLOCKED" if seen["refusal"] else "LIMITED" if seen["restrictions"] else "AVAILABLE"
    entity = {"entity_type": "WABA", "id": account.id, "can_send_message": state}
    return seen | {
        "message_template_namespace": seen["template_namespace"],
        "owner_business_info": {"id": seen["business"], "name": "Portfolio"},
        "country": "FR",
        "health_status": {"can_send_message": state, "entities": [entity]},
    }


def template_view(world: World, template: Template) -> dict[str, Any]:
    """Every field of a template."""
    seen = world.view(template)
    made = {name: value for name, value in seen.items() if value is not None}
    made["quality_score"] = {"score": seen["quality"], "date": int(world.clock.now())}
    return made


def chosen(view: dict[str, Any], fields: str, otherwise: tuple[str, ...]) -> dict[str, Any]:
    """The requested fields, always including the id. Fields without a value are left out."""
    names = [one.split("{")[0].split(".")[0].strip() for one in fields.split(",") if one] or list(otherwise)
    return {name: view[name] for name in dict.fromkeys([*names, "id"]) if view.get(name) is not None}


def _page(found: list[dict[str, Any]], query: dict[str, str], otherwise: tuple[str, ...], link: str) -> dict[str, Any]:
    try:
        limit = min(_LARGEST_PAGE, int(query.get("limit", _PAGE)))
        after = int(base64.urlsafe_b64decode(query["after"] + "==")) if query.get("after") else 0
        before = int(base64.urlsafe_b64decode(query["before"] + "==")) if query.get("before") else None
    except ValueError:
        raise GraphError(100, "limit or cursor is not valid") from None
    if limit < 1:
        raise GraphError(100, "limit is below 1")
    start = after if before is None else max(0, before - limit)
    shown = found[start : start + limit]
    page: dict[str, Any] = {"data": [chosen(one, query.get("fields", ""), otherwise) for one in shown]}
    if shown:
        paging: dict[str, Any] = {"cursors": {"before": _cursor(start), "after": _cursor(start + len(shown))}}
        if start + limit < len(found):
            paging["next"] = f"{link}&after={_cursor(start + len(shown))}"
        if start:
            paging["previous"] = f"{link}&before={_cursor(start)}"
        page["paging"] = paging
    return page


def _cursor(place: int) -> str:
    return base64.urlsafe_b64encode(str(place).encode()).decode().rstrip("=")
