"""Reconciliation: what suppliers were handed and what they reported, compared with the week before, for settling
accounts.

For operators only. The rule nobody may break: a line adds up: `accepted` is the sum of delivered, failed in any way,
never reported, and still waiting.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.csv_files import Writer
from heliograph.base.database import clock
from heliograph.base.database.clock import iso_or_none
from heliograph.base.database.pool import Connection
from heliograph.base.money import decimal
from heliograph.traffic import reconciliation
from heliograph.traffic.reconciliation import STATES, Line, Query

DAY, WEEK = timedelta(days=1), timedelta(days=7)
#: Columns of a report, in order. Times to the receipt are in seconds. `owed`: accepted but not delivered, to be paid
#: back by a supplier that charged for it; `due_back`: the amount, by currency, according to its rate cards when each
#: message was handed over; `owed_unpriced`: how many of them have no known cost. `charged`: for everything that it
#: accepted.
COLUMNS = (
    *("supplier", "at", "country", "submitted", "answered", "accepted", "segments", "matched"),
    *(*STATES, "recipient", "late", "never", "waiting", "orphaned", "refused", "busy", "unknown", "unreachable"),
    *("p50", "p95", "p99", "delivered_share", "week_before_accepted", "week_before_delivered_share"),
    *("doubled", "charged", "owed", "owed_segments", "owed_unpriced", "due_back"),
)
NAMES = "SELECT id, name FROM suppliers"


class Reconciled(msgspec.Struct, frozen=True):
    """One line, and the same line a week before; None: there was nothing."""

    supplier: str
    line: Line
    before: Line | None

    def row(self) -> dict[str, Any]:
        """The values of COLUMNS."""
        one, before = self.line, self.before
        owed, owed_segments = one.undelivered
        values = {name: one[name] for name in reconciliation.COUNTED}
        return values | {
            "supplier": self.supplier,
            "at": iso_or_none(one.at),
            "country": one.country,
            "submitted": one.submitted,
            "answered": one.answered,
            "segments": one.segments.get("accepted", 0),
            "matched": one.matched,
            "waiting": one.waiting,
            "p50": _rounded(one.seconds(0.5)),
            "p95": _rounded(one.seconds(0.95)),
            "p99": _rounded(one.seconds(0.99)),
            "delivered_share": _rounded(one.delivered_share),
            "week_before_accepted": 0 if before is None else before["accepted"],
            "week_before_delivered_share": None if before is None else _rounded(before.delivered_share),
            "owed": owed,
            "owed_segments": owed_segments,
            "owed_unpriced": one.owed_unpriced,
            "charged": _money(one.charged),
            "due_back": _money(one.due_back),
        }


async def report(conn: Connection, query: Query, *, compared: bool = True) -> list[Reconciled]:
    """The lines of a period, each with that of the same hour, day, month or period a week before if `compared`."""
    lines = await reconciliation.read(conn, query)
    seen = await reconciliation.read(conn, msgspec.structs.replace(query, earlier=WEEK)) if compared else []
    before = {_key(one): one for one in seen}
    names: dict[UUID, str] = {row["id"]: row["name"] for row in await conn.fetch(NAMES)}
    return [Reconciled(names.get(one.supplier_id, ""), one, before.get(_key(one))) for one in lines]


def pieces(query: Query) -> Iterator[Query]:
    """Split a report, however long, into consecutive pieces: of a month each, or of a day if its lines are hourly; a
    single piece if its lines have no time. Its limit does not apply."""
    since, until = query.date_from, query.date_to
    by_hour = "hour" in query.by
    if not by_hour and not {"day", "month"}.intersection(query.by):
        yield msgspec.structs.replace(query, limit=None)
        return
    while since < until:
        midnight = clock.midnight(since)
        following = midnight + DAY if by_hour else (midnight.replace(day=1) + timedelta(days=31)).replace(day=1)
        yield msgspec.structs.replace(query, date_from=since, date_to=min(following, until), limit=None)
        since = following


def as_csv(lines: Sequence[Reconciled], *, headed: bool = True) -> str:
    """The report as CSV for spreadsheets: a header unless it is a later piece, then one row per line."""
    out = io.StringIO()
    writer = Writer(out, COLUMNS)
    begin = 0 if headed else out.tell()
    for one in lines:
        row = one.row()
        writer.row(["" if row[name] is None else str(row[name]) for name in COLUMNS])
    return out.getvalue()[begin:]


def _key(one: Line) -> tuple[UUID, datetime | None, str | None]:
    return one.supplier_id, one.at, one.country


def _money(amounts: Mapping[str, int]) -> str | None:
    """Amounts such as "0.080000 USD; 1.000000 EUR"; None: nothing."""
    return "; ".join(f"{decimal(amount)} {currency}" for currency, amount in amounts.items()) or None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
