"""The handset's number as given by a supplier: E.164, or unusable. Pure.

Suppliers write handsets' numbers in international or national form, and indicate which by the type of number (TON),
sometimes wrongly. Their account has a country and a rule for prefixes.

The rule nobody may break: a number is never guessed. 841234567 is a Mozambican number if the account is Mozambique's,
and unusable otherwise: a STOP attributed to somebody else silences a stranger, while its sender keeps getting messages.
"""

from __future__ import annotations

import msgspec

from heliograph.base import phones

#: SMPP 3.4 §5.2.5.
UNKNOWN, INTERNATIONAL, NATIONAL, SUBSCRIBER = 0, 1, 2, 4


class Numbering(msgspec.Struct, frozen=True):
    """How an account writes numbers."""

    #: ISO region of its national numbers; empty: it has none.
    country: str = ""
    #: The prefix that is not part of numbers, and its replacement.
    strip: str = ""
    prepend: str = ""


def e164(address: str, ton: int, numbering: Numbering) -> str | None:
    """The number with `+`; None: not a number, or ambiguous."""
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
    # Its type is unknown: only an unambiguous number is treated as an international one.
    return abroad if abroad is not None and phones.is_valid(abroad) else None
