"""What lists of this room have in common: their size, and how they go out as files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from uuid import UUID

from heliograph.base import phones
from heliograph.pages.answers import Stream
from heliograph.pages.requests import Request

#: Rows of a page that may be chosen; the first is the usual one.
SIZES = (50, 25, 100, 200)
#: Kinds of a file: what browsers are told, how it begins. Spreadsheets know by the mark that it is UTF-8.
FORMATS = {"csv": ("text/csv; charset=utf-8", b"\xef\xbb\xbf"), "json": ("application/jsonl; charset=utf-8", b"")}
#: What separates cells where spreadsheets read a comma as a decimal sign.
SEPARATORS = {"pt": ";"}


def size(request: Request) -> int:
    """How many rows the address asks for."""
    return next((one for one in SIZES if str(one) == request.query.get("limit")), SIZES[0])


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


def separator(request: Request) -> str:
    """Between the cells of a CSV file, as the reader's spreadsheet wants it."""
    return SEPARATORS.get(request.speech.language, ",")


def exported(request: Request, name: str, pieces: AsyncIterator[tuple[int, str]]) -> Stream:
    """A file that goes out while it is read."""
    form = "json" if as_json(request) else "csv"
    kind, mark = FORMATS[form]

    async def parts() -> AsyncIterator[bytes]:
        yield mark
        async for _, text in pieces:
            if text:
                yield text.encode()

    return Stream(name=f"{name}.{'jsonl' if form == 'json' else 'csv'}", kind=kind, parts=parts())
