"""The whole way through a supplier over HTTP: accept → request → callback → signed webhook, like `way` over SMPP."""

from __future__ import annotations

import secrets

import msgspec

from bench.accept import Lengths
from bench.figures import Report
from bench.stage import Stage
from bench.way import IN_FLIGHT, STAND_INS, WARM_UP, settle
from heliograph.sms.dispatch import suppliers

KIND = "infobip"
#: Maximum number of concurrent requests.
WINDOW = 200
REMOVE = "UPDATE suppliers SET state = 'removed' WHERE name = 'bench'"


async def http_way(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Messages accepted, sent, delivered and reported per second; ÷ `way`, if that was measured."""
    secret = secrets.token_urlsafe(6)
    await stage.empty()
    supplier, base_url = await stage.start_aggregator(KIND, secret)
    receiver = await stage.start_receiver()
    await stage.start_api(lengths.api_processes)
    sealed = msgspec.json.encode({"secret": secret}).decode()
    values = {"base_url": base_url, "window": WINDOW}
    async with stage.connection() as conn:
        await suppliers.add(conn, stage.supplier_key, name="bench", kind=KIND, settings=values, secret=sealed)
    await stage.start_worker()
    rates, processor = [], []
    for number in range(lengths.rounds):
        await stage.checkpoint()
        result = await stage.load(connections=64, warm_up=WARM_UP, seconds=lengths.way, in_flight=IN_FLIGHT)
        rates.append(result.received / result.seconds)
        costs = result.costs(result.received)
        processor.append(sum(cost for name, cost in costs.items() if name not in (*STAND_INS, "aggregator")))
        await settle(stage)
        stage.say(f"  round {number + 1}: {rates[-1]:,.0f} webhooks/s at {result.rate:,.0f} accepted/s")
    report.add("way_http", "whole way through a supplier over HTTP", rates, "/s")
    report.ratio("way_http_ratio", "whole way over HTTP ÷ over SMPP", "way_http", "way")
    report.add("way_http_processor", "  processor time a message, without stand-ins", processor, "µs")
    report.costs["whole way, HTTP"] = costs
    await stage.stop("worker")
    async with stage.connection() as conn:
        await conn.execute(REMOVE)
    await stage.forget_receiver()
    await stage.stop("aggregator")
    for control in (supplier, receiver):
        control.close()
