"""Parses numbers and amounts of money as people type them, in any locale: "1 500", "1.500", "1,500", "12,50".

The rule nobody may break: ambiguous input is refused, never interpreted in the likelier way. A number of messages has
no decimals, so in "1.500" the point can only separate thousands, and "1.5" is invalid; as an amount of money, "1.500"
could be either.
"""

from __future__ import annotations

import re

from heliograph.base.errors import Invalid
from heliograph.base.money import decimal, micros
from heliograph.base.sentences import said

#: Maximum digits of a number.
LONGEST = 15
#: Spaces of any width and apostrophes can only separate thousands.
_APART = "[ \u00a0\u2007\u2009\u202f'’]"
_WHOLE = re.compile(rf"[0-9]{{1,{LONGEST}}}|(?!0)[0-9]{{1,3}}(?:{_APART}[0-9]{{3}})+")
#: Grouped by a single kind of separator.
_GROUPED = re.compile(r"(?!0)[0-9]{1,3}(?:([.,])[0-9]{3})(?:\1[0-9]{3})*")


def whole(text: str, wrong: Invalid, *, is_signed: bool = False) -> int | None:
    """A whole number; None for an empty text. Raises `wrong`."""
    text = text.strip()
    if not text:
        return None
    sign, digits = _signed(text) if is_signed else ("", text)
    if not (_WHOLE.fullmatch(digits) or _GROUPED.fullmatch(digits)):
        raise wrong
    found = int(re.sub(r"[^0-9]", "", digits))
    if found >= 10**LONGEST:
        raise wrong
    return -found if sign == "-" else found


def within(text: str, wrong: Invalid, *, least: int = 0, most: int) -> int | None:
    """A whole number from `least` to `most`; None for an empty text. Raises `wrong`."""
    found = whole(text, wrong)
    if found is not None and not least <= found <= most:
        raise wrong
    return found


def money(text: str, wrong: Invalid) -> int | None:
    """An amount in millionths; None for an empty text. Raises `wrong`, or an Invalid that names both readings."""
    text = text.strip()
    if not text:
        return None
    sign, digits = _signed(text)
    found = micros(sign + _plain(digits, wrong))
    if found is None:
        raise wrong
    return found


def written(amount: int) -> str:
    """Millionths in the form that `money` parses."""
    text = decimal(amount).rstrip("0").rstrip(".")
    return f"{text}0" if len(text.partition(".")[2]) == 3 else text


def _plain(digits: str, wrong: Invalid) -> str:
    """The number with a point before decimals, and no other separators."""
    if _WHOLE.fullmatch(digits):
        return _digits(digits)
    if (grouped := _GROUPED.fullmatch(digits)) is not None:
        if digits.count(grouped[1]) == 1:
            field = wrong.details["fields"][0]["field"]
            both = {"whole": _digits(digits), "fraction": f"{digits}0"}
            raise Invalid(
                (field, "ambiguous", said("This can be read in two ways. Write %(whole)s or %(fraction)s.", **both))
            )
        return _digits(digits)
    at = max(digits.rfind("."), digits.rfind(","))
    if at < 0:
        raise wrong
    before, after = digits[:at], digits[at + 1 :]
    groups = _GROUPED.fullmatch(before)
    is_certain = _WHOLE.fullmatch(before) or (groups is not None and groups[1] != digits[at])
    if not is_certain or not re.fullmatch("[0-9]{1,6}", after):
        raise wrong
    return f"{_digits(before)}.{after}"


def _signed(text: str) -> tuple[str, str]:
    return ("-", text[1:]) if text[0] in "-\u2212" else ("", text.removeprefix("+"))


def _digits(text: str) -> str:
    return re.sub("[^0-9]", "", text)
