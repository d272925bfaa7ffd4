"""Bodies of `POST /{number}/messages`: a text reply, a filled template. Pure.

A template's definition, as listed by Graph, is turned into a `TemplateLayout` once; the layout knows how many values
the template takes, what is wrong with given values, and where each of them goes. The public API has one list of values
per template, in this order: the header's variable, the body's variables, then one suffix for each URL button that ends
in a variable. An authentication template takes one value, the code, which goes into the body and the button. Buttons
that open a Flow or a catalog take none, but a send must still name them.

The rule nobody may break: a value that Meta would refuse is refused here, before anything is reserved or sent, and
every body carries our own id, because nothing else identifies a message whose answer was lost.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

#: Maximum characters of a filled body and header text; of a text reply; of a one-time code; of a whole URL.
BODY_LIMIT = 1_024
HEADER_LIMIT = 60
TEXT_LIMIT = 4_096
CODE_LIMIT = 15
URL_LIMIT = 2_000

_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
#: Refused in a parameter: line breaks, tabs and other control characters, and more than four spaces in a row.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]| {5,}")
_LINK = re.compile(r"(?i)https?:|www\.|[a-z0-9-]\.[a-z]{2,}")
#: A business-scoped user id: country, then up to 128 letters and digits; the parent form has `ENT.` in between.
USER_ID = r"[A-Z]{2}\.(?:ENT\.)?[A-Za-z0-9]{1,128}"
_USER_ID = re.compile(USER_ID)

#: Parts and buttons that need no values from a send, or only those filled in here. All others need, or may need, values
#: for which the public API has no field: Meta adds new ones.
_PARTS = frozenset({"HEADER", "BODY", "FOOTER", "BUTTONS"})
_PLAIN_BUTTONS = frozenset({"URL", "QUICK_REPLY", "PHONE_NUMBER", "VOICE_CALL", "REQUEST_CONTACT_INFO"})
#: Buttons that a send must name, although it passes nothing for them but a token.
_ACTIONS = {"FLOW": "flow", "CATALOG": "catalog"}
#: The kinds that cannot be filled and whose names customers are shown.
_NAMED_KINDS = frozenset(
    {
        *("IMAGE", "VIDEO", "DOCUMENT", "LOCATION", "CAROUSEL", "LIMITED_TIME_OFFER", "COPY_CODE", "MPM", "SPM"),
        *("ORDER_DETAILS", "OTP", "CALL_PERMISSION_REQUEST"),
    }
)
#: `flow_token` if there is none to pass: Meta's own default.
NO_TOKEN = "unused"  # noqa: S105  no secret


class Problem(msgspec.Struct, frozen=True):
    """A problem with given values. `index`: which value, from 0; None: their number, or the template."""

    index: int | None
    text: str


class UrlButton(msgspec.Struct, frozen=True):
    """A button whose URL ends in a variable. `index` counts all buttons of the template, from 0."""

    index: int
    url: str


class ActionButton(msgspec.Struct, frozen=True):
    """A button that opens a Flow or a catalog. `index` counts all buttons of the template, from 0."""

    index: int
    #: flow or catalog.
    kind: str


class TemplateLayout(msgspec.Struct, frozen=True):
    """Where values go in one template."""

    named: bool
    authentication: bool
    header: str | None
    #: Names of the header's variables; Meta allows at most one.
    header_variables: tuple[str, ...]
    body: str
    body_variables: tuple[str, ...]
    buttons: tuple[UrlButton, ...]
    actions: tuple[ActionButton, ...] = ()
    #: Why texts alone cannot fill it, such as "its header is of the kind image"; empty: they can.
    unsupported: str = ""

    @property
    def parameter_count(self) -> int:
        """The number of values it takes."""
        if self.authentication:
            return 1
        return len(self.header_variables) + len(self.body_variables) + len(self.buttons)

    @property
    def body_preview(self) -> str:
        """The body with its variables as Meta shows them."""
        return self.body

    def check(self, parameters: Sequence[str]) -> list[Problem]:
        """The values that Meta would refuse; empty: none that can be detected here."""
        if self.unsupported:
            return [Problem(None, f"the template cannot be sent: {self.unsupported}")]
        if len(parameters) != self.parameter_count:
            return [Problem(None, f"the template takes {self.parameter_count} parameters, not {len(parameters)}")]
        problems: list[Problem] = []
        if self.authentication or not _are_plain(parameters):
            problems = [
                Problem(index, text)
                for index, value in enumerate(parameters)
                for text in _wrong(value, self.authentication)
            ]
            if problems or self.authentication:
                return problems
        header, body, suffixes = self._split(parameters)
        if self.header is not None and _is_longer(HEADER_LIMIT, self.header, self.header_variables, header):
            problems.append(Problem(0, f"the header would have more than {HEADER_LIMIT} characters"))
        if _is_longer(BODY_LIMIT, self.body, self.body_variables, body):
            problems.append(Problem(None, f"the body would have more than {BODY_LIMIT} characters"))
        first = len(header) + len(body)
        for n, (button, suffix) in enumerate(zip(self.buttons, suffixes, strict=True)):
            if len(_VARIABLE.sub("", button.url)) + len(suffix) > URL_LIMIT:
                problems.append(Problem(first + n, f"the button's URL would have more than {URL_LIMIT} characters"))
        return problems

    def components(self, parameters: Sequence[str], *, token: str = NO_TOKEN) -> list[dict[str, Any]]:
        """`template.components` of a send. `parameters` have passed `check`; `token` is returned with what the user
        enters in a Flow."""
        if self.authentication:
            code = [_text(parameters[0])]
            # Whatever kind of button the template declares, it is filled like a URL button (Meta's own rule).
            return [{"type": "body", "parameters": code}, _button(0, parameters[0])]
        header, body, suffixes = self._split(parameters)
        components: list[dict[str, Any]] = []
        if header:
            components.append({"type": "header", "parameters": self._texts(self.header_variables, header)})
        if body:
            components.append({"type": "body", "parameters": self._texts(self.body_variables, body)})
        components += [_button(button.index, suffix) for button, suffix in zip(self.buttons, suffixes, strict=True)]
        components += [_action(button, token) for button in self.actions]
        return components

    def text(self, parameters: Sequence[str]) -> str:
        """The body as the recipient will read it. `parameters` have passed `check`."""
        if self.authentication:
            return _filled(self.body, self.body_variables, [parameters[0]] * len(self.body_variables))
        return _filled(self.body, self.body_variables, self._split(parameters)[1])

    def _split(self, parameters: Sequence[str]) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
        body = len(self.header_variables)
        buttons = body + len(self.body_variables)
        return parameters[:body], parameters[body:buttons], parameters[buttons:]

    def _texts(self, names: Sequence[str], values: Sequence[str]) -> list[dict[str, str]]:
        if not self.named:
            return [_text(value) for value in values]
        return [{**_text(value), "parameter_name": name} for name, value in zip(names, values, strict=True)]


def layout(components: Iterable[Mapping[str, Any]], parameter_format: str | None, category: str) -> TemplateLayout:
    """The layout of a template as Graph lists it (reference: `message_templates`).

    `parameter_format` is POSITIONAL or NAMED in any case; None (older listings): decided by the variables.
    """
    header: str | None = None
    body = ""
    buttons: list[UrlButton] = []
    actions: list[ActionButton] = []
    unsupported = ""
    for component in components:
        kind = _upper(component.get("type"))
        if kind == "HEADER":
            form = _upper(component.get("format")) or "TEXT"
            if form == "TEXT":
                header = str(component.get("text") or "")
            else:
                unsupported = unsupported or f"its header is {_of_kind(form)}"
        elif kind == "BODY":
            body = str(component.get("text") or "")
        elif kind == "BUTTONS":
            for index, button in enumerate(component.get("buttons") or ()):
                of = _upper(button.get("type"))
                url = str(button.get("url") or "")
                if of == "URL" and _VARIABLE.search(url):
                    buttons.append(UrlButton(index, url))
                elif of in _ACTIONS:
                    actions.append(ActionButton(index, _ACTIONS[of]))
                elif of not in _PLAIN_BUTTONS:
                    unsupported = unsupported or f"it has a button {_of_kind(of)}"
        elif kind not in _PARTS:
            unsupported = unsupported or f"it has a part {_of_kind(kind)}"
    authentication = _upper(category) == "AUTHENTICATION"
    everything = _VARIABLE.findall(f"{header or ''} {body}")
    named = _upper(parameter_format) == "NAMED" if parameter_format else not all(map(_is_position, everything))
    return TemplateLayout(
        named=named,
        authentication=authentication,
        header=header,
        header_variables=_variables(header or "", named),
        body=body,
        body_variables=_variables(body, named),
        buttons=() if authentication else tuple(buttons),
        actions=() if authentication else tuple(actions),
        unsupported="" if authentication else unsupported,
    )


def template_body(
    *,
    to: str,
    name: str,
    language: str,
    layout: TemplateLayout,
    parameters: Sequence[str],
    opaque: str,
) -> bytes:
    """A template send. `parameters` have passed `layout.check`; `opaque` is our id, at most 255 characters."""
    template: dict[str, Any] = {"name": name, "language": {"code": language}}
    components = layout.components(parameters, token=opaque)
    if components:
        template["components"] = components
    return msgspec.json.encode({**_start(to, "template", opaque), "template": template})


def text_body(*, to: str, text: str, opaque: str, preview_url: bool = False, quoted: str | None = None) -> bytes:
    """A text reply (1 to TEXT_LIMIT characters) within the service window. `quoted`: wamid of the message it
    answers."""
    body = _start(to, "text", opaque)
    if quoted is not None:
        body["context"] = {"message_id": quoted}
    body["text"] = {"body": text, "preview_url": preview_url}
    return msgspec.json.encode(body)


def is_user_id(recipient: str) -> bool:
    """Whether it is a business-scoped user id such as "MA.13490000000000000001", not a number."""
    return _USER_ID.fullmatch(recipient) is not None


def _start(to: str, kind: str, opaque: str) -> dict[str, Any]:
    body: dict[str, Any] = {"messaging_product": "whatsapp", "recipient_type": "individual"}
    if is_user_id(to):
        body["recipient"] = to
    else:
        # Without the plus, Meta may prepend the calling code of the business.
        body["to"] = to if to.startswith("+") else "+" + to
    body["type"] = kind
    body["biz_opaque_callback_data"] = opaque
    return body


def _text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def _button(index: int, value: str) -> dict[str, Any]:
    return {"type": "button", "sub_type": "url", "index": str(index), "parameters": [_text(value)]}


def _action(button: ActionButton, token: str) -> dict[str, Any]:
    named: dict[str, Any] = {"type": "button", "sub_type": button.kind, "index": str(button.index)}
    if button.kind == "flow":
        named["parameters"] = [{"type": "action", "action": {"flow_token": token}}]
    return named  # a catalog shows its first product by default


def _of_kind(word: str) -> str:
    """Only words known here are shown to a customer."""
    return f"of the kind {word.lower()}" if word in _NAMED_KINDS else "of a kind that is not known here"


def _variables(text: str, named: bool) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_VARIABLE.findall(text)))
    return found if named else tuple(sorted(filter(_is_position, found), key=int))


def _is_position(name: str) -> bool:
    """Whether a variable is a position: not every sign that counts as a digit has a value, and no text is that long."""
    return name.isdecimal() and len(name) < 10


def _filled(text: str, names: Sequence[str], values: Sequence[str]) -> str:
    known = dict(zip(names, values, strict=True))
    return _VARIABLE.sub(lambda found: known.get(found[1], found[0]), text)


def _is_longer(limit: int, text: str, names: Sequence[str], values: Sequence[str]) -> bool:
    """Whether the filled text has more than `limit` characters."""
    # Most would not even if all values were put in place of each variable.
    most = len(text) + text.count("{{") * sum(map(len, values))
    return most > limit and len(_filled(text, names, values)) > limit


def _are_plain(values: Sequence[str]) -> bool:
    """Whether `_wrong` finds nothing in any of them, unless it is a code; true for most, at a fraction of the cost."""
    joined = "".join(values)
    return joined.isprintable() and "     " not in joined and all(map(str.strip, values))


def _wrong(value: str, authentication: bool) -> Iterable[str]:
    if not value.strip():
        yield "must not be empty"
        return
    if _FORBIDDEN.search(value):
        yield "must have no line break, tab or other control character, and no more than four spaces in a row"
    if authentication:
        if len(value) > CODE_LIMIT:
            yield f"a code has {CODE_LIMIT} characters at most"
        if _LINK.search(value):
            yield "a code must not be a link"
        if any(unicodedata.category(sign) in ("So", "Sk", "Cs", "Co", "Cn") for sign in value):
            yield "a code must not have emojis"


def _upper(value: object) -> str:
    return value.upper() if isinstance(value, str) else ""
