"""Cuts a long text into segments. Pure.

The rule nobody may break: the number of segments follows from lengths and pairs alone. An escape pair or surrogate pair
is never split, whatever that costs; a grapheme cluster, which readers see as one character (Unicode annex 29), is kept
whole only where that adds no segment.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Callable

#: Octets of user data in a segment (3GPP 23.040 §9.2.3.24).
OCTETS = 140


def septets_in(header: int) -> int:
    """Septets that fit after a user data header of this many octets, including its length octet; 0: no header."""
    return (OCTETS - header) * 8 // 7


def units_in(header: int) -> int:
    """Octets of UCS-2 that fit after a user data header of this many octets, including its length octet."""
    return (OCTETS - header) // 2 * 2


def cut_septets(septets: bytes, size: int) -> tuple[bytes, ...]:
    """Cut unpacked septets into segments of at most `size`."""
    return _cut(
        septets,
        size,
        lambda end: end - (septets[end - 1] == 0x1B),  # only ever the first half of a pair
        lambda end: end - (septets[end - 1 : end + 1] == b"\r\n"),
    )


def cut_units(units: bytes, size: int) -> tuple[bytes, ...]:
    """Cut UTF-16BE into segments of at most `size` octets, an even number."""
    if len(units) <= size:
        return (units,)
    starts = clusters(units.decode("utf-16-be", "replace"))
    return _cut(units, size, _between_surrogates(units), lambda end: starts[bisect_right(starts, end) - 1])


def count_units(units: bytes, size: int) -> int:
    """The number of segments that `cut_units` produces."""
    return _needed(0, len(units), size, _between_surrogates(units))


def clusters(text: str) -> list[int]:
    """Offsets in UTF-16BE at which a grapheme cluster begins.

    Where the rules of annex 29 need tables that Python lacks, clusters are longer than they should be: conjuncts in
    all Indic scripts, and whatever follows a joiner.
    """
    starts = []
    at = flags = 0
    before = ""
    for character in text:
        flags = flags + 1 if "\U0001f1e6" <= character <= "\U0001f1ff" else 0
        if not at or not (_continues(before, character) or (flags and flags % 2 == 0)):
            starts.append(at)
        before = character
        at += 2 if character <= "\uffff" else 4
    return starts


# ---------------------------------------------------------------------------------------------------------------------

#: From the latest possible end of a segment to the end that it may have.
_End = Callable[[int], int]


def _cut(data: bytes, size: int, possible: _End, graceful: _End) -> tuple[bytes, ...]:
    length = len(data)
    segments: list[bytes] = []
    start = 0
    for left in reversed(range(_needed(0, length, size, possible))):
        end = start + size
        if end < length:
            end = possible(end)
            whole = graceful(end)
            if start < whole < end and _needed(whole, length, size, possible) <= left:
                end = whole
        segments.append(data[start:end])
        start = end
    return tuple(segments)


def _needed(start: int, length: int, size: int, possible: _End) -> int:
    """The number of segments from `start` on, each as full as possible."""
    segments = 1
    while start + size < length:
        start = possible(start + size)
        segments += 1
    return segments


def _between_surrogates(units: bytes) -> _End:
    return lambda end: end - 2 if units[end - 2] & 0xFC == 0xD8 else end


def _continues(before: str, character: str) -> bool:
    """True if a character continues the cluster of the one before it. The caller handles flags (pairs of letters)."""
    if before < "\u0300" and character < "\u0300":  # most Latin text
        return before == "\r" and character == "\n"
    return (
        unicodedata.category(character)[0] == "M"
        or character in _EXTENDING
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= character <= "\U000e007f"  # tags
        or before == "\u200d"
        or before in _PREPENDED
        or (unicodedata.combining(before) == _VIRAMA and unicodedata.category(character) == "Lo")
        or _syllable(before, character)
    )


#: Combining class of the sign that joins two consonants.
_VIRAMA = 9
#: Joiners, half-width sound marks and vowels of Thai and Lao that are not in category M.
_EXTENDING = frozenset("\u200c\u200d\uff9e\uff9f\u0e33\u0eb3")
_PREPENDED = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd")


def _syllable(before: str, character: str) -> bool:
    """Hangul written as jamo: L+ V* T*, or a precomposed syllable and the jamo after it."""
    if not ("\u1100" <= character <= "\u11ff" or "\ua960" <= character <= "\ud7fb"):
        return False
    leading = "\u1100" <= before <= "\u115f" or "\ua960" <= before <= "\ua97c"
    follows = "\u1160" <= character <= "\u11ff" or "\ud7b0" <= character <= "\ud7fb"
    return leading or (follows and ("\u1100" <= before <= "\u11ff" or "\ua960" <= before <= "\ud7fb"))
