"""Parses what operators type, numbers, dates and the names of organizations, and puts rules' refusals into the words of
their forms."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from heliograph.accounts import organizations
from heliograph.accounts.organizations import Organization
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.pages import words
from heliograph.pages.forms import figures

AMOUNT = "Enter a number of messages, such as 50000."
#: What is wrong with a form about an organization: by field, or by field and issue.
WRONG: Mapping[str | tuple[str, str], str] = {
    ("name", "length"): "A name must have 1 to 200 characters.",
    ("name", "pattern"): "A name must not contain control characters.",
    ("name", "taken"): "Another organization has this name.",
    ("country", "enum"): "Enter a two-letter country code, such as MZ.",
    ("plan", "length"): "The name of a plan must have 1 to 100 characters.",
    ("plan", "pattern"): "A name must not contain control characters.",
    **dict.fromkeys((("months", "range"), ("months", "format")), "A period must have 1 to 120 months."),
    ("allowance", "range"): AMOUNT,
    ("above", "range"): AMOUNT,
    **dict.fromkeys((("segments", "range"), ("segments", "format")), "Enter a whole number of segments, 1 or more."),
    ("amount", "range"): "Enter a number of messages other than 0.",
    ("reason", "length"): "Give a reason of at most 500 characters: the organization can read it.",
    "value": words.SENDER_FORM["value"],
}


async def organization(conn: Connection, text: str) -> Organization:
    """The organization with this name or id; if it is empty, the only one there is. Raises Invalid."""
    try:
        return await organizations.find(conn, reference=text or None)
    except (NotFound, Invalid):
        if text:
            raise Invalid(("organization", "unknown", "There is no organization with this name or id.")) from None
        raise Invalid(("organization", "required", "Choose an organization, by its name or id.")) from None


def amount(text: str, field: str, *, is_signed: bool = False) -> int | None:
    """A number of messages; None if empty. Raises Invalid."""
    wrong = Invalid((field, "format", AMOUNT))
    return figures.whole(text, wrong, is_signed=is_signed)


def within(text: str, field: str, bounds: tuple[int, int], said: str) -> int | None:
    """A number within `bounds`, inclusive; None if empty. Raises Invalid with the text `said`."""
    return figures.within(text, Invalid((field, "range", said)), least=bounds[0], most=bounds[1])


def day(field: str, text: str) -> date | None:
    """A date; None if empty. Raises Invalid."""
    try:
        found = date.fromisoformat(text) if text else None
        if found is not None and not 2000 <= found.year < 3000:
            raise ValueError(text)
    except ValueError:
        raise Invalid((field, "format", "Enter a day as 2027-01-31.")) from None
    return found
