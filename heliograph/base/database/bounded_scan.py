"""Bounded scans: lists, newest first by id, that read a bounded number of rows for a page.

A filter without an index is checked row by row, so a page is searched for in a bounded number of rows
(docs/decisions/0017). A scan that ends before its page is full reports where it ended; the next page continues there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar
from uuid import UUID

import asyncpg

from heliograph.base.ids import uuid7_floor

#: Maximum number of rows scanned for one page; they take some 20 ms.
LOOK = 20_000
#: The same for a page that a person waits for, who can continue with a click; it may scan two lists.
PAGE_LOOK = 10_000
#: A row's id is created before the time stored with it, by at most this much; in a busy process ids run slightly ahead.
SLACK, AHEAD = timedelta(minutes=2), timedelta(seconds=1)

_FIRST, _LAST = UUID(int=0), UUID(int=2**128 - 1)
_EARLIEST, _LATEST = datetime(1971, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def statement(
    table: str,
    columns: str,
    *,
    fits: str,
    where: str = "true",
    whose: str = "organization_id = $1",
    returned: str | None = None,
) -> str:
    """The statement of a scan of a table whose key is organization and id.

    Parameters: $1 organization, $2 and $3 from `bounds`, $4 maximum rows returned, $5 maximum rows scanned. `fits` is
    the condition on a row's columns, as `looked_at`; `where` is a condition with an index; both may use $6 and above.
    `whose`: the condition with $1, for a table that operators scan. `returned`: the columns to return, in terms of
    `looked_at`, if they should be computed only for returned rows, not for all scanned ones.
    """
    returned = returned or "looked_at.*"
    scanned = f"FROM {table} WHERE {whose} AND id < $2 AND id >= $3 AND {where} ORDER BY id DESC"
    # From the newest backwards by index, until the page is full. Only if it does not fill up, the second part tells
    # which row was the last one scanned: numbering all rows to find that out costs five times the scan. Nothing is
    # sorted, and the parts are read in order, as KEYED_PLANS allows no parallel plans.
    return f"""
(SELECT {returned}, 0 AS place, true AS fits FROM (SELECT {columns} {scanned} LIMIT $5) looked_at WHERE {fits})
UNION ALL
(SELECT {returned}, $5::bigint AS place, false AS fits
   FROM (SELECT id AS edge {scanned} OFFSET $5 - 1 LIMIT 1) ended CROSS JOIN LATERAL (
        SELECT {columns} FROM {table} WHERE {whose} AND id = ended.edge AND {where} LIMIT 1) looked_at)
 LIMIT $4
"""


def bounds(
    after: UUID | None,
    *,
    date_from: datetime | None = None,
    date_to: datetime | None = None,
    slack: timedelta = SLACK,
    ahead: timedelta = AHEAD,
) -> tuple[UUID, UUID]:
    """(id below which, id from which to scan) for a page after `after` of rows with a time in [date_from, date_to).

    They are wider than the range by `slack` and `ahead`, so the statement has to compare the times too; with zero for
    both they are exact, which suits rows whose only time is that of their id.
    """
    upper, lower = after or _LAST, _FIRST
    if date_to is not None:
        upper = min(upper, uuid7_floor(_within(date_to) + ahead))
    if date_from is not None:
        lower = uuid7_floor(_within(date_from) - slack)
    return upper, lower


def judged(rows: Sequence[asyncpg.Record], *, limit: int, look: int = LOOK) -> tuple[list[asyncpg.Record], UUID | None]:
    """(the matching rows, where the scan ended) for a statement run with `limit` + 1 and `look`.

    The second is None if the page is full or nothing is left.
    """
    found = [row for row in rows if row["fits"]]
    ended = rows and rows[-1]["place"] == look and len(found) <= limit
    return found, rows[-1]["id"] if ended else None


class Identified(Protocol):
    """A row of a list."""

    @property
    def id(self) -> UUID: ...


Row = TypeVar("Row", bound=Identified)


def merged(pages: Sequence[tuple[Sequence[Row], UUID | None]], *, limit: int) -> tuple[list[Row], UUID | None]:
    """One page of several lists, each given as (rows, where its scan ended), and where the combined scan ended.

    It contains nothing older than the point where any of the scans stopped: rows of that list could lie in between.
    """
    together = sorted((one for listed, _ in pages for one in listed), key=lambda one: one.id, reverse=True)
    ended = [seen for _, seen in pages if seen is not None]
    if not ended:
        return together[: limit + 1], None
    known = [one for one in together if one.id >= max(ended)]
    return known[: limit + 1], None if len(known) > limit else max(ended)


def _within(at: datetime) -> datetime:
    """Clamp to what ids can express, with room for the slack."""
    return min(max(at, _EARLIEST), _LATEST)
