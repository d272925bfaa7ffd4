"""A text in segments: what networks count, bill and carry. Pure.

The rule nobody may break: how many there are follows from the text and its encoding alone, so that what is counted when
a message is accepted is what is sent, whoever cuts it and when.
"""

from __future__ import annotations

from heliograph.suppliers.alphabets import cutting, gsm7


def of(text: str, encoding: str) -> tuple[bytes, ...]:
    """Unpacked septets ("gsm7") or UTF-16BE ("ucs2") of each segment, without any header. Raises ValueError for a text
    that cannot be written so."""
    if encoding != "gsm7":
        return of_units(text.encode("utf-16-be"))
    coded = gsm7.octets(text)
    if coded is None:
        raise ValueError("the text is not in the GSM alphabet")
    return of_septets(gsm7.septets_of(coded))


def of_septets(septets: bytes, header: int = 6) -> tuple[bytes, ...]:
    """Unpacked septets, cut where they take more than one segment. `header`: octets of each segment's header then."""
    return (septets,) if len(septets) <= 160 else cutting.cut_septets(septets, cutting.septets_in(header))


def of_units(units: bytes, header: int = 6) -> tuple[bytes, ...]:
    """The same of UTF-16BE."""
    return (units,) if len(units) <= 140 else cutting.cut_units(units, cutting.units_in(header))
