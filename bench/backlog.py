"""A backlog: messages accepted while no worker runs, then one worker that starts and finds them.

Measured from the first submit to the last stored receipt (the simulator counts acknowledgements, which follow the
commit), or to the last webhook.
"""

from __future__ import annotations

import asyncio
import time

from bench import machine
from bench.accept import Lengths
from bench.control import Control
from bench.figures import Report
from bench.stage import BenchError, Stage

#: A backlog without progress for this long is stuck, seconds.
STUCK = 30.0


async def backlog(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Messages per second, first with receipts only, then with a signed webhook each."""
    await stage.start_api(lengths.api_processes)
    plain, webhooks = [], []
    for number in range(lengths.rounds):
        plain.append(await _drain(stage, report, lengths.backlog, webhooks=False))
        webhooks.append(await _drain(stage, report, lengths.backlog, webhooks=True))
        stage.say(f"  round {number + 1}: {plain[-1]:,.0f}/s, with webhooks {webhooks[-1]:,.0f}/s")
    amount = f"{lengths.backlog:,}".replace(",", " ")
    report.add("backlog_plain", f"backlog of {amount} drained, receipts recorded", plain, "/s")
    report.add("backlog_webhooks", f"backlog of {amount} drained, a webhook each", webhooks, "/s")


async def _drain(stage: Stage, report: Report, amount: int, *, webhooks: bool) -> float:
    await stage.empty()
    smsc = await stage.start_smsc()
    # The endpoint must be there when the event is, not when the message is accepted.
    receiver = await stage.start_receiver() if webhooks else None
    await stage.load(connections=64, count=amount)
    await stage.checkpoint()
    await stage.start_worker()
    rate = await _watch(stage, report, amount, smsc, receiver)
    async with stage.connection() as conn:
        delivered = await conn.fetchval("SELECT count(*) FROM messages WHERE status = 'delivered'")
        left = await conn.fetchval("SELECT count(*) FROM queue")
    if delivered != amount or left:
        raise BenchError(f"{delivered} of {amount} messages were delivered, {left} are still queued")
    await note_memory(stage, report)
    await stage.stop("worker")
    if receiver is not None:
        receiver.close()
        await stage.forget_receiver()
    smsc.close()
    await stage.stop("smsc")
    return rate


async def _watch(stage: Stage, report: Report, amount: int, smsc: Control, receiver: Control | None) -> float:
    processes = {name: part.pid for name, part in stage.parts.items()} | {"postgres": stage.server.pid or 0}
    before: dict[str, float] = {}
    began, first, done, moved = 0.0, 0, -1, time.monotonic()
    while True:
        counters = await smsc.ask("counters")
        now = time.monotonic()
        count = counters["receipts_acked"] if receiver is None else (await receiver.ask("counters"))["received"]
        if not before and counters["submits"]:
            before = {name: machine.processor_seconds(pid) for name, pid in processes.items()}
            began, first = now, count
        if count != done:
            done, moved = count, now
        if done >= amount:
            break
        if now - moved > STUCK:
            raise BenchError(
                f"a backlog of {amount} stopped at {done}: {counters}\n{stage.parts['worker'].last_words()}"
            )
        await asyncio.sleep(0.02)
    used = {name: machine.processor_seconds(pid) - before[name] for name, pid in processes.items()}
    name = "backlog" if receiver is None else "backlog, webhooks"
    report.costs[name] = {one: seconds / (amount - first) * 1e6 for one, seconds in used.items() if one != "api"}
    return (amount - first) / (now - began)


async def note_memory(stage: Stage, report: Report) -> None:
    """Current resident memory of the largest API process, and of the worker if one is running."""
    for kind, label in (("api", "API process"), ("worker", "worker")):
        sizes = [stage.size(name) for name in stage.parts if name.split()[0] == kind]
        if sizes:
            report.add(f"memory_{kind}", f"resident memory, {label}", [max(sizes)], "MB")
