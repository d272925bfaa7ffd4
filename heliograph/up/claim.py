"""That one `heliograph up` at a time uses a database, on whatever machines: each start that does not have the keys of
the demo organization replaces them, and each one its simulated suppliers by those that it runs.

The rule nobody may break: what another one holds is not waited for for long, and nothing that it needs is changed
before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

import asyncpg

from heliograph.base.database.migrate import holder
from heliograph.base.database.pool import CLIENT_SETTINGS
from heliograph.base.database.url import shown
from heliograph.base.network.connecting import Connector, Raw
from heliograph.base.process.settings import Settings, current
from heliograph.up.errors import UpError, unusable

#: After the one for migrations. Held by a session, so it ends with its process, or with the connection to its machine.
KEY = 448378890608
TAKE = "SELECT pg_try_advisory_lock($1)"
#: Seconds for a process that was killed to lose it, and between two tries.
PATIENCE, POLL = 3.0, 0.1
#: Seconds between two tries after the connection was lost, and for a statement.
PAUSE, ANSWERS = 1.0, 10.0
#: Seconds until PostgreSQL ends a session whose machine or network is gone (DEAD_PEER_TIMEOUTS), rounded up.
GONE = 20.0


async def claim(settings: Settings, say: Callable[[str], None]) -> asyncio.Task[None]:
    """Claim the database; returns the task that holds the claim, also after the database was restarted, until it is
    cancelled. Raises UpError if another one has it."""
    # The application's own role may not exist yet: the first migration creates it.
    name = "owner_database_url" if settings.owner_database_url else settings.direct_database
    # The password may be changed in its file while this process runs.
    connector = Connector(getattr(settings, name), current=partial(current, settings, name))
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE
    try:
        conn = await _connected(connector)
        try:
            while not await conn.fetchval(TAKE, KEY):
                if loop.time() >= until:
                    raise UpError(
                        f"another `heliograph up`{await holder(conn, KEY) or ''} is running on the database at"
                        f" {shown(settings.direct_url)}, and this one would replace its keys and its simulated"
                        " suppliers: stop it first, or start `heliograph api` and `heliograph worker` here. If its"
                        f" machine is gone, the database notices within {GONE:.0f} s"
                    )
                await asyncio.sleep(POLL)
        except BaseException:
            conn.terminate()
            raise
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise unusable(error) from error
    return asyncio.create_task(_hold(conn, connector, say))


async def _hold(conn: Raw, connector: Connector, say: Callable[[str], None]) -> None:
    while True:
        lost = asyncio.Event()
        conn.add_termination_listener(lambda _, lost=lost: lost.set())
        try:
            if not conn.is_closed():
                await lost.wait()
        finally:
            conn.terminate()
        conn = await _taken_again(connector, say)


async def _taken_again(connector: Connector, say: Callable[[str], None]) -> Raw:
    """A connection that holds the claim again. If another one has taken it meanwhile, that is said once."""
    is_said, since = False, asyncio.get_running_loop().time()
    while True:
        await asyncio.sleep(PAUSE)
        conn: Raw | None = None
        try:
            # That the database is away, or that of several hosts none is a primary yet, its users say.
            with contextlib.suppress(Exception):
                conn = await _connected(connector)
                if await conn.fetchval(TAKE, KEY):
                    taken, conn = conn, None
                    return taken
                # Until then it may be our own session, if only the connection to it was lost.
                is_ours = asyncio.get_running_loop().time() - since < GONE
                if not is_said and not is_ours and (other := await holder(conn, KEY)) is not None:
                    is_said = True
                    say(f"Another `heliograph up`{other} is running on this database as well: stop one of the two.")
        finally:
            if conn is not None:
                conn.terminate()


async def _connected(connector: Connector) -> Raw:
    settings = {**CLIENT_SETTINGS, "application_name": "heliograph up"}
    return await connector.connect(command_timeout=ANSWERS, server_settings=settings)
