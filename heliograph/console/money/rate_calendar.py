"""The calendar of rates: twelve months with the rates valid in each, and gaps. Only destinations with a change or a
gap have a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.pages.requests import Request
from heliograph.prices import calendar
from heliograph.prices.calendar import Cell, Row, Time
from heliograph.prices.tariff import Rate, Tariff
from heliograph.sms import charges
from heliograph.whatsapp.money import rates as whatsapp

T = TypeVar("T")
#: Months shown, past ones among them at first, and months per step back or forward.
MONTHS, PAST, STEP = 12, 2, 6
#: Maximum number of lines.
MOST = 60
#: Years that an address may name. No rate is outside them, and following "Later" ends before dates overflow.
YEARS = range(2001, 2999)


class Line(msgspec.Struct, frozen=True):
    """A destination. `of`: one of its rates; `cells`: the texts of each month."""

    of: Any
    cells: list[list[tuple[str, str]]]


def of_tariff(request: Request, id: UUID, name: str, rates: Sequence[Rate]) -> dict[str, Any]:
    """The calendar of all rates of a rate card or price list."""

    def said(one: Rate) -> str:
        return request.text("not carried") if one.rejects else request.locale.money(one.price, one.currency)

    currency = rates[0].currency if rates else ""
    return _values(request, *charges.calendar(Tariff(id, name, currency, rates), rates), said)


def of_whatsapp(request: Request, shown: Sequence[whatsapp.Rate], lending: Iterable[whatsapp.Rate]) -> dict[str, Any]:
    """The calendar of WhatsApp rates, and of the rates that substitute for missing ones."""
    return _values(
        request, *whatsapp.calendar(shown, lending), lambda one: request.locale.money(one.price, one.currency)
    )


def _values(
    request: Request, rows: Iterable[Row[T]], turns: Sequence[datetime], said: Callable[[T], str]
) -> dict[str, Any]:
    """The values of `money/calendar.html`. Rates at all these times are computed only for the rows shown."""
    first = _first(request)
    shown = calendar.months(first, MONTHS)
    lines: list[Line] = []
    more = quiet = 0
    for row in rows:
        if calendar.is_quiet(calendar.cells(row.spans, (), shown)):
            quiet += 1
        elif len(lines) == MOST:
            more += 1
        else:
            dated = zip(calendar.line(row, turns, shown), shown, strict=True)
            lines.append(Line(row.of, [_said(request, cell, month, said) for cell, month in dated]))
    return {
        "months": [(request.locale.month(month), month == clock.now().date().replace(day=1)) for month in shown],
        "lines": lines,
        "more": more,
        "quiet": quiet,
        "earlier": request.again(**{"from": f"{calendar.month_after(first, -STEP):%Y-%m}"}),
        "later": request.again(**{"from": f"{calendar.month_after(first, STEP):%Y-%m}"}),
    }


def _said(request: Request, cell: Cell[T], month: date, said: Callable[[T], str]) -> list[tuple[str, str]]:
    """(state, text) pairs for a month, in chronological order. A state is a status with its colour; "": none."""
    found: list[tuple[datetime | None, str, str]] = []
    for value, begins in cell.holding:
        words = said(value)
        if begins is not None:
            words = request.text("%(price)s from %(day)s", price=words, day=request.locale.whole_day(begins.date()))
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
    """Days such as "12–31"; "": the whole month."""
    first, last = time[0].date(), (time[1] - timedelta(microseconds=1)).date()
    if first == month and last == calendar.month_after(month) - timedelta(days=1):
        return ""
    return f"{first.day}–{last.day}"


def _first(request: Request) -> date:
    """The first month, from the address."""
    try:
        found = date.fromisoformat(f"{request.query.get('from', '')}-01")
        if found.year in YEARS:
            return found
    except ValueError:
        pass
    return calendar.month_after(clock.now().date().replace(day=1), -PAST)
