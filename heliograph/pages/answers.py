"""What a screen returns: a page rendered from a template, a redirect, or a file. `serving` turns it into bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.errors import Invalid


class Page(msgspec.Struct, kw_only=True):
    """A page. `values`: those of its template."""

    template: str
    values: dict[str, Any]
    status: int = 200
    #: What was wrong with a form: shown above it and next to its fields.
    refusal: Invalid | None = None
    cookies: list[str] = []
    #: It says something to this reader alone, although it is a page that others see in the same way (`Route.is_alike`).
    is_own: bool = False


class Region(msgspec.Struct, frozen=True):
    """A self-refreshing region of a page, shared by all who see the same (`live.regions`)."""

    #: When its rendering began, ms since 1970.
    made: int
    etag: bytes
    body: bytes
    #: It has forms, with placeholders for what is specific to each reader.
    is_open: bool
    #: Compressed with gzip, if that is worthwhile and the same for all.
    packed: bytes | None
    #: The only person whom it may be shown to; None: everybody with its key.
    of: UUID | None


class Redirect(msgspec.Struct, kw_only=True):
    """A redirect (303). `notice` is shown on the next page, already in the reader's language; with `undo`, an address
    that accepts a POST without fields, it has a button "Undo". `is_refusal`: the request was not carried out."""

    location: str
    notice: str = ""
    undo: str = ""
    is_refusal: bool = False
    cookies: list[str] = []


class Download(msgspec.Struct, kw_only=True):
    """A file to download."""

    name: str
    kind: str
    body: bytes


class Stream(msgspec.Struct, kw_only=True):
    """A file to download that is sent while it is generated; an error closes the connection."""

    name: str
    kind: str
    parts: AsyncIterator[bytes]


Answer = Page | Region | Redirect | Download | Stream


def form_errors(
    refusal: Invalid, said: Mapping[Any, str], *, fields: Mapping[str, str] = MappingProxyType({})
) -> Invalid:
    """A rule's refusals in the words of a form. `said`: texts by the form's field, or by field and issue; others are
    unchanged. `fields`: the form's names of fields that it calls differently."""
    listed = [
        (fields.get(one["field"], one["field"]), one["issue"], one["message"]) for one in refusal.details["fields"]
    ]
    return Invalid(
        *((field, issue, said.get((field, issue), said.get(field, message))) for field, issue, message in listed)
    )


def refused(template: str, refusal: Invalid, values: Mapping[str, Any]) -> Page:
    """A form shown again with everything that was typed, and what was wrong with it."""
    return Page(template=template, values=dict(values), status=422, refusal=refusal)


#: Characters of an address that is redirected to: proxies reserve some 4 kB for a response's headers.
LONGEST = 2_000


def own_address(text: str) -> str:
    """A path on this site that is safe to redirect to; the front page for everything else. Of a very long one, the page
    and its mode are kept."""
    if len(text) > LONGEST:
        path, _, query = text.partition("?")
        text = path + ("?mode=test" if "mode=test" in query.split("&") else "")
    if text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and len(text) <= LONGEST:
        return text
    return "/"
