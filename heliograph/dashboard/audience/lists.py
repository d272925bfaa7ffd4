"""What lists of this room have in common: their filters."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from heliograph.base import phones
from heliograph.pages.requests import Request


def kept(given: Mapping[str, str], names: tuple[str, ...], longest: int = 200) -> dict[str, str]:
    """The filters of an address or a form."""
    return {name: given.get(name, "").strip()[:longest] for name in names}


def countries(request: Request) -> list[tuple[str, str]]:
    """(code, name) of all countries, in the order of the reader's language."""
    named = [(region, request.speech.country(region)) for region in set(phones.REGIONS.values()) - {"001"}]
    return sorted(named, key=lambda one: one[1].casefold())


def id_of(text: str) -> UUID | None:
    """The id that a text is."""
    try:
        return UUID(text)
    except ValueError:
        return None


def as_json(request: Request) -> bool:
    """Whether the form asks for JSON lines."""
    return request.form.get("format") == "json"
