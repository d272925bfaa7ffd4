"""`python -m bench`: measures, compares with the budgets, reports misses. Same as `make bench ARGS="--quick"`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench import machine, profile
from bench.accept import Lengths, accept
from bench.backlog import backlog
from bench.campaigns import campaigns
from bench.claims import claims
from bench.contacts import contacts
from bench.figures import Report
from bench.growth import growth
from bench.http_way import http_way
from bench.idle import idle
from bench.kannel import kannel
from bench.memory import memory
from bench.overhead import overhead
from bench.routing import routing
from bench.stage import BenchError, Stage, real_disk, stage
from bench.start import start
from bench.way import way
from bench.whatsapp import whatsapp
from heliograph.base.embedded.install import PostgresError

RESULTS = Path(__file__).parent / "results"
QUICK = Lengths(rounds=1, window=3.0, way=6.0, backlog=20_000, contacts=60_000, campaign=60_000, statuses=6_000)
#: Share of the machine that others may use before the report mentions it: kernel threads alone use some.
QUIET = 0.1
#: In this order: parts that grow the database come last, and `start` has the machine to itself.
SECTIONS: dict[str, Callable[[Stage, Report, Lengths], Awaitable[None]]] = {
    "start": start,
    "idle": idle,
    "accept": accept,
    "claims": claims,
    "routing": routing,
    "way": way,
    "overhead": overhead,
    "http": http_way,
    "kannel": kannel,
    "backlog": backlog,
    "contacts": contacts,
    "campaigns": campaigns,
    "whatsapp": whatsapp,
    "memory": memory,
    "growth": growth,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round each, without growth: some 90 s")
    parser.add_argument("--only", default="", metavar="A,B", help=f"only these parts: {', '.join(SECTIONS)}")
    parser.add_argument("--rounds", type=int, help="rounds of each part, of which the median counts (3)")
    parser.add_argument("--window", type=float, metavar="S", help="seconds of one window of pgbench or accepts (5)")
    parser.add_argument("--backlog", type=int, metavar="N", help="messages of a backlog (100 000)")
    parser.add_argument("--growth", type=int, metavar="N", help="messages stored for growth (10 000 000)")
    parser.add_argument("--contacts", type=int, metavar="N", help="rows of an imported file of contacts (200 000)")
    parser.add_argument("--campaign", type=int, metavar="N", help="recipients of a campaign (200 000)")
    parser.add_argument("--statuses", type=int, metavar="N", help="WhatsApp messages whose statuses come in (30 000)")
    parser.add_argument("--api-processes", type=int, metavar="N", help="web processes (1)")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="watch memory under load for this long")
    parser.add_argument("--dir", type=Path, help="where to put the temporary database: a real disk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--profile", choices=("api", "worker"), help="show where this process's time goes, and end")
    return parser.parse_args()


async def measure(chosen: argparse.Namespace) -> int:
    """Run the requested parts; returns the exit status."""
    given = {name: value for name in Lengths.__struct_fields__ if (value := getattr(chosen, name, None)) is not None}
    base = QUICK if chosen.quick else Lengths()
    lengths = Lengths(**{name: getattr(base, name) for name in Lengths.__struct_fields__} | given)
    names = chosen.only.split(",") if chosen.only else [one for one in SECTIONS if one != "growth" or not chosen.quick]
    unknown = set(names) - SECTIONS.keys()
    if unknown:
        raise BenchError(f"unknown part: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    report = Report()
    failure = ""
    began = time.monotonic()
    async with stage(_say, directory=chosen.dir or real_disk()) as made:
        if chosen.profile:
            print(await profile.profile(made, chosen.profile, RESULTS))
            return 0
        report.facts = machine.facts(made.place)
        report.facts.append(("PostgreSQL", await _version(made)))
        for name, value in report.facts:
            print(f"{name:12}  {value}", flush=True)
        if set(names) & {"accept", "way", "whatsapp", "growth"}:
            ceiling = await made.ceiling(2.0)
            report.add("ceiling", "the generator's own ceiling, 64 connections", [ceiling.rate], "/s")
            _say(f"generator alone: {ceiling.rate:,.0f}/s")
        for name, section in SECTIONS.items():
            if name in names and not failure:
                _say(f"{name} …")
                try:
                    await section(made, report, lengths)
                except Exception as error:  # what was measured before is still worth showing
                    failure = f"{name}: {type(error).__name__}: {error}"
    if made.others:
        report.facts.append(("Others", f"used {statistics.median(made.others):.0%} of the machine (median of windows)"))
    _remark(report, made)
    report.facts.append(("Measured", f"{time.strftime('%Y-%m-%d')}, in {time.monotonic() - began:.0f} s"))
    print("\n" + report.text(), flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.md").write_text(report.markdown())
    if chosen.json:
        chosen.json.write_bytes(report.as_json())
    missed = report.missed()
    for label in missed:
        print(f"Budget missed: {label}")
    if failure:
        raise BenchError(failure)
    return 1 if missed else 0


def _remark(report: Report, made: Stage) -> None:
    if made.others and statistics.median(made.others) > QUIET:
        print(
            f"\nOthers used {statistics.median(made.others):.0%} of this machine meanwhile: it could do more than this."
        )
    fastest = max((one.value for key, one in report.figures.items() if key in ("accept_64", "growth_none")), default=0)
    if "ceiling" in report.figures and fastest * 2 > report.figures["ceiling"].value:
        print("\nThe generator is too close to its own ceiling: these figures say more about it than about the API.")


async def _version(made: Stage) -> str:
    async with made.connection() as conn:
        version: str = await conn.fetchval("SHOW server_version")
        shown = [
            f"{name} {await conn.fetchval(f'SHOW {name}')}"
            for name in ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
        ]
    return f"{version}, embedded, {', '.join(shown)}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def main() -> int:
    task = asyncio.current_task()
    assert task is not None
    # Ctrl-C and SIGTERM end the run in the same way: through every `finally`.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await measure(arguments())
    except (BenchError, PostgresError) as error:
        _say(f"bench: {error}")
        return 2
    except asyncio.CancelledError:
        _say("bench: stopped.")
        return 130


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
