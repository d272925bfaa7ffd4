"""Drafts a price list from a supplier's rate card, with a markup or margin, in another currency if needed.

The rule nobody may break: exact fractions until the end, then rounded once, half-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

import msgspec

from heliograph.base.errors import Invalid
from heliograph.base.money import MOST_PRICE
from heliograph.prices.tariff import Rate

# An exponent of nine digits, which a Fraction takes, is a number of a billion digits.
_number = re.compile(r"[+-]?(?:[0-9]{1,32}(?:\.[0-9]{0,32})?|\.[0-9]{1,32})", re.ASCII).fullmatch


def number(text: str) -> Fraction | None:
    """A percentage or an exchange rate, such as "12.5"; None if it is not a decimal number."""
    text = text.strip()
    return Fraction(text) if _number(text) else None


def half_up(amount: Fraction) -> int:
    """The nearest whole number; ties go to the larger one."""
    return (2 * amount.numerator + amount.denominator) // (2 * amount.denominator)


def factor(*, markup: Fraction | None = None, margin: Fraction | None = None) -> Fraction:
    """The factor to multiply a cost by, for a markup on the cost or a margin of the price, in percent. Raises
    Invalid."""
    if markup is not None and margin is not None:
        raise Invalid(("margin", "conflict", "give a markup or a margin, not both"))
    if markup is not None and markup < -100:
        raise Invalid(("markup", "range", "a markup is at least -100 percent"))
    if margin is not None and margin >= 100:
        raise Invalid(("margin", "range", "a margin is less than 100 percent"))
    if margin is not None:
        return 1 / (1 - margin / 100)
    return 1 + (markup or Fraction(0)) / 100


def draft(
    rates: Iterable[Rate],
    by: Fraction,
    *,
    exchange: Fraction = Fraction(1),
    currency: str | None = None,
    places: int = 6,
) -> list[Rate]:
    """Rates with their prices multiplied by `by` and by `exchange` (units of `currency` per unit of theirs), rounded
    half-up to `places` decimal places. Raises Invalid if a price would be too large."""
    step = 10 ** (6 - places)
    drafted = []
    for rate in rates:
        price = half_up(rate.price * by * exchange / step) * step
        if price > MOST_PRICE:
            raise Invalid(("exchange", "large", "a price would be more than a million"))
        drafted.append(msgspec.structs.replace(rate, price=price, currency=currency or rate.currency, id=None))
    return drafted
