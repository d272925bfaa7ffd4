"""The cost of an idle installation: one API and one worker process, bound to a supplier."""

from __future__ import annotations

import asyncio

from bench import database, machine
from bench.accept import Lengths
from bench.figures import Report
from bench.stage import Stage

#: Seconds until the work of starting is over, and of the window, which includes everything done once a minute.
CALM, WINDOW = 15.0, 60.0


async def idle(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Commits, WAL and processor time per second."""
    smsc = await stage.start_smsc()
    await stage.start_api(lengths.api_processes)
    await stage.start_worker()
    await asyncio.sleep(CALM)
    names = [name for name in stage.parts if name != "smsc"]
    processes = [stage.parts[name].pid for name in names] + [stage.server.pid or 0]
    async with stage.connection() as conn:
        before, used = await database.read(conn), sum(map(machine.processor_seconds, processes))
        await asyncio.sleep(WINDOW)
        after = (await database.read(conn)).since(before)
        used = sum(map(machine.processor_seconds, processes)) - used
    report.add("idle_commits", "idle: commits", [after.commits / WINDOW], "/s")
    report.add("idle_wal", "  WAL", [after.wal / WINDOW], "B/s")
    report.add("idle_processor", "  processor time", [used / WINDOW * 1000], "ms/s")
    await stage.stop("worker")
    smsc.close()
    await stage.stop("smsc")
