"""What metrics and logs cost on the whole way: processor time of API and worker for a message, with them and without.

Processor time differs by more from one minute to the next than what is measured here, above all on a machine that
others use. So two installations do the same beside each other, one with and one without, exchange their parts, and what
is judged is the median of the quotients, unless these differ by too much. Counting cannot be turned off: it is a few
additions a batch, and is in both.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence

from bench import machine
from bench.accept import Lengths
from bench.figures import Report
from bench.load import Options
from bench.stage import BenchError, Stage, free_port, stage
from bench.way import settle

#: Pairs in a round.
PAIRS = 4
#: On their way at once, in each of the two; seconds before it counts.
IN_FLIGHT, WARM_UP = 500, 2.0
#: Ports that are asked beyond one for each process: somebody else may have taken one.
SPARE = 4
#: Seconds between two scrapes, as `deploy/prometheus` has them.
EVERY = 15.0
#: From this standard error on, in per cent, the machine is too busy for a judgement: the budget is not much more.
STEADY = 1.0
WITHOUT = {"HELIOGRAPH_METRICS_LISTEN": "", "HELIOGRAPH_LOG_LEVEL": "error"}


async def overhead(first: Stage, report: Report, lengths: Lengths) -> None:
    """Per cent of processor time that metrics, while they are scraped, and logs at `info` add to a message."""
    for name in [one for one in first.parts if _is_ours(one)]:
        await first.stop(name)
    await first.empty()
    costs: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    more = []
    async with stage(first.say, directory=first.place.parent) as second, _surrounded(first), _surrounded(second):
        for number in range(PAIRS * lengths.rounds):
            talking, silent = (first, second) if number % 2 else (second, first)
            pair = await asyncio.gather(_window(talking, lengths, talks=True), _window(silent, lengths, talks=False))
            costs[True].append(pair[0])
            costs[False].append(pair[1])
            with_both, without = map(_ours, pair)
            more.append((with_both / without - 1) * 100)
            first.say(
                f"  pair {number + 1}: {without:.0f} µs a message without, {with_both:.0f} with: {more[-1]:+.1f} %"
            )
    judge(report, more)
    for talks, part in ((False, "whole way, no metrics, no logs"), (True, "whole way, metrics and logs")):
        report.costs[part] = {name: statistics.median(one[name] for one in costs[talks]) for name in costs[talks][0]}


def judge(report: Report, more: Sequence[float]) -> None:
    """Add the per cents of all pairs, with a budget only if they agree."""
    label = "metrics, scraped, and logs at info: more processor time of API and worker a message"
    # The mean's; the median's is a quarter more.
    error = statistics.stdev(more) / math.sqrt(len(more))
    steady = error <= STEADY
    report.add("overhead" if steady else "overhead_unsteady", label if steady else f"{label} (not judged)", more, "%")
    report.add("overhead_error", "  standard error of it", [error], "%")


@contextlib.asynccontextmanager
async def _surrounded(made: Stage) -> AsyncIterator[None]:
    """With a simulated SMSC and a receiver of webhooks."""
    controls = (await made.start_smsc(), await made.start_receiver())
    try:
        yield
    finally:
        for control in controls:
            control.close()
        await made.forget_receiver()
        await made.stop("smsc")


async def _window(made: Stage, lengths: Lengths, *, talks: bool) -> dict[str, float]:
    """Microseconds of processor time a message, by process."""
    port = free_port()
    made.settings = {**WITHOUT, **(_with(port) if talks else {})}
    await made.start_api(lengths.api_processes)
    await made.start_worker()
    await _messages(made, WARM_UP)
    before = _used(made)
    sending = asyncio.create_task(_messages(made, lengths.way))
    while not sending.done():
        if talks:
            await _scrape(port, lengths.api_processes + 1)
        await asyncio.wait([sending], timeout=EVERY)
    count = await sending
    after = _used(made)
    for name in [one for one in made.parts if _is_ours(one)]:
        await made.stop(name)
    made.settings = {}
    return {name: (after[name] - before[name]) / count * 1e6 for name in after}


async def _messages(made: Stage, seconds: float) -> int:
    """Send for so long, and return how many once the last webhook was recorded: all work on them is done."""
    options = Options(port=made.api_port, key=made.key, connections=16, seconds=seconds, in_flight=IN_FLIGHT)
    result = await made.generate(options)
    await settle(made)
    return result.statuses["202"]


def _used(made: Stage) -> dict[str, float]:
    """Seconds of processor time that each process has used."""
    pids = {name: part.pid for name, part in made.parts.items()}
    if made.server.pid is not None:
        pids["postgres"] = made.server.pid
    return {name: machine.processor_seconds(pid) for name, pid in pids.items()}


def _with(port: int) -> dict[str, str]:
    return {"HELIOGRAPH_METRICS_LISTEN": f"127.0.0.1:{port}", "HELIOGRAPH_LOG_LEVEL": "info"}


def _ours(costs: Mapping[str, float]) -> float:
    return sum(cost for name, cost in costs.items() if _is_ours(name))


def _is_ours(name: str) -> bool:
    return name == "worker" or name.startswith("api")


async def _scrape(port: int, processes: int) -> None:
    """Read the metrics of all processes, as Prometheus does. BenchError if one shows none."""
    answers = await asyncio.gather(*(_metrics(port + at) for at in range(processes + SPARE)))
    shown = sum(b"heliograph_event_loop_lag_seconds" in answer for answer in answers)
    if shown < processes:
        raise BenchError(f"{shown} of {processes} processes show metrics")


async def _metrics(port: int) -> bytes:
    """What is shown at a port; nothing, if nobody is there."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return b""
    try:
        writer.write(b"GET /metrics HTTP/1.0\r\nhost: bench\r\n\r\n")
        return await reader.read(-1)
    finally:
        writer.close()
