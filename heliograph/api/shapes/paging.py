"""Paginated lists: query parameters in, a page and the cursor of the next one out.

A list's query is a struct that begins as `PageQuery` does and adds its filters. The rule nobody may break: pages are
located by key, newest first, never by offset, so a page remains stable while others add rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Protocol, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.base.actor import Actor
from heliograph.base.crypto import Key
from heliograph.base.database import cursor
from heliograph.base.errors import Invalid

Row = TypeVar("Row")
Shown = TypeVar("Shown")

Limit = Annotated[int, Meta(ge=1, le=200, description="Maximum number of items per page.")]
Cursor = Annotated[
    Annotated[str, Meta(max_length=1024)] | None,
    Meta(
        description=(
            "`nextCursor` of the previous page; omit it for the first page. Valid only with the same other parameters."
        )
    ),
]
DateFrom = Annotated[
    Annotated[datetime, Meta(tz=True)] | None,
    Meta(description="Start of the range, inclusive; ISO 8601 with a time zone."),
]
DateTo = Annotated[
    Annotated[datetime, Meta(tz=True)] | None,
    Meta(description="End of the range, exclusive; ISO 8601 with a time zone."),
]


class PageQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The parameters of a list without filters."""

    limit: Limit = 50
    cursor: Cursor = None


class Called(Protocol):
    """What this module needs of `operation.Call`."""

    actor: Actor
    query: Any

    @property
    def cursor_key(self) -> Key:
        """Authenticates cursors."""


def after(call: Called, collection: str) -> list[Any] | None:
    """The position encoded in the request's cursor, as JSON scalars; None: the first page.

    Raises Invalid on `cursor` if it was altered, or made for another organization, mode, list or filter; and on
    `dateFrom` if the two dates are the wrong way round.
    """
    filters = _filters(call.query)
    check_range(filters.get("date_from"), filters.get("date_to"))
    if call.query.cursor is None:
        return None
    return cursor.decode(
        call.cursor_key,
        call.query.cursor,
        organization_id=call.actor.organization_id,
        collection=_within(call, collection),
        filters=filters,
    )


def check_range(date_from: datetime | None, date_to: datetime | None) -> None:
    """Raises Invalid on `dateFrom` unless it is before `dateTo`, or one of them is missing."""
    if date_from is not None and date_to is not None and date_from >= date_to:
        raise Invalid(("dateFrom", "range", "`dateFrom` must be before `dateTo`"))


def after_id(call: Called, collection: str) -> UUID | None:
    """`after` of a list that is ordered by id alone."""
    position = after(call, collection)
    return None if position is None else UUID(position[0])


def page(
    call: Called,
    collection: str,
    rows: Sequence[Row],
    *,
    position: Callable[[Row], Sequence[Any]],
    shown: Callable[[Row], Shown],
    seen: Sequence[Any] | None = None,
) -> tuple[list[Shown], str | None, bool]:
    """(items, nextCursor, hasMore) from up to `limit` + 1 rows: the extra one shows that there are more.

    `position`: the sort values of a row, as the next page's query takes them. `seen`: the position at which a bounded
    scan ended before the page was full; the next page continues from there.
    """
    limit = call.query.limit
    more = len(rows) > limit
    rows = rows[:limit]
    last = position(rows[-1]) if more else seen
    following = None if last is None else at(call, collection, last)
    return [shown(row) for row in rows], following, following is not None


def at(call: Called, collection: str, position: Sequence[Any]) -> str:
    """The cursor for a position, for this request's organization, mode and filters."""
    return cursor.encode(
        call.cursor_key,
        position,
        organization_id=call.actor.organization_id,
        collection=_within(call, collection),
        filters=_filters(call.query),
    )


def _within(call: Called, collection: str) -> str:
    """Under the same path, a key of the other mode sees a different list."""
    return f"{call.actor.mode} {collection}"


def _filters(query: msgspec.Struct) -> Mapping[str, Any]:
    return {name: getattr(query, name) for name in query.__struct_fields__ if name not in PageQuery.__struct_fields__}
