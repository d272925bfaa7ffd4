"""Templates of requests, and places in answers and callbacks: the two halves of a supplier defined by configuration.

A template contains `{{name}}`; each value is escaped as its context requires, so that a customer's text never ends a
string, an element or a field. A place is one of

    /data/0/id        a JSON pointer (RFC 6901)
    form:name         a field of a form's body
    query:name        a parameter of the address
    header:name       a header
    regex:pattern     the first group of a match in the body (RE2: in linear time, whatever the pattern)
    status            the HTTP status
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any
from xml.sax.saxutils import escape

import msgspec
import re2

from heliograph.suppliers.http.kind import FORM, form_of, json_of, query_of, text_in, text_of

_NAME = re.compile(r"\{\{\s*+([a-z_]*+)\s*+\}\}")
#: Memory limit of a pattern, bytes.
_PATTERN_BYTES = 1 << 20


def names_in(template: str) -> set[str]:
    """The names used in a template."""
    return set(_NAME.findall(template))


def split_around(template: str, name: str) -> list[str]:
    """The parts of a template around a name."""
    return re.split(rf"\{{\{{\s*{re.escape(name)}\s*\}}\}}", template)


def fill(template: str, values: Mapping[str, str], kind: str) -> str:
    """A template with its values filled in. `kind`: the media type of the result."""
    escaped = escaping(kind)
    return _NAME.sub(lambda found: escaped(values[found[1]]), template)


def is_json(kind: str) -> bool:
    """Whether a media type is JSON; `text/json` counts too."""
    return "json" in kind


def escaping(kind: str) -> Callable[[str], str]:
    """The escaping function for values in this media type."""
    if kind == FORM:
        return urllib.parse.quote_plus
    if is_json(kind):
        return _in_json
    if kind.endswith("xml"):
        return _in_xml
    return _plain


def escapes(kind: str) -> bool:
    """Whether values are escaped in this media type."""
    return escaping(kind) is not _plain


def in_url(value: str) -> str:
    """A value escaped for an address."""
    return urllib.parse.quote(value, safe="")


def fill_url(template: str, values: Mapping[str, str]) -> str:
    """As `fill`, for an address."""
    return _NAME.sub(lambda found: in_url(values[found[1]]), template)


def fill_header(template: str, values: Mapping[str, str]) -> str:
    """As `fill`, for a header's value: line breaks are removed, so none can end it."""
    return _NAME.sub(lambda found: values[found[1]].translate(_NO_BREAKS), template)


def check_place(place: str) -> None:
    """Check the syntax of a place. Raises ValueError, which says what is wrong."""
    kind, _, rest = place.partition(":")
    if place == "" or place == "status" or (kind in ("form", "query", "header") and rest):
        return
    if kind == "regex":
        pattern(rest)
    elif not place.startswith("/"):
        raise ValueError("must begin with /, form:, query:, header: or regex:, or be status")


@cache
def pattern(text: str) -> Any:
    """A compiled pattern with one group. Raises ValueError."""
    options = re2.Options()
    options.max_mem = _PATTERN_BYTES
    options.log_errors = False
    try:
        compiled = re2.compile(text, options)
    except re2.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    if compiled.groups != 1:
        raise ValueError("must have exactly one group, whose match is the value")
    return compiled


class Found(msgspec.Struct):
    """An HTTP message in which places are looked up."""

    body: bytes
    headers: Mapping[str, str] = {}
    url: str = ""
    status: int = 0
    #: Decoded JSON of `body`, once it was needed; for an item of a list, the item.
    json: Any = msgspec.UNSET
    #: `body` may be only the beginning of what was meant: what its end may have cut in two is not there.
    is_cut: bool = False

    def items(self, place: str) -> list[Found]:
        """One for each item of the list at a place; the whole message if the place is empty."""
        if not place:
            return [self]
        listed = self._pointed(place)
        if not isinstance(listed, list):
            listed = [] if listed is None else [listed]
        return [Found(msgspec.json.encode(one), self.headers, self.url, self.status, one) for one in listed]

    def text(self, place: str) -> str:
        """The text at a place; empty if there is none."""
        kind, _, rest = place.partition(":")
        if not place:
            return ""
        if place == "status":
            return str(self.status)
        if place.startswith("/"):
            value = self._pointed(place)
            return str(value).lower() if isinstance(value, bool) else text_of(value)
        if kind == "header":
            return self.headers.get(rest.lower(), "")
        if kind == "regex":
            body = text_in(self.body)
            match = pattern(rest).search(body)
            return "" if match is None or (self.is_cut and match.end(1) == len(body)) else match.group(1) or ""
        if kind == "form":
            form = self.body.rpartition(b"&")[0] if self.is_cut else self.body
            return form_of(form, self.headers.get("content-type", "")).get(rest, "")
        return _query(self.url).get(rest, "")

    def _pointed(self, pointer: str) -> Any:
        if self.json is msgspec.UNSET:
            self.json = json_of(self.body)
            if self.is_cut and isinstance(self.json, int | float):
                self.json = None
        value: Any = self.json
        for step in pointer.split("/")[1:] if pointer != "/" else ():
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list):
                value = value[int(step)] if step.isdecimal() and int(step) < len(value) else None
            else:
                value = value.get(step) if isinstance(value, dict) else None
        return value


@lru_cache(maxsize=1)
def _query(url: str) -> Mapping[str, str]:
    """The parameters of an address; all items of a list have the same."""
    return query_of(url)


_NO_BREAKS = str.maketrans("", "", "\r\n\0")


def _in_json(value: str) -> str:
    return msgspec.json.encode(value).decode()[1:-1]


def _in_xml(value: str) -> str:
    # Characters that XML cannot contain at all (XML 1.0 §2.2) are left out.
    return escape(
        "".join(one for one in value if (one >= " " and one not in "\ufffe\uffff") or one in "\t\n\r"),
        {'"': "&quot;", "'": "&apos;"},
    )


def _plain(value: str) -> str:
    return value
