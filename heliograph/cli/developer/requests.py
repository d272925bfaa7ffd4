"""`heliograph requests`: what this organization's programs asked of the API, and what they were answered."""

from __future__ import annotations

import time
from typing import Annotated, Literal
from urllib.parse import quote

import typer

from heliograph.cli.developer.client import Client, KeyOption, ProfileOption, UrlOption, client
from heliograph.cli.terminal.console import DataDir
from heliograph.cli.terminal.printing import Json, group, line, say, show

app = group("Requests that changed something or were refused, from the API's log. Uses the API with a key.")

COLUMNS = ("at", "method", "path", "status", "errorCode", "durationMs", "requestId")
#: Seconds between two looks, how many of the newest are looked at, and how many are remembered.
POLL, LOOK, KNOWN = 1.0, 100, 1000

Status = Annotated[
    Literal["2xx", "3xx", "4xx", "5xx"] | None,
    typer.Option("--status", show_default=False, help="Only with a status of this class."),
]


@app.command("list")
def list_(
    status: Status = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Longest list.")] = 20,
    key: KeyOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List the latest requests, newest first.

    \b
    Example:
      heliograph requests list --status 4xx
    """
    api = client(key, url, profile, data_dir)
    show(api.ask("GET", "/requests", query={"limit": limit, "statusClass": status})["items"], json, COLUMNS)


@app.command("get")
def get(
    request: Annotated[str, typer.Argument(metavar="ID", help="The `x-request-id` of a response, or the entry's id.")],
    key: KeyOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show a request with what is kept of its body and its response; texts and numbers are blanked.

    \b
    Example:
      heliograph requests get 0198c1c7-7d5e-7cc3-98c9-5a1f7b0c2d3e
    """
    api = client(key, url, profile, data_dir)
    show(api.ask("GET", f"/requests/{quote(request, safe='')}")["request"], json, (*COLUMNS, "body", "answer"))


@app.command("tail")
def tail(
    status: Status = None,
    key: KeyOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Print requests as they come, until interrupted.

    \b
    Example:
      heliograph requests tail --status 4xx
    """
    api = client(key, url, profile, data_dir)
    say(f"Requests to {api.base_url}. Stop with Ctrl-C.")
    follow(api, status, json, first=0)


def follow(api: Client, status: str | None, json: bool, *, first: int) -> None:
    """Print the `first` latest requests, and then those that come, oldest first, until interrupted."""
    known: dict[str, None] = {}
    shown = first
    try:
        while True:
            page = api.ask("GET", "/requests", query={"limit": LOOK, "statusClass": status})["items"]
            for at, one in reversed(list(enumerate(page))):
                if one["id"] not in known and at < shown:
                    line(one, json, COLUMNS)
                known[one["id"]] = None
            for old in list(known)[:-KNOWN]:
                del known[old]
            shown = LOOK
            time.sleep(POLL)
    except KeyboardInterrupt:
        say("Stopped.")
