"""What long-running commands share: logging, and waiting for a migrated database."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import asyncpg
import structlog

from heliograph.base.database import migrate
from heliograph.base.database import url as database_url
from heliograph.base.database.pool import RoleUnset, is_down, open_pool
from heliograph.base.network.failures import reason
from heliograph.base.process import logs, spans
from heliograph.base.process.settings import Settings
from heliograph.cli.terminal.console import UNREACHABLE, Problem, no_database, settings_of, unreachable

log = structlog.get_logger()

#: How long to wait for the database, which may also be starting, in seconds.
PATIENCE = 60.0
#: Pause before the next attempt, in seconds.
PAUSE = 0.1
#: How long to wait before logging that, in seconds.
QUIET = 3.0

#: Whether a statement of ours has, at the server, the name that we gave it. A pooler that keeps prepared statements
#: gives them names of its own; behind one that does not, they are not found, or others are run instead.
KEEPS_OURS = "SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE name LIKE '\\_\\_asyncpg%')"
PREPARES_NOTHING = (
    "the PgBouncer of HELIOGRAPH_DATABASE_URL keeps no prepared statements: set max_prepared_statements there, which"
    " needs version 1.21, and RECONNECT, or remove HELIOGRAPH_DATABASE_POOLER_PREPARES"
)


def begin(data_dir: Path | None, *, part: str) -> Settings:
    """Load settings with an explicit secret key, and set up logs and traces. `part`: `api` or `worker`. Raises
    SettingsError."""
    settings = settings_of(data_dir, needs_key=True, direct=False)
    logs.configure(settings)
    spans.configure(settings, part=part)
    return settings


async def prepared(settings: Settings) -> None:
    """Wait until the database responds. Raises Problem if it does not, or was never migrated."""
    #: The error of the last try.
    failed: deque[Exception] = deque(maxlen=1)

    def say() -> None:
        where, last = database_url.shown(settings.database_url), failed[0] if failed else None
        log.warning("waiting for the database", at=where, reason=unreachable(last))

    word = asyncio.get_running_loop().call_later(QUIET, say)
    try:
        pending, known = await _asked(settings, failed.append)
    finally:
        word.cancel()
    if not known:
        raise Problem("the database has no schema yet: run `heliograph migrate` first", UNREACHABLE)
    if pending:
        # Old and new processes run side by side during an upgrade, so this must not prevent a start.
        log.warning("migrations pending", names=pending)


async def _asked(settings: Settings, failed: Callable[[Exception], object]) -> tuple[list[str], bool]:
    """As `_found`, asked again for as long as the database may be starting."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await _found(settings, deadline - time.monotonic(), failed)
        except Exception as error:
            if not is_down(error):
                raise
            # It disappeared after responding once, as when it is killed while starting.
            if time.monotonic() >= deadline:
                raise Problem(f"the database cannot be used: {reason(error)}", UNREACHABLE) from None
            failed(error)
        await asyncio.sleep(PAUSE)


async def _found(settings: Settings, wait: float, failed: Callable[[Exception], object]) -> tuple[list[str], bool]:
    """The pending migrations, and whether there is a schema. Raises Problem if nothing responds in time."""
    try:
        pool = await open_pool(settings.database_url, size=1, wait=wait, pooler=settings.pooler, failed=failed)
    except RoleUnset as error:
        raise Problem(str(error)) from None
    except (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError):
        raise Problem(PREPARES_NOTHING) from None
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise no_database(settings.database_url, error) from None
    try:
        async with pool.acquire() as conn:
            if settings.pooler == "prepared" and await conn.fetchval(KEEPS_OURS):
                raise Problem(PREPARES_NOTHING)
            pending = await migrate.pending(conn)
            known: bool = await conn.fetchval("SELECT to_regclass('organizations') IS NOT NULL")
            return pending, known
    finally:
        pool.terminate()
