"""`heliograph supplier watch` prints what workers exchange with a supplier while it runs."""

from __future__ import annotations

import asyncio
from uuid import UUID

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.sms.watched import pdus
from heliograph.suppliers.contract import Exchange
from tests.journeys.test_cli import Cli
from tests.processes import until_true


async def test_a_watch_prints_what_comes_and_is_audited(database_url: str, pool: Pool) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    add = ("supplier", "add", "smpp", "main", "--host", "127.0.0.1", "--no-tls", "--system-id", "acme")
    id = (await cli(*add, "--password", "geheim", "--json")).data["id"]
    watching = asyncio.create_task(cli("supplier", "watch", "main", "--minutes", "15", "--count", "2", "--json"))
    async with asyncio.timeout(120), pool.acquire() as conn:
        await until_true(lambda: conn.fetchval("SELECT supplier_id FROM supplier_watches"))
        found = UUID(id)
        # It shows only new PDUs, so messages are sent until it has shown two.
        sequence = 0
        while not watching.done():
            sequence += 1
            one = Exchange(clock.now(), True, "submit_sm", sequence, "", {"destination_addr": "…4567"})
            await pdus.keep(conn, [(found, one)])
            await asyncio.sleep(0.1)
    done = await watching
    lines = done.out.splitlines()
    assert (done.status, len(lines)) == (0, 2)
    assert '"command":"submit_sm"' in lines[0]
    assert '"destination_addr":"…4567"' in lines[0]
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'supplier.watched'") == 1
    wrong = await cli("supplier", "watch", "nobody")
    assert (wrong.status, "no such supplier" in wrong.err) == (1, True)
