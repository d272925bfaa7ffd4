"""Parses a body into a validated struct, or into a refusal that names the field.

The rule nobody may break: whatever the bytes are, the worst is a 400. What msgspec lets through is refused here:
duplicate names, NUL in texts, nesting deeper than the stack, invalid UTF-8.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import typing
import urllib.parse
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from heliograph.api.door import malformed, wrong_fields
from heliograph.api.door.malformed import distinct_names
from heliograph.api.shapes.fields import COUNTRY, NO_COUNTRY
from heliograph.base.database import clock
from heliograph.base.errors import Invalid, Problems

Read = TypeVar("Read", bound=msgspec.Struct)


class Shape(msgspec.Struct, frozen=True):
    """What refusals need to know about a body or query: allowed values by a field's path, and, by an object's path,
    field names and the name of the field that says which struct of a union it is."""

    words: dict[str, tuple[str, ...]]
    names: dict[str, tuple[str, ...]]
    tags: dict[str, str]


# What msgspec and json raise for bytes that are not JSON. RecursionError is their limit on nesting.
_BROKEN = (msgspec.DecodeError, UnicodeError, RecursionError, ValueError, OverflowError)

# A name in an object ends with a quote and a colon. Texts can hold that too, so this counts at least all names.
_names = re.compile(rb'"[ \t\n\r]*:').findall
_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_anything = msgspec.json.Decoder().decode


def reader(kind: type[Read] | UnionType) -> Callable[[bytes], Read]:
    """A function that decodes bytes into `kind`, or into one of a union of tagged structs.

    It raises only InvalidJson or Invalid.
    """
    decode = msgspec.json.Decoder(kind).decode
    shape = _shape(kind)
    times = _times(kind)
    is_flat = len(shape.names) == 1

    def read(raw: bytes) -> Read:
        try:
            body = decode(raw)
        except msgspec.ValidationError as error:
            _refuse(raw, error, kind)
        except _BROKEN as error:
            _refuse_broken(raw, error)
        # If its objects have as many distinct names as the whole body can have at most, no name is duplicated. (0.5 µs,
        # or 1 with objects inside, and 1 more for a text with colons; the exact check takes 10.)
        names = len(_top(raw)) if is_flat else distinct_names(_anything(raw))
        if raw.count(b":") != names and len(_names(raw)) != names:
            _check_names(raw)
        if b"\\u0000" in raw and (field := _first(msgspec.to_builtins(body), _nul)) is not None:
            raise Invalid((field, "nul", f"`{field}` must not contain NUL"))
        return _in_utc(body, times) if times else body

    return read


def query_reader(kind: type[Read]) -> Callable[[bytes], Read]:
    """A function that decodes a query string into `kind`; it raises only Invalid.

    Parameters are accepted in camelCase, snake_case and kebab-case; unknown ones are ignored. One given twice
    with different values is refused as ambiguous, and an empty one too: the list would hold nothing, or everything.
    """
    names = {_folded(name): name for name in kind.__struct_encode_fields__}
    shape = _shape(kind)
    attributes = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    times = _times(kind)
    required = {field.encode_name for field in msgspec.structs.fields(kind) if field.required}
    encoded_times = {encoded for encoded, attribute in attributes.items() if attribute in times}

    def read(raw: bytes) -> Read:
        values: dict[str, str] = {}
        try:
            pairs = urllib.parse.parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
        except (ValueError, UnicodeError):
            raise Invalid(("query", "format", "The query string is malformed")) from None
        for given, value in pairs:
            name = names.get(_folded(given))
            if name is None:
                continue
            if values.setdefault(name, value) != value:
                raise Invalid((name, "duplicate", f"`{name}` is given twice with different values"))
            if "\0" in value:
                raise Invalid((name, "nul", f"`{name}` must not contain NUL"))
            if not value:
                hint = "" if name in required else ": leave it out"
                raise Invalid((name, "length", f"`{name}` must not be empty{hint}"))
        for name in encoded_times & values.keys():
            values[name] = _with_plus(values[name])
        try:
            query = msgspec.convert(values, kind, strict=False)
        except msgspec.ValidationError as error:
            # In a query everything is text, so its type is not the mistake; and what is absent is left out, not null.
            raise Invalid(_field(str(error).replace(", got `str`", "").replace(" | null`", "`"), shape)) from None
        for name, text in values.items():
            # For fields that are not strings, msgspec converts `null` to None, so that a filter would silently be
            # dropped, a number to a time in seconds since 1970, and 1e2 to an integer.
            value = getattr(query, attributes[name])
            if value is None:
                raise Invalid((name, "type", f"`{name}` cannot be null: leave it out"))
            if isinstance(value, datetime) and not _is_dated(text):
                raise Invalid((name, "format", _a_time(name)))
            if isinstance(value, int) and not _is_whole(text):
                raise Invalid((name, "type", f"`{name}` must be an integer"))
            if name in shape.words and text not in shape.words[name]:
                raise Invalid(_not_one_of(name, shape.words[name]))
        return _in_utc(query, times)

    return read


def one_of(name: str, value: str | None, other: str, alias: str | None) -> str | None:
    """The value of a parameter that has two names. Raises Invalid if they disagree."""
    if value is not None and alias is not None and value != alias:
        raise Invalid((name, "disagrees", f"`{name}` and `{other}` disagree"))
    return value if alias is None else alias


_is_dated = re.compile(r"\d{4}-").match
_is_whole = re.compile(r"-?[0-9]+").fullmatch


#: An unencoded `+` arrives as a space.
_ZONE = re.compile(r" (?=[0-9]{2}:?[0-9]{2}\Z)")


def _with_plus(time: str) -> str:
    return _ZONE.sub("+", time) if len(time) <= 64 else time


@cache
def _times(kind: type[msgspec.Struct] | UnionType) -> Sequence[str]:
    """Fields of a struct that hold a time; unions have none."""
    if isinstance(kind, UnionType):
        return []
    hints = typing.get_type_hints(kind)
    return [name for name in kind.__struct_fields__ if datetime in (hints[name], *typing.get_args(hints[name]))]


def _in_utc(value: Read, names: Sequence[str]) -> Read:
    """Convert times to UTC, so that two spellings of one time are the same filter or payload."""
    for name in names:
        if (at := getattr(value, name)) is not None:
            value = msgspec.structs.replace(value, **{name: clock.in_utc(at)})
    return value


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _refuse(raw: bytes, error: msgspec.ValidationError, kind: type[msgspec.Struct] | UnionType) -> NoReturn:
    """msgspec stops at the first wrong field: parse the rest too, since a body that is not JSON is reported as such."""
    try:
        with contextlib.suppress(msgspec.ValidationError):  # a number out of range is still JSON
            _anything(raw)
        body = malformed.parsed(raw)
    except _BROKEN as broken:
        _refuse_broken(raw, broken)
    wrong = Problems()
    for one in (str(error), *wrong_fields.texts(body, kind)):
        wrong.add(*_field(one, _shape(kind)))
    raise wrong.refusal() from None


_half_escaped = re.compile(rb"\\u[dD][89a-fA-F]").search


def _refuse_broken(raw: bytes, error: Exception) -> NoReturn:
    """What msgspec cannot decode is not JSON, except for an escaped lone surrogate. That is valid JSON but not valid
    text: the field is at fault."""
    if _half_escaped(raw):
        try:
            body = malformed.parsed(raw)
            field = _first(body, _half)
        except _BROKEN as broken:
            raise malformed.refusal(raw, broken) from None
        if field is not None:
            name = _printable(field) or "body"
            raise Invalid((name, "surrogate", f"`{name}` must not contain half of a surrogate pair")) from None
    raise malformed.refusal(raw, error) from None


@cache
def _shape(kind: Any) -> Shape:
    """The Shape of a type, by paths such as `template.category` and `tags[]`."""
    found = Shape({}, {}, {})

    def walk(type: inspect.Type, path: str) -> None:
        below = f"{path}." if path else ""
        match type:
            case inspect.Metadata():
                if words := (type.extra_json_schema or {}).get("enum"):
                    found.words[path] = tuple(words)
                walk(type.type, path)
            case inspect.LiteralType():
                found.words[path] = tuple(map(str, type.values))
            case inspect.ListType():
                walk(type.item_type, path + "[]")
            case inspect.UnionType():
                for one in type.types:
                    walk(one, path)
            case inspect.StructType():
                if type.tag_field is not None:
                    name = below + type.tag_field
                    found.words[name] = (*found.words.get(name, ()), str(type.tag))
                    found.tags[path] = type.tag_field
                found.names[path] = (*found.names.get(path, ()), *(field.encode_name for field in type.fields))
                for field in type.fields:
                    walk(field.type, below + field.encode_name)

    walk(inspect.type_info(kind), "")
    return found


_INDEX = re.compile(r"\[[0-9]*\]")
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<key>key in )?\$?(?P<path>[^`]*)`)?$", re.DOTALL)
#: The first word found in msgspec's message decides; otherwise the issue is the type.
_ISSUES = (
    ("Invalid enum", "enum"),
    ("Invalid", "format"),
    ("timezone", "format"),
    ("multiple", "type"),
    ("length", "length"),
    ("regex", "pattern"),
    (">=", "range"),
    ("<=", "range"),
    ("out of range", "range"),
)
#: msgspec speaks of Python's types; the client knows JSON's.
_JSON = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "datetime": "date-time"}
_PYTHON = re.compile(r"\b(?:str|int|float|bool|datetime)\b")
#: The canonical form of a UUID; in JSON Schema, `format` alone is only a hint.
UUID_FORM = "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"
#: The message for a string that does not match a pattern.
PATTERNS = {
    COUNTRY: NO_COUNTRY,
    r"^[^\x00-\x1f\x7f]*$": "must not contain control characters",
}
#: msgspec's messages for a string that is not a UUID.
_NO_UUID = ("Invalid UUID", f"matching regex {UUID_FORM!r}")
#: Its messages for one that is not a time, has no time zone, or is a number of seconds, in a query, beyond any time.
_NO_TIME = ("Invalid RFC3339", "Expected `datetime` with a timezone", "Timestamp is out of range")
#: Integers are read as floats, since in JSON 60.0 is the same number as 60; that detail is hidden from the client.
_WHOLE = re.compile(r"(?<=[0-9])\.0\b")
_MULTIPLE = "`number` that's a multiple of 1"
#: The forms of its expectations: a type instead of another, a length, a bound.
_TYPE = re.compile(r"Expected `(?P<wanted>[^`]*)`(?:, got `(?P<got>[^`]*)`)?")
_LENGTH = re.compile(r"Expected `(?P<kind>[^`]*)` of length (?P<bound>>=|<=) (?P<count>[0-9]+)")
_BOUND = re.compile(r"Expected `[^`]*` (?P<bound>>=|<=|>|<) (?P<value>\S+)")
_REGEX = re.compile(r"Expected `[^`]*` matching regex '(?P<regex>.*)'", re.DOTALL)
_BOUNDS = {">=": "at least", "<=": "at most", ">": "greater than", "<": "less than"}
#: The unit of a length; for an object, its fields.
_COUNTED = {"string": "character", "array": "item"}
_NAMED = re.compile(r"(?P<missing>missing required|unknown) field `(?P<name>.*)`", re.DOTALL)


def _field(text: str, shape: Shape) -> tuple[str, str, str]:
    """(field, issue, message) from msgspec's message: "Expected `str`, got `int` - at `$.to`"."""
    match = _AT.match(text)
    assert match is not None  # every part of the pattern may be empty
    what, path = match["what"], (match["path"] or "").removeprefix("$").removeprefix(".").replace("[...]", "[]")
    named = _NAMED.search(what)
    if named:
        below = f"{path}." if path else ""
        field = _printable(below + named["name"])
        if named["missing"] == "unknown":
            place = _INDEX.sub("[]", path)
            names = shape.names.get(place, ())
            if named["name"] in names and place in shape.tags:
                return field, "unknown", f"`{field}` does not go with this `{below}{shape.tags[place]}`"
            meant = _meant(named["name"], names)
            hint = f"; did you mean `{below}{meant}`?" if meant else ""
            return field, "unknown", f"`{field}` is not a field of this operation{hint}"
        return field, "required", f"`{field}` is required"
    field = _printable(path) or "body"
    words = shape.words.get(_INDEX.sub("[]", path))
    if words and what.startswith(("Invalid enum", "Invalid value")):
        return _not_one_of(field, words)
    if what.endswith(_NO_UUID):
        return field, "format", f"`{field}` must be a UUID"
    if what.startswith(_NO_TIME):
        return field, "format", _a_time(field)
    for pattern, said in PATTERNS.items():
        if what.endswith(f"matching regex {pattern!r}"):
            return field, "pattern", f"`{field}` {said}"
    issue = next((issue for word, issue in _ISSUES if word in what), "type")
    what = _WHOLE.sub("", _PYTHON.sub(lambda name: _JSON[name[0]], what)).replace(_MULTIPLE, "`integer`")
    return field, issue, f"`{field}` {_said(what)}"


def _said(what: str) -> str:
    """What msgspec expects, as the predicate of a sentence whose subject is the field."""
    if found := _LENGTH.fullmatch(what):
        count, kind = int(found["count"]), found["kind"].split(" | ")[0]
        if found["bound"] == ">=" and count == 1:
            return "must not be empty"
        return f"must have {_BOUNDS[found['bound']]} {count} {_COUNTED.get(kind, 'field')}{'' if count == 1 else 's'}"
    if found := _BOUND.fullmatch(what):
        return f"must be {_BOUNDS[found['bound']]} {found['value']}"
    if found := _REGEX.fullmatch(what):
        return f"must match `{_printable(found['regex'])}`"
    if found := _TYPE.fullmatch(what):
        wanted = " or ".join(map(_with_article, found["wanted"].split(" | ")))
        return f"must be {wanted}" + (f", not {_with_article(found['got'])}" if found["got"] else "")
    return f"is not valid: {_printable(what)}"


def _with_article(kind: str) -> str:
    if kind == "null":
        return kind
    return f"{'an' if kind[:1] in 'aio' else 'a'} {kind}"


def _meant(name: str, names: Sequence[str]) -> str | None:
    """The field probably meant by `name`: one that differs in its spelling convention, or in a letter or two."""
    folded = {_folded(one): one for one in reversed(names)}
    close = difflib.get_close_matches(_folded(name[:128]), folded, n=1, cutoff=0.8)
    return folded[close[0]] if close else None


def _a_time(field: str) -> str:
    return f"`{field}` must be a time with its zone, such as `2026-03-01T12:00:00Z`"


def _not_one_of(field: str, words: tuple[str, ...]) -> tuple[str, str, str]:
    listed = ", ".join(f"`{word}`" for word in words)
    return field, "enum", f"`{field}` must be {'one of ' if len(words) > 1 else ''}{listed}"


def _printable(text: str) -> str:
    """Input that is echoed in a response: shortened, and without control characters."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text[:128])


def _check_names(raw: bytes) -> None:
    try:
        malformed.parsed(raw)
    except _BROKEN as error:
        raise malformed.refusal(raw, error) from None


_half = re.compile("[\ud800-\udfff]").search
_nul = re.compile("\0").search


def _first(value: Any, is_in: Callable[[str], object]) -> str | None:
    """The path of the first text or name that something is in; "" is the body itself.

    Paths are made on the way back: any name, however long, can stand above any number of values.
    """
    if isinstance(value, str):
        return "" if is_in(value) else None
    if isinstance(value, dict):
        for name, part in value.items():
            below = "" if is_in(name) else _first(part, is_in)
            if below is not None:
                return f"{_printable(name)}{'.' if below[:1] not in ('', '[') else ''}{below}"
    elif isinstance(value, list):
        for index, part in enumerate(value):
            below = _first(part, is_in)
            if below is not None:
                return f"[{index}]{'.' if below[:1] not in ('', '[') else ''}{below}"
    return None
