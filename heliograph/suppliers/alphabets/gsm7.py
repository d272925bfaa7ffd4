"""The GSM 7-bit alphabet (3GPP 23.038 §6.2.1) with its extension and national tables: text to septets and back.

Septets are unpacked, one per octet, as SMPP carries them. The rule nobody may break: no character is ever replaced on
the way out. A text with a character that an alphabet lacks cannot be encoded in it.

`octets` runs for every accepted message, so it is a single pass in C: a table of bytes or, beyond ASCII, a charmap
codec writes characters of the basic alphabet as their code, and characters of the extension as their code with the high
bit set. Octets that are pure ASCII therefore contain no extension character and are already the septets, except for `@`
(see `_MAP`).
"""

from __future__ import annotations

import codecs
import re
from functools import cache

from heliograph.suppliers.alphabets import national

#: GSM 03.38 default alphabet; a character's index is its code. 0x1B is the escape, not a character.
BASIC = (
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞ\x1bÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
#: Extension table: character → code after the escape; each costs two septets.
EXTENSION = {character: code for code, character in national.EXTENSION.items()}
ESCAPE = 0x1B


def octets(text: str) -> bytes | None:
    """One octet per character, with the high bit set for extension characters; None: not GSM-7."""
    if text.isascii():  # most texts, at a fifth of the cost
        coded = text.encode().translate(_ASCII)
    else:
        try:
            coded = _charmap_encode(text, "strict", _MAP)[0]
        except UnicodeEncodeError:
            return None
    return None if 0 in coded else coded


def septets_of(coded: bytes) -> bytes:
    """The septets for a result of `octets`."""
    septets = coded.translate(_FINAL)
    return septets if septets.isascii() else _EXTENDED.sub(lambda match: _PAIRS[match[0]], septets)


def extended(coded: bytes) -> int:
    """The number of characters in a result of `octets` that take two septets."""
    return len(coded.translate(None, _LOW))


def shifted(text: str, locking: int, single: int) -> bytes | None:
    """Septets in national tables, given by language identifier (0: default); None: the tables lack a character."""
    codes = _codes(locking, single)
    try:
        return b"".join([codes[character] for character in text])
    except KeyError:
        return None


def decode(body: bytes, *, locking: int = 0, single: int = 0) -> str:
    """Decode unpacked septets. Codes without a character, and octets of 0x80 and above, become U+FFFD.

    `locking`, `single`: language identifiers of the national tables that the message names; unknown ones mean the
    default. A pair missing from the table after the escape is shown as the character of its second code (23.038
    §6.2.1.1), and an escape at the end is dropped.
    """
    table = _locking(locking)
    if b"\x1b" not in body:
        return codecs.charmap_decode(body, "replace", table)[0]
    after = _single(single)
    pieces = []
    start = 0
    for match in _ESCAPED.finditer(body):
        pieces.append(codecs.charmap_decode(body[start : match.start()], "replace", table)[0])
        code = match[1]
        pieces.append(after.get(code) or (table[code[0]] if code else ""))
        start = match.end()
    pieces.append(codecs.charmap_decode(body[start:], "replace", table)[0])
    return "".join(pieces)


# ---------------------------------------------------------------------------------------------------------------------

_charmap_encode = codecs.charmap_encode

# CPython's fast charmap wants code 0 to be NUL, and falls back to a dict twenty times slower otherwise. So `@`, whose
# code is 0, is written as 0x1B, free because the escape is not a character, and `_FINAL` turns it back into 0. A NUL
# in the text then appears as 0x00, which nothing else produces.
_TABLE = ["\ufffe"] * 256
_TABLE[:128] = BASIC.replace("\x1b", "@").replace("@", "\0", 1)
for _character, _code in EXTENSION.items():
    _TABLE[0x80 | _code] = _character
_MAP = codecs.charmap_build("".join(_TABLE))
#: The same for ASCII; 0x00 for characters that the alphabet lacks.
_ASCII = bytes(_TABLE.index(chr(code)) if chr(code) in _TABLE else 0 for code in range(256))
_FINAL = bytes.maketrans(b"\x1b", b"\0")
_LOW = bytes(range(128))
_EXTENDED = re.compile(rb"[\x80-\xff]")
_PAIRS = {bytes((0x80 | code,)): bytes((ESCAPE, code)) for code in EXTENSION.values()}
_ESCAPED = re.compile(rb"\x1b(.?)", re.DOTALL)


@cache
def _locking(language: int) -> str:
    return national.LOCKING.get(language, BASIC) + "\ufffd" * 128


@cache
def _single(language: int) -> dict[bytes, str]:
    table = national.SINGLE.get(language, national.EXTENSION)
    return {bytes((code,)): character for code, character in table.items()} | {b"": "", b"\x1b": " "}


@cache
def _codes(locking: int, single: int) -> dict[str, bytes]:
    """Character → septets; the shorter form if a character is in both tables."""
    after = national.SINGLE.get(single, national.EXTENSION)
    codes = {character: bytes((ESCAPE, code)) for code, character in reversed(after.items())}
    table = national.LOCKING.get(locking, BASIC)
    for code in reversed(range(128)):  # for a character listed twice, its first code
        if code != ESCAPE and table[code] != "\ufffd":
            codes[table[code]] = bytes((code,))
    return codes
