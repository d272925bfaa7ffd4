"""Response time and cost of each page of both apps, with everything that `holdings` generated.

A client signs in to the dashboard and to the console and requests every GET in their route tables: those without an id
directly, the others through links on pages found before; each with the filters, tabs and cursors that a page links to
(one address for each set of names in a query), with searches that find much, little and nothing, and far down the long
lists. Time is from the request to the last byte of the answer, over loopback, without other clients: what a server
adds to the network. The processor time of API and PostgreSQL is shown too, as other work on the machine hardly changes
it.
"""

from __future__ import annotations

import contextlib
import html
import re
import statistics
import time
import urllib.parse
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import aiohttp
import msgspec
import pyotp

from bench import machine
from bench.figures import Report
from bench.stage import BenchError, Stage
from heliograph.console.table import TABLE as CONSOLE
from heliograph.dashboard.table import TABLE as DASHBOARD
from heliograph.demo import seeding
from heliograph.pages.routes import Table

#: Timed requests of each page, and untimed ones before them.
TIMED, WARM = 30, 3
#: How many times `Older` is followed.
DEEP = 20
#: Addresses per route: their links differ in their filters.
VARIANTS = 12
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
PASSWORD = "correct horse battery staple"
#: Searches that find much, little and nothing. Numbers of the large organization are even.
SEARCHES = (
    "/messages?q=%2B258840000004",
    "/messages?q=%2B351910000000",
    "/messages?q=no-such-reference",
    "/messages?status=failed",
    "/messages?status=canceled",
    "/messages?status=undelivered",
    "/messages?reason=undelivered",
    "/messages?country=PT",
    "/messages?sender=NOBODY",
    "/messages?channel=whatsapp",
    "/messages?channel=sms",
    "/go/%2B258840000004",
    "/contacts?q=%2B258840000004",
    "/contacts?q=Person",
    "/contacts?q=nobody",
    "/requests?status=500",
    "/audit?action=key.create",
)
CONSOLE_SEARCHES = (
    f"/console/messages?recipient=%2B258840000004&organization={urllib.parse.quote(seeding.ORGANIZATION)}",
    "/console/messages?recipient=%2B258840000004",
    "/console/messages?recipient=%2B351910000000",
    "/console/messages?recipient=%2B258840000004&channel=whatsapp",
    "/console/organizations?search=1234",
    "/console/organizations?search=nobody",
    "/console/organizations?state=suspended",
    "/console/go/Organization%20777",
)


#: Appears in a page of which a part failed (`pages.pieces.parts`).
FELL = b"data-failed-part"


class Took(msgspec.Struct, frozen=True):
    """One page. Times in ms; `api` and `postgres`: processor time per request; `failed`: how many of TIMED were not
    answered with the page."""

    path: str
    p50: float
    p95: float
    api: float
    postgres: float
    failed: int


async def pages(stage: Stage, report: Report) -> None:
    """Each page of both apps. The API must be running."""
    took: list[Took] = []
    # Both sign in first: an address with many requests is throttled when signing in.
    async with owner(stage) as customer, operator(stage) as ours:
        apps = ((customer, DASHBOARD, "/", SEARCHES), (ours, CONSOLE, "/console/now", CONSOLE_SEARCHES))
        for session, table, front, searches in apps:
            took += [await _timed(stage, session, path) for path in await _paths(session, table, front, searches)]
    took.sort(key=lambda one: one.p95, reverse=True)
    for one in took[:10]:
        stage.say(f"  p95 of {one.path}: {one.p95:.1f} ms")
    report.add("pages_p95", "p95 of the slowest page", [took[0].p95], "ms")
    report.add("pages_p95_median", "p95 of a page, median of all", [statistics.median(one.p95 for one in took)], "ms")
    failed = sum(1 for one in took if one.failed)
    report.add("pages_failed", "addresses that were not always answered with their page", [float(failed)], "")
    report.add("pages_count", "addresses of pages asked for", [float(len(took))], "")
    (folder := Path(__file__).parent / "results").mkdir(exist_ok=True)
    (folder / "pages.md").write_text(_table(took))


def _table(took: Iterable[Took]) -> str:
    lines = ["| Page | p50, ms | p95, ms | API, CPU ms | PostgreSQL, CPU ms | Failed |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {one.path} | {one.p50:.1f} | {one.p95:.1f} | {one.api:.1f} | {one.postgres:.1f} | {one.failed} |"
        for one in took
    ]
    return "\n".join(lines) + "\n"


@contextlib.asynccontextmanager
async def owner(stage: Stage) -> AsyncIterator[aiohttp.ClientSession]:
    """The owner of the stage's organization, signed in."""
    async with stage.connection() as conn:
        token = await seeding.owners_link(conn, stage.organization)
    async with _browser(stage) as session:
        await _submit(session, "/enter", link=token or "")
        yield session


@contextlib.asynccontextmanager
async def operator(stage: Stage) -> AsyncIterator[aiohttp.ClientSession]:
    """The first operator, signed in to the console. BenchError if there is one with a second factor."""
    async with stage.connection() as conn:
        token = await seeding.operators_link(conn)
    if token is None:
        raise BenchError("the first operator was set up before")
    async with _browser(stage) as session:
        await _submit(session, "/console/setup", link=token)
        page = await _submit(session, "/console/setup/account", name="Eva", password=PASSWORD)
        found = re.search(r'class="mono"><br>([A-Z2-7 ]+)<', page)
        if found is None:
            raise BenchError("the console's setup shows no secret for an authenticator app")
        code = pyotp.TOTP(found[1].replace(" ", "")).now()
        await _submit(session, "/console/setup/factor", page, code=code)
        yield session


@contextlib.asynccontextmanager
async def _browser(stage: Stage) -> AsyncIterator[aiohttp.ClientSession]:
    base = f"http://127.0.0.1:{stage.api_port}"
    headers = {"Accept": "text/html", "Origin": base, "Sec-Fetch-Site": "same-origin"}
    async with aiohttp.ClientSession(base, headers=headers, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


async def _submit(session: aiohttp.ClientSession, path: str, text: str = "", **typed: str) -> str:
    """Submit the form of a page, which is fetched unless given; returns the resulting page. BenchError if there is
    none."""
    text = text or await (await session.get(path)).text()
    fields = {name: html.unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', text)}
    body = urllib.parse.urlencode(fields | typed)
    async with session.post(path, data=body, headers=FORM) as answer:
        if answer.status != 200:
            raise BenchError(f"signing in at {path}: {answer.status}")
        return await answer.text()


async def _paths(session: aiohttp.ClientSession, table: Table, front: str, searches: Iterable[str]) -> list[str]:
    """Addresses of every page that responds."""
    fixed = [route.path for route in table.routes if route.method == "GET" and "{" not in route.path]
    wanted, found = [front, *searches, *sorted(fixed)], list[str]()
    seen = set[tuple[str, ...]]()
    counts: dict[str, int] = {}
    for number, address in enumerate(wanted):
        path, _, query = address.partition("?")
        methods, _ = table.find(path)
        route = methods.get("GET")
        searched = 0 < number <= len(list(searches))
        if route is None or (route.is_public and path != front):
            continue
        names = (route.path, *sorted({name for name, _ in urllib.parse.parse_qsl(query, keep_blank_values=True)}))
        if not searched and (names in seen or counts.get(route.path, 0) >= VARIANTS):
            continue
        async with session.get(address, allow_redirects=False) as answer:
            if answer.status < 500 and (answer.status != 200 or answer.content_type != "text/html"):
                continue
            text = await answer.text()
        seen.add(names)
        counts[route.path] = counts.get(route.path, 0) + 1
        found.append(address)
        links = [html.unescape(link) for link in re.findall(r'href="([/?][^"#]*)"', text)]
        wanted += [urllib.parse.urljoin(path, link) for link in links]
        if "after" not in query and (deep := await _deep(session, path, text)) is not None:
            found.append(deep)
    return found


async def _deep(session: aiohttp.ClientSession, path: str, text: str) -> str | None:
    """The page after following `Older` DEEP times, or as far as it goes; None: the page has no such link."""
    address = None
    for _ in range(DEEP):
        link = re.search(r'rel="next" href="([^"]*)"', text)
        if link is None:
            break
        address = urllib.parse.urljoin(path, html.unescape(link[1]))
        async with session.get(address) as answer:
            text = await answer.text()
    return address


async def _timed(stage: Stage, session: aiohttp.ClientSession, path: str) -> Took:
    """Time a page."""
    times, failed = [], 0
    api, postgres = stage.parts["api"].pid, stage.server.pid
    begin = (0.0, 0.0)
    for number in range(WARM + TIMED):
        if number == WARM:
            begin = _used(api, postgres)
        began = time.perf_counter()
        async with session.get(path) as answer:
            body = await answer.read()
        if number >= WARM:
            times.append((time.perf_counter() - began) * 1000)
            # A single part of a page may have failed.
            failed += answer.status != 200 or FELL in body
    end = _used(api, postgres)
    each = [(after - before) * 1000 / TIMED for before, after in zip(begin, end, strict=True)]
    return Took(path, statistics.median(times), statistics.quantiles(times, n=20)[-1], each[0], each[1], failed)


def _used(api: int, postgres: int | None) -> tuple[float, float]:
    return machine.processor_seconds(api), machine.processor_seconds(postgres) if postgres is not None else 0.0
