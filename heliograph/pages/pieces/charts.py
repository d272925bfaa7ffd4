"""Charts: their data, for the template (`kit.chart`), for the accompanying table, and for a file.

A screen creates a `Chart`, passes it to its template, and returns `charts.download(request, [chart, …])` if that is not
None. The rule nobody may break: everything that a chart shows is also in its table, for those who cannot see it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from heliograph.base.csv_files import Writer
from heliograph.base.database.clock import iso
from heliograph.campaigns.views.chart_events import ChartEvent
from heliograph.overview.figures import PeriodComparison
from heliograph.pages import languages
from heliograph.pages.answers import Download
from heliograph.pages.languages import ReaderLocale
from heliograph.pages.requests import Request

Tone = Literal["good", "bad", "warn", "way", "calm"]
DAY = 86_400
#: Maximum characters of a campaign's name on a chart.
LONGEST_NAME = 30
#: Cell separators for languages whose spreadsheets use decimal commas.
SEPARATORS = {"pt": ";"}
#: The byte order mark by which spreadsheets recognize UTF-8.
MARK = "\ufeff"


class Series(msgspec.Struct, frozen=True):
    """One value per interval of the chart; None: there is none."""

    name: str
    tone: Tone
    values: Sequence[float | None]


class Mark(msgspec.Struct, frozen=True):
    """Something that happened, with its name."""

    at: datetime
    name: str


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Bars: a small plot per series on a common scale, not stacked. Lines: all series in one plot."""

    #: Letters and `-`, unique on the page.
    id: str
    #: A sentence that summarizes the chart, such as "98.2 % were delivered, 0.6 less than before."
    title: str
    #: The unit of the values, such as "messages" or "seconds".
    unit: str
    kind: Literal["bars", "lines"]
    locale: ReaderLocale
    #: The beginning of each interval, and its length in seconds.
    times: Sequence[datetime]
    step: int
    series: Sequence[Series]
    #: Decimal places.
    digits: int = 0
    marks: Sequence[Mark] = ()
    #: The address that each interval links to; or empty.
    links: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to draw."""
        return not any(value for one in self.series for value in one.values)

    @property
    def range(self) -> str:
        """The period covered, as text."""
        if not self.times:
            return ""
        first, last = self.times[0], self.times[-1]
        if first == last:
            return self._label(first)
        # A period of days includes the last one, while one of hours ends at a time.
        end = last if self._is_day(last) else last + timedelta(seconds=self.step)
        return f"{self._label(first)} – {self._label(end)}"

    @property
    def rows(self) -> list[tuple[str, str, list[str]]]:
        """The table: (interval, link, a figure per series); intervals without any are omitted."""
        found = []
        for number, at in enumerate(self.times):
            values = [one.values[number] for one in self.series]
            if any(values):
                link = self.links[number] if self.links else ""
                found.append((self._label(at), link, [self._figure(value) for value in values]))
        return found

    @property
    def data(self) -> dict[str, Any]:
        """The data for `charts.js`."""
        return {
            "kind": self.kind,
            "unit": self.unit,
            "digits": self.digits,
            "zone": self.locale.zone,
            "step": self.step,
            "times": [int(at.timestamp()) for at in self.times],
            "labels": [self._label(at) for at in self.times],
            "series": [
                {
                    "name": one.name,
                    "tone": one.tone,
                    "values": [None if value is None else round(value, self.digits) for value in one.values],
                }
                for one in self.series
            ],
            "marks": [{"at": int(one.at.timestamp()), "name": one.name} for one in self.marks],
            "links": list(self.links),
        }

    def _label(self, at: datetime) -> str:
        return self.locale.day(at) if self._is_day(at) else self.locale.interval(at)

    def _is_day(self, at: datetime) -> bool:
        # A day is named only where the interval is one: 24 hours may begin at any time.
        return self.step >= DAY and self.locale.time(at) == "00:00"

    def _figure(self, value: float | None) -> str:
        return "–" if value is None else self.locale.number(value, self.digits)


def outcome_charts(
    request: Request, comparison: PeriodComparison, links: Sequence[str] = (), marks: Sequence[Mark] = ()
) -> list[Chart]:
    """Charts of the outcome of messages, and of delivery times, by hour or day. `links`: the address of each
    interval."""
    text, locale, step = request.text, request.locale, int(comparison.step.total_seconds())
    figures = [one for _, one in comparison.intervals]
    common: dict[str, Any] = {
        # Days are UTC for everybody: in a zone west of it, each would be named after the one before.
        "locale": locale if step < DAY else languages.locale(locale.language),
        "times": [at for at, _ in comparison.intervals],
        "step": step,
        "links": links,
        "marks": marks,
    }
    now = comparison.now
    return [
        Chart(
            id="messages",
            title=text(
                "%(accepted)s accepted, %(delivered)s delivered, %(failed)s failed.",
                accepted=locale.number(now.accepted),
                delivered=locale.number(now.delivered),
                failed=locale.number(now.failed),
            ),
            unit=text("messages"),
            kind="bars",
            series=[
                Series(locale.count_label("Accepted"), "way", [one.accepted for one in figures]),
                Series(locale.count_label("Delivered"), "good", [one.delivered for one in figures]),
                Series(locale.count_label("Failed"), "bad", [one.failed for one in figures]),
            ],
            **common,
        ),
        Chart(
            id="delivery-time",
            title=text("No delivery was reported.")
            if now.p50 is None or now.p95 is None
            else text(
                "Half of the messages arrived within %(half)s, 95 of 100 within %(most)s.",
                half=locale.duration(now.p50),
                most=locale.duration(now.p95),
            ),
            unit=text("seconds"),
            kind="lines",
            digits=1 if now.p95 is None or now.p95 >= 1 else 2,
            series=[
                Series(text("Half within"), "way", [one.p50 for one in figures]),
                Series(text("95 of 100 within"), "warn", [one.p95 for one in figures]),
            ],
            **common,
        ),
    ]


def campaign_marks(request: Request, events: Iterable[ChartEvent]) -> list[Mark]:
    """When campaigns began, were paused and resumed, as marks."""
    marks = []
    for one in events:
        name = one.name if len(one.name) <= LONGEST_NAME else f"{one.name[:LONGEST_NAME]}…"
        if one.kind != "begun":
            what = request.text("a pause") if one.kind == "paused" else request.text("in progress")
            name = f"{name}: {what}"
        marks.append(Mark(one.at, name))
    return marks


def download(request: Request, charts: Iterable[Chart]) -> Download | None:
    """The file of the chart named by `csv` in the address; None: it names none."""
    wanted = request.query.get("csv")
    found = next((one for one in charts if one.id == wanted), None) if wanted else None
    if found is None:
        return None
    file = io.StringIO()
    delimiter = SEPARATORS.get(request.locale.language, ",")
    point = "." if delimiter == "," else ","
    writer = Writer(file, [request.text("Time"), *(one.name for one in found.series)], delimiter=delimiter)
    for number, at in enumerate(found.times):
        values = (one.values[number] for one in found.series)
        cells = ("" if value is None else f"{value:.{found.digits}f}".replace(".", point) for value in values)
        writer.row([iso(at), *cells])
    body = (MARK + file.getvalue()).encode()
    return Download(name=f"{found.id}.csv", kind="text/csv; charset=utf-8", body=body)
