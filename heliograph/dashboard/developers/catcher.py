"""D8c Catcher: shows the signed events that a program would receive, before there is such a program."""

from __future__ import annotations

import shlex
from datetime import datetime

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.dashboard.developers import webhooks
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.people.roles import CONTENT
from heliograph.webhooks import catcher
from heliograph.webhooks.catcher import CaughtAttempt
from heliograph.webhooks.delivery.catching import MOST
from heliograph.webhooks.inspection import masked_body

#: Events shown.
SHOWN = 50
#: Where a developer's own program is assumed to listen.
LOCAL = "http://localhost:3000/hooks"


class Line(msgspec.Struct, frozen=True):
    """A caught event. `curl`: "" for readers who may not see texts and numbers."""

    id: str
    event_id: str
    kind: str
    at: datetime
    is_genuine: bool
    headers: list[tuple[str, str]]
    body: str
    curl: str


async def show(request: Request) -> Answer:
    """This mode's catcher with what it caught, newest first; without one, an explanation."""
    rules, whole = webhooks.rules(request), request.may(permission=CONTENT)
    async with request.reading() as conn:
        found = await catcher.current(conn, request.actor)
        caught = []
        if found is not None:
            caught = await catcher.caught(conn, request.actor, catcher=found, rules=rules, limit=SHOWN)
    values = {
        "catcher": found,
        "caught": [_line(one, whole) for one in caught],
        "most": MOST,
        "may_write": request.may("webhooks:write"),
        "base": webhooks.base(request),
    }
    template = "developers/catcher_live.html" if request.is_fragment else "developers/catcher.html"
    return Page(template=template, values=values)


async def open(request: Request) -> Answer:
    """Open it for an hour, and show its secret, only here."""

    async def work(conn: Connection) -> dict[str, str]:
        made, secret = await catcher.open(conn, request.actor, rules=webhooks.rules(request))
        return {"id": str(made.id), "url": request.text("Catcher"), "secret": secret}

    return webhooks.registered(await request.once(work, has_secret=True), is_catcher=True)


async def close(request: Request) -> Answer:
    """Close it before its hour is over."""
    async with request.writing() as conn:
        await catcher.close(conn, request.actor)
    said = request.text("The catcher is closed, and what it caught is erased.")
    return Redirect(location=request.to("/webhooks/catcher"), notice=said)


def _line(one: CaughtAttempt, whole: bool) -> Line:
    shown = one.body if whole else masked_body(one.body)
    return Line(
        id=f"c-{one.event_id}-{one.at.timestamp():.3f}",
        event_id=str(one.event_id),
        kind=one.kind,
        at=one.at,
        is_genuine=one.is_genuine,
        headers=one.headers,
        body=msgspec.json.format(shown, indent=2),
        curl=_curl(one) if whole else "",
    )


def _curl(one: CaughtAttempt) -> str:
    """The same request to a program on the developer's machine. The body is the signed one, byte for byte."""
    lines = [f"curl -sS {LOCAL}", *(f"  -H {shlex.quote(f'{name}: {value}')}" for name, value in one.headers)]
    return " \\\n".join([*lines, f"  --data-raw {shlex.quote(one.body)}"])
