"""Staging of campaigns: recipients per second from contacts with a tag to messages in the queue, by one worker.

Measured from the creation of the campaign to the commit of its last message, including gathering the audience, with a
different text for each recipient. No supplier accepts anything meanwhile: only staging is measured.
"""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import asyncpg

from bench import machine
from bench.accept import Lengths
from bench.figures import Report
from bench.stage import BenchError, Stage
from heliograph.base.actor import Actor
from heliograph.campaigns.channels import sms as sms_channel
from heliograph.campaigns.channels.sms import SmsCampaignSpec

TAG = "bench"
TEXT = "Hello {{name}}, your order is ready. Reply STOP to hear no more from us."
#: A campaign without progress for this long is stuck, seconds.
STUCK = 30.0

FILL = """
WITH made AS (
    INSERT INTO contacts (organization_id, id, name, phone, tags, created_at, updated_at)
    SELECT $1, ('019c0000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'Ana ' || n,
           '+25884' || lpad((n::bigint * 7919 % 10000000)::text, 7, '0'), ARRAY[$2], now(), now()
      FROM generate_series(1, $3) AS n
    RETURNING organization_id, id
)
INSERT INTO contact_tags (organization_id, tag, contact_id) SELECT organization_id, $2, id FROM made
"""


async def campaigns(stage: Stage, report: Report, lengths: Lengths) -> None:
    """One campaign to all contacts, staged by an otherwise idle worker."""
    async with stage.connection() as conn:
        await conn.execute("TRUNCATE contacts CASCADE")
        await conn.execute(FILL, stage.organization, TAG, lengths.campaign, timeout=600)
        await conn.execute("UPDATE suppliers SET state = 'paused'")
    rates, sizes = [], []
    for number in range(lengths.rounds):
        await stage.empty()
        async with stage.connection() as conn:
            await conn.execute("TRUNCATE campaigns, campaign_recipients, campaign_chunks")
        await stage.start_worker(bound=False)
        before = stage.size("worker")
        rates.append(await _once(stage, report, lengths.campaign))
        sizes.append(stage.size("worker") - before)
        await stage.stop("worker")
        stage.say(f"  round {number + 1}: {rates[-1]:,.0f} recipients/s, and the worker grew by {sizes[-1]:.0f} MB")
    amount = f"{lengths.campaign:,}".replace(",", " ")
    report.add("campaign_staging", f"campaign to {amount} contacts staged, a text of their own each", rates, "/s")
    report.add("campaign_memory", "  growth of the worker meanwhile", sizes, "MB")
    async with stage.connection() as conn:
        await conn.execute("TRUNCATE contacts, campaigns, campaign_recipients, campaign_chunks CASCADE")
        await conn.execute("UPDATE suppliers SET state = 'active'")
    await stage.empty()


async def _once(stage: Stage, report: Report, amount: int) -> float:
    """One campaign. BenchError unless each contact got exactly one message."""
    actor = Actor(stage.organization, None, "live", frozenset(), "active")
    processes = {"worker": stage.parts["worker"].pid, "postgres": stage.server.pid or 0}
    before = {name: machine.processor_seconds(pid) for name, pid in processes.items()}
    async with stage.connection() as conn:
        began = time.monotonic()
        async with conn.transaction():
            spec = SmsCampaignSpec(name="bench", message_template=TEXT, audience_tags=[TAG])
            made = await sms_channel.create(conn, actor, spec=spec, request_id="bench")
        await _staged(stage, conn, made.id, amount)
        took = time.monotonic() - began
        stored = await conn.fetchval("SELECT count(DISTINCT recipient) FROM messages")
        every = await conn.fetchval("SELECT count(*) FROM messages")
    if (stored, every) != (amount, amount):
        raise BenchError(f"{amount} contacts, and {every} messages to {stored} numbers")
    used = {name: machine.processor_seconds(pid) - before[name] for name, pid in processes.items()}
    report.costs["campaign"] = {name: seconds / amount * 1e6 for name, seconds in used.items()}
    return amount / took


async def _staged(stage: Stage, conn: asyncpg.Connection[asyncpg.Record], id: UUID, amount: int) -> None:
    moved, seen = time.monotonic(), -1
    while True:
        row = await conn.fetchrow("SELECT total, queued FROM campaigns WHERE id = $1", id)
        assert row is not None
        if row["queued"] == amount:
            return
        progress = row["total"] + row["queued"]
        if progress != seen:
            moved, seen = time.monotonic(), progress
        if time.monotonic() - moved > STUCK:
            words = stage.parts["worker"].last_words()
            raise BenchError(f"a campaign to {amount} contacts stopped at {dict(row)}\n{words}")
        await asyncio.sleep(0.02)
