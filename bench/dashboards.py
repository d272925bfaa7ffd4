"""The dashboard among millions of stored messages: how long its pages take, and what open ones cost those who send.

A person signs in by link, and every page of the dashboard's table is asked for that needs no id, or with an id that
another page links to. Time is from the request to the last byte of the answer, over loopback, with
nobody else asking: what a server adds to the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
import statistics
import time
import urllib.parse
from collections.abc import AsyncIterator

import aiohttp

from bench.accept import Lengths, once
from bench.figures import Report
from bench.stage import BenchError, Stage
from heliograph import demo
from heliograph.dashboard.table import ROUTES, TABLE

#: Requests of each page that are timed, and before them some that are not.
TIMED, WARM = 30, 3
#: Dashboards that are open while messages are accepted.
OPEN = 20
#: Seconds between two looks of one: after a change, and how it grows while nothing changes.
PAUSE, GROWS, LONGEST = 2.0, 1.5, 15.0
#: What they show, in turn.
WATCHED = ("/", "/messages", "/messages?status=failed")
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def dashboards(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Pages one by one, then accepts without and with OPEN dashboards, in turn. The API must be running."""
    async with _person(stage) as session:
        times = {path: await _timed(session, path) for path in await _paths(session)}
        slowest = sorted(times, key=lambda path: times[path], reverse=True)
        for path in slowest[:5]:
            stage.say(f"  p95 of {path}: {times[path]:.1f} ms")
        report.add("pages_p95", "p95 of the slowest page", [times[slowest[0]]], "ms")
        report.add("pages_p95_median", "p95 of a page, median of all pages", [statistics.median(times.values())], "ms")
        without, with_open, memory = [], [], 0.0
        for _ in range(lengths.rounds):
            without.append((await once(stage, connections=64, seconds=lengths.window, empty=False)).rate)
            async with _watching(session):
                with_open.append((await once(stage, connections=64, seconds=lengths.window, empty=False)).rate)
            memory = max(memory, stage.size("api"))
    report.add("pages_accept_none", "accepted, 64 connections, no dashboard open", without, "/s")
    report.add("pages_accept_open", f"accepted, 64 connections, {OPEN} dashboards open", with_open, "/s")
    report.ratio(
        "pages_accept", f"accepted with {OPEN} dashboards open ÷ with none", "pages_accept_open", "pages_accept_none"
    )
    report.add("pages_memory", "resident memory, API process after its pages", [memory], "MB")


@contextlib.asynccontextmanager
async def _person(stage: Stage) -> AsyncIterator[aiohttp.ClientSession]:
    """The owner of the stage's organization, signed in."""
    async with stage.connection() as conn:
        token = await demo.owners_link(conn, stage.organization)
    base = f"http://127.0.0.1:{stage.api_port}"
    headers = {"Accept": "text/html", "Origin": base, "Sec-Fetch-Site": "same-origin"}
    async with aiohttp.ClientSession(base, headers=headers, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        form = await (await session.get("/enter")).text()
        fields = dict(re.findall(r'name="(_\w+)" value="([^"]*)"', form))
        body = urllib.parse.urlencode(fields | {"link": token or ""})
        async with session.post("/enter", data=body, headers=FORM) as answer:
            if answer.status != 200:
                raise BenchError(f"signing in by link: {answer.status}")
        yield session


async def _paths(session: aiohttp.ClientSession) -> list[str]:
    """An address of each page that answers here, ids taken from the links of those found before."""
    fixed = [route.path for route in ROUTES if route.method == "GET" and "{" not in route.path]
    wanted, found, seen = ["/", *sorted(fixed)], [], set[str]()
    for path in wanted:
        methods, _ = TABLE.find(path)
        route = methods.get("GET")
        if route is None or (route.is_public and path != "/") or route.path in seen:
            continue
        async with session.get(path, allow_redirects=False) as answer:
            if answer.status != 200 or answer.content_type != "text/html":
                continue
            text = await answer.text()
        seen.add(route.path)
        found.append(path)
        wanted += [html.unescape(link).partition("?")[0] for link in re.findall(r'href="(/[^"#]+)"', text)]
    return found


async def _timed(session: aiohttp.ClientSession, path: str) -> float:
    """The 95th percentile of a page's time, ms."""
    times = []
    for number in range(WARM + TIMED):
        began = time.perf_counter()
        async with session.get(path) as answer:
            await answer.read()
        if number >= WARM:
            times.append((time.perf_counter() - began) * 1000)
    return statistics.quantiles(times, n=20)[-1]


@contextlib.asynccontextmanager
async def _watching(session: aiohttp.ClientSession) -> AsyncIterator[None]:
    """OPEN dashboards that look again as an open page does (`pages/static/live.js`)."""

    async def look(number: int) -> None:
        path, tag, seen, pause = WATCHED[number % len(WATCHED)], "", "0", PAUSE
        await asyncio.sleep(PAUSE * number / OPEN)
        while True:
            headers = {"HX-Request": "true", "X-Seen": seen} | ({"If-None-Match": tag} if tag else {})
            async with session.get(path, headers=headers) as answer:
                await answer.read()
                pause = min(pause * GROWS, LONGEST) if answer.status == 304 else PAUSE
                tag, seen = answer.headers.get("etag", tag), answer.headers.get("x-made", seen)
            await asyncio.sleep(pause)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(look(number)) for number in range(OPEN)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
