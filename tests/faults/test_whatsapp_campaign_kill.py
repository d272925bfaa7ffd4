"""kill -9 of workers while they stage a WhatsApp campaign: each contact has one message and one reservation, and
whatever is canceled later is released to the last millionth, also despite kills. And a complete campaign with a
simulated Graph API: it waits for money and for its template, continues by itself, and everybody reads it once.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import asyncpg
import msgspec
import pytest

from heliograph.base.database.pool import Pool, open_pool
from heliograph.campaigns import plan, record
from heliograph.campaigns.channels import whatsapp as whatsapp_channel
from heliograph.campaigns.channels.whatsapp import WhatsAppCampaignSpec
from heliograph.campaigns.filling import Filling
from heliograph.campaigns.record import Campaign
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.webhooks import endpoints
from heliograph.whatsapp.money import wallet
from tests.database import Cluster
from tests.faults.test_whatsapp_crash_points import FAST as SENDING
from tests.faults.test_whatsapp_crash_points import cloud
from tests.processes import LONG, installation, until, until_true
from tests.rules import whatsapp_factories
from tests.rules.whatsapp_factories import PRICES, SECRET_KEY, UNIT, Made, check_wallets

KILLS = 40 if LONG else 3
#: Recipients: enough that a kill finds some of them staged and others not.
MANY = 60_000 if LONG else 6_000
BALANCE = 10_000 * UNIT
FAST = {"HELIOGRAPH_LEASE_SECONDS": "2", "HELIOGRAPH_SECRET_KEY": SECRET_KEY}


def number(n: int) -> str:
    return f"+25884{n:07}"


async def begin(pool: Pool, known: Made, amount: int) -> Campaign:
    """A campaign to this many contacts, a third of whom have only one of its two tags."""
    for first in range(0, amount, 5_000):
        entries = [
            Entry(number(n), f"P{n}", tags=("a", "b") if n % 3 else ("b",))
            for n in range(first, min(first + 5_000, amount))
        ]
        async with pool.acquire() as conn, conn.transaction():
            await records.create_many(conn, known.actor, entries=entries)
    spec = WhatsAppCampaignSpec(
        name="Delivery day",
        number_id=known.number_id,
        template="order_shipped",
        language="en",
        parameters=(Filling(column="name"), Filling(text="4471")),
        audience_tags=["a", "b"],
    )
    async with pool.acquire() as conn, conn.transaction():
        return await whatsapp_channel.create(conn, known.actor, spec=spec, request_id="req")


@pytest.mark.lasts(25)
@pytest.mark.timeout(KILLS * 20 + 240)
async def test_kills_while_staging_and_while_taking_back(database_server: Cluster, tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    async with database_server.database() as url, installation(url, tmp_path, **FAST) as made:
        pool = await open_pool(url, size=2)
        try:
            known = await whatsapp_factories.made(pool, organization_id=made.actor.organization_id, balance=BALANCE)
            # Nothing is sent to Meta.
            await pool.execute(
                "UPDATE whatsapp_accounts SET held_until = now() + interval '1 day', held_reason = 'test'"
            )
            campaign = await begin(pool, known, MANY)

            async def now() -> Campaign:
                async with pool.acquire() as conn:
                    return await record.get(conn, made.actor, id=campaign.id, channel="whatsapp")

            async def kills(done: str) -> list[int]:
                """Kill workers at work until this many have died or all are `done`."""
                reached = []
                for turn in range(KILLS):
                    before = await now()
                    if getattr(before.counts, done) == MANY:
                        break
                    point = f"campaign.{('before', 'after')[turn % 2]}_commit:{chance.randint(1, 3)}"
                    crash = {"HELIOGRAPH_CRASH_AT": point} if turn < 2 else {}
                    worker = await made.worker(**crash)
                    if crash:
                        assert await worker.ended() == -signal.SIGKILL, worker.err
                    else:

                        async def at_work(before: Campaign = before) -> bool:
                            return await now() != before

                        await until_true(at_work)
                        await asyncio.sleep(chance.uniform(0, 0.1))
                        await worker.kill()
                    reached.append(getattr((await now()).counts, done))
                return reached

            async def finished(done: str) -> bool:
                return getattr((await now()).counts, done) == MANY

            staged = await kills("queued")
            last = await made.worker()
            await until_true(lambda: finished("queued"), within=120)
            await check(pool, known)
            assert (await now()).counts.pending == 0
            await last.kill()

            async with pool.acquire() as conn, conn.transaction():
                await plan.cancel(conn, made.actor, id=campaign.id, channel="whatsapp")
            withdrawn = await kills("canceled")
            last = await made.worker()
            await until_true(lambda: finished("canceled"), within=120)
            assert await pool.fetchval("SELECT available FROM wallets") == BALANCE
            assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'whatsapp'") == 0
            await check_wallets(pool, [made.actor.organization_id])
            print(f"seed {seed}, at the kills: {staged} were staged, {withdrawn} canceled")
            assert not made.complaints
        finally:
            pool.terminate()


async def check(pool: asyncpg.Pool[asyncpg.Record], known: Made) -> None:
    """Each recipient has one message, with their own values, and its price is reserved once."""
    rows = await pool.fetch("SELECT recipient, content FROM whatsapp_messages")
    assert len(rows) == MANY
    assert {row["recipient"]: msgspec.json.decode(row["content"])["parameters"] for row in rows} == {
        number(n): [f"P{n}", "4471"] for n in range(MANY)
    }
    assert await pool.fetchval("SELECT reserved FROM wallets") == MANY * PRICES["utility", "MZ"]
    await check_wallets(pool, [known.organization_id])


@pytest.mark.lasts(25)
async def test_a_whole_way_with_a_kill(database_server: Cluster, tmp_path: Path) -> None:
    amount, price = 120, PRICES["utility", "MZ"]
    async with (
        database_server.database() as url,
        installation(url, tmp_path, **SENDING) as made,
        made.serving(),
    ):
        pool = await open_pool(url, size=3)
        try:
            async with cloud(made, pool) as (known, graph):
                await graph.verified()
                # The mirror has read the template before.
                await pool.execute(
                    "UPDATE whatsapp_templates SET graph_id = $1 WHERE name = 'order_shipped'",
                    graph.set_template("order_shipped", language="en").id,
                )
                async with pool.acquire() as conn:
                    await wallet.adjust(conn, known.organization_id, amount=price * 50 - 100 * UNIT, reason="test")
                    await endpoints.create(
                        conn,
                        made.actor,
                        url=made.receiver.url,
                        subscribed_events=["campaign.completed"],
                        rules=endpoints.rules(made.settings),
                    )
                campaign = await begin(pool, known, amount)
                worker = await made.worker()

                async def is_now(status: str, reason: str | None, **counts: int) -> bool:
                    async with pool.acquire() as conn:
                        found = await record.get(conn, made.actor, id=campaign.id, channel="whatsapp")
                    shown = {name: getattr(found.counts, name) for name in counts}
                    return (found.status, found.status_reason, shown) == (status, reason, counts)

                await until_true(lambda: is_now("paused", whatsapp_channel.FUNDS, pending=70, read=50), within=120)
                graph.template_event("order_shipped", "PAUSED", language="en", reason="FIRST_PAUSE")
                await until_true(lambda: is_now("paused", whatsapp_channel.TEMPLATE, pending=70), within=120)
                async with pool.acquire() as conn:
                    await wallet.top_up(conn, known.organization_id, amount=UNIT)
                graph.template_event("order_shipped", "APPROVED", language="en")
                await until(lambda: len(graph.requests) > 60, within=120)
                await worker.kill()
                last = await made.worker()
                await until_true(lambda: is_now("completed", None, read=amount), within=120)
                await until(lambda: b"campaign.completed" in b"".join(one.body for one in made.receiver.events))
                assert graph.doubled == {}
                assert [len(graph.sends_to(number(n))) for n in range(amount)] == [1] * amount
                assert await pool.fetchval("SELECT count(*) FROM events WHERE kind = 'campaign.completed'") == 1
                consumed, reserved = await pool.fetchrow("SELECT consumed, reserved FROM wallets")
                assert (consumed, reserved) == (amount * price, 0)
                await check_wallets(pool, [known.organization_id])
                assert await last.stop() == 0
                assert not made.complaints, made.stderr
        finally:
            pool.terminate()
