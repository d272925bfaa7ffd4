"""WhatsApp: throughput from accept to `read`, and how fast callbacks are answered and processed.

Sends go over HTTP to the simulated Cloud API, which answers at once, reports each message as sent, delivered and read,
and has enough numbers that Meta's limit of a thousand per second each is not what is measured. Callbacks are also
measured alone: Meta requires an answer within 250 ms, and the figure that counts is for one status per POST, the most
expensive form, while the worker applies them on the same cores.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time

import asyncpg
import msgspec

from bench import statuses
from bench.accept import Lengths
from bench.figures import Report
from bench.stage import BenchError, Stage
from bench.way import settle
from heliograph.base.ids import uuid7
from heliograph.demo.seeding import CLOUD

#: Each may send a thousand per second.
NUMBERS = 8
IN_FLIGHT = 2_000
WARM_UP = 3.0
CONNECTIONS = 16
#: Statuses per POST: Meta's usual form, and a burst after an outage on our side.
SINGLE, BURST = 1, 100
#: Statuses per second at which the answer is timed: the budget, by Meta's "three times what you send" for 333 sends.
PACE = 1_000.0
PATIENCE = 120.0


async def whatsapp(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Sends from accept to the webhook for the delivery, then callbacks alone."""
    await stage.empty()
    await stage.start_api(lengths.api_processes)
    graph = await stage.start_graph(numbers=NUMBERS)
    await stage.start_worker(bound=False)
    numbers = await stage.whatsapp_numbers(count=NUMBERS)
    await _sends(stage, report, lengths, tuple(str(row["id"]) for row in numbers))
    graph.close()
    await stage.stop("graph")
    await _callbacks(stage, report, lengths, numbers[0])
    await stage.stop("worker")


async def _sends(stage: Stage, report: Report, lengths: Lengths, numbers: tuple[str, ...]) -> None:
    receiver = await stage.start_receiver()
    rates, accepted = [], []
    for number in range(lengths.rounds):
        await stage.checkpoint()
        result = await stage.load(
            connections=64, warm_up=WARM_UP, seconds=lengths.way, in_flight=IN_FLIGHT, whatsapp=numbers
        )
        rates.append(result.received / result.seconds)
        accepted.append(result.p99)
        await settle(stage)
        stage.say(f"  round {number + 1}: {rates[-1]:,.0f} sends/s")
    await _until_read(stage)
    report.add("whatsapp_way", "WhatsApp sends, accept to webhook, 3 statuses each, 64 connections", rates, "/s")
    report.add("whatsapp_accept_p99", "  p99 of accept meanwhile", accepted, "ms")
    report.costs["WhatsApp send"] = result.costs(result.received)
    await stage.forget_receiver()
    receiver.close()


async def _callbacks(stage: Stage, report: Report, lengths: Lengths, number: asyncpg.Record) -> None:
    applied: dict[int, list[float]] = {SINGLE: [], BURST: []}
    p99, full = [], []
    for turn in range(lengths.rounds):
        for batch in (SINGLE, BURST):
            rate, posted = await _post(stage, lengths.statuses, number, batch)
            applied[batch].append(rate)
            if batch == SINGLE:
                full.append(posted.p99)
        _, paced = await _post(stage, min(lengths.statuses, 5_000), number, SINGLE, pace=PACE)
        p99.append(paced.p99)
        stage.say(
            f"  round {turn + 1}: {applied[SINGLE][-1]:,.0f} and {applied[BURST][-1]:,.0f} statuses/s applied;"
            f" p99 {p99[-1]:.1f} ms at {PACE:,.0f}/s"
        )
    report.add("whatsapp_statuses", "WhatsApp statuses taken in and applied, one a POST", applied[SINGLE], "/s")
    report.add("whatsapp_statuses_burst", f"  {BURST} a POST", applied[BURST], "/s")
    report.add("whatsapp_answer_p99", f"p99 of the answer to Meta at {PACE:,.0f} statuses/s, one a POST", p99, "ms")
    report.add("whatsapp_answer_full", "  as fast as answers come", full, "ms")


# Messages that Meta has accepted, as sends leave them, each with its reserved price.
SEED = """
WITH message AS (
    INSERT INTO whatsapp_messages (organization_id, id, direction, type, mode, status, number_id, conversation_id,
                                   recipient, template_name, template_language, billing_category, request_id,
                                   accepted_at, deadline_at, charge, reserved, country)
    SELECT $1, id, 'outbound', 'template', 'live', 'accepted', $2, id, '+258841234567', 'appointment_reminder', 'en',
           'utility', 'bench', now(), now() + interval '30 days', 'reserved', 20000, 'MZ'
      FROM unnest($3::uuid[]) AS item (id) RETURNING id
), known AS (
    INSERT INTO whatsapp_wamids (born_on, number_id, wamid, organization_id, message_id, created_at)
    SELECT (now() AT TIME ZONE 'UTC')::date, $2, 'wamid.bench' || id, $1, id, now() FROM message
), booked AS (
    INSERT INTO wallet_movements (organization_id, id, movement, message_id, available, reserved, consumed,
                                  created_at)
    SELECT $1, id, 'reserve', id, -20000, 20000, 0, now() FROM message
)
UPDATE wallets SET available = available - 20000 * cardinality($3::uuid[]),
                   reserved = reserved + 20000 * cardinality($3::uuid[])
 WHERE organization_id = $1
"""
LEFT = "SELECT count(*) FROM whatsapp_messages WHERE status <> 'read'"
WAITING = "SELECT EXISTS (SELECT FROM whatsapp_callbacks)"
RESERVED = "SELECT reserved FROM wallets WHERE organization_id = $1"


async def _post(
    stage: Stage, count: int, number: asyncpg.Record, batch: int, *, pace: float = 0.0
) -> tuple[float, statuses.Posted]:
    """Post the statuses of `count` messages; returns how many were applied per second, and how they were answered."""
    await stage.empty()
    ids = [uuid7() for _ in range(count)]
    async with stage.connection() as conn:
        await conn.execute(SEED, stage.organization, number["id"], ids)
    await stage.checkpoint()
    with tempfile.NamedTemporaryFile("w", suffix=".ids") as file:
        file.write("\n".join(str(id) for id in ids))
        file.flush()
        options = statuses.Options(
            port=stage.api_port,
            path=stage.callbacks,
            app_secret=stage.graph.app_secret,
            waba=CLOUD.waba,
            number=number["graph_id"],
            digits=number["digits"],
            messages=file.name,
            connections=CONNECTIONS,
            batch=batch,
            rate=pace,
        )
        said = await stage.run(sys.executable, "-m", "bench.statuses", msgspec.json.encode(options).decode())
    posted = msgspec.json.decode(said, type=statuses.Posted)
    if posted.refused:
        raise BenchError(f"{posted.refused} of {posted.posts} callbacks were not answered with 200")
    ended = await _until_read(stage)
    async with stage.connection() as conn:
        if await conn.fetchval(RESERVED, stage.organization):
            raise BenchError("every message was read, and something of the wallet is still reserved")
    return posted.items / (ended - posted.began), posted


async def _until_read(stage: Stage) -> float:
    deadline = time.monotonic() + PATIENCE
    while True:
        async with stage.connection() as conn:
            left = await conn.fetchval(LEFT)
            if not left and not await conn.fetchval(WAITING):
                return time.monotonic()
        if time.monotonic() > deadline:
            raise BenchError(f"{left} messages are not read after {PATIENCE:.0f} s")
        await asyncio.sleep(0.05)
