"""WhatsApp rates in detail: by currency, category or country, including past and future ones; and as a file that
can be imported."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime

from heliograph.base.database import clock
from heliograph.base.money import decimal
from heliograph.console.money import rate_calendar
from heliograph.pages import words
from heliograph.pages.answers import Answer, Download, Page
from heliograph.pages.pieces.charts import MARK
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import MONEY_CHANGE
from heliograph.whatsapp.money import rates
from heliograph.whatsapp.money.rates import Rate

#: Rates per page.
SHOWN = 500
FILTERS = ("currency", "category", "country")


async def show(request: Request) -> Answer:
    """The matching rates; a country without a rate of its own costs what applies to all other countries."""
    is_file = "csv" in request.query
    asked = {name: request.query.get(name, "").strip() for name in FILTERS}
    async with request.reading() as conn:
        found = await rates.list_rates(
            conn,
            currency=asked["currency"].upper() or None,
            category=asked["category"] or None,
            country=asked["country"].upper() or None,
            limit=None if is_file else SHOWN + 1,  # the next one shows whether the last one is still valid
        )
        # With only some of a destination's rates, it would show gaps that do not exist.
        has_calendar = bool(found) and not is_file and len(found) <= SHOWN
        lending = await rates.lending(conn, found) if has_calendar else []
    if is_file:
        return _file(found)
    now, is_cut = clock.now(), len(found) > SHOWN
    holding = _holding(found, now)
    values = {
        "rows": [(one, one in holding, one.valid_from > now) for one in found[:SHOWN]],
        "is_cut": is_cut,
        "calendar": rate_calendar.of_whatsapp(request, found, lending) if has_calendar else None,
        "asked": asked,
        "elsewhere": rates.ELSEWHERE,
        "categories": [(name, request.text(words.BILLING_CATEGORIES[name])) for name in rates.PRICED],
        "may_change": request.may(permission=MONEY_CHANGE),
    }
    return Page(template="money/whatsapp_rates.html", values=values)


def _holding(found: Sequence[Rate], now: datetime) -> set[Rate]:
    """The latest rate in effect for each currency, category and country; `found` is in chronological order."""
    latest = {(one.currency, one.category, one.country): one for one in found if one.valid_from <= now}
    return set(latest.values())


def _file(found: Sequence[Rate]) -> Download:
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(rates.COLUMNS)
    lines.writerows(
        (one.currency, one.category, one.country, one.valid_from.isoformat(), decimal(one.price)) for one in found
    )
    return Download(name="whatsapp-rates.csv", kind="text/csv; charset=utf-8", body=(MARK + out.getvalue()).encode())
