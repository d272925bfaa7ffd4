"""A worker is told to stop while WhatsApp messages are in flight: it finishes or hands over what it began, and no user
gets anything twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cloud import cloud
from tests.load import Client
from tests.processes import installation, until, until_true
from tests.rules.whatsapp_factories import check_wallets

MESSAGES = 40


@pytest.mark.lasts(6)
@pytest.mark.parametrize(
    ("drain", "latency", "states"),
    [("10", 1_500.0, {"accepted"}), ("1", 5_000.0, {"accepted", "unknown"})],
    ids=["answers that come in time", "answers that come too late"],
)
async def test_a_stop_amid_sends(
    database_url: str, tmp_path: Path, drain: str, latency: float, states: set[str]
) -> None:
    async with (
        installation(database_url, tmp_path, HELIOGRAPH_DRAIN_SECONDS=drain) as made,
        cloud(made, magic="", pair_seconds=0.0) as sky,
    ):
        await made.api()
        worker = await made.worker()
        await sky.ready()
        sky.graph.configure(latency_ms=latency, p99_ms=latency)
        async with Client(made.base_url, made.key) as client:
            ids = await asyncio.gather(
                *(
                    client.send_until_accepted("/whatsapp/messages", number, sky.body(number))
                    for number in (f"+25884{n:07d}" for n in range(MESSAGES))
                )
            )
        before = len(sky.graph.requests)
        await until(lambda: len(sky.graph.requests) > before)
        assert await worker.stop() == 0

        # Everything that it had begun has an outcome on record, and nothing is kept from the next worker.
        found = {row[0] for row in await sky.pool.fetch("SELECT DISTINCT state FROM attempts")}
        assert found <= states | {"unreachable"}
        assert await sky.pool.fetchval("SELECT count(*) FROM queue WHERE lease_until IS NOT NULL") == 0
        assert await sky.pool.fetchval("SELECT count(*) FROM workers") == 0

        sky.graph.configure(latency_ms=0.0, p99_ms=0.0)
        last = await made.worker()

        async def all_read() -> bool:
            read = await sky.pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE status = 'read'")
            return bool(read == MESSAGES)

        await until_true(all_read, within=120)
        assert await last.stop() == 0
        assert sky.graph.doubled == {}
        assert sorted(one.tracker for one in sky.graph.world.messages.values()) == sorted(ids)
        await check_wallets(sky.pool, [made.actor.organization_id])
        assert not made.complaints, made.stderr
