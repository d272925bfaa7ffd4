"""kill -9 of workers while they stage a campaign: each recipient gets one message, and the counts are right."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path
from uuid import UUID

import asyncpg
import msgspec
import pytest

from heliograph.campaigns import record
from heliograph.campaigns.channels import sms as sms_channel
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.campaigns.record import Campaign
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.webhooks import endpoints
from tests.database import Cluster
from tests.processes import GRANT, LONG, Installation, Program, installation, until_true

KILLS = 60 if LONG else 6
#: Recipients: enough that a kill finds some of them staged and others not.
MANY = 200_000 if LONG else 12_000
FEW = 2_500
FAST = {"HELIOGRAPH_LEASE_SECONDS": "2", "HELIOGRAPH_UNCERTAIN_GRACE_SECONDS": "3"}


def number(n: int) -> str:
    return f"+25884{n:07}"


async def begin(made: Installation, conn: asyncpg.Connection[asyncpg.Record], amount: int) -> UUID:
    """A campaign to this many contacts, a third of whom have only one of its two tags; no supplier accepts anything
    yet."""
    await conn.execute("UPDATE suppliers SET state = 'paused'")
    for first in range(0, amount, 5_000):
        entries = [
            Entry(number(n), f"P{n}", tags=("a", "b") if n % 3 else ("b",))
            for n in range(first, min(first + 5_000, amount))
        ]
        async with conn.transaction():
            await records.create_many(conn, made.actor, entries=entries)
    spec = SmsCampaignSpec(name="Sale", message_template="Hello {{name}}", audience_tags=["a", "b"])
    async with conn.transaction():
        return (await sms_channel.create(conn, made.actor, spec=spec, request_id="req")).id


async def assert_staged_once(
    made: Installation, conn: asyncpg.Connection[asyncpg.Record], id: UUID, amount: int
) -> Campaign:
    """Each recipient has one message, with their own text, paid for once."""
    rows = await conn.fetch("SELECT recipient, body FROM messages")
    assert len(rows) == amount
    assert {row["recipient"]: row["body"] for row in rows} == {number(n): f"Hello P{n}" for n in range(amount)}
    remaining, booked = await conn.fetchrow(
        "SELECT total - used, (SELECT sum(quantity) FROM usage_entries) FROM quotas WHERE organization_id = $1",
        made.actor.organization_id,
    )
    assert remaining == booked == GRANT - amount
    found = await record.get(conn, made.actor, id=id)
    assert (found.counts.total, found.counts.pending) == (amount, 0)
    return found


@pytest.mark.lasts(22)
@pytest.mark.timeout(KILLS * 10 + 120)
async def test_random_kills_while_staging(database_server: Cluster, tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    async with database_server.database() as url, installation(url, tmp_path, **FAST) as made:
        conn = await asyncpg.connect(url)
        try:
            id = await begin(made, conn, MANY)
            reached = []
            for _ in range(KILLS):
                before = await record.get(conn, made.actor, id=id)
                worker = await made.worker()

                async def at_work(before: Campaign = before) -> bool:
                    return await record.get(conn, made.actor, id=id) != before

                await until_true(at_work)
                await asyncio.sleep(chance.uniform(0, 0.1))
                await worker.kill()
                found = await record.get(conn, made.actor, id=id)
                reached.append((found.status, found.counts.queued))
                if found.counts.queued == MANY:
                    break
            await asyncio.gather(*(made.worker() for _ in range(2)))

            async def staged() -> bool:
                found = await record.get(conn, made.actor, id=id)
                return found.status == "running" and found.counts.queued == MANY

            await until_true(staged, within=120)
            await assert_staged_once(made, conn, id, MANY)
            print(f"seed {seed}, at the kills: {reached}")
        finally:
            await conn.close()


@pytest.mark.lasts(30)
async def test_a_crash_before_and_after_each_commit(database_server: Cluster, tmp_path: Path) -> None:
    async with database_server.database() as url, installation(url, tmp_path, **FAST) as made:
        conn = await asyncpg.connect(url)
        try:
            await endpoints.create(
                conn,
                made.actor,
                url=made.receiver.url,
                subscribed_events=["campaign.completed"],
                rules=endpoints.rules(made.settings),
            )
            id = await begin(made, conn, FEW)
            for step in (1, 2):
                await assert_crashed(await made.worker(HELIOGRAPH_CRASH_AT=f"campaign.before_commit:{step}"))
                await assert_crashed(await made.worker(HELIOGRAPH_CRASH_AT=f"campaign.after_commit:{step}"))
            await made.worker()

            async def staged() -> bool:
                return (await record.get(conn, made.actor, id=id)).counts.queued == FEW

            await until_true(staged)
            await assert_staged_once(made, conn, id, FEW)
            await conn.execute("UPDATE suppliers SET state = 'active'")

            async def completed() -> bool:
                return (await record.get(conn, made.actor, id=id)).status == "completed"

            await until_true(completed, within=120)
            found = await assert_staged_once(made, conn, id, FEW)
            assert found.counts.delivered == FEW
            submits = Counter(f"+{one.destination}" for one in made.smsc.received)
            assert submits == {number(n): 1 for n in range(FEW)}

            async def event_arrived() -> bool:
                return bool(events())

            def events() -> list[dict[str, object]]:
                bodies = [msgspec.json.decode(one.body) for one in made.receiver.events]
                return [one for one in bodies if one["type"] == "campaign.completed"]

            await until_true(event_arrived)
            assert {one["data"]["campaign"]["id"] for one in events()} == {str(id)}  # type: ignore[index]
            assert await conn.fetchval("SELECT count(*) FROM events WHERE kind = 'campaign.completed'") == 1
            assert not made.complaints
        finally:
            await conn.close()


async def assert_crashed(program: Program) -> None:
    assert await program.ended() == -signal.SIGKILL, program.err
