"""Suppliers' settings as fields of a form, derived from the typed struct of each kind, and typed values as settings.

A field shows the value in effect; emptying it restores the default. The rule nobody may break: passwords are not fields
here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from heliograph.base.errors import Invalid, Problems
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.management import options
from heliograph.suppliers import kinds

Control = Literal["text", "number", "choice", "switch", "lines", "entries"]
#: Settings whose text may have several lines.
LONG = frozenset({"body", "item", "reply"})
#: Its entries are also read as HTTP has them, since they are copied from a supplier's documentation. No header's name
#: contains `:` or `=`.
HEADERS = "headers"
#: Settings of the connection, besides those that begin with `tls`; a new account asks for these first.
CONNECTION = frozenset({"host", "port", "base_url", "system_id", "system_type", "address_range", "bind"})


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One setting."""

    name: str
    #: In English.
    meaning: str
    control: Control
    #: "connection", "limits", "times" or "protocol".
    group: str
    choices: tuple[str, ...] = ()
    #: In the form in which it would be typed.
    default: str = ""
    is_required: bool = False


def fields(kind: str) -> list[Field]:
    """All settings of a kind, in the order of its struct."""
    known, defaults = options.fields(kind), options.effective(kind, {})
    found = []
    for one in kinds.fields(kind):
        of, meaning = known[one.name]
        control, choices = _control(one.name, of)
        required = one.default is msgspec.NODEFAULT and one.default_factory is msgspec.NODEFAULT
        found.append(
            Field(
                name=one.name,
                meaning=meaning,
                control=control,
                group=_group(one.name, is_required=required),
                choices=choices,
                default=_typed(one.name, defaults[one.name]),
                is_required=required,
            )
        )
    return found


def shown(kind: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The value shown in each field."""
    return {name: _typed(name, value) for name, value in options.effective(kind, settings).items()}


def read(kind: str, settings: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """The settings after applying typed values; a field that was not sent stays as it is. Raises Invalid with all
    errors."""
    after, before = dict(settings), shown(kind, settings)
    wrong = Problems()
    for name, (of, _) in options.fields(kind).items():
        text = given.get(name)
        if text is None or (text := text.replace("\r\n", "\n")) == before[name]:
            continue
        with wrong.gathering():
            if options.is_mapping(of):
                after.pop(name, None)
                if entries := _entries(name, text):
                    after[name] = entries
            else:
                options.apply(after, f"{name}={text if of is str else text.strip()}", kind)
    wrong.report()
    options.check(kind, after)
    return after


#: Columns of a supplier besides its settings.
ROW = ("name", "prefixes", "priority", "weight", "sessions", "parts", "simulated")


def shown_row(one: Supplier) -> dict[str, str]:
    """The values shown in the fields for a supplier's columns."""
    return {name: options.written(getattr(one, name)) for name in ROW}


def changed(before: Supplier, given: Mapping[str, str]) -> Supplier:
    """The supplier after applying typed values. Raises Invalid with all errors."""
    now = shown_row(before)
    wrong, after = Problems(), before
    try:
        # Fields of settings have a prefix, since some have the same names as columns.
        settings = {name.removeprefix(OPTION): text for name, text in given.items() if name.startswith(OPTION)}
        after = msgspec.structs.replace(after, settings=read(before.kind, before.settings, settings))
    except Invalid as refusal:
        for one in refusal.details["fields"]:
            wrong.add(OPTION + one["field"], one["issue"], one["message"])
    pairs = [f"{name}={given[name].strip()}" for name in ROW if name in given and given[name].strip() != now[name]]
    for pair in pairs:
        with wrong.gathering():
            row = options.row_changed(after, pair)
            after = msgspec.structs.replace(after, **msgspec.structs.asdict(row))
    wrong.report()
    return after


#: Prefix of the names of settings in forms that also contain columns: SMPP has a `priority` of its own.
OPTION = "option."


def _control(name: str, of: Any) -> tuple[Control, tuple[str, ...]]:
    if of is bool:
        return "switch", ()
    if options.is_mapping(of):
        return "entries", ()
    if get_origin(of) is Literal:
        return "choice", get_args(of)
    if get_origin(of) in (Union, UnionType):
        literal = next((one for one in get_args(of) if get_origin(one) is Literal), None)
        if literal is not None:
            return "choice", ("", *get_args(literal))
    if of in (int, float):
        return "number", ()
    return ("lines" if name in LONG else "text"), ()


def _group(name: str, *, is_required: bool) -> str:
    if is_required or name in CONNECTION or name.startswith("tls"):
        return "connection"
    if name.endswith("_seconds") and name != "validity_seconds":
        return "times"
    if name == "window" or name.endswith("_per_second"):
        return "limits"
    return "protocol"


def _typed(name: str, value: Any) -> str:
    """A value as it would be typed: one entry per line."""
    if isinstance(value, dict):
        between = ": " if name == HEADERS else "="
        return "\n".join(f"{entry}{between}{one}" for entry, one in value.items())
    return options.written(value)


def _entries(name: str, text: str) -> dict[str, str]:
    found = {}
    for line in filter(str.strip, text.split("\n")):
        ends = re.search("[:=]" if name == HEADERS else "=", line)
        entry = line[: ends.start()].strip() if ends else ""
        if ends is None or not entry:
            if name == HEADERS:
                raise Invalid((name, "format", "Enter one header per line, as NAME: VALUE."))
            raise Invalid((name, "format", "Enter one entry per line, as NAME=VALUE."))
        found[entry] = line[ends.end() :].strip()
    return found
