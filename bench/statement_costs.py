"""PostgreSQL's processor time for each statement, while messages take the whole way:
`python -m bench.statement_costs [sms|whatsapp [SECONDS]]`.

The server logs what each statement used (`log_statement_stats`), which slows it by a third: shares are meaningful,
rates are not. WAL writer, checkpoints and autovacuum do not belong to any statement.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bench import way, whatsapp
from bench.stage import Stage, real_disk, stage

#: Shown characters of a statement, and number of statements.
SHOWN, MOST = 100, 30
#: The server's additional settings: otherwise its log omits details, and with them the figures.
SETTINGS = {"log_statement_stats": "on", "log_error_verbosity": "default", "log_line_prefix": "%p "}

_ENTRY = re.compile(r"\n(?=\d+ LOG:  )")
_KIND = re.compile(r"LOG:  ([A-Z]+) (?:MESSAGE )?STATISTICS")
_USED = re.compile(r"!\s+([\d.]+) s user, ([\d.]+) s system, [\d.]+ s elapsed")
_SAID = re.compile(r"STATEMENT:  (.*)", re.DOTALL)


class Cost(msgspec.Struct):
    """The cost of one statement during the measurement."""

    statement: str
    times: int = 0
    seconds: float = 0.0


def costs(log: str) -> list[Cost]:
    """Costs of statements from a server's log, the most expensive first."""
    found: dict[str, Cost] = {}
    for entry in _ENTRY.split(log):
        kind, used, said = _KIND.search(entry), _USED.search(entry), _SAID.search(entry)
        if kind and used and said:
            text = " ".join(said[1].split())
            cost = found.setdefault(text, Cost(text))
            cost.seconds += float(used[1]) + float(used[2])
            # Parsed once, but bound and executed each time.
            cost.times += kind[1] in ("EXECUTE", "QUERY")
    return sorted(found.values(), key=lambda cost: -cost.seconds)


def shown(measured: Iterable[Cost], messages: int) -> list[str]:
    """Lines of a table: microseconds per message, executions, microseconds per execution."""
    measured = list(measured)
    total = sum(cost.seconds for cost in measured)
    lines = [f"{total / messages * 1e6:8.1f} µs a message in all, of {messages:,} messages"]
    lines += [
        f"{cost.seconds / messages * 1e6:8.1f} {cost.times:7,} × {cost.seconds / max(cost.times, 1) * 1e6:7,.0f} µs"
        f"  {cost.statement[:SHOWN]}"
        for cost in measured[:MOST]
    ]
    return lines


def _logs(made: Stage) -> dict[Path, int]:
    return {path: path.stat().st_size for path in (made.place / "postgres" / "log").glob("*.log")}


async def measure(made: Stage, channel: str, seconds: float) -> list[str]:
    """Run a channel's messages for that long."""
    await made.restart_database(SETTINGS)
    await made.start_api(1)
    numbers: tuple[str, ...] = ()
    if channel == "sms":
        await made.start_smsc()
        await made.start_receiver()
        await made.start_worker()
    else:
        await made.start_graph(numbers=whatsapp.NUMBERS)
        await made.start_worker(bound=False)
        numbers = tuple(str(row["id"]) for row in await made.whatsapp_numbers(count=whatsapp.NUMBERS))
        await made.start_receiver()
    load = {"connections": 64, "warm_up": 1.0, "in_flight": way.IN_FLIGHT, "whatsapp": numbers}
    await made.load(seconds=1.0, **load)
    await way.settle(made)
    before = _logs(made)
    result = await made.load(seconds=seconds, **load)
    await way.settle(made)
    log = ""
    for path in sorted(_logs(made)):
        with path.open(errors="replace") as file:
            file.seek(before.get(path, 0))
            log += "\n" + file.read()
    return shown(costs(log), result.statuses["202"])


async def main(channel: str, seconds: float) -> None:
    if channel not in ("sms", "whatsapp"):
        raise SystemExit(__doc__)
    async with stage(lambda line: None, directory=real_disk()) as made:
        print("\n".join(await measure(made, channel, seconds)), flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(given[0] if given else "sms", float(given[1]) if len(given) > 1 else 4.0))
