"""Filling the parameters of a template: with columns of a contact, or the same text for everybody.

The rule nobody may break: a value is inserted as is, once. A contact's value is never interpreted, so nobody's name can
act as a column or a command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from heliograph.base.errors import Invalid
from heliograph.campaigns.audience import Recipient
from heliograph.suppliers.whatsapp_cloud.bodies import TemplateLayout

#: The columns of a recipient, in the order of `audience.Recipient`.
COLUMNS = ("phone", "name", "first_name", "last_name")
#: Maximum parameters of a template, and characters of a value.
MOST, LONGEST = 50, 1_024
#: Prefix of a fixed text, in place of a column's name.
TEXT = "text:"


class Filling(msgspec.Struct, frozen=True, omit_defaults=True):
    """The source of one parameter's value: a column or a text."""

    column: str | None = None
    #: Used for recipients without a value in the column.
    default: str | None = None
    text: str | None = None


def parse(written: Sequence[str], defaults: Mapping[str, str]) -> list[Filling]:
    """Parse fillings as people write them: a column's name, or `text:` followed by the text.

    `defaults`: by column. Raises Invalid for anything else, and for a default of an unused column.
    """
    known = f"{', '.join(sorted(COLUMNS))}, or {TEXT}… for a fixed text"
    found = []
    for one in written:
        if one.startswith(TEXT):
            found.append(Filling(text=one.removeprefix(TEXT)))
        elif one in COLUMNS:
            found.append(Filling(column=one, default=defaults.get(one)))
        else:
            raise Invalid(("param", "unknown", f"a parameter must be one of {known}"))
    if unused := defaults.keys() - {one.column for one in found}:
        raise Invalid(("default", "unused", f"no parameter is filled from {min(unused)!r}"))
    return found


def read(stored: str) -> tuple[Filling, ...]:
    """Fillings from their stored form, a JSON array."""
    return msgspec.json.decode(stored, type=tuple[Filling, ...])


def written(stored: str) -> list[str]:
    """Stored fillings as people write them, followed by the default: `first_name (customer)`."""
    return [
        f"{TEXT}{one.text}" if one.column is None else f"{one.column} ({one.default})" if one.default else one.column
        for one in read(stored)
    ]


def places(stored: str) -> tuple[str, ...]:
    """The values of stored fillings for everybody at once: fixed texts, and columns as SMS campaigns write them, such
    as `{{first_name|customer}}`."""
    return tuple(
        one.text or ""
        if one.column is None
        else f"{{{{{one.column}|{one.default}}}}}"
        if one.default
        else f"{{{{{one.column}}}}}"
        for one in read(stored)
    )


def fallbacks(parameters: Sequence[Filling]) -> list[tuple[str, str]]:
    """The distinct columns of parameters, each with its default, in order."""
    return list(dict.fromkeys((one.column, (one.default or "").strip()) for one in parameters if one.column))


def check(template: TemplateLayout, parameters: Sequence[Filling]) -> None:
    """Check fillings. Raises Invalid for a text or default that the template would refuse for every recipient."""
    if len(parameters) > MOST:
        raise Invalid(("param", "count", f"there may be at most {MOST} parameters"))
    for given in ([one.text for one in parameters], [one.default for one in parameters]):
        # Where nothing is given, the shortest value is used: if the template refuses it, it refuses any value.
        values = ["x" if value is None else value.strip() for value in given]
        for place, value in enumerate(values, 1):
            if len(value) > LONGEST or "\0" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
                raise Invalid(("param", "length", f"parameter {place} must have at most {LONGEST} characters"))
        for problem in template.check(values):
            where = "the template" if problem.index is None else f"parameter {problem.index + 1}"
            raise Invalid(("param", "refused", f"{where}: {problem.text}"))


class _Source(NamedTuple):
    """The index of a value in `audience.Recipient`, with its default; or None, with a fixed text."""

    place: int | None
    text: str


def filler(parameters: Sequence[Filling]) -> Callable[[Recipient], tuple[str, ...]]:
    """A function that returns a recipient's values, without surrounding spaces; empty if there is none."""
    sources = [
        _Source(COLUMNS.index(one.column) if one.column else None, (one.text or one.default or "").strip())
        for one in parameters
    ]

    def fill(recipient: Recipient) -> tuple[str, ...]:
        return tuple(text if place is None else str(recipient[place] or "").strip() or text for place, text in sources)

    return fill


def judge(template: TemplateLayout, parameters: Sequence[Filling]) -> Callable[[tuple[str, ...]], bool]:
    """A function that says whether the template accepts values returned by `filler`."""

    def takes(values: Sequence[str]) -> bool:
        return not any(len(value) > LONGEST for value in values) and not template.check(values)

    if any(one.column for one in parameters):
        return takes
    same = takes([(one.text or "").strip() for one in parameters])
    return lambda values: same
