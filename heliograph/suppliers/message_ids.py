"""Suppliers' message ids, which they write differently in answers, receipts and on their own pages. Pure."""

from __future__ import annotations

import re
from typing import Literal

Base = Literal["text", "hex", "dec"]

#: What may stand around an id: white space, NUL, quotes.
_AROUND = " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\0\"'"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
_HEX = re.compile(r"[0-9a-f]+", re.I)


def id_key(raw: str, base: Base = "text") -> str:
    """A supplier's message id in the form that is stored and looked up; "" if there is none.

    hex and dec become decimal, of any length; text loses case and leading zeros, and a UUID its hyphens, which
    suppliers change at will. Some put it in quotes in receipts only.
    """
    text = raw if raw.isalnum() else raw.strip(_AROUND)
    if len(text) == 36 and _UUID.fullmatch(text):
        text = text.replace("-", "")
    if base != "text" and text.isascii() and text.isalnum():
        try:
            return str(int(text, 16 if base == "hex" else 10))
        except ValueError:
            return text.lower()
    text = text.lower()
    return text.lstrip("0") or text[:1]


def forms(written: str) -> list[str]:
    """The keys that an id may have, whatever base its account uses, for somebody who pastes it as the supplier wrote
    it: most likely first."""
    keys = [written, written.lower(), id_key(written)]
    if _HEX.fullmatch(written):
        keys += [id_key(written, "hex"), f"{int(written):x}" if written.isdecimal() else ""]
    return [key for key in dict.fromkeys(keys) if key]
