"""`heliograph worker`: runs one background process."""

from __future__ import annotations

import os

import structlog
import uvloop

from heliograph.base.process import spans, supervised
from heliograph.base.process.settings import Settings
from heliograph.base.process.signals import stopping
from heliograph.cli.terminal.console import DataDir
from heliograph.cli.terminal.printing import JsonOnly, show
from heliograph.cli.terminal.process import begin, prepared
from heliograph.worker import work

log = structlog.get_logger()


def command(json: JsonOnly = False, data_dir: DataDir = None) -> None:
    """Send messages, process receipts and deliver webhooks. Any number of workers can share a database.

    \b
    Examples:
      heliograph worker
      HELIOGRAPH_LOG_FORMAT=text heliograph worker
    """
    settings = begin(data_dir, part="worker")
    try:
        uvloop.run(_work(settings, json))
    finally:
        spans.close()


async def _work(settings: Settings, json: bool) -> None:
    def ready() -> None:
        log.info("worker ready", pid=os.getpid())
        supervised.tell(supervised.READY)
        if json:
            show({"ready": True, "pid": os.getpid()}, json)

    await prepared(settings)
    with stopping() as stop:
        async with supervised.watched():
            await work(settings, stop=stop, on_ready=ready)
