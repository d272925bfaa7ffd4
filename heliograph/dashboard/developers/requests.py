"""Requests: API requests and their responses; errors in groups, with explanations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.bounded_scan import PAGE_LOOK
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of
from heliograph.dashboard import listing, visibility
from heliograph.overview import requests
from heliograph.overview.finding import SearchResult
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.lists import pagination, ranges
from heliograph.pages.lists.ranges import Range
from heliograph.pages.pieces import charts
from heliograph.pages.pieces.charts import Chart, Series
from heliograph.pages.requests import Request
from heliograph.requests import DAYS, Filters, Hour, LogEntry, reading

#: The default range of the chart and groups.
USUAL = "24h"
#: Maximum characters of a code, operation or id in a search.
LONGEST = 128
#: Maximum characters of a path.
LONGEST_PATH = 256
HOUR = timedelta(hours=1)
_HOST = re.compile("^https?://[^/]*")
#: Filter fields, apart from range and search.
FIELDS = ("status", "code", "operation", "path", "key")


async def show_list(request: Request) -> Answer:
    """The chart, errors in groups, and the list, filtered by the address."""
    query = request.query
    range = ranges.read(request, usual=USUAL)
    filters, searched, problem = _filters(request, range)
    wrong = _wrong(request, filters)
    async with request.reading() as conn:
        if searched and not problem:
            found_one = await requests.find(conn, request.actor, request_id=searched)
            if found_one is not None:
                return Redirect(location=request.to(f"/requests/{found_one.id}"))
            problem = request.text("No request of the last 30 days has this id.")
        since, until = _hours(range)
        course = await reading.course(conn, request.actor, since=since, until=until)
        drawn = _chart(request, course, since, until)
        if (file := charts.download(request, [drawn])) is not None:
            return file
        groups = await reading.errors(conn, request.actor, since=since, until=until)
        limit, top = pagination.size(request), pagination.top(request)
        newer = 0 if top is None else await _newer(conn, request.actor, filters, top)
        start = pagination.start(request)
        found = await requests.list_page(conn, request.actor, filters=filters, after=start, limit=limit, look=PAGE_LOOK)
        names = await _names(conn, request, found.requests)
        keys = await visibility.keys(conn, request, filters.key_id)
    rows = found.requests[:limit]
    last = rows[-1].id if len(found.requests) > limit else found.seen
    values: dict[str, Any] = {
        "range": range,
        "chart": drawn,
        "groups": groups,
        "rows": rows,
        "newer": newer,
        "columns": listing.columns(request, "requests"),
        "names": names,
        "keys": [(str(id), name) for id, name in keys],
        "pages": pagination.pages(request, last),
        "looked_until": None if found.seen is None else time_of(found.seen),
        "q": searched,
        "problem": problem,
        "wrong": wrong,
        "chosen": {name: query.get(name, "") for name in FIELDS},
        "classes": reading.CLASSES,
        "is_filtered": any(query.get(name) for name in (*FIELDS, "q")),
        "days": DAYS,
        "panel": None,
    }
    if (opened := pagination.opened(request)) is not None:
        values |= {"panel": opened, "opened": await _values(request, opened)}
    template = "developers/requests_live.html" if request.is_fragment else "developers/requests.html"
    return Page(template=template, values=values)


async def show(request: Request) -> Answer:
    """One request, with its response and related requests."""
    template = "developers/request_live.html" if request.is_fragment else "developers/request.html"
    return Page(template=template, values=await _values(request, request.id()))


async def _newer(conn: Connection, actor: Actor, filters: Filters, top: UUID) -> int:
    """How many new requests would be listed above the first one shown."""
    found = await requests.list_page(conn, actor, filters=filters, limit=pagination.MOST_NEWER, look=1_000)
    return pagination.newer([one.id for one in found.requests], top)


async def _values(request: Request, id: UUID) -> dict[str, Any]:
    async with request.reading() as conn:
        found = await requests.get(
            conn, request.actor, id=id, kinds=[kind for kind, scope in THINGS.items() if request.may(scope)]
        )
        names = await _names(conn, request, [found.request, *found.siblings])
    public = request.services.settings.public_url or f"http://{request.host}"
    return {
        "asked": found.request,
        "thing": None if found.thing is None else _place(request, found.thing),
        "siblings": found.siblings,
        "columns": listing.columns(request, "requests"),
        "names": names,
        "curl": _curl(found.request, public.rstrip("/")),
    }


#: What a request can be about, and the scope that gives access to it.
THINGS = {
    "message": "sms:read",
    "campaign": "campaigns:read",
    "contact": "contacts:read",
    "endpoint": "webhooks:read",
    "template": "whatsapp:read",
    "key": "api_keys:read",
    "sender": "sender_ids:read",
}


def _place(request: Request, thing: SearchResult) -> tuple[str, str]:
    """(its address, its name)"""
    text = request.text
    path, name = {
        "message": (f"/messages/{thing.id}", text("The message")),
        "campaign": (f"/campaigns/{thing.id}", text("The campaign")),
        "contact": (f"/contacts/{thing.id}", text("The contact")),
        "endpoint": (f"/webhooks/{thing.id}", text("The endpoint")),
        "template": (f"/templates/{thing.id}", text("The template")),
        "key": ("/keys", text("API keys")),
        "sender": ("/senders", text("Sender IDs")),
    }[thing.kind]
    return request.to(path), name


def _filters(request: Request, range: Range) -> tuple[Filters, str, str]:
    """(filters, an id searched for, what could not be understood)"""
    query = request.query
    key, problem = None, ""
    if query.get("key"):
        try:
            key = UUID(query["key"])
        except ValueError:
            problem = request.text("This is not the id of a key.")
    searched = query.get("q", "").strip()[:LONGEST]
    status = query.get("status")
    filters = Filters(
        status_class=status if status in reading.CLASSES else None,
        error_code=query.get("code", "").strip()[:LONGEST] or None,
        operation=query.get("operation", "").strip()[:LONGEST] or None,
        path=_path(query.get("path", "")),
        key_id=key,
        date_from=range.since,
        date_to=range.until,
    )
    return filters, searched, problem


def _wrong(request: Request, filters: Filters) -> dict[str, str]:
    """What no request can have, by the name of the filter's field."""
    text, said = request.text, {}
    for one in request.services.vocabulary.unknown(filters):
        if one.field == "operation":
            name, wrong = "operation", text("There is no operation %(name)s.", name=one.given)
        else:
            name, wrong = "code", text("There is no error code %(name)s.", name=one.given)
        said[name] = f"{wrong} {text('Did you mean %(name)s?', name=one.closest)}" if one.closest else wrong
    return said


def _path(typed: str) -> str | None:
    """A path as it is logged, from one copied from a program: the whole URL, or without host or version."""
    path = _HOST.sub("", typed.strip()).partition("?")[0].strip("/")
    path = path.removeprefix("v1/") if path != "v1" else ""
    return f"/{path}"[:LONGEST_PATH] if path else None


def _hours(range: Range) -> tuple[datetime, datetime]:
    """(since, until) in whole hours for the chart and groups, no further back than the log."""
    until = range.until or clock.now()
    since = max(range.since or until - ranges.LENGTHS[USUAL], clock.now() - timedelta(days=DAYS))
    return min(since, until).astimezone(UTC).replace(minute=0, second=0, microsecond=0), until


def _chart(request: Request, course: Sequence[Hour], since: datetime, until: datetime) -> Chart:
    text, number = request.text, request.locale.number
    by_hour = {one.at: one for one in course}
    times = []
    at = since
    while at < until:
        times.append(at)
        at += HOUR
    none = Hour(since, 0, 0, 0)
    hours = [by_hour.get(at, none) for at in times]
    return Chart(
        id="requests",
        title=request.locale.count(
            "%(num)s request, %(refused)s refused, %(failed)s failed on our side.",
            "%(num)s requests, %(refused)s refused, %(failed)s failed on our side.",
            sum(one.fine + one.refused + one.failed for one in hours),
            refused=number(sum(one.refused for one in hours)),
            failed=number(sum(one.failed for one in hours)),
        ),
        unit=text("requests"),
        kind="bars",
        locale=request.locale,
        times=times,
        step=3600,
        series=[
            Series("2xx–3xx", "good", [one.fine for one in hours]),
            Series("4xx", "warn", [one.refused for one in hours]),
            Series("5xx", "bad", [one.failed for one in hours]),
        ],
        links=[request.to("/requests", **{"from": iso(at), "to": iso(at + HOUR)}) for at in times],
    )


async def _names(conn: Connection, request: Request, listed: Sequence[LogEntry]) -> dict[UUID, str]:
    """Names of the keys and people behind these requests, as far as the reader may know them."""
    keys = await visibility.key_names(conn, request, [one.key_id for one in listed])
    return keys | await visibility.names(conn, request, [one.person_id for one in listed])


def _curl(one: LogEntry, base: str) -> str:
    """The same request as a command to fill in; "" for one made by the dashboard."""
    if one.person_id is not None:
        return ""
    lines = [f"curl -sS -X {one.method} {base}/v1{one.path} \\", "  -H 'authorization: Bearer …'"]
    if one.method != "GET":
        lines[-1] += " \\"
        lines += ['  -H "idempotency-key: …" \\', "  -H 'content-type: application/json' \\", "  -d '…'"]
    return "\n".join(lines)
