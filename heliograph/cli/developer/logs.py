"""`heliograph logs`: the latest requests of this organization's programs, and new ones as they arrive."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.cli.developer.client import KeyOption, ProfileOption, UpDir, UrlOption, client
from heliograph.cli.developer.requests import LOOK, BelowPath, Method, Status, filters, follow, latest, put
from heliograph.cli.terminal.printing import Json, form, say


def command(
    status: Status = None,
    method: Method = None,
    path: BelowPath = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=LOOK, help="How many of the latest to print first.")
    ] = 10,
    follows: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new ones as they arrive, until Ctrl-C.")
    ] = False,
    key: KeyOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    json: Json = False,
    data_dir: UpDir = None,
) -> None:
    """Print the latest requests that changed something or were refused, oldest first, and follow them with -f.

    `heliograph requests get ID` shows one with its body and its answer. On a terminal, statuses are colored unless
    NO_COLOR is set.

    \b
    Examples:
      heliograph logs
      heliograph logs -f --status 4xx
      heliograph logs --method POST --path /sms/send --status 409
    """
    wanted = filters(status, method, path)
    api = client(key, url, profile, data_dir)
    if follows:
        follow(api, wanted, json, first=lines)
        return
    found = latest(api, wanted, max(lines, 1))[:lines]
    for one in reversed(found):
        put(one, json)
    if not found and form(json) not in ("json", "tsv"):
        say("Nothing to show.")
