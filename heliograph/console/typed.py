"""Numbers and days as operators type them."""

from __future__ import annotations

from datetime import date

from heliograph.base.errors import Invalid

#: Digits of the longest.
LONGEST = 15


def amount(text: str, field: str, *, is_signed: bool = False) -> int | None:
    """A number of messages, with spaces or separators between its digits; None for nothing. Raises Invalid."""
    try:
        return _number(text, is_signed=is_signed)
    except ValueError:
        raise Invalid((field, "format", "Write a number of messages, such as 50000.")) from None


def within(text: str, field: str, bounds: tuple[int, int], said: str) -> int | None:
    """A number from the first to the second of `bounds`, written likewise; None for nothing. Raises Invalid, whose text
    is `said`."""
    least, most = bounds
    try:
        found = _number(text)
        if found is not None and not least <= found <= most:
            raise ValueError(text)
    except ValueError:
        raise Invalid((field, "range", said)) from None
    return found


def day(field: str, text: str) -> date | None:
    """A day; None for nothing. Raises Invalid."""
    try:
        found = date.fromisoformat(text) if text else None
        if found is not None and not 2000 <= found.year < 3000:
            raise ValueError(text)
    except ValueError:
        raise Invalid((field, "format", "Write a day as 2027-01-31.")) from None
    return found


def _number(text: str, *, is_signed: bool = False) -> int | None:
    text = "".join(text.split()).replace(",", "").replace(".", "")
    if not text:
        return None
    digits = text.removeprefix("-").removeprefix("+") if is_signed else text
    if not digits.isdecimal() or not digits.isascii() or len(digits) > LONGEST:
        raise ValueError(text)
    return -int(digits) if text.startswith("-") else int(digits)
