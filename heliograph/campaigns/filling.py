"""Filling the parameters of a template: columns of a contact, or the same text for everybody.

The rule nobody may break: a value goes in as it is, once. A contact's value is never interpreted, so nobody's name can
be a column or a command.
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
#: Parameters of a template, and characters of one value.
MOST, LONGEST = 50, 1_024
#: Prefix of a fixed text, in place of a column's name.
TEXT = "text:"


class Filling(msgspec.Struct, frozen=True, omit_defaults=True):
    """The source of one parameter's value: a column or a text."""

    column: str | None = None
    #: For recipients without a value in the column.
    default: str | None = None
    text: str | None = None


def parse(written: Sequence[str], defaults: Mapping[str, str]) -> list[Filling]:
    """Fillings as people write them: a column's name, or `text:` and the text.

    `defaults`: by column. Raises Invalid for what is neither, and for a default of a column that fills nothing.
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
    """Fillings as they are stored: a JSON array."""
    return msgspec.json.decode(stored, type=tuple[Filling, ...])


def written(stored: str) -> list[str]:
    """The stored form as people write it, with the default after it: `first_name (customer)`."""
    return [
        f"{TEXT}{one.text}" if one.column is None else f"{one.column} ({one.default})" if one.default else one.column
        for one in read(stored)
    ]


def check(template: TemplateLayout, parameters: Sequence[Filling]) -> None:
    """Raises Invalid for a text or a default that the template would refuse for every recipient."""
    if len(parameters) > MOST:
        raise Invalid(("param", "count", f"there may be at most {MOST} parameters"))
    for given in ([one.text for one in parameters], [one.default for one in parameters]):
        # Where nothing is given, the shortest value is used: what is wrong then is wrong with any.
        values = ["x" if value is None else value.strip() for value in given]
        for place, value in enumerate(values, 1):
            if len(value) > LONGEST or "\0" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
                raise Invalid(("param", "length", f"parameter {place} must have at most {LONGEST} characters"))
        for problem in template.check(values):
            where = "the template" if problem.index is None else f"parameter {problem.index + 1}"
            raise Invalid(("param", "refused", f"{where}: {problem.text}"))


class _Source(NamedTuple):
    """A place in `audience.Recipient`, or None with a text."""

    place: int | None
    text: str


def filler(parameters: Sequence[Filling]) -> Callable[[Recipient], tuple[str, ...]]:
    """A function that says a recipient's values, without spaces around them; empty where there is none."""
    sources = [
        _Source(COLUMNS.index(one.column) if one.column else None, (one.text or one.default or "").strip())
        for one in parameters
    ]

    def fill(recipient: Recipient) -> tuple[str, ...]:
        return tuple(text if place is None else str(recipient[place] or "").strip() or text for place, text in sources)

    return fill


def judge(template: TemplateLayout, parameters: Sequence[Filling]) -> Callable[[tuple[str, ...]], bool]:
    """A function that says whether the template takes these values, which `filler` made."""

    def takes(values: Sequence[str]) -> bool:
        return not any(len(value) > LONGEST for value in values) and not template.check(values)

    if any(one.column for one in parameters):
        return takes
    same = takes([(one.text or "").strip() for one in parameters])
    return lambda values: same
