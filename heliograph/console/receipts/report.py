"""Receipts: what each supplier was handed, answered and reported, by day and compared with the week before, and
which of its charges should be refunded; and as a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Problems
from heliograph.console.typed import day
from heliograph.pages.answers import Answer, Page, Stream
from heliograph.pages.lists import pagination
from heliograph.pages.pieces.charts import MARK
from heliograph.pages.requests import Request
from heliograph.sms.dispatch import routing
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.reports import reconciliation
from heliograph.sms.reports.reconciliation import Reconciled
from heliograph.traffic.reconciliation import STATES, Query

#: Maximum lines of all pages, the latest ones; suppliers whose final states a page shows, those with the most messages.
MOST, SUPPLIERS = 10_000, 20
#: Choices for splitting into lines, apart from the supplier.
SPLITS = ("day", "day,country", "hour", "country", "month", "month,country")
#: Default range, maximum range, and maximum range with a line per month.
USUAL, LONGEST, MONTHS = timedelta(days=7), timedelta(days=92), timedelta(days=400)


class Share(msgspec.Struct, frozen=True):
    """The share of a supplier's messages with this final state (0 to 1; None: none are final), and the week before."""

    state: str
    count: int
    now: float | None
    before: float | None


async def show(request: Request) -> Answer:
    """By supplier and day, unless the address says otherwise."""
    typed = {name: request.query.get(name, "").strip() for name in ("supplier", "from", "to", "by", "country")}
    refusal = None
    async with request.reading() as conn:
        known, simulators = await routing.load(conn), await routing.simulators(conn)
        try:
            query = _query(typed, known)
        except Invalid as wrong:
            refusal, query = wrong, _query({}, known)
        if "csv" in request.query and refusal is None:
            name = f"receipts-{query.date_from:%Y-%m-%d}.csv"
            return Stream(name=name, kind="text/csv; charset=utf-8", parts=_file(request, query))
        lines = await reconciliation.report(conn, query, compared=False)
        whole = await _whole(conn, query)
    size, begin = pagination.size(request), _begin(request)
    values: dict[str, Any] = {
        "lines": sorted(lines, key=_order)[begin : begin + size],
        "pages": pagination.pages(request, UUID(int=begin + size) if len(lines) > begin + size else None),
        "shares": [(one.supplier, ended) for one in whole[:SUPPLIERS] if (ended := _ended(one))],
        "bills": [one for one in whole[:SUPPLIERS] if one.line.charged or one.line.undelivered[0]],
        "is_cut": len(whole) > SUPPLIERS,
        "simulators": simulators,
        "suppliers": [(one.name, one.name) for one in known],
        "splits": SPLITS,
        "typed": typed,
        "by": typed["by"] if typed["by"] in SPLITS else "day",
        "since": f"{query.date_from:%Y-%m-%d}",
        "until": f"{query.date_to - timedelta(seconds=1):%Y-%m-%d}",
        "file": request.again(csv="1", after=""),
    }
    status = 200 if refusal is None else 422
    return Page(template="receipts/report.html", values=values, status=status, refusal=refusal)


async def _file(request: Request, query: Query) -> AsyncIterator[bytes]:
    """All lines, oldest first, each compared with the week before."""
    for number, piece in enumerate(reconciliation.pieces(msgspec.structs.replace(query, is_latest_first=False))):
        async with request.reading_in_turn() as conn:
            lines = await reconciliation.report(conn, piece)
        yield ("" if number else MARK).encode() + reconciliation.as_csv(lines, headed=number == 0).encode()


def _begin(request: Request) -> int:
    """The number of lines on previous pages: the paging position is a number here, since lines are sums."""
    place = pagination.after(request)
    return 0 if place is None else min(place.int, MOST)


def _order(one: Reconciled) -> tuple[float, str, str]:
    """Sort key: newest first."""
    at = one.line.at
    return (0.0 if at is None else -at.timestamp(), one.supplier, one.line.country or "")


async def _whole(conn: Connection, query: Query) -> list[Reconciled]:
    """Totals by supplier over the whole range; the one with the most messages first."""
    found = await reconciliation.report(conn, msgspec.structs.replace(query, by=()))
    return sorted(found, key=lambda one: (-one.line.submitted, one.supplier))


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
    """The query as typed. Days are UTC. Raises Invalid."""
    today = clock.now().date()
    wrong, first, last = Problems(), None, None
    with wrong.gathering():
        first = day("from", typed.get("from", ""))
    with wrong.gathering():
        last = day("to", typed.get("to", ""))
    first = first or today - USUAL + timedelta(days=1)
    last = last or max(today, first)
    by = typed.get("by", "")
    if not wrong and last < first:
        wrong.add("to", "order", "The last day must not be before the first.")
    if not wrong and last - first >= (MONTHS if by.startswith("month") else LONGEST):
        wrong.add("from", "range", "Choose at most 92 days, or 400 with a line for each month.")
    name, country = typed.get("supplier", ""), typed.get("country", "").upper()
    supplier = next((one.id for one in known if one.name == name), None)
    if name and supplier is None:
        wrong.add("supplier", "unknown", "There is no such supplier.")
    if country and not (len(country) in (2, 3) and country.isascii() and country.isalnum()):
        wrong.add("country", "format", "Enter a country code, such as MZ.")
    wrong.report()
    return Query(
        date_from=clock.midnight(first),
        date_to=clock.midnight(last + timedelta(days=1)),
        by=(by if by in SPLITS else SPLITS[0]).split(","),
        supplier_id=supplier,
        country=country or None,
        limit=MOST,
        is_latest_first=True,
    )
