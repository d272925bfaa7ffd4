"""`heliograph up` waits for its simulated WhatsApp number until the worker has fetched it."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import asyncpg

from heliograph.demo.credentials import Credentials, Smsc
from heliograph.up.running import _number

#: Sessions other than those that the database had before, some of which are kept for the next test.
NEW = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND usename = current_user AND backend_type = 'client backend' AND pid <> ALL ($1)
"""


async def test_a_database_that_is_restarted_meanwhile_is_waited_for(database_url: str) -> None:
    """It is started again, but everything had been stopped."""
    smsc = Smsc("127.0.0.1", 0, "heliograph", "secret")
    credentials = Credentials("http://127.0.0.1", str(uuid4()), "live", "test", database_url, smsc)
    stop = asyncio.Event()
    conn = await asyncpg.connect(database_url)
    known = [row["pid"] for row in await conn.fetch(NEW, [])]
    waiting = asyncio.create_task(_number(database_url, credentials, stop))
    try:
        before: list[int] = []
        while not before:
            before = [row["pid"] for row in await conn.fetch(NEW, known)]
        await conn.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", before)
        after: list[int] = []
        while not waiting.done() and not after:
            after = [row["pid"] for row in await conn.fetch(NEW, known + before)]
        assert not waiting.done(), waiting.exception()
    finally:
        stop.set()
        await asyncio.gather(waiting, return_exceptions=True)
        await conn.close()
    assert waiting.result() == ""
