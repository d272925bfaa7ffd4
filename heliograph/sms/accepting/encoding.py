"""Encoding of texts into segments: GSM 03.38 (3GPP 23.038) and UCS-2.

The rule nobody may break: the segments counted at accept are those sent, in the form that every supplier understands.
`count` and `encode` make the same decisions in the same order: NFC, then GSM-7 if every character allows it, then GSM-7
with characters replaced as the organization chose, all or nothing, then UCS-2. For an account that needs another form
the text is split again (suppliers/smpp/submits.py).
"""

from __future__ import annotations

import unicodedata
from typing import Literal

import msgspec

from heliograph.base import naming
from heliograph.suppliers.alphabets import cutting, gsm7, segments

Encoding = Literal["gsm7", "ucs2"]

#: Look-alikes that smart encoding replaces. It does not strip accents, which would change the language (see `accents`).
LOOK_ALIKES = {
    "‘’‚‛′´`ʼ": "'",
    "“”„‟″«»": '"',
    "‐‑‒–—―−": "-",
    "…": "...",
    "\t\xa0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000": " ",
    "\u200b\u2060\ufeff\xad": "",
    "\u2028\u2029": "\n",
    "•·": "*",
    "‹": "<",
    "›": ">",
}


#: Letters that do not decompose into a base letter and an accent, for `accents`.
LETTERS = {
    "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "ħ": "h", "Ħ": "H", "ı": "i", "ł": "l", "Ł": "L", "ŋ": "n", "Ŋ": "N",
    "œ": "oe", "Œ": "OE", "þ": "th", "Þ": "Th", "ŧ": "t", "Ŧ": "T", "ẞ": "SS", "ª": "a", "º": "o", "№": "No",
    "ĳ": "ij", "Ĳ": "IJ",
}  # fmt: skip


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """An encoded text."""

    encoding: Encoding
    #: Unpacked septets, one per octet, or UTF-16BE without BOM; no user data header.
    segments: tuple[bytes, ...]
    #: Septets or 16-bit units in all segments.
    units: int
    #: The text as sent: after NFC and smart encoding.
    text: str


def encode(text: str, *, smart: bool = False, accents: bool = False, header: int = 6) -> Encoded:
    """Encode and split a text.

    `smart`: replace look-alikes; `accents`: also strip accents; each only if the whole text then becomes GSM-7.

    `header` is the length in octets of each segment's concatenation header when there are several: 6 (8-bit reference,
    also for SAR: 153 septets or 67 units per segment) or 7 (16-bit: 152 or 66). Raises UnicodeEncodeError for a lone
    surrogate; the API refuses those beforehand.
    """
    coded, text = _gsm7(text, smart, accents)
    if coded is not None:
        septets = gsm7.septets_of(coded)
        return Encoded("gsm7", segments.of_septets(septets, header), len(septets), text)
    units = text.encode("utf-16-be")
    return Encoded("ucs2", segments.of_units(units, header), len(units) // 2, text)


def repeated(text: str, chosen: str) -> str:
    """A text as it is sent, given the encoding chosen at accept: nothing is replaced that was not replaced then."""
    return _gsm7(text, smart=chosen == "gsm7", accents=chosen == "gsm7")[1]


def count(text: str, *, smart: bool = False, accents: bool = False) -> tuple[Encoding, int]:
    """Encoding and number of segments that `encode` would return, without encoding where possible."""
    # The common case comes first: GSM-7, no extension character, one segment. `octets` is called only once.
    coded = gsm7.octets(text)
    if coded is None:
        coded, text = _replaced(text, smart, accents)
    elif len(coded) <= 160 and coded.isascii():
        return "gsm7", 1
    if coded is not None:
        extended = gsm7.extended(coded)
        if len(coded) + extended <= 160:
            return "gsm7", 1
        if not extended:
            return "gsm7", -(-len(coded) // 153)
        return "gsm7", len(cutting.cut_septets(gsm7.septets_of(coded), 153))
    if len(text) <= 35:  # even if every character took two units
        return "ucs2", 1
    units = text.encode("utf-16-be")
    if len(units) <= 140:
        return "ucs2", 1
    if len(units) == 2 * len(text):
        return "ucs2", -(-len(units) // 134)
    return "ucs2", cutting.count_units(units, 134)


# ---------------------------------------------------------------------------------------------------------------------

_SMART = str.maketrans({character: plain for many, plain in LOOK_ALIKES.items() for character in many})


def _gsm7(text: str, smart: bool, accents: bool) -> tuple[bytes | None, str]:
    """Charmap octets (None: not GSM-7) and the text to send in either case."""
    coded = gsm7.octets(text)
    # The alphabet contains no combining characters, so such a text is in NFC.
    return (coded, text) if coded is not None else _replaced(text, smart, accents)


def _replaced(text: str, smart: bool, accents: bool) -> tuple[bytes | None, str]:
    """The result of `_gsm7` for a text that contains characters outside the alphabet."""
    text = naming.in_nfc(text)
    coded = gsm7.octets(text)
    if coded is not None or not (smart or accents):
        return coded, text
    plain = text.translate(_SMART)
    coded = gsm7.octets(plain)
    if coded is None and accents:
        plain = "".join([one if gsm7.octets(one) else _without_accent(one) for one in plain])
        coded = gsm7.octets(plain)
    if coded:  # a text that consists only of invisible characters stays as it is
        return coded, plain
    return None, text


def _without_accent(character: str) -> str:
    """The letter without its accent; nothing for an accent by itself."""
    letters = LETTERS.get(character)
    if letters is None:
        letters = "".join([one for one in unicodedata.normalize("NFD", character) if unicodedata.category(one) != "Mn"])
    return letters
