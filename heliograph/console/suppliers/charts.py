"""Charts of a supplier, by hour: responses, receipts, and how long receipts took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from heliograph.base.database import clock
from heliograph.pages.lists.ranges import LENGTHS, Range
from heliograph.pages.pieces.charts import Chart, Mark, Series, Tone
from heliograph.pages.requests import Request
from heliograph.sms.watched.history import HistoryEvent, Kind
from heliograph.sms.watched.hours import Hour
from heliograph.traffic.reconciliation import STATES, Line

HOUR = timedelta(hours=1)
#: Maximum number of hours drawn: thirty-one days.
MOST = 31 * 24
#: Responses with their labels and colours.
ANSWERS: tuple[tuple[str, str, Tone], ...] = (
    ("accepted", "Accepted", "good"),
    ("refused", "Refused", "bad"),
    ("busy", "Deferred", "warn"),
    ("unknown", "Not answered", "calm"),
)
#: Final states from receipts, or from missing ones.
REPORTS: tuple[tuple[tuple[str, ...], str, Tone], ...] = (
    (("delivered",), "Delivered", "good"),
    (tuple(one for one in STATES if one != "delivered"), "Not delivered", "bad"),
    (("never",), "Never reported", "calm"),
)


#: Labels of marks for events of a supplier.
HAPPENED: Mapping[Kind, str] = {
    "opened": "circuit open",
    "closed": "circuit closed",
    "active": "resumed by an operator",
    "paused": "paused by an operator",
    "draining": "drained by an operator",
    "lost": "no session",
    "bound": "connected again",
}


def bounds(range: Range) -> tuple[datetime, datetime]:
    """(since, until) in whole hours."""
    now = clock.now()
    until = min(range.until or now, now).astimezone(UTC)
    since = (range.since or until - LENGTHS["24h"]).astimezone(UTC)
    since = max(since, until - MOST * HOUR).replace(minute=0, second=0, microsecond=0)
    return min(since, until - HOUR), until


def marks(request: Request, happened: Iterable[HistoryEvent]) -> list[Mark]:
    """Marks for events that may explain a dip, in the reader's language."""
    return [Mark(one.at, request.text(HAPPENED[one.kind])) for one in happened]


def loads(
    request: Request, hours: Sequence[Hour], since: datetime, until: datetime, marked: Sequence[Mark] = ()
) -> list[Chart]:
    """Lines for window usage, and for p50 and p95 of the response time."""
    text, known, common = request.text, {one.hour: one for one in hours}, _common(request, since, until, marked)
    drawn = [known.get(at) for at in common["times"]]
    used = [100 * one.used if one is not None and one.used is not None else None for one in drawn]
    return [
        Chart(
            id="window",
            title=text("How much of its window was in use."),
            unit="%",
            kind="lines",
            digits=1,
            series=[Series(text("In use"), "way", used)],
            **common,
        ),
        Chart(
            id="time-to-answer",
            title=text("How long answers took."),
            unit=text("seconds"),
            kind="lines",
            digits=3,
            series=_within(request, drawn),
            **common,
        ),
    ]


def _common(request: Request, since: datetime, until: datetime, marked: Sequence[Mark]) -> dict[str, Any]:
    """Arguments common to all hourly charts."""
    times = [since.replace(minute=0, second=0, microsecond=0)]
    while times[-1] + HOUR < until:
        times.append(times[-1] + HOUR)
    return {"locale": request.locale, "times": times, "step": int(HOUR.total_seconds()), "marks": marked}


def _within(request: Request, hours: Sequence[Hour | Line | None]) -> list[Series]:
    """Lines for p50 and p95."""
    return [
        Series(request.text("Half within"), "way", [one.seconds(0.5) if one else None for one in hours]),
        Series(request.text("95 of 100 within"), "warn", [one.seconds(0.95) if one else None for one in hours]),
    ]


def drawn(
    request: Request,
    lines: Sequence[Line],
    since: datetime,
    until: datetime,
    marked: Sequence[Mark] = (),
    *,
    is_simulated: bool = False,
) -> list[Chart]:
    """Bars for responses and receipts, lines for p50 and p95 of the time to the receipt.

    What a simulator accepted and reported has its own colour: it reached no phone.
    """
    text, locale = request.text, request.locale
    by_hour, common = {one.at: one for one in lines}, _common(request, since, until, marked)
    hours = [by_hour.get(at) for at in common["times"]]
    totals = {
        name: sum(one[name] for one in lines) for name in ("accepted", "refused", "busy", "unknown", *STATES, "never")
    }
    submitted = sum(one.submitted for one in lines)
    ended = sum(totals[name] for name in (*STATES, "never"))

    def series(name: str, *of: str, tone: Tone) -> Series:
        return Series(
            locale.count_label(name),
            "way" if is_simulated and tone == "good" else tone,
            [sum(one[what] for what in of) if one else 0 for one in hours],
        )

    return [
        Chart(
            id="submits",
            title=locale.count(
                "%(num)s submit, %(accepted)s accepted.",
                "%(num)s submits, %(accepted)s of them accepted.",
                submitted,
                accepted=locale.number(totals["accepted"]),
            ),
            unit=text("submits"),
            kind="bars",
            series=[series(label, name, tone=tone) for name, label, tone in ANSWERS],
            **common,
        ),
        Chart(
            id="receipts",
            title=text("Nothing has been reported yet.")
            if not ended
            else text(
                "%(share)s %% of %(ended)s were delivered.",
                share=locale.number(100 * totals["delivered"] / ended, 1),
                ended=locale.number(ended),
            ),
            unit=text("messages"),
            kind="bars",
            series=[series(label, *of, tone=tone) for of, label, tone in REPORTS],
            **common,
        ),
        Chart(
            id="time-to-receipt",
            title=text("How long receipts took."),
            unit=text("seconds"),
            kind="lines",
            digits=1,
            series=_within(request, hours),
            **common,
        ),
    ]
