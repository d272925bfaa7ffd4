"""Now: what is wrong, since when, and what to do; then throughput, backlog, and setup steps still missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import msgspec

from heliograph.base.sentences import english
from heliograph.console.engine import leads
from heliograph.console.engine.console_cache import SHARED, Problem, cache_of
from heliograph.health import webs
from heliograph.overview.installation.now import COUNTED, Now, only_simulated
from heliograph.pages.answers import Answer, Page
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import (
    APPROVALS,
    OPERATORS,
    ORGANIZATIONS_CHANGE,
    SETTINGS,
    TRAFFIC,
    TRAFFIC_CHANGE,
)
from heliograph.sms.management import watching
from heliograph.traffic import percentile
from heliograph.traffic.reconciliation import Line

#: Seconds overdue after which work counts as late.
LATE = 10.0
#: Findings shown in full, failures first; and how many of the others are named per group of similar ones.
CARDS, NAMED = 12, 8
#: Holds shown in full.
HOLDS = 5


class Step(msgspec.Struct, frozen=True):
    """A setup step of an installation. `link`: where it is done, "" if this operator may not."""

    text: str
    is_done: bool
    link: str = ""


class GroupedFindings(msgspec.Struct, frozen=True):
    """Findings that say the same about several objects: at most NAMED of them with their leads, and how many others."""

    named: Sequence[tuple[Problem, leads.Lead]]
    others: int


class Reported(msgspec.Struct, frozen=True):
    """Figures from all suppliers' receipts of this hour and the previous one. None: there were none."""

    delivered: float | None
    #: Seconds within which 95 % arrived.
    p95: float | None


async def show(request: Request) -> Answer:
    """The wall screen."""
    known = cache_of(request)
    async with known.reading(request, fresh=SHARED) as conn:
        seen = await known.watch.read(conn)
        problems = await known.with_current_sessions(conn, request.services.settings)
        watched = await watching.watch(conn)
        processes = await webs.listed(conn)
        named = await known.led(conn, seen)
    more = problems[CARDS:]
    values = {
        "now": seen,
        "suppliers": seen.suppliers,
        "watched": watched,
        "webs": processes,
        "accepted_within": webs.accepted_within(processes, 0.95),
        "database": known.database,
        "reported": reported(one.line for one in watched.values() if one.line is not None),
        "problems": [(one, leads.lead(request, one.check, named)) for one in problems[:CARDS]],
        "more": len(more),
        "alike": _alike(request, more, named),
        "health": leads.HEALTH if request.may(permission=TRAFFIC) else "",
        "steps": _steps(request, seen),
        "said": _said(request, seen, problems),
        "may_change": request.may(permission=TRAFFIC_CHANGE),
        "holds_shown": HOLDS,
        "counted": COUNTED,
    }
    values["simulated_only"] = only_simulated(seen.suppliers)
    return Page(template="engine/now_live.html" if request.is_fragment else "engine/now.html", values=values)


def reported(lines: Iterable[Line]) -> Reported:
    """The totals over lines of several suppliers."""
    listed = list(lines)
    ended = sum(one.matched + one["never"] for one in listed)
    histogram = [sum(column) for column in zip_longest(*(one.to_receipt for one in listed), fillvalue=0)]
    return Reported(
        delivered=sum(one["delivered"] for one in listed) / ended if ended else None,
        p95=percentile(histogram, 0.95) if any(histogram) else None,
    )


def _alike(request: Request, problems: Sequence[Problem], known: leads.Known) -> list[GroupedFindings]:
    """Grouped by kind, in the order of each one's first, so that hundreds of similar ones do not hide others."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for one in problems:
        about, detail = english(one.check.check), english(one.check.detail)
        groups.setdefault((about, detail), []).append(one)
    return [
        GroupedFindings(
            [(one, leads.lead(request, one.check, known)) for one in group[:NAMED]], len(group) - len(group[:NAMED])
        )
        for group in groups.values()
    ]


def _steps(request: Request, seen: Now) -> list[Step]:
    """The setup steps; empty once all are done."""
    setup, text = seen.facts.setup, request.text
    https = (request.services.settings.public_url or "").startswith("https://")

    def step(said: str, is_done: bool, permission: str, path: str) -> Step:
        return Step(said, is_done, path if request.may(permission=permission) else "")

    listed = [
        step(text("Connect a supplier"), setup.supplier, TRAFFIC_CHANGE, "/console/suppliers/new"),
        step(text("Create an organization"), setup.organization, ORGANIZATIONS_CHANGE, "/console/organizations/new"),
        step(text("Approve a sender ID"), setup.sender, APPROVALS, "/console/approvals"),
        step(text("Take a backup"), setup.backup, TRAFFIC, "/console/health"),
        step(text("Use https for the public address"), https, SETTINGS, "/console/settings"),
        step(text("Add a second operator"), setup.second_operator, OPERATORS, "/console/operators/new"),
    ]
    return [] if all(one.is_done for one in listed) else listed


def _said(request: Request, seen: Now, problems: list[Problem]) -> str:
    """The overall state in one sentence."""
    failed = sum(one.check.state == "failed" for one in problems)
    if failed:
        return request.locale.count("%(num)s thing is wrong.", "%(num)s things are wrong.", failed)
    late = max(seen.late.values(), default=0.0)
    if late > LATE:
        return request.text("Work is late: the oldest is %(time)s overdue.", time=request.locale.duration(late))
    if problems:
        return request.locale.count(
            "Carrying messages; %(num)s warning.", "Carrying messages; %(num)s warnings.", len(problems)
        )
    if seen.rates is None or not seen.suppliers:
        return request.text("Everything works.")
    return request.text(
        "Carrying %(rate)s a second; %(bound)s of %(all)s suppliers connected; the oldest work is %(time)s overdue.",
        rate=request.locale.number(seen.rates.handed_over, 1 if seen.rates.handed_over < 10 else 0),
        bound=sum(one.bound > 0 for one in seen.suppliers),
        all=len(seen.suppliers),
        time=request.locale.duration(late),
    )
