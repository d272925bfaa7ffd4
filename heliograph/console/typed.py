"""Parses numbers and dates typed by operators."""

from __future__ import annotations

from datetime import date

from heliograph.base.errors import Invalid
from heliograph.pages.forms import figures


def amount(text: str, field: str, *, is_signed: bool = False) -> int | None:
    """A number of messages; None if empty. Raises Invalid."""
    wrong = Invalid((field, "format", "Write a number of messages, such as 50000."))
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
        raise Invalid((field, "format", "Write a day as 2027-01-31.")) from None
    return found
