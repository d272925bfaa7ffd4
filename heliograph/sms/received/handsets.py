"""Whose number it is that a supplier wrote beside a message: E.164, or nobody's. Pure.

Suppliers write handsets' numbers with a calling code, or as people at home write them, and say which with the type of
number (TON), or get that wrong. Their account has a country and a rule for what they put in front.

The rule nobody may break: a number is never guessed. 841234567 is a Mozambican where the account is Mozambique's, and
nobody otherwise: a STOP that was taken for somebody else's silences a stranger and leaves the writer to be written to.
"""

from __future__ import annotations

import msgspec

from heliograph.base import phones

#: SMPP 3.4 §5.2.5.
UNKNOWN, INTERNATIONAL, NATIONAL, SUBSCRIBER = 0, 1, 2, 4


class Numbering(msgspec.Struct, frozen=True):
    """How one account writes numbers."""

    #: ISO region of its national numbers; empty: it has none.
    country: str = ""
    #: What stands in front of numbers and is no part of them, and what belongs there instead.
    strip: str = ""
    prepend: str = ""


def e164(address: str, ton: int, numbering: Numbering) -> str | None:
    """The number with `+`; None: no number, or nobody can say whose."""
    if ton not in (UNKNOWN, INTERNATIONAL, NATIONAL, SUBSCRIBER):
        return None
    if numbering.strip and address.startswith(numbering.strip):
        return phones.parse(numbering.prepend + address.removeprefix(numbering.strip))
    if address.startswith(("+", "00")):
        return phones.parse(address.removeprefix("00"))
    if numbering.prepend and not numbering.strip and ton != INTERNATIONAL:
        return phones.parse(numbering.prepend + address)
    abroad = phones.parse(address) if ton != NATIONAL else None
    if ton == INTERNATIONAL and abroad is not None and (not numbering.country or phones.is_valid(abroad)):
        return abroad
    if numbering.country and address.isdecimal():
        home = phones.normalize(address, region=numbering.country)
        if home is not None and (ton == NATIONAL or phones.is_valid(home)):
            return home
    if ton == INTERNATIONAL:
        return abroad
    # It does not say what it is: only what can be nothing else is taken for an international number.
    return abroad if abroad is not None and phones.is_valid(abroad) else None
