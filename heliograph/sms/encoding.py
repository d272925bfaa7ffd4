"""How text becomes segments, and octets from a handset become text: GSM 03.38 (3GPP 23.038) and UCS-2.

The rule nobody may break: what is counted at accept is what is sent. `count` and `encode` take the same decisions in
the same order: NFC, then GSM-7 if every character allows it, then (with `smart`) GSM-7 with look-alikes replaced, all
or nothing, then UCS-2. An escape pair and a surrogate pair always stay in one segment.

It runs for every accepted message, so the alphabet test is one pass in C: a charmap codec writes characters of the
basic alphabet as their code and characters of the extension as their code with the high bit set. Octets that are
pure ASCII therefore hold no extension character and are the septets themselves, save for `@` (see `_MAP`).
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from typing import Literal

import msgspec

Encoding = Literal["gsm7", "ucs2"]

#: GSM 03.38 default alphabet; a character's index is its code. 0x1B is the escape, not a character.
BASIC = (
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞ\x1bÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
#: Extension table: character → code after the escape; each costs two septets.
EXTENSION = {
    "\f": 0x0A,
    "^": 0x14,
    "{": 0x28,
    "}": 0x29,
    "\\": 0x2F,
    "[": 0x3C,
    "~": 0x3D,
    "]": 0x3E,
    "|": 0x40,
    "€": 0x65,
}

#: Look-alikes that smart encoding replaces. Accents are never stripped: that would change the language.
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


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """A text as it goes on the wire."""

    encoding: Encoding
    #: Unpacked septets, one per octet, or UTF-16BE without BOM; no user data header.
    segments: tuple[bytes, ...]
    #: Septets or 16-bit units, in all segments together.
    units: int
    #: What is sent: the text after NFC and smart encoding.
    text: str


def encode(text: str, *, smart: bool = False, header: int = 6) -> Encoded:
    """Encode and cut a text.

    `header` is the length in octets of each segment's concatenation header when there are several: 6 (8-bit
    reference, also for SAR: 153 septets or 67 units a segment) or 7 (16-bit: 152 or 66). Raises UnicodeEncodeError
    for a lone surrogate; the door refuses those before.
    """
    coded, text = _gsm7(text, smart)
    if coded is not None:
        septets = _septets(coded)
        if len(septets) <= 160:
            return Encoded("gsm7", (septets,), len(septets), text)
        return Encoded("gsm7", _cut_septets(septets, 153 if header <= 6 else 152), len(septets), text)
    units = text.encode("utf-16-be")
    if len(units) <= 140:
        return Encoded("ucs2", (units,), len(units) // 2, text)
    return Encoded("ucs2", _cut_units(units, text, 134 if header <= 6 else 132), len(units) // 2, text)


def count(text: str, *, smart: bool = False) -> tuple[Encoding, int]:
    """Encoding and number of segments of what `encode` would make, without making it where it can."""
    # The common case comes first and alone: GSM-7, no extension character, one segment.
    try:
        coded = _charmap_encode(text, "strict", _MAP)[0]
        if len(coded) <= 160 and coded.isascii() and b"\0" not in coded:
            return "gsm7", 1
    except UnicodeEncodeError:
        pass
    gsm7, text = _gsm7(text, smart)
    if gsm7 is not None:
        extended = len(gsm7.translate(None, _LOW))
        if len(gsm7) + extended <= 160:
            return "gsm7", 1
        if not extended:
            return "gsm7", -(-len(gsm7) // 153)
        return "gsm7", len(_cut_septets(_septets(gsm7), 153))
    if len(text) <= 35:  # even if every character took two units
        return "ucs2", 1
    units = text.encode("utf-16-be")
    if len(units) <= 140:
        return "ucs2", 1
    if len(units) == 2 * len(text):
        return "ucs2", -(-len(units) // 134)
    return "ucs2", len(_cut_pairs(units, 134))


def decode(
    body: bytes, data_coding: int, *, default_alphabet: Literal["gsm7", "latin1", "ascii"] = "gsm7"
) -> str | None:
    """Text of an inbound message, or None when it is binary or in a coding without a codec (then keep the octets).

    `default_alphabet` is what the supplier means by data_coding 0. Octets that are no character become U+FFFD, and so
    does NUL, which PostgreSQL cannot store. Join the parts of a long message first: others do cut pairs in two.
    """
    codec: str | None
    if data_coding == 0:
        codec = default_alphabet
    elif data_coding < 0x10:  # SMPP 3.4 §5.2.19
        codec = _SMPP_CODECS.get(data_coding)
    elif data_coding < 0x80:  # 3GPP 23.038 §4, general group; bit 5 is compression, which nobody uses
        codec = None if data_coding & 0x20 else _GROUP_CODECS.get(data_coding >> 2 & 3)
    elif 0xC0 <= data_coding <= 0xEF:  # message waiting
        codec = "utf-16-be" if data_coding >= 0xE0 else "gsm7"
    elif data_coding >= 0xF0:  # data with a message class
        codec = None if data_coding & 4 else "gsm7"
    else:
        codec = None
    if codec is None:
        return None
    text = _decode_gsm7(body) if codec == "gsm7" else body.decode(codec, "replace")
    return text.replace("\0", "\ufffd") if "\0" in text else text


# ---------------------------------------------------------------------------------------------------------------------

_charmap_encode = codecs.charmap_encode

# CPython's fast charmap wants code 0 to be NUL, and falls back to a dict twenty times slower otherwise. So `@`, whose
# code is 0, is written as 0x1B, which is free because the escape is no character, and put right by `_FINAL`. A NUL in
# the text then shows as 0x00, which nothing else can.
_TABLE = ["\ufffe"] * 256
_TABLE[:128] = BASIC.replace("\x1b", "@").replace("@", "\0", 1)
for _character, _code in EXTENSION.items():
    _TABLE[0x80 | _code] = _character
_MAP = codecs.charmap_build("".join(_TABLE))
_FINAL = bytes.maketrans(b"\x1b", b"\0")
_LOW = bytes(range(128))
_EXTENDED = re.compile(rb"[\x80-\xff]")
_PAIRS = {bytes((0x80 | code,)): bytes((0x1B, code)) for code in EXTENSION.values()}
_SMART = str.maketrans({character: plain for many, plain in LOOK_ALIKES.items() for character in many})

_BASIC_DECODE = BASIC + "\ufffd" * 128
_ESCAPED = re.compile(rb"\x1b(.?)", re.DOTALL)
_EXTENSION_DECODE = {bytes((code,)): character for character, code in EXTENSION.items()} | {b"": "", b"\x1b": " "}
_SMPP_CODECS = {
    0x01: "ascii",  # IA5
    0x03: "latin-1",
    0x05: "shift_jis",
    0x06: "iso8859-5",
    0x07: "iso8859-8",
    0x08: "utf-16-be",
    0x0A: "iso2022_jp",
    0x0D: "euc_jp",
    0x0E: "euc_kr",
}
_GROUP_CODECS = {0: "gsm7", 2: "utf-16-be"}

# What clings to the character before it; a joiner also takes the one after it.
_CLUSTER = re.compile("(?s:.)(?:[\u0300-\u036f\u20d0-\u20ff\ufe00-\ufe0f\U0001f3fb-\U0001f3ff]|\u200d(?s:.))*")


def _gsm7(text: str, smart: bool) -> tuple[bytes | None, str]:
    """Charmap octets (None: not GSM-7) and the text they stand for, which is the one to send in either case."""
    coded = _coded(text)
    if coded is not None:  # the alphabet holds no decomposed form, so such a text is in NFC
        return coded, text
    text = unicodedata.normalize("NFC", text)
    coded = _coded(text)
    if coded is None and smart:
        plain = text.translate(_SMART)
        coded = _coded(plain)
        if coded:  # a text of nothing but invisible characters stays what it is
            return coded, plain
        return None, text
    return coded, text


def _coded(text: str) -> bytes | None:
    try:
        coded = _charmap_encode(text, "strict", _MAP)[0]
    except UnicodeEncodeError:
        return None
    return None if b"\0" in coded else coded


def _septets(coded: bytes) -> bytes:
    septets = coded.translate(_FINAL)
    return septets if septets.isascii() else _EXTENDED.sub(lambda match: _PAIRS[match[0]], septets)


def _cut_septets(septets: bytes, size: int) -> tuple[bytes, ...]:
    segments = []
    start = 0
    while start < len(septets):
        end = start + size
        if end < len(septets) and septets[end - 1] == 0x1B:  # only ever the first half of a pair
            end -= 1
        segments.append(septets[start:end])
        start = end
    return tuple(segments)


def _cut_units(units: bytes, text: str, size: int) -> tuple[bytes, ...]:
    segments = _cut_pairs(units, size)
    if len(units) > 2 * len(text) or "\u200d" in text:
        # Emoji sequences stay whole where that costs no further segment.
        clusters = [cluster.encode("utf-16-be") for cluster in _CLUSTER.findall(text)]
        whole = [b""]
        for cluster in clusters:
            if len(whole[-1]) + len(cluster) > size:
                whole.append(b"")
            whole[-1] += cluster
        if len(whole) == len(segments) and max(map(len, whole)) <= size:
            return tuple(whole)
    return segments


def _cut_pairs(units: bytes, size: int) -> tuple[bytes, ...]:
    segments = []
    start = 0
    while start < len(units):
        end = start + size
        if end < len(units) and units[end - 2] & 0xFC == 0xD8:
            end -= 2
        segments.append(units[start:end])
        start = end
    return tuple(segments)


def _decode_gsm7(body: bytes) -> str:
    if b"\x1b" not in body:
        return codecs.charmap_decode(body, "replace", _BASIC_DECODE)[0]
    pieces = []
    start = 0
    for match in _ESCAPED.finditer(body):
        pieces.append(codecs.charmap_decode(body[start : match.start()], "replace", _BASIC_DECODE)[0])
        code = match[1]
        # A pair that the extension does not know shows the basic character (23.038 §6.2.1.1).
        pieces.append(_EXTENSION_DECODE.get(code) or (_BASIC_DECODE[code[0]] if code else ""))
        start = match.end()
    pieces.append(codecs.charmap_decode(body[start:], "replace", _BASIC_DECODE)[0])
    return "".join(pieces)
