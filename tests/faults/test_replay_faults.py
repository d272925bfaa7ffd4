"""The worker of a replay is killed: another one continues after the last committed step, and every event arrives."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import aiohttp
import asyncpg
import pytest

from heliograph.base.database import clock
from heliograph.base.ids import uuid7_floor
from tests.hooks import DATA
from tests.processes import PRODUCTION_LEASES, installation, until, until_true

#: More than a replay may have in the queue at once, so that it is killed before its end.
COUNT = 5000

PAST = """
INSERT INTO events (organization_id, id, kind, request_id, data, created_at)
SELECT $1, id, 'message.delivered', 'r', $3, now() - interval '1 hour' FROM unnest($2::uuid[]) AS id
"""


@pytest.mark.lasts(40)
async def test_a_replay_survives_its_worker(database_url: str, tmp_path: Path) -> None:
    first = uuid7_floor(clock.now() - timedelta(hours=1)).int
    events = [UUID(int=first + n) for n in range(1, COUNT + 1)]
    # A worker that stands still for longer than its leases sends again what it had sent, and both are recorded: these
    # outlast a busy machine, and the second worker waits for those of the first.
    async with (
        installation(database_url, tmp_path, **PRODUCTION_LEASES) as made,
        made.serving(),
        aiohttp.ClientSession() as client,
    ):
        conn = await asyncpg.connect(database_url)
        try:
            await conn.execute(PAST, made.actor.organization_id, events, DATA)
            endpoint = await conn.fetchval("SELECT id FROM webhook_endpoints")
            address = f"{made.base_url}/v1/webhooks/{endpoint}/replay"
            body = {"from": clock.iso(clock.now() - timedelta(hours=2))}
            async with client.post(address, json=body, headers={"x-api-key": made.key}) as answer:
                assert answer.status == 202
            worker = await made.worker()
            await until(lambda: made.receiver.counters.received > 100)
            await worker.kill()
            assert await conn.fetchval("SELECT status FROM webhook_replays") == "running"
            async with made.working():
                await until_true(
                    lambda: conn.fetchval(
                        "SELECT status = 'completed' AND NOT EXISTS (SELECT FROM queue) FROM webhook_replays"
                    )
                )
            assert await conn.fetchval("SELECT queued FROM webhook_replays") == COUNT
            recorded = await conn.fetch("SELECT event_id, attempt, result FROM webhook_attempts")
        finally:
            await conn.close()
    assert {event.id for event in made.receiver.events} == {str(id) for id in events}
    # Events in flight when the worker was killed were sent twice, and have one recorded attempt all the same.
    assert {row["event_id"] for row in recorded} == set(events)
    assert {row["result"] for row in recorded} == {"delivered"}
    assert len(recorded) == COUNT
    assert not made.complaints
