"""`heliograph logs`: the latest requests of this organization's programs, and those that come."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.cli.developer.client import KeyOption, ProfileOption, UrlOption, client
from heliograph.cli.developer.requests import COLUMNS, LOOK, Status, follow
from heliograph.cli.terminal.console import DataDir
from heliograph.cli.terminal.printing import Json, line


def command(
    status: Status = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=LOOK, help="How many of the latest to print first.")
    ] = 10,
    follows: Annotated[bool, typer.Option("--follow", "-f", help="Go on with those that come, until Ctrl-C.")] = False,
    key: KeyOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Print the latest requests that changed something or were refused, oldest first, and follow them with -f.

    `heliograph requests get ID` shows one with its body and its answer.

    \b
    Examples:
      heliograph logs
      heliograph logs -f --status 4xx
    """
    api = client(key, url, profile, data_dir)
    if follows:
        follow(api, status, json, first=lines)
        return
    latest = api.ask("GET", "/requests", query={"limit": max(lines, 1), "statusClass": status})["items"][:lines]
    for one in reversed(latest):
        line(one, json, COLUMNS)
