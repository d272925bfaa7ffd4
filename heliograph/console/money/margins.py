"""Suppliers' charges, organizations' payments, and the margin."""

from __future__ import annotations

import io
from datetime import date, timedelta
from typing import Any

from heliograph.base.csv_files import Writer
from heliograph.base.database import clock
from heliograph.base.errors import Invalid, Problems
from heliograph.base.money import decimal
from heliograph.console.typed import day
from heliograph.pages.answers import Answer, Download, Page
from heliograph.pages.pieces.charts import MARK
from heliograph.pages.requests import Request
from heliograph.prices import margins
from heliograph.prices.margins import PARTS, Line
from heliograph.sms.dispatch import routing

#: Lines per page, and the maximum range.
SHOWN, LONGEST = 200, timedelta(days=92)
#: Choices for splitting into lines.
SPLITS = (
    *("supplier", "supplier,country", "supplier,route", "organization", "country", "country,network"),
    *("route", "day", "day,supplier", "day,route"),
)


async def show(request: Request) -> Answer:
    """By supplier and for this month, unless the address says otherwise."""
    typed = {name: request.query.get(name, "").strip() for name in ("from", "to", "by")}
    by = typed["by"] if typed["by"] in SPLITS else SPLITS[0]
    refusal = None
    try:
        first, last = _days(typed)
    except Invalid as wrong:
        refusal = wrong
        first, last = _days({"from": "", "to": ""})
    async with request.reading() as conn:
        most = None if "csv" in request.query else SHOWN + 1
        lines = await margins.read(conn, first=first, last=last + timedelta(days=1), by=by.split(","), limit=most)
        simulators = await routing.simulators(conn)
    if "csv" in request.query and refusal is None:
        body = (MARK + _as_csv(lines, by.split(","))).encode()
        return Download(name=f"margins-{first}.csv", kind="text/csv; charset=utf-8", body=body)
    values: dict[str, Any] = {
        "simulators": simulators,
        "lines": lines[:SHOWN],
        "is_cut": len(lines) > SHOWN,
        "parts": by.split(","),
        "by": by,
        "splits": SPLITS,
        "since": first.isoformat(),
        "until": last.isoformat(),
        "file": request.again(csv="1"),
    }
    return Page(template="money/margins.html", values=values, status=422 if refusal else 200, refusal=refusal)


def _days(typed: dict[str, str]) -> tuple[date, date]:
    """(first day, last day); the current month by default. Raises Invalid."""
    today = clock.now().date()
    wrong, given = Problems(), dict[str, date | None]()
    for field in ("from", "to"):
        with wrong.gathering():
            given[field] = day(field, typed[field])
    wrong.report()
    last = given["to"]
    first = given["from"] or min(today, last or today).replace(day=1)
    last = last or max(today, first)
    if last < first:
        raise Invalid(("to", "order", "The last day must not be before the first."))
    if last - first >= LONGEST:
        raise Invalid(("from", "range", "Choose at most 92 days."))
    return first, last


def _as_csv(lines: list[Line], by: list[str]) -> str:
    parts = [one for one in PARTS if one in by]
    out = io.StringIO()
    writer = Writer(out, [*parts, "messages", "segments", "price", "price_currency", "cost", "cost_currency", "margin"])
    for one in lines:
        told = [str(getattr(one, name)) for name in parts]
        price, cost = ("" if not currency else decimal(amount) for amount, currency in _amounts(one))
        margin = "" if one.margin is None else decimal(one.margin)
        counts = (str(one.messages), str(one.segments))
        writer.row([*told, *counts, price, one.price_currency, cost, one.cost_currency, margin])
    return out.getvalue()


def _amounts(one: Line) -> tuple[tuple[int, str], tuple[int, str]]:
    return (one.price, one.price_currency), (one.cost, one.cost_currency)
