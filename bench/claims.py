"""The cost of a claim, by the number of organizations and lines that wait, and by the number of rows finished under a
snapshot that keeps their dead versions.

The cost is processor time of the PostgreSQL process that executes the claims, so that other load on the machine hardly
affects it. Nothing else runs.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from bench.accept import Lengths
from bench.figures import Report
from bench.stage import Stage
from heliograph.base.database.pool import Connection, Pool, open_pool
from heliograph.queue import leases
from heliograph.queue.backlog import Backlog

#: Rows per claim, rows that wait at first, claims per round.
SIZE, WAITING, CLAIMS = 256, 20_000, 24
ORGANIZATIONS = (1, 1_000, 20_000)
LINES = (1, 20_000)
FINISHED = (30_000, 300_000)
#: Rows finished between two queries of a worker under load.
STEP = 5_000

FILL = """
INSERT INTO queue (kind, line, organization_id, due_at, id)
SELECT 'bench', md5('line' || n % $1)::uuid, md5('organization' || n % $2)::uuid, now(), gen_random_uuid()
  FROM generate_series(1, $3::int) AS n
"""
FINISH = "DELETE FROM queue WHERE kind = 'bench'"


async def claims(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Microseconds per claimed row, and the ratios that should be one."""
    pool = await open_pool(stage.server.owner_url, size=2)
    try:
        for count in ORGANIZATIONS:
            values = [await _waiting(stage, pool, organizations=count) for _ in range(lengths.rounds)]
            stage.say(f"  {_amount(count)} organizations: {values[-1]:.1f} µs a row")
            report.add(f"claim_organizations_{count}", f"claim, {_amount(count)} organizations wait", values, "µs/row")
        for count in LINES:
            values = [await _waiting(stage, pool, lines=count, organizations=count) for _ in range(lengths.rounds)]
            stage.say(f"  {_amount(count)} lines: {values[-1]:.1f} µs a row")
            report.add(f"claim_lines_{count}", f"claim, work in {_amount(count)} lines", values, "µs/row")
        await _under_snapshot(stage, report, pool)
    finally:
        pool.terminate()
        await stage.empty()
    report.ratio(
        "claim_organizations",
        "claim, 20 000 organizations ÷ one",
        "claim_organizations_20000",
        "claim_organizations_1",
    )
    report.ratio("claim_lines", "claim, 20 000 lines ÷ one", "claim_lines_20000", "claim_lines_1")
    report.ratio("claim_snapshot", "claim, 300 000 finished under a snapshot ÷ none", "claim_300000", "claim_0")
    report.ratio("look_snapshot", "look, 300 000 finished under a snapshot ÷ none", "look_300000", "look_0")


async def _waiting(stage: Stage, pool: Pool, *, organizations: int, lines: int = 1) -> float:
    await stage.empty()
    backlog = Backlog()
    async with pool.acquire() as conn:
        await conn.execute("ANALYZE queue")  # the planner will always believe it to be empty
        await conn.execute(FILL, lines, organizations, WAITING)
        await backlog.look(conn, "bench")
        return await _cost(conn, backlog)


async def _under_snapshot(stage: Stage, report: Report, pool: Pool) -> None:
    """One worker throughout, alongside an open transaction that has read the queue."""
    await stage.empty()
    backlog = Backlog()
    async with pool.acquire() as conn, stage.connection() as old:
        await backlog.look(conn, "bench")
        await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await old.execute("SELECT count(*) FROM queue")
        done = 0
        for finished in (0, *FINISHED):
            while done < finished:
                await conn.execute(FILL, 1, 1_000, STEP)
                await backlog.look(conn, "bench")
                await conn.execute(FINISH)
                done += STEP
            await conn.execute(FILL, 1, 1_000, WAITING)
            await backlog.look(conn, "bench")
            cost = await _cost(conn, backlog)
            await conn.execute(FINISH)
            done += WAITING
            looks = []
            for _ in range(CLAIMS):
                began = _used(conn)
                await backlog.look(conn, "bench")
                looks.append(_used(conn) - began)
            stage.say(f"  {_amount(finished)} finished: {cost:.1f} µs a row")
            label = f"{_amount(finished)} finished under a snapshot"
            report.add(f"claim_{finished}", f"claim, {label}", [cost], "µs/row")
            report.add(f"look_{finished}", f"look for work, {label}", [statistics.median(looks)], "µs")


async def _cost(conn: Connection, backlog: Backlog) -> float:
    costs = []
    for _ in range(CLAIMS):
        free = dict.fromkeys(backlog.lines("bench", limit=SIZE), 1)
        if len(free) == 1:
            free = dict.fromkeys(free, SIZE)
        began = _used(conn)
        claimed = await backlog.claim(conn, "bench", free, seconds=60)
        costs.append((_used(conn) - began) / len(claimed))
        await leases.finish(conn, claimed)
    # The first one must be planned.
    return statistics.median(costs[1:])


def _used(conn: Connection) -> float:
    """Processor time used by the connection's server process, in microseconds."""
    return int(Path(f"/proc/{conn.get_server_pid()}/schedstat").read_text().split()[0]) / 1000


def _amount(count: int) -> str:
    return f"{count:,}".replace(",", " ")


__all__ = ["claims"]
