"""What metrics and logs cost on the whole way: processor time of API and worker for a message, with them and without.

Processor time differs by more from one minute to the next than what is measured here. So two installations stand beside
each other, one with and one without, and take turns in short windows, A B B A: what drifts slowly hits both, and no
window runs beside another. Then they exchange their parts, so that what differs between the installations themselves
cancels out: a pair is two windows before and two after the exchange, and what is judged is the median of all pairs,
unless these differ by too much. Counting cannot be turned off: it is a few additions a batch, and is in both.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
from collections.abc import AsyncIterator, Sequence

from bench import machine
from bench.accept import Lengths
from bench.figures import Report
from bench.load import Options
from bench.stage import BenchError, Stage, free_port, stage
from bench.way import settle

#: Pairs of windows between two exchanges, and exchanges, of which one must do for a single round: three minutes in all.
PAIRS, EXCHANGES = 6, 2
#: Seconds of a window, and those before the first one after an exchange. A window begins with nothing on its way, and
#: ends once nothing is.
WINDOW, WARM_UP = 2.0, 2.0
#: Sent in a second, and on their way at once at most. Half of what goes through, so that batches are as large in every
#: window: as fast as answers come, whatever else the machine does makes batches larger and a message cheaper.
RATE, IN_FLIGHT = 1_000.0, 500
#: Ports that are asked beyond one for each process: somebody else may have taken one.
SPARE = 4
#: From this standard error on, in per cent, the machine is too busy for a judgement: the budget is not much more.
STEADY = 1.0
#: Standard error of a median, in those of a mean (of what is normally distributed).
OF_MEDIAN = math.sqrt(math.pi / 2)
WITHOUT = {"HELIOGRAPH_METRICS_LISTEN": "", "HELIOGRAPH_LOG_LEVEL": "error"}


class Side:
    """One of the two installations, in one of the two parts."""

    def __init__(self, made: Stage) -> None:
        self.made = made
        self._metrics: int | None = None
        self._processes = 0
        #: Microseconds of processor time a message, window by window, by process.
        self.costs: list[dict[str, float]] = []

    async def start(self, lengths: Lengths, *, talks: bool) -> None:
        """Its processes, with metrics and logs or without, and warm."""
        self._metrics = free_port() if talks else None
        self._processes = lengths.api_processes + 1
        self.made.settings = {**WITHOUT, **(_with(self._metrics) if self._metrics is not None else {})}
        await self.made.start_api(lengths.api_processes)
        await self.made.start_worker()
        self.made.settings = {}
        await self._messages(WARM_UP)

    async def stop(self) -> None:
        """End its processes."""
        for name in [one for one in self.made.parts if _is_ours(one)]:
            await self.made.stop(name)

    async def window(self) -> float:
        """Microseconds of processor time of API and worker a message. Metrics are read once: more often than
        `deploy/prometheus` has it, with a window of two seconds."""
        before = self._used()
        sending = asyncio.create_task(self._messages(WINDOW))
        if self._metrics is not None:
            await _scrape(self._metrics, self._processes)
        count = await sending
        after = self._used()
        self.costs.append({name: (after[name] - before[name]) / count * 1e6 for name in after})
        return sum(self.costs[-1].values())

    async def _messages(self, seconds: float) -> int:
        """Send for so long, and return how many once the last webhook was recorded: all work on them is done."""
        options = Options(
            port=self.made.api_port, key=self.made.key, connections=16, seconds=seconds, in_flight=IN_FLIGHT, rate=RATE
        )
        result = await self.made.generate(options)
        await settle(self.made)
        return result.statuses["202"]

    def _used(self) -> dict[str, float]:
        return {name: machine.clock_seconds(part.pid) for name, part in self.made.parts.items() if _is_ours(name)}


async def overhead(first: Stage, report: Report, lengths: Lengths) -> None:
    """Per cent of processor time that metrics, while they are scraped, and logs at `info` add to a message."""
    for name in [one for one in first.parts if _is_ours(one)]:
        await first.stop(name)
    await first.empty()
    more: list[float] = []
    costs: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    async with stage(first.say, directory=first.place.parent) as second, _surrounded(first), _surrounded(second):
        for number in range(min(EXCHANGES, lengths.rounds)):
            before = await _quotients(first, second, lengths, costs)
            after = await _quotients(second, first, lengths, costs)
            pairs = [(math.sqrt(one * other) - 1) * 100 for one, other in zip(before, after, strict=True)]
            more += pairs
            said = ", ".join(f"{one:+.1f}" for one in pairs)
            first.say(f"  exchange {number + 1}: {said} %; standard error so far {standard_error(more):.2f} %")
    judge(report, more)
    for talks, part in ((False, "whole way, no metrics, no logs"), (True, "whole way, metrics and logs")):
        report.costs[part] = {name: statistics.median(one[name] for one in costs[talks]) for name in costs[talks][0]}


async def _quotients(
    talking: Stage, silent: Stage, lengths: Lengths, costs: dict[bool, list[dict[str, float]]]
) -> list[float]:
    """What a message costs with both, by what it costs without, pair by pair: A B, B A, A B and so on."""
    sides = {True: Side(talking), False: Side(silent)}
    found = []
    try:
        for talks, side in sides.items():
            await side.start(lengths, talks=talks)
        for number in range(PAIRS):
            order = (True, False) if number % 2 else (False, True)
            pair = {talks: await sides[talks].window() for talks in order}
            found.append(pair[True] / pair[False])
    finally:
        for talks, side in sides.items():
            costs[talks] += side.costs
            await side.stop()
    return found


def judge(report: Report, more: Sequence[float]) -> None:
    """Add the per cents of all pairs, with a budget only if they agree."""
    label = "metrics, scraped, and logs at info: more processor time of API and worker a message"
    error = standard_error(more)
    steady = error <= STEADY
    report.add("overhead" if steady else "overhead_unsteady", label if steady else f"{label} (not judged)", more, "%")
    report.add("overhead_error", "  standard error of it", [error], "%")


def standard_error(more: Sequence[float]) -> float:
    """That of the median of so many pairs."""
    return OF_MEDIAN * statistics.stdev(more) / math.sqrt(len(more))


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


def _with(port: int) -> dict[str, str]:
    return {"HELIOGRAPH_METRICS_LISTEN": f"127.0.0.1:{port}", "HELIOGRAPH_LOG_LEVEL": "info"}


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
