"""POST /v1/sms/send with nothing behind it: how many messages are stored and answered per second, and how fast.

pgbench runs in turn with it on the same PostgreSQL, so that a machine shared with others slows both alike.
"""

from __future__ import annotations

import msgspec

from bench import database, load, pgbench
from bench.figures import Report
from bench.stage import BenchError, Stage

COUNTS = (1, 16, 64)


class Lengths(msgspec.Struct, frozen=True):
    """How long and how often each part measures."""

    rounds: int = 3
    #: One window of pgbench or of accepts, seconds.
    window: float = 5.0
    #: One window of the whole way, seconds.
    way: float = 15.0
    backlog: int = 100_000
    growth: int = 10_000_000
    #: Rows of a file of contacts.
    contacts: int = 200_000
    #: Recipients of a campaign.
    campaign: int = 200_000
    #: WhatsApp messages whose statuses come in, three each.
    statuses: int = 30_000
    api_processes: int = 1
    #: How long memory is watched under load, minutes; 0: once is enough.
    soak: float = 0.0


async def limits(stage: Stage, report: Report, lengths: Lengths, *, counts: tuple[int, ...] = (64,)) -> None:
    """pgbench alone, for parts that are compared with it, unless it has already been measured."""
    for clients in counts:
        if f"pgbench_{clients}" not in report.figures:
            rates = [
                await pgbench.insert(stage, clients=clients, seconds=lengths.window) for _ in range(lengths.rounds)
            ]
            report.add(f"pgbench_{clients}", f"pgbench, single-row insert, {_clients(clients)}", rates, "/s")


async def accept(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Accepts and pgbench in turn, at each number of connections, and the same transaction one by one."""
    inserts: dict[int, list[float]] = {count: [] for count in COUNTS}
    results: dict[int, list[load.Result]] = {count: [] for count in COUNTS}
    naive: list[float] = []
    await stage.start_api(lengths.api_processes)
    for number in range(lengths.rounds):
        for count in COUNTS:
            inserts[count].append(await pgbench.insert(stage, clients=count, seconds=lengths.window))
            before = await database.mark(stage)
            results[count].append(await once(stage, connections=count, seconds=lengths.window))
            done = (await database.mark(stage)).since(before, messages=results[count][-1].statuses["202"])
            report.work[f"accept, {_connections(count)}"] = msgspec.structs.asdict(done)
            stage.say(
                f"  round {number + 1}, {count}: {results[count][-1].rate:,.0f} accepted/s,"
                f" pgbench {inserts[count][-1]:,.0f}/s"
            )
        naive.append(await pgbench.naive(stage, clients=64, seconds=lengths.window))
    for count in COUNTS:
        report.add(f"pgbench_{count}", f"pgbench, single-row insert, {_clients(count)}", inserts[count], "/s")
    report.add("naive_64", "pgbench, our transaction one by one, 64 clients", naive, "/s")
    for count in COUNTS:
        rounds = results[count]
        report.add(f"accept_{count}", f"accepted, {_connections(count)}", [one.rate for one in rounds], "/s")
        report.add(f"accept_p50_{count}", f"  p50, {_connections(count)}", [one.p50 for one in rounds], "ms")
        report.add(f"accept_p99_{count}", f"  p99, {_connections(count)}", [one.p99 for one in rounds], "ms")
        last = rounds[-1]
        report.costs[f"accept, {_connections(count)}"] = last.costs(last.accepted)
    report.ratio("accept_ratio_64", "accepted ÷ pgbench, 64", "accept_64", "pgbench_64")
    report.ratio("accept_ratio_1", "accepted ÷ pgbench, 1", "accept_1", "pgbench_1")
    report.ratio("accept_to_naive", "accepted ÷ one by one, 64", "accept_64", "naive_64")


async def once(stage: Stage, *, connections: int, seconds: float, empty: bool = True) -> load.Result:
    """One window of accepts. BenchError unless everything answered is stored."""
    if empty:
        await stage.empty()
    else:
        await stage.checkpoint()
    before = 0 if empty else await _used(stage)
    result = await stage.load(connections=connections, warm_up=1.0, seconds=seconds)
    stored = await _used(stage) - before
    if stored != result.statuses["202"]:
        raise BenchError(f"{result.statuses['202']} messages were answered with 202, and {stored} are stored")
    return result


async def _used(stage: Stage) -> int:
    # The balance counts accepted messages, and is cheap to read even with millions of them.
    async with stage.connection() as conn:
        used: int = await conn.fetchval("SELECT used FROM quotas WHERE organization_id = $1", stage.organization)
    return used


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"


def _connections(count: int) -> str:
    return "1 connection" if count == 1 else f"{count} connections"
