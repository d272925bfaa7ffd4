"""The whole way, live: accept → submit_sm → receipt → signed webhook, everything on this machine at once.

The generator sends as fast as it gets answers while fewer than IN_FLIGHT messages are in flight, so its rate of answers
equals the rate at which webhooks arrive, which is what is measured. With that many in flight, the time from accept to
webhook is IN_FLIGHT ÷ rate by arithmetic; what a customer sees is measured at half the rate.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import msgspec

from bench import database
from bench.accept import Lengths, limits
from bench.control import Control
from bench.figures import Report
from bench.stage import BenchError, Stage

IN_FLIGHT = 2_000
#: Processes that simulate the rest of the world.
STAND_INS = ("smsc", "receiver", "generator")
#: The time between accept and webhook by step, medians in ms, for messages accepted since $1.
STEPS = """
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY attempt.started_at - message.accepted_at) AS attempt,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY message.receipt_at - attempt.started_at) AS receipt,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY delivery.started_at - message.receipt_at) AS webhook
  FROM messages message
  JOIN attempts attempt ON attempt.organization_id = message.organization_id AND attempt.message_id = message.id
  JOIN (SELECT organization_id, unnest(events) AS event_id,
               started_from + unnest(started_ms) * interval '1 ms' AS started_at FROM webhook_successes) delivery
    ON delivery.organization_id = message.organization_id AND delivery.event_id = message.event_id
 WHERE message.accepted_at >= $1
"""
WARM_UP = 3.0
STEP_LABELS = {
    "attempt": "of it from accept to attempt",
    "receipt": "of it from attempt to receipt",
    "webhook": "of it from receipt to webhook",
}


async def way(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Messages accepted, sent, delivered and reported per second, and the time it takes."""
    await limits(stage, report, lengths)
    rates, busy, processor, accepted, full_p50, half_p50, half_p95 = [], [], [], [], [], [], []
    await stage.empty()
    smsc = await stage.start_smsc()
    receiver = await stage.start_receiver()
    await stage.start_api(lengths.api_processes)
    await stage.start_worker()
    for number in range(lengths.rounds):
        await stage.checkpoint()
        before = await database.mark(stage)
        result = await stage.load(connections=64, warm_up=WARM_UP, seconds=lengths.way, in_flight=IN_FLIGHT)
        rates.append(result.received / result.seconds)
        busy.append(result.busy * 100)
        accepted.append(result.p99)
        processor.append(sum(cost for name, cost in result.costs(result.received).items() if name not in STAND_INS))
        await settle(stage)
        work = (await database.mark(stage)).since(before, messages=result.statuses["202"])
        full_p50.append((await receiver.ask("latencies"))["p50"])
        since = datetime.now(UTC)
        half = await stage.load(
            connections=64, warm_up=1.0, seconds=lengths.way / 3, in_flight=IN_FLIGHT, rate=rates[-1] / 2
        )
        await settle(stage)
        took = await receiver.ask("latencies")
        half_p50.append(took["p50"])
        half_p95.append(took["p95"])
        stage.say(
            f"  round {number + 1}: {rates[-1]:,.0f} webhooks/s at {result.rate:,.0f} accepted/s;"
            f" p95 {half_p95[-1]:.0f} ms at {half.rate:,.0f}/s"
        )
    await _all_came(stage, receiver)
    async with stage.connection() as conn:
        steps = await conn.fetchrow(STEPS, since, timeout=120)
        assert steps is not None
    report.add("way", "whole way, webhooks received, 64 connections", rates, "/s")
    report.ratio("way_ratio", "whole way ÷ pgbench, 64", "way", "pgbench_64")
    report.add("way_busy", "  of the machine busy meanwhile", busy, "%")
    report.add("way_processor", "  processor time a message, without stand-ins", processor, "µs")
    report.add("way_wal", "  WAL a message", [work.wal], "B")
    report.add("way_accept_p99", "  p99 of accept meanwhile", accepted, "ms")
    report.work["whole way"] = msgspec.structs.asdict(work)
    report.add("way_p50", f"  accept to webhook with {IN_FLIGHT} on their way, p50", full_p50, "ms")
    report.add("way_half_p50", "  accept to webhook at half the rate, p50", half_p50, "ms")
    report.add("way_half_p95", "  accept to webhook at half the rate, p95", half_p95, "ms")
    for name, label in STEP_LABELS.items():
        report.add(f"way_half_{name}", f"    {label}, p50", [steps[name].total_seconds() * 1000], "ms")
    report.costs["whole way"] = result.costs(result.received)
    report.costs["whole way, half the rate"] = half.costs(half.accepted)
    await stage.stop("worker")
    await stage.forget_receiver()
    await stage.stop("smsc")
    for control in (smsc, receiver):
        control.close()


#: True while there is work in the queue, or a message without a final status.
OPEN = """
SELECT EXISTS (SELECT FROM queue)
    OR EXISTS (SELECT FROM messages WHERE status IN ('accepted', 'sent'))
    OR EXISTS (SELECT FROM whatsapp_messages WHERE direction = 'outbound' AND status IN ('accepted', 'sent'))
"""


async def settle(stage: Stage, *, patience: float = 60.0) -> None:
    """Wait until every message has ended and every webhook is answered and recorded, however slow the machine is.
    BenchError if that takes longer than `patience` seconds."""
    deadline = time.monotonic() + patience
    async with stage.connection() as conn:
        while await conn.fetchval(OPEN):
            if time.monotonic() > deadline:
                raise BenchError(f"messages or webhooks are still on their way after {patience:.0f} s")
            await asyncio.sleep(0.2)


async def _all_came(stage: Stage, receiver: Control) -> None:
    async with stage.connection() as conn:
        accepted = await conn.fetchval("SELECT count(*) FROM messages")
        delivered = await conn.fetchval("SELECT count(*) FROM messages WHERE status = 'delivered'")
    counters = await receiver.ask("counters")
    if not accepted == delivered == counters["received"] or counters["bad_signatures"] or counters["malformed"]:
        raise BenchError(f"{accepted} messages were accepted, {delivered} delivered; the receiver counts {counters}")
