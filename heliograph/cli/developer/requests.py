"""`heliograph requests`: requests of this organization's programs to the API, and the responses."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from heliograph.base.database import clock
from heliograph.base.ids import uuid_in
from heliograph.cli.developer.client import Client, KeyOption, ProfileOption, UpDir, UrlOption, client
from heliograph.cli.terminal.console import Problem
from heliograph.cli.terminal.printing import Json, group, line, say, show

app = group("Requests that changed something or were refused, from the API's log. Uses the API with a key.")

COLUMNS = ("at", "method", "path", "status", "errorCode", "durationMs", "requestId")
#: Seconds between two polls, requests read at once, and how many are remembered.
POLL, LOOK, KNOWN = 1.0, 100, 1000
#: Maximum pages per poll, however much has arrived since the last one.
MOST_PAGES = 100
#: Seconds by which an entry may appear in the log after more recent ones, and how far before its start `follow` looks.
LATE, LATE_AT_FIRST = 60.0, 5.0
#: Fields of a page of the list, and minimum widths of a line's columns, so that the following ones are aligned.
PAGE, WIDTHS = ("items", "nextCursor", "hasMore"), {"method": 6, "status": 3}
#: First digit of a status → its colour on a terminal: green, cyan, yellow, red.
COLOURS = {2: 32, 3: 36, 4: 33, 5: 31}

Status = Annotated[
    str | None,
    typer.Option(
        "--status", show_default=False, metavar="STATUS", help="Only with this status, or one of this class: 409, 4xx."
    ),
]
Method = Annotated[
    Literal["GET", "POST", "PUT", "PATCH", "DELETE"] | None,
    typer.Option("--method", case_sensitive=False, show_default=False, help="Only with this method."),
]
BelowPath = Annotated[
    str | None,
    typer.Option("--path", show_default=False, help="Only to this path and those below it, such as /contacts."),
]


@app.command("list")
def list_(
    status: Status = None,
    method: Method = None,
    path: BelowPath = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number to show.")] = 20,
    key: KeyOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    json: Json = False,
    data_dir: UpDir = None,
) -> None:
    """List the latest requests, newest first.

    \b
    Examples:
      heliograph requests list --status 4xx
      heliograph requests list --method DELETE --path /contacts
    """
    wanted = filters(status, method, path)
    api = client(key, url, profile, data_dir)
    show(latest(api, wanted, limit), json, COLUMNS, limit=limit)


@app.command("get")
def get(
    request: Annotated[str, typer.Argument(metavar="ID", help="The `x-request-id` of a response, or the entry's id.")],
    key: KeyOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    json: Json = False,
    data_dir: UpDir = None,
) -> None:
    """Show a request with what is kept of its body and its response; texts and numbers are redacted.

    \b
    Example:
      heliograph requests get 0198c1c7-7d5e-7cc3-98c9-5a1f7b0c2d3e
    """
    api, shown = client(key, url, profile, data_dir), (*COLUMNS, "body", "answer")
    id = uuid_in(request)
    if str(id) != request:  # an `X-Request-Id` that the program made, perhaps a UUID in another spelling
        named = latest(api, {"requestId": request}, 1)
        if not named and id is None:
            raise Problem(f"there is no request {request}")
        request = named[0]["id"] if named else request
    show(api.ask("GET", f"/requests/{quote(request, safe='')}", has=("request",))["request"], json, shown)


@app.command("tail")
def tail(
    status: Status = None,
    method: Method = None,
    path: BelowPath = None,
    key: KeyOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    json: Json = False,
    data_dir: UpDir = None,
) -> None:
    """Print requests as they arrive, until interrupted.

    \b
    Example:
      heliograph requests tail --status 4xx
    """
    wanted = filters(status, method, path)
    api = client(key, url, profile, data_dir)
    say(f"Requests to {api.base_url}. Stop with Ctrl-C.")
    follow(api, wanted, json, first=0)


def filters(status: str | None, method: str | None, path: str | None) -> dict[str, str | None]:
    """The options as a query for the API. Raises BadParameter."""
    found: dict[str, str | None] = {"method": method}
    if status is not None:
        digit, rest = status[:1], status[1:].lower()
        if digit not in ("2", "3", "4", "5") or len(status) != 3 or not (rest == "xx" or rest.isdecimal()):
            raise typer.BadParameter(f"{status} is neither a status, such as 409, nor a class, such as 4xx")
        found |= {"statusClass": f"{digit}xx"} if rest == "xx" else {"status": status}
    if path is not None:
        # A path as written in programs: possibly with the version, and with a trailing slash.
        found["path"] = "/" + path.removeprefix("/v1/").strip("/")
    return found


def latest(api: Client, wanted: Mapping[str, str | None], count: int) -> list[dict[str, Any]]:
    """The latest requests, newest first."""
    found: list[dict[str, Any]] = api.ask("GET", "/requests", query={"limit": count, **wanted}, has=PAGE)["items"]
    return found


def put(one: dict[str, Any], json: bool) -> None:
    """Print a request on a line of its own."""
    line(one, json, COLUMNS, widths=WIDTHS, colours={"status": lambda status: COLOURS.get(int(status) // 100, 0)})


def follow(api: Client, wanted: Mapping[str, str | None], json: bool, *, first: int) -> None:
    """Print the `first` latest requests, and then new ones, oldest first, until interrupted. Waits for a lost
    connection to return."""
    known: dict[str, None] = {}
    try:
        began = since = api.now() - timedelta(seconds=LATE_AT_FIRST)
        start = time.monotonic()
        for at, one in reversed(list(enumerate(_new(api, wanted, known, pages=1)))):
            if at < first:
                put(one, json)
            known[one["id"]] = None
        while True:
            time.sleep(POLL)
            looked = time.monotonic()
            # If hardly anything matches the filters, no known entry ends a poll: it reaches back to this time.
            for one in reversed(_new(api, {**wanted, "dateFrom": clock.iso(since)}, known, pages=MOST_PAGES)):
                put(one, json)
                known[one["id"]] = None
            for old in list(known)[:-KNOWN]:
                del known[old]
            since = max(since, began + timedelta(seconds=looked - start - LATE))
    except KeyboardInterrupt:
        say("Stopped.")


def _new(api: Client, wanted: Mapping[str, str | None], known: Container[str], *, pages: int) -> list[dict[str, Any]]:
    """Requests that are not `known`, newest first: page by page, up to the first that contains a known one."""
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": LOOK, **wanted}
    for _ in range(pages):
        page = api.keep_asking("/requests", query=query, has=PAGE)
        new = [one for one in page["items"] if one["id"] not in known]
        found += new
        if len(new) < len(page["items"]) or not page["hasMore"]:
            return found
        query["cursor"] = page["nextCursor"]
    if pages > 1:
        say("More requests arrived than are shown here: `heliograph requests list` has them.")
    return found
