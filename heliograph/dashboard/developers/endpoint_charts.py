"""D8b Charts of an endpoint: attempts by result, and response times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.pages import words
from heliograph.pages.lists.ranges import LENGTHS, Range
from heliograph.pages.pieces.charts import Chart, Series
from heliograph.pages.requests import Request
from heliograph.webhooks.delivery.attempts import DELIVERED
from heliograph.webhooks.figures import AttemptCourse
from heliograph.webhooks.replays import REPLAY_DAYS

#: The default range, and the number of failures with a plot of their own; the others share one.
USUAL, SEVERAL = "24h", 2


def bounds(range: Range) -> tuple[datetime, datetime]:
    """(since, until), no further back than attempts are kept."""
    now = clock.now()
    until = min(range.until or now, now)
    since = max(range.since or until - LENGTHS[USUAL], now - timedelta(days=REPLAY_DAYS))
    return min(since, until - timedelta(seconds=1)).astimezone(UTC), until.astimezone(UTC)


def drawn(request: Request, course: AttemptCourse) -> list[Chart]:
    """Bars for successes and each kind of failure, and lines for p50 and p95."""
    text, locale = request.text, request.locale
    intervals = course.intervals
    common: dict[str, Any] = {
        "locale": locale,
        "times": [one.at for one in intervals],
        "step": int(course.step.total_seconds()),
        "links": [request.again(**{"range": "", "from": iso(i.at), "to": iso(i.at + course.step)}) for i in intervals],
    }
    failures = sorted((name for name in course.results if name != DELIVERED), key=lambda name: -course.results[name])
    named, others = failures[:SEVERAL], failures[SEVERAL:]
    failed = sum(course.results[name] for name in failures)
    series = [Series(text(words.RESULTS[DELIVERED]), "good", [one.results.get(DELIVERED, 0) for one in intervals])]
    series += [
        Series(text(words.RESULTS[name]), "bad", [one.results.get(name, 0) for one in intervals]) for name in named
    ]
    if others:
        values = [sum(one.results.get(name, 0) for name in others) for one in intervals]
        series.append(Series(text("Other failures"), "warn", values))
    return [
        Chart(
            id="attempts",
            title=locale.count(
                "%(num)s attempt delivered, %(failed)s failed.",
                "%(num)s attempts delivered, %(failed)s failed.",
                course.results.get(DELIVERED, 0),
                failed=locale.number(failed),
            ),
            unit=text("attempts"),
            kind="bars",
            series=series,
            **common,
        ),
        Chart(
            id="answer-time",
            title=text("No attempt received a 2xx response.")
            if course.p50 is None or course.p95 is None
            else text(
                "Half of the successes were answered within %(half)s, 95 of 100 within %(most)s.",
                half=locale.duration(course.p50),
                most=locale.duration(course.p95),
            ),
            unit=text("seconds"),
            kind="lines",
            digits=1 if course.p95 is None or course.p95 >= 10 else 3,
            series=[
                Series(text("Half within"), "way", [one.p50 for one in intervals]),
                Series(text("95 of 100 within"), "warn", [one.p95 for one in intervals]),
            ],
            **common,
        ),
    ]
