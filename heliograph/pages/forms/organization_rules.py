"""How an organization's texts are written and where they may go, as fields of a form, on its own page and in the
console."""

from __future__ import annotations

import msgspec

from heliograph.accounts.organizations import Organization
from heliograph.base import phones
from heliograph.base.errors import Invalid

#: Represents all countries. An empty field is a slip, which must not allow the whole world.
EVERYWHERE = "any"


class Encoding(msgspec.Struct, frozen=True):
    """How texts are written: without typographic characters, and without accents where that saves segments."""

    is_smart: bool
    replaces_accents: bool


def countries(text: str) -> list[str] | None:
    """The countries that somebody typed, separated by spaces or commas; None: all. Raises Invalid."""
    listed = text.upper().replace(",", " ").split()
    if listed == [EVERYWHERE.upper()]:
        return None
    if not listed or any(one not in phones.REGIONS.values() or one == "001" for one in listed):
        raise Invalid(("allowed", "enum", "Enter countries by their ISO codes, such as MZ ZA PT, or any."))
    return listed


def shown_countries(one: Organization) -> str:
    """In the form that `countries` parses."""
    return EVERYWHERE if one.allowed_countries is None else " ".join(one.allowed_countries)


def encoding(chosen: str) -> Encoding:
    """What one of `words.ENCODINGS` means."""
    return Encoding(chosen in ("smart", "accents"), chosen == "accents")


def shown_encoding(one: Organization) -> str:
    """Which of `words.ENCODINGS` an organization chose."""
    return "accents" if one.replace_accents else "smart" if one.smart_encoding else "off"
