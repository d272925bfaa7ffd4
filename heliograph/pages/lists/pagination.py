"""Keyset pagination of lists: older, newer, newest, and rows per page. There are no page numbers.

Older rows are read by key from the last row of a page. Newer ones need no reverse query: the address (`after`) contains
where the pages that led here ended, so "Newer" shows exactly the previous page. It contains positions only; which rows
may be seen is decided by the query that reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.errors import NotFound
from heliograph.pages import cookies
from heliograph.pages.requests import Request

#: Choices of rows per page, and the default; the choice is stored in a cookie.
SIZES, USUAL = (25, 50, 100, 200), 50
#: Pages that "Newer" steps back through one by one; beyond that it leads to the newest.
MOST_BACK = 30
#: Where counting new rows above a list stops.
MOST_NEWER = 99
_HIGHEST = 2**128 - 1


class Pages(msgspec.Struct, frozen=True):
    """Addresses of a page's neighbours (None: there is none), for `kit.pager`."""

    newest: str | None
    newer: str | None
    older: str | None
    size: int
    #: The address of the page itself, with its filters.
    here: str


def size(request: Request) -> int:
    """Rows per page: as given in the address, or else as last chosen."""
    for chosen in (request.query.get("limit", ""), request.cookies.get(cookies.ROWS, "")):
        if chosen in map(str, SIZES):
            return int(chosen)
    return USUAL


def after(request: Request) -> UUID | None:
    """The last id of the previous page; None: this is the newest page."""
    return next(reversed(trail_of(request)), None)


def top(request: Request) -> UUID | None:
    """The first row that the reader sees: a self-refreshing list sends it, so that no rows are inserted above. None:
    this is not such a region, or it is empty."""
    try:
        return UUID(request.query["top"]) if request.is_fragment and request.query.get("top") else None
    except ValueError:
        return None


def start(request: Request) -> UUID | None:
    """The id below which this page's rows lie: a self-refreshing list begins with the first row that the reader sees,
    any other list after the previous page. None: with the newest row."""
    first = top(request)
    if first is None:
        return after(request)
    return UUID(int=first.int + 1) if first.int < _HIGHEST else None


def newer(places: Sequence[Any], first: Any) -> int:
    """How many of a list's newest rows, given by their places, are above the first one that the reader sees; at most
    MOST_NEWER are counted."""
    return sum(one > first for one in places[:MOST_NEWER])


def opened(request: Request) -> UUID | None:
    """The row open in the panel next to the list (`kit.panel`), according to the address; None: none, or only the list
    is being refreshed. Raises NotFound."""
    if not request.query.get("open") or request.is_fragment:
        return None
    try:
        return UUID(request.query["open"])
    except ValueError:
        raise NotFound from None


def pages(request: Request, last: UUID | None) -> Pages:
    """The neighbours of a page. `last`: the id of its last row if there are more rows after it."""
    trail = trail_of(request)
    back = trail[:-1]
    return Pages(
        newest=request.again(after="") if trail else None,
        newer=request.again(after=joined(back)) if trail else None,
        older=None if last is None else request.again(after=joined([*trail, last][-MOST_BACK:])),
        size=size(request),
        here=request.again(limit=""),
    )


def trail_of(request: Request) -> list[UUID]:
    """Where the pages that led here ended, the previous one last; empty if the parameter is invalid."""
    text = request.query.get("after", "")
    try:
        return [UUID(hex=one) for one in text.split(".")][-MOST_BACK:] if text else []
    except ValueError:
        return []


def joined(trail: list[UUID]) -> str:
    """A trail as written in an address."""
    return ".".join(one.hex for one in trail)
