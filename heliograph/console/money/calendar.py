"""O13 The calendar of rates: twelve months, what holds in each, and when nothing does. Only destinations for which
something changes or is missing have a line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from heliograph.base.database import clock
from heliograph.pages.requests import Request
from heliograph.prices import calendar
from heliograph.prices.calendar import Cell, Span, Time
from heliograph.prices.tariff import NEVER, Rate
from heliograph.whatsapp.money import rates as whatsapp

T = TypeVar("T")
#: Months that are shown, those of them that are past at first, and by how many one leafs.
MONTHS, PAST, STEP = 12, 2, 6
#: Lines.
MOST = 60


class Line(msgspec.Struct, frozen=True):
    """A destination. `of`: one of its rates; `cells`: what is said of each month."""

    of: Any
    cells: list[list[tuple[str, str]]]


def of_tariff(request: Request, rates: Sequence[Rate]) -> dict[str, Any]:
    """Of a rate card or price list."""
    by: dict[tuple[str, ...], list[Rate]] = {}
    for one in rates:
        by.setdefault(one.destination, []).append(one)

    def said(one: Rate) -> str:
        return request.text("not carried") if one.rejects else request.speech.money(one.price, one.currency)

    return _values(
        request,
        by.values(),
        lambda one: calendar.lenders(one, rates),
        lambda some: [Span(one.begins, one.ends, one) for one in some],
        said,
    )


def of_whatsapp(request: Request, shown: Collection[whatsapp.Rate], rates: Iterable[whatsapp.Rate]) -> dict[str, Any]:
    """Of WhatsApp's rates, each of which holds until the next of its country and category. `shown`: those whose
    destinations have lines; `rates`: these, and what they fall back to."""
    by: dict[tuple[str, str, str], list[whatsapp.Rate]] = {}
    for one in rates:
        by.setdefault((one.currency, one.category, one.country), []).append(one)
    wanted = {(one.currency, one.category, one.country) for one in shown}
    rows = [same for key, same in by.items() if key in wanted]

    def spans(some: Iterable[whatsapp.Rate]) -> list[Span[whatsapp.Rate]]:
        return [Span(one.valid_from, _until(one, by[one.currency, one.category, one.country]), one) for one in some]

    return _values(
        request, rows, lambda one: _lenders(one, by), spans, lambda one: request.speech.money(one.price, one.currency)
    )


def _lenders(one: whatsapp.Rate, by: Mapping[tuple[str, str, str], list[whatsapp.Rate]]) -> list[whatsapp.Rate]:
    """Those that hold where a country has none of its own, as `whatsapp.Rates.price` looks."""
    kinds = ("service", "utility") if one.category == "service" else (one.category,)
    keys = [(one.currency, kind, where) for kind in kinds for where in (one.country, whatsapp.ELSEWHERE)]
    return [each for key in keys if key != (one.currency, one.category, one.country) for each in by.get(key, ())]


def _until(one: whatsapp.Rate, same: Sequence[whatsapp.Rate]) -> datetime:
    return min((each.valid_from for each in same if each.valid_from > one.valid_from), default=NEVER)


def _values(
    request: Request,
    rows: Iterable[Sequence[T]],
    lenders: Callable[[T], Iterable[T]],
    spans: Callable[[Iterable[T]], list[Span[T]]],
    said: Callable[[T], str],
) -> dict[str, Any]:
    """For `money/calendar.html`. `rows`: the rates of each destination; `lenders`: what one falls back to, asked for
    those that are shown alone, since it goes through all rates."""
    first = _first(request)
    shown = calendar.months(first, MONTHS)
    lines: list[Line] = []
    more = quiet = 0
    for own in rows:
        if calendar.is_quiet(calendar.cells(spans(own), (), shown)):
            quiet += 1
        elif len(lines) == MOST:
            more += 1
        else:
            dated = zip(calendar.cells(spans(own), spans(lenders(own[0])), shown), shown, strict=True)
            lines.append(Line(own[0], [_said(request, cell, month, said) for cell, month in dated]))
    return {
        "months": [(request.speech.month(month), month == clock.now().date().replace(day=1)) for month in shown],
        "lines": lines,
        "more": more,
        "quiet": quiet,
        "earlier": request.again(**{"from": _moved(first, -STEP)}),
        "later": request.again(**{"from": _moved(first, STEP)}),
    }


def _said(request: Request, cell: Cell[T], month: date, said: Callable[[T], str]) -> list[tuple[str, str]]:
    """(state, words) of what is said of a month, in order of time. A state is a status with its colour; "": none."""
    found: list[tuple[datetime | None, str, str]] = []
    for value, begins in cell.holding:
        words = said(value)
        if begins is not None:
            words = request.text("%(price)s from %(day)s", price=words, day=request.speech.whole_day(begins.date()))
        found.append((begins, "", words))
    for time in cell.missing:
        days = _days(time, month)
        words = request.text("no rate %(days)s", days=days) if days else request.text("no rate")
        found.append((time[0], "failing", words))
    for time in cell.lent:
        days = _days(time, month)
        words = request.text("broader rate %(days)s", days=days) if days else request.text("broader rate")
        found.append((time[0], "", words))
    found.sort(key=lambda one: (one[0] is not None, one[0] or clock.EPOCH))
    return [(state, words) for _, state, words in found]


def _days(time: Time, month: date) -> str:
    """Such as "12–31"; "": all of the month."""
    first, last = time[0].date(), (time[1] - timedelta(microseconds=1)).date()
    if first == month and last == calendar.months(month, 2)[1] - timedelta(days=1):
        return ""
    return f"{first.day}–{last.day}"


def _first(request: Request) -> date:
    """The first month, as the address says it."""
    try:
        found = date.fromisoformat(f"{request.query.get('from', '')}-01")
        if 2001 <= found.year < 2999:
            return found
    except ValueError:
        pass
    return _add(clock.now().date().replace(day=1), -PAST)


def _moved(first: date, by: int) -> str:
    return f"{_add(first, by):%Y-%m}"


def _add(month: date, by: int) -> date:
    whole = month.year * 12 + month.month - 1 + by
    return date(whole // 12, whole % 12 + 1, 1)
