"""O7 Receipts: what each supplier was handed, answered and reported, by day, beside the week before; and as a file."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.pages.answers import Answer, Download, Shown
from heliograph.pages.pieces.charts import MARK
from heliograph.pages.requests import Request
from heliograph.sms.dispatch import routing
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.reports import reconciliation
from heliograph.sms.reports.reconciliation import Reconciled
from heliograph.traffic.reconciliation import STATES, Query

#: Lines that a page shows, and that a file has.
SHOWN, MOST = 200, 10_000
#: What there may be a line for each of, besides the supplier.
SPLITS = ("day", "day,country", "hour", "country")
#: Days that are shown, and that may be asked for at once.
USUAL, LONGEST = timedelta(days=7), timedelta(days=92)


class Share(msgspec.Struct, frozen=True):
    """What part of a supplier's messages ended like this (0 to 1; None: none ended), and the week before."""

    state: str
    count: int
    now: float | None
    before: float | None


async def show(request: Request) -> Answer:
    """By supplier and day, or as the address says."""
    typed = {name: request.query.get(name, "").strip() for name in ("supplier", "from", "to", "by", "country")}
    refusal = None
    async with request.reading() as conn:
        known = await routing.load(conn)
        try:
            query = _query(typed, known)
        except Invalid as wrong:
            refusal, query = wrong, _query({}, known)
        lines = await reconciliation.report(conn, query)
        shares = [] if "csv" in request.query else await _shares(conn, query)
    if "csv" in request.query and refusal is None:
        body = (MARK + reconciliation.as_csv(lines)).encode()
        name = f"receipts-{query.date_from:%Y-%m-%d}.csv"
        return Download(name=name, kind="text/csv; charset=utf-8", body=body)
    values: dict[str, Any] = {
        "lines": lines[:SHOWN],
        "is_cut": len(lines) > SHOWN,
        "shares": shares,
        "suppliers": [(one.name, one.name) for one in known],
        "splits": SPLITS,
        "typed": typed,
        "by": typed["by"] if typed["by"] in SPLITS else "day",
        "since": f"{query.date_from:%Y-%m-%d}",
        "until": f"{query.date_to - timedelta(seconds=1):%Y-%m-%d}",
        "file": request.again(csv="1"),
    }
    status = 200 if refusal is None else 422
    return Shown(template="receipts/report.html", values=values, status=status, refusal=refusal)


async def _shares(conn: Connection, query: Query) -> list[tuple[str, list[Share]]]:
    """By supplier, how the messages of the whole time ended, by share."""
    whole = msgspec.structs.replace(query, by=())
    found = [(one.supplier, _ended(one)) for one in await reconciliation.report(conn, whole)]
    return [(name, some) for name, some in found if some]


def _ended(one: Reconciled) -> list[Share]:
    sums = [None if line is None else line.matched + line["never"] for line in (one.line, one.before)]
    found = []
    for state in (*STATES, "never"):
        counts = [0 if line is None else line[state] for line in (one.line, one.before)]
        if any(counts):
            now, before = (count / total if total else None for count, total in zip(counts, sums, strict=True))
            found.append(Share(state, counts[0], now, before))
    return found


def _query(typed: dict[str, str], known: list[Supplier]) -> Query:
    """Days are those of UTC. Raises Invalid."""
    today = clock.now().date()
    first = _day("from", typed.get("from", "")) or today - USUAL + timedelta(days=1)
    last = _day("to", typed.get("to", "")) or max(today, first)
    if last < first:
        raise Invalid(("to", "order", "The last day must not be before the first."))
    if last - first > LONGEST:
        raise Invalid(("from", "range", "Choose at most 92 days."))
    name, country = typed.get("supplier", ""), typed.get("country", "").upper()
    supplier = next((one.id for one in known if one.name == name), None)
    if name and supplier is None:
        raise Invalid(("supplier", "unknown", "There is no such supplier."))
    if country and not (len(country) in (2, 3) and country.isascii() and country.isalnum()):
        raise Invalid(("country", "format", "Write a country as its code, such as MZ."))
    by = typed.get("by", "")
    return Query(
        date_from=_midnight(first),
        date_to=_midnight(last + timedelta(days=1)),
        by=(by if by in SPLITS else SPLITS[0]).split(","),
        supplier_id=supplier,
        country=country or None,
        limit=MOST,
    )


def _day(field: str, text: str) -> date | None:
    try:
        day = date.fromisoformat(text) if text else None
        if day is not None and not 2000 <= day.year < 3000:
            raise ValueError(text)
    except ValueError:
        raise Invalid((field, "format", "Write a day as 2027-01-31.")) from None
    return day


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
