"""What a screen answers: a page made of a template, another address, or a file. `serving` makes bytes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from heliograph.base.errors import Invalid


class Shown(msgspec.Struct, kw_only=True):
    """A page. `values` are its template's."""

    template: str
    values: dict[str, Any]
    status: int = 200
    #: What was wrong with a form: shown above it and at its fields.
    refusal: Invalid | None = None
    cookies: list[str] = []


class Region(msgspec.Struct, frozen=True):
    """What renews itself of a page, made for all who see the same: (`live.regions`)."""

    #: When it was begun, ms since 1970.
    made: int
    etag: bytes
    body: bytes
    #: It has forms, with placeholders for what each reader's own are to have.
    is_open: bool
    #: By gzip, if that is worth it and the same for all.
    packed: bytes | None


class Elsewhere(msgspec.Struct, kw_only=True):
    """Go and look there (303). `notice` is said on the next page, in the reader's language already; with `undo`, an
    address that takes a POST without fields, a button "Undo" stands beside it."""

    location: str
    notice: str = ""
    undo: str = ""
    cookies: list[str] = []


class Download(msgspec.Struct, kw_only=True):
    """A file to keep."""

    name: str
    kind: str
    body: bytes


class Stream(msgspec.Struct, kw_only=True):
    """A file to keep that goes out while it is made; one that breaks off ends the connection."""

    name: str
    kind: str
    parts: AsyncIterator[bytes]


Answer = Shown | Region | Elsewhere | Download | Stream


def worded(refusal: Invalid, said: Mapping[Any, str], *, fields: Mapping[str, str] = MappingProxyType({})) -> Invalid:
    """A rule's refusals as a form says them. `said`: by field, or by field and issue; what it does not have stays.
    `fields`: those that the form calls otherwise."""
    listed = [
        (fields.get(one["field"], one["field"]), one["issue"], one["message"]) for one in refusal.details["fields"]
    ]
    return Invalid(
        *((field, issue, said.get((field, issue), said.get(field, message))) for field, issue, message in listed)
    )


def refused(template: str, refusal: Invalid, values: Mapping[str, Any]) -> Shown:
    """A form that comes back with all that was typed, and what was wrong with it."""
    return Shown(template=template, values=dict(values), status=422, refusal=refusal)


def own_address(text: str) -> str:
    """An address below our own that somebody may be sent to; the front page for everything else."""
    if text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and len(text) <= 2_000:
        return text
    return "/"
