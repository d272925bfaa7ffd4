"""`heliograph guide`: serves the documentation as a site on this machine."""

from __future__ import annotations

from typing import Annotated

import typer
import uvloop

from heliograph.cli.terminal.console import Problem
from heliograph.cli.terminal.options import filled
from heliograph.cli.terminal.printing import Json, say, show
from heliograph.http.server.server import CannotListen
from heliograph.serve import serve_guide


def command(
    host: Annotated[str, typer.Option(help="Address to listen on.", callback=filled)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8090,
    json: Json = False,
) -> None:
    """Show the guide, the errors and the API reference in a browser: searchable, without a network or a database.

    Every web process serves them as well, at /guide.

    \b
    Examples:
      heliograph guide
      heliograph guide --port 0 --json
    """

    def ready(base_url: str) -> None:
        if json:
            show({"url": f"{base_url}/guide"}, json)
        else:
            say(f"The guide is at {base_url}/guide. Stop with Ctrl-C.")

    try:
        uvloop.run(serve_guide(host=host, port=port, on_ready=ready))
    except CannotListen as error:
        raise Problem(str(error)) from None
