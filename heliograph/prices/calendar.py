"""Which prices hold in which month, and when none does: the calendar of rates of either channel.

Months are those of UTC, as days of rates are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Generic, TypeVar

import msgspec

from heliograph.base import phones
from heliograph.prices.tariff import Rate

T = TypeVar("T")
#: From then until before then.
Time = tuple[datetime, datetime]


class Span(msgspec.Struct, Generic[T], frozen=True):
    """What holds from `begins` until before `ends`."""

    begins: datetime
    ends: datetime
    value: T


class Cell(msgspec.Struct, Generic[T], frozen=True):
    """A month. `holding`: what holds in it, in order of time, each with when it begins there (None: before it)."""

    holding: list[tuple[T, datetime | None]]
    #: When nothing holds, of its own or of what it falls back to; and when only the latter does.
    missing: list[Time]
    lent: list[Time]


def is_quiet(row: Sequence[Cell[T]]) -> bool:
    """One and the same holds, all of the time."""
    held = [one.holding for one in row]
    gaps = [time for one in row for time in (*one.missing, *one.lent)]
    return not gaps and all(len(one) == 1 and one[0] == (held[0][0][0], None) for one in held)


def months(first: date, count: int) -> list[date]:
    """So many, the first of each."""
    return [date(first.year + (first.month - 1 + n) // 12, (first.month - 1 + n) % 12 + 1, 1) for n in range(count)]


def cells(spans: Iterable[Span[T]], lending: Collection[Span[T]], shown: Sequence[date]) -> list[Cell[T]]:
    """A calendar's row. `lending`: what holds where none of the spans does."""
    own = sorted(spans, key=lambda one: one.begins)
    return [_cell(own, lending, *_of_month(month)) for month in shown]


def _of_month(month: date) -> Time:
    (following,) = months(month, 2)[1:]
    return datetime(month.year, month.month, 1, tzinfo=UTC), datetime(following.year, following.month, 1, tzinfo=UTC)


def _cell(own: Sequence[Span[T]], lending: Collection[Span[T]], begins: datetime, ends: datetime) -> Cell[T]:
    holding = [one for one in own if one.begins < ends and one.ends > begins]
    gaps = _left([(begins, ends)], holding)
    missing = _left(gaps, lending)
    lent = [time for gap in gaps for time in _left([gap], [Span(*one, None) for one in missing])]
    return Cell([(one.value, one.begins if one.begins > begins else None) for one in holding], missing, lent)


def _left(times: Iterable[Time], spans: Iterable[Span[T]] | Iterable[Span[None]]) -> list[Time]:
    """What is left of times without those of the spans."""
    left = list(times)
    for one in spans:
        left = [
            (start, end)
            for first, last in left
            for start, end in ((first, min(last, one.begins)), (max(first, one.ends), last))
            if start < end
        ]
    return left


def lenders(rate: Rate, rates: Iterable[Rate]) -> list[Rate]:
    """Those that hold where a rate does not, since they are for more than its destination."""
    country = rate.country or (phones.country(f"+{rate.prefix}") if rate.prefix else "")
    return [
        one
        for one in rates
        if one.destination != rate.destination
        and one.country in ("", country)
        and one.mcc in ("", rate.mcc)
        and one.mnc in ("", rate.mnc)
        and rate.prefix.startswith(one.prefix)
        and one.message_class in ("", rate.message_class)
        and one.sender_type in ("", rate.sender_type)
    ]
