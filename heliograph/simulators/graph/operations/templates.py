"""Creating, editing and deleting templates by API: `POST` and `DELETE` on message_templates, `POST /{template_id}`.

A new or edited template is PENDING until it is reviewed (option `review_delay`), which an event reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from heliograph.simulators.graph.callbacks.events import TemplateEvent, template_event
from heliograph.simulators.graph.callbacks.webhooks import Item
from heliograph.simulators.graph.objects import SimulatedAccount, Template
from heliograph.simulators.graph.operations.errors import GraphError
from heliograph.simulators.graph.state import World

_NAME = re.compile(r"[a-z0-9_]{1,512}")
_VARIABLE = re.compile(r"\{\{\s*+(?:\w++\s*+)?\}\}")
_CATEGORIES = ("UTILITY", "MARKETING", "AUTHENTICATION")
_MOST = 250
_OTP_URL = "https://www.whatsapp.com/otp/code/?otp_type={}&code=otp{{{{1}}}}"
_EDIT_SECONDS = 86_400
#: Seconds for which the name of a deleted approved template stays taken.
NAME_BLOCKED_SECONDS = 30 * 86_400


def create(world: World, account: SimulatedAccount, body: Any, submit: Callable[[Template], None]) -> dict[str, Any]:
    """`submit` receives each template to review. Raises GraphError."""
    try:
        template = msgspec.convert(
            {key: value for key, value in body.items() if key not in ("id", "account", "status")},
            Template,
            strict=False,
        )
    except (msgspec.ValidationError, AttributeError) as error:
        raise GraphError(100, str(error)) from None
    template.category = template.category.upper()
    template.parameter_format = template.parameter_format.upper()
    template.account, template.status = account.id, "PENDING"
    if not _NAME.fullmatch(template.name):
        raise GraphError(100, "name has other characters than a-z, 0-9 and _, or too many")
    if template.category not in _CATEGORIES:
        raise GraphError(100, f"category is not one of {', '.join(_CATEGORIES)}")
    _check(template)
    key = (account.id, template.name, template.language)
    if key in world.by_name:
        raise GraphError(100, "There is already content in this language for this template.", subcode=2388024)
    if world.blocked_names.get(key[:2], 0.0) > world.clock.now():
        raise GraphError(100, "A template of this name was deleted less than 30 days ago.", subcode=2388023)
    if sum(one.account == account.id for one in world.templates.values()) >= _MOST:
        raise GraphError(100, "The limit of templates is reached.", subcode=2388019)
    if template.category == "AUTHENTICATION":
        _complete(template)
    world.add_template(template)
    submit(template)
    return {"id": template.id, "status": template.status, "category": template.category}


def edit(world: World, template: Template, body: Any, submit: Callable[[Template], None]) -> dict[str, Any]:
    """Raises GraphError."""
    if not isinstance(body, dict):
        raise GraphError(100, "The request body is not a JSON object")
    if template.status not in ("APPROVED", "REJECTED", "PAUSED"):
        raise GraphError(100, f"A template that is {template.status} cannot be edited", subcode=2388025)
    now = world.clock.now()
    if template.status == "APPROVED" and template.edited_at and now - template.edited_at < _EDIT_SECONDS:
        raise GraphError(100, "An approved template can be edited once in 24 hours", subcode=2388026)
    changes: dict[str, Any] = {"edited_at": now, "status": "PENDING"}
    for name in ("components", "category", "message_send_ttl_seconds"):
        if name in body:
            changes[name] = body[name]
    _check(msgspec.structs.replace(template, **changes))
    world.change(template, **changes)
    submit(template)
    return {"success": True, "id": template.id, "name": template.name, "category": template.category}


def unpause(world: World, template: Template) -> tuple[dict[str, Any], Item | None]:
    """`POST /{template_id}/unpause`."""
    if template.status != "PAUSED":
        return {"success": False, "reason": "The template is not paused"}, None
    return {"success": True}, template_event(world, TemplateEvent(template=template.id, event="APPROVED"))


def delete(world: World, account: SimulatedAccount, query: dict[str, str]) -> tuple[dict[str, Any], list[Item]]:
    """By `hsm_id`, or by `name` in every language. Raises GraphError."""
    name, wanted = query.get("name", ""), query.get("hsm_id", "")
    if not name and not wanted:
        raise GraphError(100, message="(#100) The parameter name is required.")
    found = [
        one
        for one in world.templates.values()
        if one.account == account.id and (one.id == wanted if wanted else one.name == name)
    ]
    if not found:
        raise GraphError(100, "Message template not found", subcode=2593002)
    items = []
    for one in found:
        if one.status == "APPROVED":
            world.blocked_names[account.id, one.name] = world.clock.now() + NAME_BLOCKED_SECONDS
        items.append(template_event(world, TemplateEvent(template=one.id, event="DELETED")))
    return {"success": True}, items


def _check(template: Template) -> None:
    kinds = [str(component.get("type", "")).upper() for component in template.components]
    if "BODY" not in kinds:
        raise GraphError(100, "components has no BODY")
    for component in template.components:
        kind, text = str(component.get("type", "")).upper(), str(component.get("text", ""))
        if kind == "BODY" and template.category != "AUTHENTICATION":
            if not text or len(text) > 1024:
                raise GraphError(100, "The body's text is missing or longer than 1024 characters", subcode=2388040)
            stripped = text.strip()
            if re.match(_VARIABLE, stripped) or re.search(_VARIABLE.pattern + r"\W?$", stripped):
                raise GraphError(100, "Variables cannot be at the start or end of the template", subcode=2388299)
            if re.search(_VARIABLE.pattern + r"\s*" + _VARIABLE.pattern, text):
                raise GraphError(100, "Variables cannot be adjacent", subcode=2388072)
        elif kind == "HEADER" and str(component.get("format", "TEXT")).upper() == "TEXT":
            if len(text) > 60 or len(_VARIABLE.findall(text)) > 1:
                raise GraphError(100, "The header is longer than 60 characters or has two variables", subcode=2388047)
        elif kind == "FOOTER" and len(text) > 60:
            raise GraphError(100, "The footer is longer than 60 characters", subcode=2388073)
        elif kind == "BUTTONS" and len(component.get("buttons", ())) > 10:
            raise GraphError(100, "More than 10 buttons", subcode=2388293)


def _complete(template: Template) -> None:
    """Give an authentication template its generated text and URL button, as Meta stores them."""
    made: list[dict[str, Any]] = []
    for component in template.components:
        kind = str(component.get("type", "")).upper()
        if kind == "BODY":
            text = "*{{1}}* is your verification code."
            if component.get("add_security_recommendation"):
                text += " For your security, do not share this code."
            made.append({**component, "type": "BODY", "text": text, "example": {"body_text": [["123456"]]}})
        elif kind == "FOOTER" and component.get("code_expiration_minutes"):
            minutes = component["code_expiration_minutes"]
            made.append({**component, "type": "FOOTER", "text": f"This code expires in {minutes} minutes."})
        elif kind == "BUTTONS":
            buttons = [
                {
                    "type": "URL",
                    "text": button.get("text") or "Copy code",
                    "url": _OTP_URL.format(button.get("otp_type", "COPY_CODE")),
                    "otp_type": button.get("otp_type", "COPY_CODE"),
                }
                for button in component.get("buttons", ())
            ]
            made.append({"type": "BUTTONS", "buttons": buttons})
        else:
            made.append(component)
    template.components = made
