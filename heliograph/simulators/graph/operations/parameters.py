"""Parameters required by a template, and validation of those in a send.

The order of the checks is Meta's: counts (132000), a button without its parameter (131008), a wrong kind or forbidden
whitespace (132012 up to v22, 132018 from v23 on), a rendered text that is too long (132005).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from heliograph.simulators.graph.objects import Template
from heliograph.simulators.graph.operations.errors import GraphError

_VARIABLE = re.compile(r"\{\{\s*([A-Za-z0-9_]+)\s*\}\}")
_FORBIDDEN = re.compile(r"[\n\r\t]| {5}")
_MEDIA = ("IMAGE", "VIDEO", "DOCUMENT", "LOCATION")
_NAMED_BUTTONS = {"COPY_CODE": "CopyCode", "FLOW": "Flow", "CATALOG": "Catalog"}
#: The buttons whose parameter is an action.
_ACTIONS = ("Flow", "Catalog")
_LONGEST = {"header": 60, "body": 1024}


class Wanted(msgspec.Struct, frozen=True):
    """The parameters that a template's definition requires."""

    #: Part ("header", "body"): its text, and its variables in the order of first appearance.
    texts: dict[str, tuple[str, tuple[str, ...]]]
    #: IMAGE, VIDEO, DOCUMENT or LOCATION; empty if the header is text or there is none.
    media: str
    #: By index, each button that a send has to name (its URL has a variable, it copies a code, or opens a Flow or a
    #: catalog): its type as errors name it.
    buttons: dict[int, str]
    named: bool


def wanted(template: Template) -> Wanted:
    """Read a definition. Stored authentication templates have a URL button, new ones an OTP button: both mean the
    same."""
    texts: dict[str, tuple[str, tuple[str, ...]]] = {}
    media, buttons = "", {}
    for component in template.components:
        kind = str(component.get("type", "")).upper()
        form = str(component.get("format", "TEXT")).upper()
        if kind == "HEADER" and form in _MEDIA:
            media = form
        elif kind in ("HEADER", "BODY"):
            text = component.get("text") or ("*{{1}}*" if template.category == "AUTHENTICATION" else "")
            texts[kind.lower()] = (text, tuple(dict.fromkeys(_VARIABLE.findall(text))))
        elif kind == "BUTTONS":
            for index, button in enumerate(component.get("buttons", ())):
                button_kind = str(button.get("type", "")).upper()
                if button_kind == "OTP" or (button_kind == "URL" and _VARIABLE.search(button.get("url", ""))):
                    buttons[index] = "Url"
                elif button_kind in _NAMED_BUTTONS:
                    buttons[index] = _NAMED_BUTTONS[button_kind]
    return Wanted(texts, media, buttons, template.parameter_format.upper() == "NAMED")


def check(definition: Wanted, components: Any, *, mismatch: int) -> None:
    """Raise the GraphError that Meta would return; `mismatch` is 132012 or 132018, by the API version of the call."""
    given, sub_types = _given(components)
    for part in ("header", "body"):
        parameters = given.get((part, 0), [])
        _, names = definition.texts.get(part, ("", ()))
        if part == "header" and definition.media:
            names = (definition.media,)
        if len(parameters) != len(names):
            raise GraphError(
                132000,
                f"{part}: number of localizable_params ({len(parameters)}) does not match the expected number of "
                f"params ({len(names)})",
            )
    for index, kind in definition.buttons.items():
        # A catalog shows its first product by default, but the button must be named.
        if given.get(("button", index)) is None or not (given["button", index] or kind == "Catalog"):
            raise GraphError(131008, f"buttons: Button at index {index} of type {kind} requires a parameter")
        if kind in _ACTIONS:
            _check_action(index, kind, sub_types[index], given.pop(("button", index)), mismatch)
    for part, index in given:
        if part == "button" and index not in definition.buttons and _texts_in(given[part, index]):
            raise GraphError(132000, f"buttons: Button at index {index} takes no parameter")
    if definition.media:
        _check_media(given["header", 0][0], definition.media, mismatch)
    for (part, index), parameters in given.items():
        if part == "header" and definition.media:
            continue
        for at, parameter in enumerate(parameters):
            _check_text(part, index, at, parameter, definition, mismatch)
    for part, (text, names) in definition.texts.items():
        values = {
            str(one.get("parameter_name") or names[at]): str(one.get("text", ""))
            for at, one in enumerate(given.get((part, 0), []))
        }
        filled = _VARIABLE.sub(lambda found, values=values: values.get(found[1], ""), text)  # type: ignore[misc]
        if len(filled) > _LONGEST[part]:
            raise GraphError(132005, f"{part}: text is {len(filled)} characters long, of {_LONGEST[part]}")


def _given(components: Any) -> tuple[dict[tuple[str, int], list[dict[str, Any]]], dict[int, str]]:
    """The parameters of a send by part and button index, and the kinds of buttons. Meta ignores the case of types, and
    whether an index is a number or a string."""
    given: dict[tuple[str, int], list[dict[str, Any]]] = {}
    sub_types: dict[int, str] = {}
    if components is None:
        return given, sub_types
    if not isinstance(components, list):
        raise GraphError(131009, "template: components is not an array")
    for component in components:
        if not isinstance(component, dict):
            raise GraphError(131009, "template: a component is not an object")
        kind = str(component.get("type", "")).lower()
        if kind not in ("header", "body", "button", "footer", "carousel", "limited_time_offer"):
            raise GraphError(100, f"Invalid parameter: component type {component.get('type')!r}")
        parameters = component.get("parameters") or []
        if not isinstance(parameters, list) or not all(isinstance(one, dict) for one in parameters):
            raise GraphError(131009, f"{kind}: parameters is not an array of objects")
        index = 0
        if kind == "button":
            if not component.get("sub_type"):
                raise GraphError(131008, "buttons: sub_type is required")
            try:
                index = int(component.get("index", 0))
            except (TypeError, ValueError):
                raise GraphError(131009, "buttons: index is not a number") from None
            sub_types[index] = str(component["sub_type"]).upper()
        given[kind, index] = parameters
    return given, sub_types


def _check_action(index: int, kind: str, sub_type: str, parameters: list[dict[str, Any]], mismatch: int) -> None:
    if sub_type != kind.upper():
        raise GraphError(mismatch, f"buttons: Format mismatch at index {index}, expected {kind.upper()}")
    for one in parameters:
        if str(one.get("type", "")).lower() != "action" or not isinstance(one.get("action"), dict):
            raise GraphError(mismatch, f"buttons: Format mismatch at index {index}, expected ACTION")


def _texts_in(parameters: list[dict[str, Any]]) -> bool:
    return any(str(one.get("type", "")).lower() == "text" for one in parameters)


def _check_media(parameter: dict[str, Any], media: str, mismatch: int) -> None:
    kind = str(parameter.get("type", "")).lower()
    if kind != media.lower() or not isinstance(parameter.get(kind), dict):
        raise GraphError(mismatch, f"header: Format mismatch, expected {media}, received {kind.upper() or 'UNKNOWN'}")


def _check_text(part: str, index: int, at: int, parameter: dict[str, Any], definition: Wanted, mismatch: int) -> None:
    kind = str(parameter.get("type", "")).lower()
    if part == "button":
        if kind == "payload" or (kind == "coupon_code" and definition.buttons.get(index) == "CopyCode"):
            return
        if kind != "text":
            raise GraphError(mismatch, f"buttons: Format mismatch at index {index}, expected TEXT")
    elif kind in ("currency", "date_time"):
        return
    elif kind != "text":
        raise GraphError(mismatch, f"{part}: Format mismatch, expected TEXT, received {kind.upper() or 'UNKNOWN'}")
    elif definition.named:
        names = definition.texts[part][1]
        if not parameter.get("parameter_name"):
            raise GraphError(100, "Parameter name is missing or empty")
        if parameter["parameter_name"] not in names:
            raise GraphError(mismatch, f"{part}: parameter {parameter['parameter_name']!r} is not in the template")
    elif parameter.get("parameter_name"):
        raise GraphError(mismatch, f"{part}: the template has positional parameters")
    text = parameter.get("text")
    where = f"{part}: text of parameter {at + 1}" if part != "button" else f"buttons: text at index {index}"
    if not isinstance(text, str) or not text:
        raise GraphError(131008, f"{where} is required")
    if _FORBIDDEN.search(text):
        raise GraphError(mismatch, f"{where} has a new-line, a tab or more than 4 consecutive spaces")
