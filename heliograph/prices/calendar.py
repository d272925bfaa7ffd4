"""The calendar of rates, for either channel: which prices apply in each month, and when none does.

Months are in UTC, as are the dates of rates.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")
#: Start (inclusive) and end (exclusive).
Time = tuple[datetime, datetime]


class Span(msgspec.Struct, Generic[T], frozen=True):
    """A value that holds from `begins` until just before `ends`."""

    begins: datetime
    ends: datetime
    value: T


class Row(msgspec.Struct, Generic[T], frozen=True):
    """A destination. `of`: one of its rates; `finds`: whether the look-up that prices messages finds a rate, its own or
    another, for the whole destination at a given time."""

    of: T
    spans: Sequence[Span[T]]
    finds: Callable[[datetime], bool]


class Cell(msgspec.Struct, Generic[T], frozen=True):
    """One month. `holding`: the values that hold in it, in chronological order, each with its start (None: earlier)."""

    holding: list[tuple[T, datetime | None]]
    #: When nothing holds, neither its own rate nor a fallback; and when only a fallback does.
    missing: list[Time]
    lent: list[Time]


def is_quiet(row: Sequence[Cell[T]]) -> bool:
    """True if the same value holds all of the time."""
    held = [one.holding for one in row]
    gaps = [time for one in row for time in (*one.missing, *one.lent)]
    return not gaps and all(len(one) == 1 and one[0] == (held[0][0][0], None) for one in held)


def month_after(month: date, by: int = 1) -> date:
    """The first day of the month `by` months later, or earlier if it is negative."""
    whole = month.year * 12 + month.month - 1 + by
    return date(whole // 12, whole % 12 + 1, 1)


def months(first: date, count: int) -> list[date]:
    """`count` consecutive months, each as its first day."""
    return [month_after(first, n) for n in range(count)]


def line(row: Row[T], turns: Sequence[datetime], shown: Sequence[date]) -> list[Cell[T]]:
    """A row's months. `turns`: all times, sorted, at which the rate found for it may change."""
    begins, ends = _of_month(shown[0])[0], _of_month(shown[-1])[1]
    times = [begins, *turns[bisect_right(turns, begins) : bisect_left(turns, ends)], ends]
    found: list[Span[None]] = []
    for one, following in pairwise(times):
        if row.finds(one):
            is_same = bool(found) and found[-1].ends == one
            found.append(Span(found.pop().begins if is_same else one, following, None))
    return cells(row.spans, found, shown)


def cells(spans: Iterable[Span[T]], lending: Collection[Span[None]], shown: Sequence[date]) -> list[Cell[T]]:
    """The months of these spans. `lending`: when a fallback is found outside them."""
    own = sorted(spans, key=lambda one: one.begins)
    return [_cell(own, lending, *_of_month(month)) for month in shown]


def _of_month(month: date) -> Time:
    following = month_after(month)
    return datetime(month.year, month.month, 1, tzinfo=UTC), datetime(following.year, following.month, 1, tzinfo=UTC)


def _cell(own: Sequence[Span[T]], lending: Collection[Span[None]], begins: datetime, ends: datetime) -> Cell[T]:
    holding = [one for one in own if one.begins < ends and one.ends > begins]
    gaps = _left([(begins, ends)], holding)
    missing = _left(gaps, lending)
    lent = [time for gap in gaps for time in _left([gap], [Span(*one, None) for one in missing])]
    return Cell([(one.value, one.begins if one.begins > begins else None) for one in holding], missing, lent)


def _left(times: Iterable[Time], spans: Iterable[Span[T]]) -> list[Time]:
    """The times, without those covered by the spans."""
    left = list(times)
    for one in spans:
        left = [
            (start, end)
            for first, last in left
            for start, end in ((first, min(last, one.begins)), (max(first, one.ends), last))
            if start < end
        ]
    return left
