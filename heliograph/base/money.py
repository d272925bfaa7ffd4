"""Money: integer millionths internally, decimal strings with six places externally. Never a float."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from heliograph.base.sentences import Sentence, said

#: Millionths of one unit of currency.
UNIT = 1_000_000
#: The largest amount, in millionths: a billion units. Sums of nine thousand of them fit a bigint.
MOST = 10**9 * UNIT
#: The largest price of a segment or a message: a million units. Sums over 900,000 of the longest messages, of ten
#: segments, fit a bigint; an overflowing sum could never be updated again.
MOST_PRICE = 10**6 * UNIT

_amount = re.compile(r"(-?)([0-9]{1,15})(?:\.([0-9]{1,6}))?", re.ASCII).fullmatch
_currency = re.compile(r"[A-Z]{3}", re.ASCII).fullmatch


def micros(text: str) -> int | None:
    """Millionths of "12", "-0.5", "3.250000"; None if it is not a decimal number, has more places or is too large."""
    match = _amount(text.strip())
    if match is None:
        return None
    amount = int(match[2]) * UNIT + int((match[3] or "").ljust(6, "0"))
    if amount > MOST:
        return None
    return -amount if match[1] else amount


def price_in(text: str, *, given: str = "") -> int | Sentence:
    """A price in millionths, or what is wrong with it. `given`: its spelling in the file, if that is another one."""
    price = micros(text)
    if price is None or price < 0:
        return said("price %(value)s is not a number with at most six decimal places", value=repr(given or text))
    if price > MOST_PRICE:
        return said("price %(value)s is more than a million", value=repr(given or text))
    return price


def decimal(amount: int) -> str:
    """Millionths as "12.000000"."""
    whole, rest = divmod(abs(amount), UNIT)
    return f"{'-' if amount < 0 else ''}{whole}.{rest:06d}"


def half_up(amount: int, places: int) -> int:
    """Millionths rounded to `places` decimal places (0 to 6); ties round up."""
    step = int(10 ** (6 - places))
    return (2 * amount + step) // (2 * step) * step


def is_currency(text: str) -> bool:
    """Whether it has the form of an ISO 4217 code: "EUR"."""
    return _currency(text) is not None


class Charge(msgspec.Struct, frozen=True, gc=False):
    """The charge for one message."""

    #: Millionths of `currency`, for all its segments.
    amount: int
    currency: str
    #: "submit": due when a supplier accepts it; "delivered": only when it is delivered.
    due: str


def charge_of(amount: int | None, currency: str | None, due: str | None) -> Charge | None:
    """The charge in three columns; the inverse of `columns`."""
    return None if amount is None or currency is None or due is None else Charge(amount, currency, due)


def columns(charges: Sequence[Charge | None]) -> tuple[list[Any] | None, ...]:
    """Amounts, currencies and due events as arrays for SQL; three times None if nothing is charged: arrays of NULLs
    would cost as much as others."""
    if not any(charges):
        return None, None, None
    return tuple(
        [None if one is None else getattr(one, name) for one in charges] for name in ("amount", "currency", "due")
    )
