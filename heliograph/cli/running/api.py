"""`heliograph api`: runs one web process."""

from __future__ import annotations

from typing import Annotated

import structlog
import typer
import uvloop

from heliograph.base.process import spans, supervised
from heliograph.base.process.settings import Settings
from heliograph.cli.terminal.console import DataDir, Problem
from heliograph.cli.terminal.options import filled
from heliograph.cli.terminal.printing import JsonOnly, show
from heliograph.cli.terminal.process import begin, prepared
from heliograph.http.server.server import CannotListen
from heliograph.serve import serve

log = structlog.get_logger()


def command(
    host: Annotated[str, typer.Option(help="Address to listen on.", callback=filled)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8080,
    json: JsonOnly = False,
    data_dir: DataDir = None,
) -> None:
    """Serve the HTTP API. Several processes can share a port, and any number can share a database.

    \b
    Examples:
      heliograph api --host 0.0.0.0 --port 8080
      heliograph api --port 0 --json
    """
    settings = begin(data_dir, part="api")
    try:
        uvloop.run(_serve(settings, host, port, json))
    finally:
        spans.close()


async def _serve(settings: Settings, host: str, port: int, json: bool) -> None:
    def ready(base_url: str) -> None:
        log.info("api listening", base_url=base_url)
        supervised.tell(supervised.READY)
        if json:
            show({"base_url": base_url}, json)

    await prepared(settings)
    try:
        async with supervised.watched():
            await serve(settings, host=host, port=port, on_ready=ready)
    except CannotListen as error:
        raise Problem(str(error)) from None
