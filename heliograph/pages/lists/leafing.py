"""Leafing through a list by key: older, newer, newest, and how many rows a page has. There are no page numbers.

Reading older rows is a look by key from the last row of a page. Newer ones need no look in the other direction: the
address (`after`) names where the pages that lead here ended, so "Newer" shows the very page that was there before. Only
positions stand in it; which rows may be seen is decided by the query that reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.errors import NotFound
from heliograph.pages import cookies
from heliograph.pages.requests import Request

#: Rows of a page that may be chosen; the choice is remembered in a cookie.
SIZES, USUAL = (25, 50, 100, 200), 50
#: Pages that "Newer" leads back through, one by one; from there it leads to the newest.
MOST_BACK = 30
#: New rows that are counted above a list.
MOST_NEWER = 99
_HIGHEST = 2**128 - 1


class Pages(msgspec.Struct, frozen=True):
    """Where a page's neighbours are (None: there is none), for `kit.pager`."""

    newest: str | None
    newer: str | None
    older: str | None
    size: int
    #: The address of the page itself, with its filters.
    here: str


def size(request: Request) -> int:
    """Rows of a page: as the address says, else as was chosen last."""
    for chosen in (request.query.get("limit", ""), request.cookies.get(cookies.ROWS, "")):
        if chosen in map(str, SIZES):
            return int(chosen)
    return USUAL


def after(request: Request) -> UUID | None:
    """The id that the page before this one ended with; None: this is the newest page."""
    return next(reversed(trail_of(request)), None)


def top(request: Request) -> UUID | None:
    """The first row that the reader sees: a list that renews itself names it, so that nothing moves in above. None:
    this is no such region, or an empty one."""
    try:
        return UUID(request.query["top"]) if request.is_fragment and request.query.get("top") else None
    except ValueError:
        return None


def start(request: Request) -> UUID | None:
    """The id that the rows of this page lie below: a list that renews itself begins with the first row that the reader
    sees, any other one behind the page before it. None: with the newest row."""
    first = top(request)
    if first is None:
        return after(request)
    return UUID(int=first.int + 1) if first.int < _HIGHEST else None


def newer(places: Sequence[Any], first: Any) -> int:
    """How many of a list's newest rows stand above the first one that the reader sees, each named by its place; at most
    MOST_NEWER are counted."""
    return sum(one > first for one in places[:MOST_NEWER])


def opened(request: Request) -> UUID | None:
    """The row that is open beside the list (`kit.panel`), as the address says; None: none is, or the list alone renews
    itself. Raises NotFound."""
    if not request.query.get("open") or request.is_fragment:
        return None
    try:
        return UUID(request.query["open"])
    except ValueError:
        raise NotFound from None


def pages(request: Request, last: UUID | None) -> Pages:
    """The neighbours of a page. `last`: the id of its last row if there are more behind it."""
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
    """Where the pages that lead here ended, the last one being the one before this; nothing if it is not ours."""
    text = request.query.get("after", "")
    try:
        return [UUID(hex=one) for one in text.split(".")][-MOST_BACK:] if text else []
    except ValueError:
        return []


def joined(trail: list[UUID]) -> str:
    """A trail as it stands in an address."""
    return ".".join(one.hex for one in trail)
