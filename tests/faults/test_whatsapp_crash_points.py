"""Named crash points of WhatsApp: a worker that ends before or after a commit, or with sends in flight, loses nothing
and duplicates nothing: each user gets one message, and each message is charged once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.base.database.pool import Pool, open_pool
from heliograph.simulators.graph.simulator import GraphSimulator, quick
from tests.database import Cluster
from tests.processes import LONG, Installation, installation, until_true
from tests.rules import whatsapp_factories
from tests.rules.whatsapp_factories import (
    APP_SECRET,
    BODY,
    PRICES,
    SECRET_KEY,
    TOKEN,
    VERIFY_TOKEN,
    Made,
    check_wallets,
)

#: The setting that ends the worker at each point.
CRASHES: list[dict[str, str]] = [
    {"HELIOGRAPH_CRASH_AT": "whatsapp.dispatch.before_commit"},
    {"HELIOGRAPH_CRASH_AT": "whatsapp.dispatch.after_commit"},
    {"HELIOGRAPH_CRASH_AT": "whatsapp.dispatch.after_submit"},
    {"HELIOGRAPH_CRASH_AT": "whatsapp.record.before_commit"},
    {"HELIOGRAPH_CRASH_AT": "whatsapp.record.after_commit"},
]
ROUNDS = 5 if LONG else 1
#: Messages waiting for each worker.
MANY = 60
FAST = {
    "HELIOGRAPH_SECRET_KEY": SECRET_KEY,
    "HELIOGRAPH_LEASE_SECONDS": "2",
    "HELIOGRAPH_WHATSAPP_UNCERTAIN_GRACE_SECONDS": "4",
}


@contextlib.asynccontextmanager
async def cloud(made: Installation, pool: Pool) -> AsyncIterator[tuple[Made, GraphSimulator]]:
    """A WhatsApp number of the installation's organization at a simulated Graph API, which calls back."""
    known = await whatsapp_factories.made(pool, organization_id=made.actor.organization_id)
    options = quick(
        latency_ms=20.0,
        p99_ms=60.0,
        status_delay=0.02,
        magic="",
        app_secret=APP_SECRET,
        verify_token=VERIFY_TOKEN,
        token=TOKEN,
        waba=known.waba_id,
        number=f"+{known.digits}",
        number_id=known.graph_id,
        webhook_url=f"{made.base_url}/in/whatsapp/{known.app}",
    )
    async with GraphSimulator(options) as graph:
        template: dict[str, Any] = {"name": "order_shipped", "language": "en", "category": "UTILITY",
                                    "status": "APPROVED", "components": BODY}  # fmt: skip
        graph.add_template(template)
        await pool.execute("UPDATE whatsapp_accounts SET base_url = $1", graph.base_url)
        yield known, graph


@pytest.mark.lasts(30)
@pytest.mark.timeout(len(CRASHES) * ROUNDS * 60 + 180)
async def test_a_crash_at_any_point_costs_no_message_and_doubles_none(database_server: Cluster, tmp_path: Path) -> None:
    async with (
        database_server.database() as url,
        installation(url, tmp_path, **FAST) as made,
        made.serving(),
    ):
        pool = await open_pool(url, size=4)
        try:
            async with cloud(made, pool) as (known, graph):
                ids: list[Any] = []
                for crash in CRASHES * ROUNDS:
                    for _ in range(MANY):
                        ids.append(await whatsapp_factories.message(pool, known, to=f"+25884{len(ids):07}"))
                    (point,) = crash.values()
                    worker = await made.worker(HELIOGRAPH_CRASH_AT=f"{point}:{random.randint(1, 3)}")
                    assert await worker.ended() == -signal.SIGKILL, worker.err
                    # A worker that is killed while it recovers.
                    again = await made.worker()
                    await again.ready()
                    await asyncio.sleep(random.uniform(0, 0.5))
                    await again.kill()
                last = await made.worker()

                async def settled() -> bool:
                    left = await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE status <> 'read'")
                    return not left and not await pool.fetchval(
                        "SELECT count(*) FROM queue WHERE kind LIKE 'whatsapp%'"
                    )

                await until_true(settled, within=120)
                assert await last.stop() == 0
                assert graph.doubled == {}
                assert await pool.fetchval("SELECT consumed FROM wallets") == len(ids) * PRICES["utility", "MZ"]
                events = await pool.fetch(
                    "SELECT message_id, count(*) AS n FROM events WHERE kind LIKE 'message.%' GROUP BY message_id"
                )
                assert {row["message_id"] for row in events} == set(ids)
                assert {row["n"] for row in events} == {1}
                await check_wallets(pool, [known.organization_id])
                assert not made.complaints, made.stderr
        finally:
            pool.terminate()
