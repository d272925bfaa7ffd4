"""Decodes a handset's message by its data_coding and header (SMPP 3.4 §5.2.19, 3GPP 23.038 §4).

The parts of a long message are joined before decoding, since some senders split characters between parts. Parts may
come over different sessions, so until then octets are kept with their form: data_coding and national tables as one
string, which nothing else parses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from heliograph.suppliers.alphabets import gsm7

#: What a supplier means by data_coding 0.
Alphabet = Literal["gsm", "latin1", "ascii"]


def form(data_coding: int, locking: int = 0, single: int = 0) -> str:
    """What is needed to decode octets: data_coding, and national tables by language identifier (0: none)."""
    return f"{data_coding}/{locking}/{single}"


def alphabet_of(settings: Mapping[str, Any]) -> Alphabet:
    """The alphabet that an account's settings, as stored, give for data_coding 0."""
    alphabet: Alphabet = settings.get("default_alphabet", "gsm")
    return alphabet


def read(body: bytes, form: str, alphabet: Alphabet = "gsm") -> str | None:
    """The text of octets with this form; None if there is none."""
    try:
        data_coding, locking, single = map(int, form.split("/"))
    except ValueError:
        return None
    return decode(body, data_coding, default_alphabet=alphabet, locking=locking, single=single)


def decode(
    body: bytes,
    data_coding: int,
    *,
    default_alphabet: Alphabet = "gsm",
    locking: int = 0,
    single: int = 0,
) -> str | None:
    """Text of an inbound message, or None if it is binary or has no codec (then keep the octets). Octets in a coding
    without a codec count as text if all of them are printable ASCII: some gateways declare everything that handsets
    write as 8-bit data, or use a reserved number.

    `default_alphabet` is what the supplier means by data_coding 0; `locking` and `single` are the national tables that
    the message names (alphabets/national.py). Octets without a character become U+FFFD, as does NUL, which
    PostgreSQL cannot store; some SMSCs terminate texts with NULs, which are no part of them. In GSM-7 that octet is @.
    Join the parts of a long message first: some senders split pairs.
    """
    codec: str | None
    if _is_eight_bit(data_coding):
        codec = None
    elif data_coding == 0:
        codec = _DEFAULTS[default_alphabet]
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
        return body.decode("ascii") if _printable(body) else None
    if codec == "gsm7" and not (body.isascii() or locking or single) and _is_plain(body):
        text = _eight_bits(body, "utf-8", "cp1252")
    elif codec == "gsm7":
        text = gsm7.decode(body, locking=locking, single=single)
    elif codec == "ascii":
        text = _eight_bits(body, "ascii", "utf-8", "cp1252")
    elif codec == "latin-1":
        text = _eight_bits(body, "cp1252")
    elif codec == "utf-16-be":
        text = sixteen_bits(body)
    else:
        text = body.decode(codec, "replace")
    return text.rstrip("\0").replace("\0", "\ufffd") if "\0" in text else text


def sixteen_bits(body: bytes) -> str:
    """Text in UCS-2, big-endian unless a byte order mark, which some libraries write, says otherwise. The mark is not
    part of the text."""
    codec = "utf-16-le" if body.startswith(b"\xff\xfe") else "utf-16-be"
    return body.decode(codec, "replace").removeprefix("\ufeff")


# -- helpers -----------------------------------------------------------------------------------------------------------

_DEFAULTS = {"gsm": "gsm7", "latin1": "latin-1", "ascii": "ascii"}
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


_printable = re.compile(rb"[\t\n\r -~]+").fullmatch
#: None of the octets that are characters in GSM-7 and control codes elsewhere. If there are others above 0x7F, which
#: GSM-7 does not have, the text is in UTF-8 or Latin-1: some SMSCs call that the default alphabet.
_is_plain = re.compile(rb"[\n\r -~\x80-\xff]+").fullmatch


def _is_eight_bit(data_coding: int) -> bool:
    """Whether data_coding declares 8-bit data, in SMPP's range or in 3GPP's groups."""
    if data_coding < 0x10:
        return data_coding in (2, 4)
    return data_coding & 0x2C == 0x04 if data_coding < 0x80 else data_coding & 0xF4 == 0xF4


def _eight_bits(body: bytes, *codecs: str) -> str:
    """Text that is not always what it is declared as: what some senders call ASCII is UTF-8, which is recognizable, or
    Latin-1, and what they call Latin-1 is Windows-1252, which has characters where the other has control codes (€)."""
    for codec in codecs:
        try:
            return body.decode(codec)
        except UnicodeDecodeError:
            continue
    return body.decode("latin-1")
