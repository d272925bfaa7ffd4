"""Splits a text into the segments that networks count, bill and carry. Pure.

The rule nobody may break: their number follows from the text and its encoding alone, so that the count at acceptance is
the count that is sent, no matter where and when the text is cut.
"""

from __future__ import annotations

from collections import OrderedDict

from heliograph.suppliers.alphabets import cutting, gsm7


class References:
    """Reference numbers, 16 bits, by which handsets join the segments of long messages. They count up per sender and
    recipient, since two long messages to one handset must not share one (random 8-bit ones collide once in 256)."""

    def __init__(self, most: int) -> None:
        """`most`: number of pairs to remember."""
        self._last: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._most = most

    def next(self, pair: tuple[str, str], first: int) -> int:
        """The reference of a message; `first`: the number before a new pair's first one."""
        reference = (self._last.pop(pair, first) + 1) & 0xFFFF
        self._last[pair] = reference
        if len(self._last) > self._most:
            self._last.popitem(last=False)
        return reference


def of(text: str, encoding: str) -> tuple[bytes, ...]:
    """Unpacked septets ("gsm7") or UTF-16BE ("ucs2") of each segment, without any header. Raises ValueError for a text
    that the encoding cannot express."""
    if encoding != "gsm7":
        return of_units(text.encode("utf-16-be"))
    coded = gsm7.octets(text)
    if coded is None:
        raise ValueError("the text is not in the GSM alphabet")
    return of_septets(gsm7.septets_of(coded))


def of_septets(septets: bytes, header: int = 6) -> tuple[bytes, ...]:
    """Unpacked septets, cut if they need more than one segment, each then with a header of `header` octets."""
    return (septets,) if len(septets) <= 160 else cutting.cut_septets(septets, cutting.septets_in(header))


def of_units(units: bytes, header: int = 6) -> tuple[bytes, ...]:
    """The same for UTF-16BE."""
    return (units,) if len(units) <= 140 else cutting.cut_units(units, cutting.units_in(header))
