"""Interpreting what suppliers deliver from handsets: numbers, in E.164 or unusable, and the octets of texts.

Suppliers write handsets' numbers in international or national form, and indicate which by the type of number (TON),
sometimes wrongly. Their account has a country and a rule for prefixes.

The rule nobody may break: a number is never guessed. 841234567 is a Mozambican number if the account is Mozambique's,
and unusable otherwise: a STOP attributed to somebody else silences a stranger, while its sender keeps getting messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import asyncpg
import msgspec

from heliograph.base import phones
from heliograph.suppliers import kinds

#: SMPP 3.4 §5.2.5.
UNKNOWN, INTERNATIONAL, NATIONAL, NETWORK, SUBSCRIBER, ALPHANUMERIC, ABBREVIATED = range(7)


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
        # Mostly a short code or a name, but some suppliers mark every sender so, or with a number that means nothing
        # here (0x91 is an international number to handsets): what is a whole number of the account's country can be
        # nothing else.
        whole = phones.parse(address)
        is_home = whole is not None and phones.country(whole) == numbering.country and phones.is_valid(whole)
        return whole if is_home else None
    if numbering.strip and address.startswith(numbering.strip):
        home = phones.parse(numbering.prepend + address.removeprefix(numbering.strip))
        # With a single 0 to remove, a number from abroad may begin with two.
        if not address.startswith("00") or (home is not None and phones.normalize(home) is not None):
            return home
    if address.startswith(("+", "00")):
        return phones.parse(address.removeprefix("00"))
    if numbering.prepend and not numbering.strip and ton != INTERNATIONAL:
        home = phones.parse(numbering.prepend + address)
        # It may have its calling code already, or one from abroad: then there is no number of that length.
        if home is None or phones.normalize(home) is not None:
            return home
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


EVERY_SUPPLIER = """
SELECT id, kind, settings::text AS settings, coalesce((settings->>'handles_stop')::boolean, false) AS answers,
       coalesce(settings->>'country', '') AS country, coalesce(settings->>'inbound_strip', '') AS strip,
       coalesce(settings->>'inbound_prepend', '') AS prepend
  FROM suppliers
"""
SUPPLIERS = f"{EVERY_SUPPLIER} WHERE id = ANY ($1)"


def sender_of(address: str, ton: int, supplier: asyncpg.Record | None) -> str | None:
    """A handset's number in E.164, as far as it is certain. `supplier`: a row of SUPPLIERS; None: it is gone."""
    return e164(address, ton, _numbering(supplier))


def called(recipient: str, ton: int, supplier: asyncpg.Record | None) -> list[str]:
    """The forms that our number may have as a sender ID: as written by the supplier (a row of SUPPLIERS), and in
    full."""
    whole = e164(recipient, ton, _numbering(supplier))
    written = recipient.lower().removeprefix("+").removeprefix("00")
    return [written, *([whole[1:]] if whole else [])]


def reading(supplier: asyncpg.Record | None) -> Callable[[bytes, str], str | None]:
    """The function that decodes octets from a supplier (a row of SUPPLIERS). One that no longer exists is assumed to
    have used SMPP, if the octets have a form."""
    if supplier is None:
        return partial(kinds.read, kinds.SMPP, {})
    return partial(kinds.read, supplier["kind"], msgspec.json.decode(supplier["settings"]))


def _numbering(supplier: asyncpg.Record | None) -> Numbering:
    return Numbering(supplier["country"], supplier["strip"], supplier["prepend"]) if supplier else Numbering()
