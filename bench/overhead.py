"""The cost of metrics and logs on the whole way: their share of the processor time of API and worker per message.

Rates with and without them vary more from one minute to the next than the difference to be measured. So the operations
of one real run are counted instead (`bench.counted`): additions to counters, observations, log lines and calls for
lines below the level, from the start of each process to its end. The cost of each kind is measured in a tight loop of
the same process, on the same objects with the same labels, as is that of a check of how late the event loop is; the
cost of a scrape is the process's processor time. All of it is compared with the processor time per message of the same
run. In a tight loop everything is in the processor's caches, so the figure is a lower bound.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from bench import machine
from bench.accept import Lengths
from bench.counted import Kind
from bench.figures import Report
from bench.load import Options
from bench.stage import BenchError, Stage, free_port
from bench.way import settle
from heliograph.metrics.exporting import LAG_EVERY

#: Seconds of measured traffic, of the warm-up, messages per second, and the maximum in flight. Half of the possible
#: load: batches are as small as they get, and each operation covers few messages.
WINDOW, WARM_UP, RATE, IN_FLIGHT = 20.0, 3.0, 1_000.0, 500
#: Seconds between two scrapes (`deploy/prometheus`), and number of scrapes over which their cost is averaged.
SCRAPED, SCRAPES = 15.0, 40
#: Additional ports that are tried, beyond one per process: others may have taken some.
SPARE = 4


#: Kinds of operations, as named in the table.
KINDS = {
    "counter": "additions to counters",
    "histogram": "observations",
    "log line": "lines of logs",
    "log call without a line": "calls for lines below the level",
    "wake": "looks at how late the loop is",
    "scrape": "scrapes",
}


class Cost(msgspec.Struct):
    """One kind, per message: number of operations, and microseconds of processor time."""

    times: float = 0.0
    microseconds: float = 0.0


class Round(msgspec.Struct):
    """Results of one run: microseconds of processor time per message by process, and the part of each kind."""

    used: dict[str, float]
    costs: dict[str, Cost] = msgspec.field(default_factory=lambda: {kind: Cost() for kind in KINDS})

    @property
    def share(self) -> float:
        """Per cent."""
        return sum(cost.microseconds for cost in self.costs.values()) / sum(self.used.values()) * 100

    def add(self, kinds: Mapping[str, Kind], messages: float) -> None:
        """Add the operations of a process during that many messages."""
        for name, kind in kinds.items():
            cost = self.costs[name]
            cost.times += kind.times / messages
            cost.microseconds += kind.times * kind.nanoseconds / 1000 / messages


async def overhead(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Percentage of a message's processor time used by metrics, with scrapes, and by logs at `info`."""
    for name in [one for one in stage.parts if _is_ours(one)]:
        await stage.stop(name)
    controls = (await stage.start_smsc(), await stage.start_receiver())
    rounds = []
    for number in range(lengths.rounds):
        rounds.append(await _round(stage, lengths))
        stage.say(f"  round {number + 1}: {rounds[-1].share:.2f} %")
    for control in controls:
        control.close()
    await stage.forget_receiver()
    await stage.stop("smsc")
    show(report, rounds)


def show(report: Report, rounds: Sequence[Round]) -> None:
    """Add the figures of all rounds."""
    label = "metrics, scraped, and logs at info: of the processor time of API and worker"
    report.add("overhead", label, [one.share for one in rounds], "%")
    for kind, words in KINDS.items():
        costs = [one.costs[kind] for one in rounds]
        times = statistics.median(cost.times for cost in costs)
        each = statistics.median(cost.microseconds / cost.times * 1000 if cost.times else 0.0 for cost in costs)
        said = f"  {words}: {times:.3g} a message, {each:,.0f} ns each"
        report.add(f"overhead_{kind.replace(' ', '_')}", said, [cost.microseconds for cost in costs], "µs")
    report.costs["whole way, counted"] = {
        name: statistics.median(one.used[name] for one in rounds) for name in rounds[0].used
    }


async def _round(stage: Stage, lengths: Lengths) -> Round:
    """Start API and worker, count, and end them."""
    await stage.empty()
    port = free_port()
    stage.settings = {"HELIOGRAPH_METRICS_LISTEN": f"127.0.0.1:{port}", "HELIOGRAPH_LOG_LEVEL": "info"}
    names = ["worker", *(f"api {n + 1}" if n else "api" for n in range(lengths.api_processes))]
    files = {name: stage.place / f"counted-{name.replace(' ', '-')}" for name in names}
    stage.profiled |= {name: ["-m", "bench.counted", str(file)] for name, file in files.items()}
    try:
        await stage.start_api(lengths.api_processes)
        await stage.start_worker()
        await _messages(stage, WARM_UP)
        before = _used(stage)
        count = await _messages(stage, WINDOW)
        done = Round({name: (after - before[name]) / count * 1e6 for name, after in _used(stage).items()})
        before = _used(stage)
        for _ in range(SCRAPES):
            await _scrape(port, len(names))
        scraped = {name: after - before[name] for name, after in _used(stage).items()}
        async with stage.connection() as conn:
            messages = await conn.fetchval("SELECT count(*) FROM messages")
    finally:
        for name in names:
            await stage.stop(name)
            stage.profiled.pop(name)
        stage.settings = {}
    for name, file in files.items():
        kinds = msgspec.json.decode(file.read_bytes(), type=dict[str, Kind])
        wake = kinds.pop("wake").nanoseconds
        done.add(kinds, messages)
        # These two depend on time, not on traffic.
        scrape = scraped[name] / SCRAPES * 1e9
        done.add({"wake": Kind(round(SCRAPED / LAG_EVERY), wake), "scrape": Kind(1, scrape)}, RATE * SCRAPED)
    return done


async def _messages(stage: Stage, seconds: float) -> int:
    """Send for that long, and return the number of messages once the last webhook is recorded: all work is done."""
    options = Options(
        port=stage.api_port, key=stage.key, connections=16, seconds=seconds, in_flight=IN_FLIGHT, rate=RATE
    )
    result = await stage.generate(options)
    await settle(stage)
    return result.statuses["202"]


def _used(stage: Stage) -> dict[str, float]:
    return {name: machine.clock_seconds(part.pid) for name, part in stage.parts.items() if _is_ours(name)}


def _is_ours(name: str) -> bool:
    return name == "worker" or name.startswith("api")


async def _scrape(port: int, processes: int) -> None:
    """Read the metrics of all processes, like Prometheus. BenchError if one serves none."""
    answers = await asyncio.gather(*(_metrics(port + at) for at in range(processes + SPARE)))
    shown = sum(b"heliograph_event_loop_lag_seconds" in answer for answer in answers)
    if shown < processes:
        raise BenchError(f"{shown} of {processes} processes show metrics")


async def _metrics(port: int) -> bytes:
    """The metrics served at a port; empty if nothing listens there."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return b""
    try:
        writer.write(b"GET /metrics HTTP/1.0\r\nhost: bench\r\n\r\n")
        return await reader.read(-1)
    finally:
        writer.close()
