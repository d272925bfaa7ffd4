"""A text in segments: what networks count, bill and carry. Pure.

The rule nobody may break: how many there are follows from the text and its encoding alone, so that what is counted when
a message is accepted is what is sent, whoever cuts it and when.
"""

from __future__ import annotations

from collections import OrderedDict

from heliograph.suppliers.alphabets import cutting, gsm7


class References:
    """The numbers that handsets join the segments of long messages by, 16 bits: they count up per sender and recipient,
    since two long messages to one handset must not share one (drawn at random, 8 bits of them do so once in 256)."""

    def __init__(self, most: int) -> None:
        """`most`: pairs that are remembered."""
        self._last: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._most = most

    def next(self, pair: tuple[str, str], first: int) -> int:
        """That of a message; `first`: before the first of its pair."""
        reference = (self._last.pop(pair, first) + 1) & 0xFFFF
        self._last[pair] = reference
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        return reference


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
