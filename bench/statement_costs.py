"""What each statement costs PostgreSQL, in processor time, while messages go the whole way:
`python -m bench.statement_costs [sms|whatsapp [SECONDS]]`.

The server writes down what each statement used (`log_statement_stats`), which slows it by a third: shares are what to
read here, and rates are no measurement. WAL writer, checkpoints and autovacuum are in no statement.
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

#: Characters of a statement that are shown, and statements.
SHOWN, MOST = 100, 30
#: What the server is told besides the usual: details, and so the figures, are left out of its log otherwise.
SETTINGS = {"log_statement_stats": "on", "log_error_verbosity": "default", "log_line_prefix": "%p "}

_ENTRY = re.compile(r"\n(?=\d+ LOG:  )")
_KIND = re.compile(r"LOG:  ([A-Z]+) (?:MESSAGE )?STATISTICS")
_USED = re.compile(r"!\s+([\d.]+) s user, ([\d.]+) s system, [\d.]+ s elapsed")
_SAID = re.compile(r"STATEMENT:  (.*)", re.DOTALL)


class Cost(msgspec.Struct):
    """Of one statement, while it was measured."""

    statement: str
    times: int = 0
    seconds: float = 0.0


def costs(log: str) -> list[Cost]:
    """What a server's log says of its statements, the dearest first."""
    found: dict[str, Cost] = {}
    for entry in _ENTRY.split(log):
        kind, used, said = _KIND.search(entry), _USED.search(entry), _SAID.search(entry)
        if kind and used and said:
            text = " ".join(said[1].split())
            cost = found.setdefault(text, Cost(text))
            cost.seconds += float(used[1]) + float(used[2])
            # Parsed once, bound and executed each time.
            cost.times += kind[1] in ("EXECUTE", "QUERY")
    return sorted(found.values(), key=lambda cost: -cost.seconds)


def shown(measured: Iterable[Cost], messages: int) -> list[str]:
    """Lines of a table: microseconds a message, times, microseconds a time."""
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
    """Carry messages of a channel for so long."""
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
