"""Resident memory of an API process and a worker after load.

After the backlog, the running processes are measured. Without it, or to see whether sizes stay constant, the whole way
runs for a while: `--soak MINUTES`.
"""

from __future__ import annotations

import time

from bench import way
from bench.accept import Lengths
from bench.backlog import note_memory
from bench.figures import Report
from bench.stage import Stage


async def memory(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Record the sizes after running the whole way, if that was not done yet or a soak was requested."""
    if "memory_worker" in report.figures and not lengths.soak:
        return
    await stage.empty()
    smsc = await stage.start_smsc()
    receiver = await stage.start_receiver()
    await stage.start_api(lengths.api_processes)
    await stage.start_worker()
    began = time.monotonic()
    while True:
        result = await stage.load(connections=64, seconds=min(lengths.way, 60), in_flight=way.IN_FLIGHT)
        await way.settle(stage)
        stage.say(
            f"  after {(time.monotonic() - began) / 60:.1f} min: API {stage.size('api'):.0f} MB,"
            f" worker {stage.size('worker'):.0f} MB, {result.rate:,.0f}/s"
        )
        if time.monotonic() - began >= lengths.soak * 60:
            break
    await note_memory(stage, report)
    for control in (smsc, receiver):
        control.close()
    await stage.stop("worker")
    await stage.forget_receiver()
    await stage.stop("smsc")
