"""D8b Endpoint: the state of one, its attempts, and the actions on it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.dashboard import listing
from heliograph.dashboard.developers import deliveries, endpoint_charts, webhooks
from heliograph.dashboard.developers.attempt_places import Places, place
from heliograph.overview import messages
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.forms import leaving
from heliograph.pages.lists import pagination, ranges
from heliograph.pages.pieces import charts
from heliograph.pages.pieces.parts import Parts
from heliograph.pages.requests import Request
from heliograph.webhooks import changing, endpoints, figures, history, replays
from heliograph.webhooks.changing import Changes
from heliograph.webhooks.endpoints import OVERLAP, Endpoint, EndpointDisabled, EndpointPaused, TooManyEndpoints
from heliograph.webhooks.figures import AttemptCourse, Health
from heliograph.webhooks.history import AttemptPage, Filters
from heliograph.webhooks.recording.events import KINDS
from heliograph.webhooks.replays import REPLAY_DAYS, ReplayRunning

#: Replays listed.
REPLAYS = 10
#: Choices for how far back a replay begins.
SINCE = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "3d": timedelta(days=3),
    "7d": timedelta(days=7),
    "30d": timedelta(days=REPLAY_DAYS),
}
#: The choice of custom times.
OWN = "custom"
#: Deliveries due within this time do not count as scheduled for later.
SOON = timedelta(seconds=5)
#: Maximum characters of an id in a search; deliveries per minute from which the rate is shown without decimals.
LONGEST_ID, EXACT = 64, 10


async def show(request: Request) -> Answer:
    """One endpoint with its attempts, newest first."""
    id = request.id()
    values = await _values(request, id)
    if values is None:
        return Redirect(location=request.to(f"/webhooks/{id}"))
    if values["endpoint"].catches_until is not None:
        return Redirect(location=request.to("/webhooks/catcher"))
    if (file := charts.download(request, values["charts"])) is not None:
        return file
    values["panel"] = None
    if (opened := pagination.opened(request)) is not None:
        values |= {"panel": opened, "opened": await deliveries.panel(request, id, opened)}
    template = "developers/endpoint_live.html" if request.is_fragment else "developers/endpoint.html"
    return Page(template=template, values=values)


async def show_edit(request: Request) -> Answer:
    """The form that changes an endpoint."""
    async with request.reading() as conn:
        endpoint = await endpoints.get(conn, request.actor, id=request.id())
    if request.is_fragment:
        url = request.query.get("url", "")
        return Page(template="developers/webhooks_url.html", values=webhooks.said_of(request, url))
    return Page(template="developers/endpoint_edit.html", values=_form(request, endpoint, _shown(endpoint)))


async def edit(request: Request) -> Answer:
    """Change address, events or description; the secret stays."""
    id = request.id()
    async with request.reading() as conn:
        endpoint = await endpoints.get(conn, request.actor, id=id)
    ticked = webhooks.chosen(request)
    shown = _shown(endpoint)
    given = leaving.typed(request.form | dict.fromkeys(ticked, "yes"), shown, shown)
    events = [one for one in KINDS if given[one]] + [one for one in ticked if one not in KINDS]
    wanted = Changes(url=given["url"].strip(), subscribed_events=events, description=given["description"])
    try:
        async with request.writing() as conn:
            await changing.change(conn, request.actor, id=id, changes=wanted, rules=webhooks.rules(request))
    except Invalid as refusal:
        values = _form(request, endpoint, given)
        return refused("developers/endpoint_edit.html", webhooks.form_refusal(request, refusal), values)
    return Redirect(location=request.to(f"/webhooks/{id}"), notice=request.text("The endpoint is changed."))


def _shown(endpoint: Endpoint) -> dict[str, str]:
    """The current values of the fields, with one checkbox per event."""
    ticked = {kind: "yes" if kind in endpoint.subscribed_events else "" for kind in KINDS}
    return {"url": endpoint.url, "description": endpoint.description, **ticked}


def _form(request: Request, endpoint: Endpoint, given: dict[str, str]) -> dict[str, Any]:
    return webhooks.typed(request) | {
        "url": given["url"],
        "description": given["description"],
        "ticked": [kind for kind in KINDS if given[kind]],
        **webhooks.said_of(request, given["url"]),
        "endpoint": endpoint,
        "was": leaving.written(_shown(endpoint)),
    }


async def show_disable(request: Request) -> Answer:
    """What disabling an endpoint would stop."""
    async with request.reading() as conn:
        health = await figures.of(conn, request.actor, id=request.id())
    values = {"health": health, "most_waiting": figures.MOST_WAITING}
    return Page(template="developers/endpoint_disable.html", values=values)


async def disable(request: Request) -> Answer:
    """Disable an endpoint: nothing more is sent to it."""
    id = request.id()
    async with request.writing() as conn:
        await changing.disable(conn, request.actor, id=id)
    return Redirect(location=request.to(f"/webhooks/{id}"), notice=request.text("The endpoint is disabled."))


async def enable(request: Request) -> Answer:
    """Enable a disabled endpoint: it is sent new events, and on request those that it missed."""
    recover = request.form.get("recover") == "yes"
    said = request.text("The endpoint is enabled. It gets what happens from now on; what it missed can be recovered.")
    if recover:
        said = request.text("The endpoint is enabled. What it missed is on its way, behind new events.")
    return await _change(request, Changes(disabled=False, recover=recover), said)


async def pause(request: Request) -> Answer:
    """Pause an endpoint until it is resumed."""
    said = request.text(
        "The endpoint is paused. New events wait until it is resumed, for %(days)s days at most.", days=REPLAY_DAYS
    )
    return await _change(request, Changes(paused=True), said)


async def resume(request: Request) -> Answer:
    """Resume an endpoint, and send what has waited."""
    said = request.text("The endpoint is resumed. What waited is on its way, behind new events.")
    return await _change(request, Changes(paused=False), said)


async def _change(request: Request, wanted: Changes, said: str) -> Answer:
    id, is_refusal = request.id(), False
    try:
        async with request.writing() as conn:
            await changing.change(conn, request.actor, id=id, changes=wanted, rules=webhooks.rules(request))
    except (TooManyEndpoints, EndpointDisabled) as refusal:
        said, is_refusal = request.text(refusal.message), True
    return Redirect(location=request.to(f"/webhooks/{id}"), notice=said, is_refusal=is_refusal)


async def show_rotate(request: Request) -> Answer:
    """What replacing the secret means."""
    async with request.reading() as conn:
        endpoint = await endpoints.get(conn, request.actor, id=request.id())
    values = {"endpoint": endpoint, "hours": OVERLAP // timedelta(hours=1)}
    return Page(template="developers/endpoint_rotate.html", values=values)


async def rotate(request: Request) -> Answer:
    """Replace the secret, and show the new one, only here."""
    id = request.id()

    async def work(conn: Connection) -> dict[str, str]:
        endpoint, secret, until = await endpoints.rotate_secret(
            conn, request.actor, id=id, rules=webhooks.rules(request)
        )
        return {"id": str(id), "url": endpoint.url, "secret": secret, "until": until.isoformat()}

    try:
        made = await request.once(work, has_secret=True)
    except EndpointDisabled as refusal:
        return Redirect(location=request.to(f"/webhooks/{id}"), notice=request.text(refusal.message), is_refusal=True)
    values = {"made": made, "pieces": webhooks.pieces(made["secret"]), "is_rotated": True, "is_catcher": False}
    values |= {"until": datetime.fromisoformat(made["until"])}
    return Page(template="developers/webhooks_made.html", values=values)


async def test(request: Request) -> Answer:
    """Send a test event or an example now, and go to the page that shows the endpoint's response."""
    id = request.id()

    async def work(conn: Connection) -> str:
        event_id = await replays.send_example(
            conn,
            request.actor,
            endpoint_id=id,
            request_id=request.request_id,
            kind=request.form.get("kind", replays.TEST),
        )
        return str(event_id)

    try:
        event_id = await request.once(work)
    except (EndpointDisabled, EndpointPaused, Invalid) as refusal:
        return Redirect(location=request.to(f"/webhooks/{id}"), notice=request.text(refusal.message), is_refusal=True)
    return Redirect(location=request.to(f"/webhooks/{id}/events/{event_id}", wait="yes"))


async def show_replay(request: Request) -> Answer:
    """The form that replays a time range, and earlier replays."""
    return Page(template="developers/endpoint_replay.html", values=await _replay_values(request))


async def replay(request: Request) -> Answer:
    """Send again what was recorded in a time range: what failed, or everything."""
    id, form = request.id(), request.form

    async def work(conn: Connection) -> str:
        wrong, asked = Problems(), [one for one in form.get("kinds", "").split(",") if one]
        with wrong.gathering():
            from_at, to_at = _asked_times(request)
        if not asked:
            wrong.add("kinds", "length", "Choose at least one event.")
        wrong.report()
        started = await replays.replay(
            conn,
            request.actor,
            endpoint_id=id,
            from_at=from_at,
            to_at=to_at,
            kinds=asked,
            only_failed=form.get("what") != "everything",
        )
        return str(started.id)

    try:
        await request.once(work)
    except (Invalid, EndpointDisabled, EndpointPaused, ReplayRunning) as refusal:
        wrong = refusal if isinstance(refusal, Invalid) else Invalid(("since", refusal.code, refusal.message))
        return refused("developers/endpoint_replay.html", wrong, await _replay_values(request))
    said = request.text("It is on its way: events sent again are queued behind new ones.")
    return Redirect(location=request.to(f"/webhooks/{id}/replay"), notice=said)


def _asked_times(request: Request) -> tuple[datetime, datetime | None]:
    """(since, until) of a replay; None: until now. Raises Invalid."""
    form, zone = request.form, ZoneInfo(request.locale.zone)
    if form.get("since") != OWN:
        since = SINCE.get(form.get("since", ""))
        if since is None:
            raise Invalid(("since", "enum", "Choose one of the times that are offered."))
        # One minute less: the longest choice is the limit itself, and time passes until it is checked.
        return clock.now() - since + timedelta(minutes=1), None
    wrong, ends = Problems(), list[datetime | None]()
    for field in ("from", "to"):
        typed = form.get(field, "").strip()
        try:
            ends.append(ranges.moment(typed, zone, is_end=field == "to") if typed or field == "from" else None)
        except (ValueError, OverflowError):
            wrong.add(field, "format", "Enter a time as 2027-01-31 or 2027-01-31 14:30.")
    wrong.report()
    from_at, to_at = ends
    assert from_at is not None
    try:
        replays.check_range(from_at, to_at, clock.now())
    except Invalid:
        raise Invalid(("from", "range", "The start must be before the end, within the last 30 days.")) from None
    return from_at, to_at


async def _replay_values(request: Request) -> dict[str, Any]:
    id, form = request.id(), request.form
    async with request.reading() as conn:
        endpoint = await endpoints.get(conn, request.actor, id=id)
        listed = await replays.list_replays(conn, request.actor, endpoint_id=id, limit=REPLAYS)
    kinds = [one for one in endpoint.subscribed_events if one != replays.TEST]
    return {
        "endpoint": endpoint,
        "kinds": kinds,
        "ticked": form.get("kinds", "").split(",") if form else kinds,
        "since": form.get("since", "24h"),
        "what": form.get("what", "failed"),
        "times": [(name, request.text(words.SINCE[name])) for name in (*SINCE, OWN)],
        "typed": {name: form.get(name, "") for name in ("from", "to")},
        "days": REPLAY_DAYS,
        "replays": listed,
    }


async def _values(request: Request, id: UUID) -> dict[str, Any] | None:
    """The page's values; None: the address names a position that is not in this list."""
    parts = Parts(request)
    range, size = ranges.read(request), pagination.size(request)
    filters = Filters(
        _of(request, "result", (history.FAILED, *history.RESULTS)),
        _of(request, "kind", KINDS),
        range.since,
        range.until,
    )
    bound = {"endpoint": str(id), "mode": request.mode, "result": filters.result, "kind": filters.kind}
    named = request.query.get("message", "").strip()[:LONGEST_ID]
    bound |= {"message": named, "range": range.name, "from": range.typed_since, "to": range.typed_until}
    places, newer = Places(request, bound), 0
    try:
        before, top = places.after(), places.top()
    except Invalid:
        return None
    is_first = before is None
    if top is not None:
        before = (top[0], top[1], top[2] + 1)  # includes the first row itself
    async with request.reading() as conn:
        health = await figures.of(conn, request.actor, id=id)
        filters, problem = await _of_message(conn, request, filters, named)
        course: AttemptCourse | None = None
        if is_first or request.query.get("csv"):
            since, until = endpoint_charts.bounds(range)
            measured = figures.course(conn, request.actor, id=id, since=since, until=until)
            course = await parts.load("charts", measured, otherwise=None)
        asked = functools.partial(history.attempts, conn, request.actor, endpoint_id=id, filters=filters)
        page = await parts.load("attempts", asked(before=before, limit=size + 1), otherwise=AttemptPage([], None))
        if top is not None:
            latest = await parts.load("newer", asked(limit=pagination.MOST_NEWER), otherwise=AttemptPage([], None))
            newer = pagination.newer([place(one) for one in latest.attempts], top)
        pace = await parts.load("pace", _pace(conn, request, health), otherwise="")
    tried, position = page.attempts, page.seen
    if len(tried) > size:
        position = place(tried[size - 1])
    older = None if position is None else request.again(after=places.written(position), top="")
    word, because = webhooks.state(request, health)
    return {
        "parts": parts,
        "health": health,
        "endpoint": health.endpoint,
        "state": word,
        "because": because,
        "days": REPLAY_DAYS,
        "charts": [] if course is None else endpoint_charts.drawn(request, course),
        "cells": webhooks.cells(request, health.hours),
        "most_waiting": figures.MOST_WAITING,
        "attempts": tried[:size],
        "columns": listing.columns(request, "deliveries"),
        "older": older,
        "size": size,
        "is_first": is_first,
        "top": places.written(place(tried[0])) if tried else "",
        "newer": newer,
        "range": range,
        "filters": filters,
        "named": named,
        "problem": problem,
        "pace": pace,
        "failed": history.FAILED,
        "results": history.RESULTS,
        "is_filtered": filters != Filters(),
        "looked_until": page.seen and page.seen[0],
        "kinds": [replays.TEST, *(one for one in KINDS if one != replays.TEST)],
        "may_write": request.may("webhooks:write"),
    }


async def _of_message(conn: Connection, request: Request, filters: Filters, named: str) -> tuple[Filters, str]:
    """(filters limited to the events of the message with this id, what is wrong with the id)"""
    if not named:
        return filters, ""
    events, problem = [], ""
    try:
        events = (await messages.get(conn, request.actor, id=UUID(named))).events
    except ValueError:
        problem = request.text("This is not an id.")
    except NotFound:
        problem = request.text("There is no such message.")
    return msgspec.structs.replace(filters, events=events), problem


async def _pace(conn: Connection, request: Request, health: Health) -> str:
    """The pace at which the backlog is delivered, and how long it will take; "": nothing waits, or only for later."""
    if not health.waiting or health.endpoint.status != "active":
        return ""
    if health.next_at is not None and health.next_at > clock.now() + SOON:
        return ""
    text, number = request.text, request.locale.number
    pace = await figures.pace(conn, request.actor, id=health.endpoint.id)
    if not pace:
        return text("none was delivered in the last 5 minutes")
    told = number(pace, 0 if pace >= EXACT else 1)
    left = request.locale.duration(60 * min(health.waiting, figures.MOST_WAITING) / pace)
    if health.waiting > figures.MOST_WAITING:
        return text("%(pace)s a minute are delivered: more than %(time)s until it is empty", pace=told, time=left)
    return text("%(pace)s a minute are delivered: about %(time)s until it is empty", pace=told, time=left)


def _of(request: Request, name: str, known: Sequence[str]) -> str | None:
    """A choice in the address; None if it is not one of those offered."""
    chosen = request.query.get(name)
    return chosen if chosen in known else None
