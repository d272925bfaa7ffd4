"""The pulse: a process's regular check of whether the database answers, and of its clock.

It queries once a second on its own connection. A database that hangs (its processes stopped, its machine or network
silently gone) closes no connection, so its clients would wait forever: once a beat is missed, the pool's connections
are discarded, which ends every wait, and new ones are refused until the next successful beat.

Each beat also notices tables whose plans were made while they counted as empty, or were far smaller (decision 0138),
and ends sessions whose process stopped between preparing a statement and running it, or was cut off then. PostgreSQL's
own time limits do not: to it they are neither idle nor running a statement, and they would keep their locks for as long
as the process stands still (decision 0258).

The rule nobody may break: the database is declared away within two seconds of its last answer, and never because this
process itself was delayed.
"""

from __future__ import annotations

import asyncio

import asyncpg
import structlog

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, is_down
from heliograph.base.network.connecting import Raw
from heliograph.base.network.failures import reason
from heliograph.base.process import measures

log = structlog.get_logger()

#: Seconds between two beats, and how long the answer to one may take.
EVERY, PATIENCE = 1.0, 0.8
#: Answers that arrived while this process was delayed are in its socket: iterations of the loop to read them, and
#: seconds for each.
ROUNDS, ROUND = 5, 0.02
#: Pause before the next attempt to reach a database that is away, seconds.
AGAIN = 0.25
#: Seconds between two warnings about a wrong clock.
REMIND = 60.0
#: Seconds after which a session has stopped, as for one that is idle in a transaction (DEAD_PEER_TIMEOUTS).
STOPPED = 15.0
#: By what factor a table grows until its statements are planned again: from the first hundred rows to a million in
#: seven steps, after which PostgreSQL's own ANALYZE keeps up.
GROWTH = 4

# A standby or a read-only server is not a usable database: another host may be. `tables`: those of more than a hundred
# rows, as the statistics count them; `empty`: 1 if one counts as empty all the same, as it was when it was vacuumed.
# `ended`: sessions that have stopped. None of this waits for a lock.
BEAT = """
SELECT clock_timestamp() AS at, current_setting('transaction_read_only')::boolean AS read_only,
       sizes.*,
       (SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE datname = current_database() AND usename = current_user AND application_name = 'heliograph'
           AND state = 'active' AND wait_event = 'ClientRead'
           AND state_change < clock_timestamp() - make_interval(secs => $1)) AS ended
  FROM (SELECT array_agg(oid::bigint) AS tables, array_agg(pg_stat_get_live_tuples(oid)) AS rows,
               array_agg((reltuples = 0)::int::bigint) AS empty
          FROM pg_class WHERE relkind = 'r' AND oid >= 16384 AND pg_stat_get_live_tuples(oid) > 100) sizes
"""


class DatabaseSilent(TimeoutError):
    """The database did not answer in time."""


class _Sizes:
    """Tables, as large as their plans may assume them to be."""

    def __init__(self) -> None:
        #: The most rows seen in each.
        self._rows: dict[int, int] = {}
        #: Those that count as empty, but are not.
        self._filled: set[int] = set()

    def differ(self, beat: asyncpg.Record) -> bool:
        """Whether a table has outgrown its plans by what a BEAT returned."""
        sizes = list(zip(beat["tables"] or (), beat["rows"] or (), beat["empty"] or (), strict=True))
        filled = {table for table, _, empty in sizes if empty}
        grown = {table: rows for table, rows, _ in sizes if rows >= GROWTH * self._rows.get(table, 0)}
        differ = bool(grown or filled - self._filled)
        self._rows.update(grown)
        self._filled = filled
        return differ


async def watch(pool: Pool) -> None:
    """Watch `pool`'s database until cancelled."""
    is_away = False
    since, refused = 0.0, 0.0
    reminded = 0.0
    sizes = _Sizes()
    while True:
        connection: Raw | None = None
        try:
            named = {"application_name": "heliograph pulse"}
            # All hosts are tried, to find the replacement of the one that is away.
            connection = await (
                pool.connector.reach(pause=AGAIN, server_settings=named)
                if is_away
                else pool.connector.connect(server_settings=named)
            )
            while True:
                if sizes.differ(await _beat(connection)):
                    pool.plan_again()
                if is_away:
                    is_away = False
                    pool.resume()
                    # As prominent in the log as the outage, and its sum.
                    log.warning(
                        "database is back",
                        seconds=round(asyncio.get_running_loop().time() - since, 1),
                        refused_requests=int(_refused() - refused),
                    )
                reminded = _remind(reminded)
                await asyncio.sleep(EVERY)
        except Exception as error:
            if not is_away:
                if not is_down(error):
                    log.exception("pulse failed")
                log.warning("database is away", error=type(error).__name__, reason=reason(error))
                since, refused = asyncio.get_running_loop().time(), _refused()
            measures.DATABASE_AWAY.add(by=not is_away)
            is_away = True
            pool.suspend()
        finally:
            if connection is not None:
                connection.terminate()
        await asyncio.sleep(AGAIN)


def _refused() -> float:
    """The requests refused with 503 so far; callbacks are not among them."""
    return sum(count for (_, status, _), count in measures.REQUESTS.values.items() if status == "503")


async def _beat(connection: Raw) -> asyncpg.Record:
    """One beat; returns its row. Raises DatabaseSilent, and what asyncpg raises."""
    own, asked = clock.reading()
    answer = asyncio.ensure_future(_ask(connection))
    try:
        await asyncio.wait([answer], timeout=PATIENCE)
        for _ in range(ROUNDS):
            if answer.done():
                break
            await asyncio.sleep(ROUND)
        if not answer.done():
            raise DatabaseSilent("the database does not answer")
        row, answered = answer.result()
    finally:
        answer.cancel()
    if row["read_only"]:
        raise asyncpg.ReadOnlySQLTransactionError("the database is read-only")
    clock.note(row["at"], own=own, asked=asked, answered=answered)
    if row["ended"]:
        log.warning("ended sessions of a process that has stopped", count=row["ended"])
    return row


async def _ask(connection: Raw) -> tuple[asyncpg.Record, int]:
    row = await connection.fetchrow(BEAT, STOPPED)
    assert row is not None
    return row, clock.reading()[1]


def _remind(reminded: float) -> float:
    """Log that this machine's clock is wrong, once a minute while it is; returns when that was last logged."""
    if not clock.differs():
        if reminded:
            log.warning("clock agrees with the database's again")
        return 0.0
    at = asyncio.get_running_loop().time()
    if reminded and at - reminded < REMIND:
        return reminded
    log.warning(
        "clock differs from the database's", ahead_seconds=round(clock.ahead(), 1), remedy="synchronize it by NTP"
    )
    return at
