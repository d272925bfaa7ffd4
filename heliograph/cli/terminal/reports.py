"""Reports, which can be read from a standby."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.base.standby.readers import StandbyUnreadable, reached
from heliograph.cli.terminal.console import Result, connection
from heliograph.cli.terminal.printing import say


def on_reader(work: Callable[[Connection], Awaitable[Result]], settings: Settings) -> Result:
    """Run `work`, which only reads, on the standby in the settings; on the primary if there is none, or, with a
    message, if it is unavailable or lagging. Raises Problem if the database cannot be reached."""

    async def connected() -> Result:
        async with connection(settings.database_url) as primary:
            if not settings.reader_database_url:
                return await work(primary)
            try:
                bound = settings.reader_wait_seconds
                async with reached(primary, settings.reader_database_url, bound=bound) as (standby, _):
                    return await work(standby)
            except StandbyUnreadable as error:
                say(f"The standby cannot be read ({error}): this is from the primary.")
            return await work(primary)

    return asyncio.run(connected())
