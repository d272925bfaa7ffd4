"""`heliograph up`: runs everything on this machine."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from heliograph.base.process import logs
from heliograph.cli.terminal.console import UNREACHABLE, Problem
from heliograph.cli.terminal.options import filled
from heliograph.cli.terminal.printing import Json, as_plain, form, say, show
from heliograph.up import welcome
from heliograph.up.errors import DatabaseUnusable, UpError
from heliograph.up.running import UpOptions, up
from heliograph.up.welcome import Welcome


def command(
    host: Annotated[str, typer.Option(help="Address for the API to listen on.", callback=filled)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for the API; 0 picks a free one.")] = 8080,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the database and the keys.",
            show_default="/var/lib/heliograph, or in the home directory",
        ),
    ] = None,
    api_processes: Annotated[int, typer.Option(min=1, max=64, help="Number of API processes, on the same port.")] = 1,
    credentials_file: Annotated[
        Path | None,
        typer.Option(help="File to write addresses and keys to, as JSON.", show_default="in the data directory"),
    ] = None,
    json: Json = False,
) -> None:
    """Start PostgreSQL, the API, a worker, a simulated SMSC and a simulation of Meta's Cloud API, with an organization
    that can send SMS and WhatsApp messages right away.

    The keys are shown at the first start and kept in the credentials file, which is written once messages can be sent;
    with -o json or tsv they are printed at that moment. Webhooks may be sent to http:// and loopback addresses if
    --host is a loopback address, unless HELIOGRAPH_WEBHOOK_ALLOW_HTTP or HELIOGRAPH_WEBHOOK_ALLOW_NETWORKS says
    otherwise.

    If HELIOGRAPH_DATABASE_URL is set, that database is used instead of an embedded PostgreSQL. Ctrl-C stops everything;
    the data is kept for the next start.

    \b
    Examples:
      heliograph up
      heliograph up --port 8081 --data-dir ./data --credentials-file credentials.json
    """
    options = UpOptions(
        host=host, port=port, data_dir=data_dir, api_processes=api_processes, credentials_file=credentials_file
    )
    try:
        status = uvloop.run(up(options, say=_say, on_ready=_print if form(json) in ("json", "tsv") else _welcome))
    except DatabaseUnusable as error:
        raise Problem(str(error), UNREACHABLE) from None
    except UpError as error:
        raise Problem(str(error)) from None
    raise typer.Exit(status)


def _say(line: str) -> None:
    # Nor is a terminal on hold a reason not to restart what has ended.
    if logs.has_room():
        say(line)


def _welcome(ready: Welcome) -> None:
    # Often there is nobody to welcome, and stdout is a log: one that cannot be written is no reason not to run.
    with contextlib.suppress(OSError):
        welcome.show(ready)


def _print(ready: Welcome) -> None:
    show(as_plain(ready.credentials), form(False) in (None, "json"))
