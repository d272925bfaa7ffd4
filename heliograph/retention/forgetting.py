"""Applies the retention rules without blocking anybody.

All times here are the database's. Each step is independent: one that fails or takes too long is logged, and the next
one runs; the next round continues where a round left off.

The rule nobody may break: nothing here runs in the caller's transaction, and no statement takes long. Dropping a
partition locks its whole table, and sends would have to wait until the last row is deleted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.base.database import clock
from heliograph.base.database.migrate import make_days, make_partitions
from heliograph.base.database.pool import RANGE_PLANS, Connection, is_open
from heliograph.base.database.retention_rules import Bounds, Deletion, Rules, Sums, Table
from heliograph.base.ids import uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.queue import timers
from heliograph.retention.rules import RULES

log = structlog.get_logger()

#: Rows deleted by one statement: some 50 ms of work.
STEP = 5000
#: A statement is canceled after this many milliseconds; a step that takes longer than this many seconds, or has deleted
#: this many rows, continues in the next round.
STATEMENT_MS, SECONDS, ROWS = 10_000, 60.0, 1_000_000
#: A sweep through time begins this long before the end of the last one: ids are created before their rows are
#: committed.
OVERLAP = timedelta(minutes=10)
#: Longest and shortest time range of one statement of a sweep.
LONGEST, SHORTEST = timedelta(days=1), timedelta(seconds=1)


class Step(msgspec.Struct, frozen=True):
    """One step of a round. `run` returns False if it is to continue in the next round."""

    name: str
    run: Callable[[Connection], Awaitable[bool]]


class _Budget:
    """The limits of one step in one round."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + SECONDS
        self._left = ROWS

    def spent(self, rows: int) -> bool:
        self._left -= rows
        return self._left <= 0 or time.monotonic() >= self._ends


DELETE_KEYS = """
DELETE FROM idempotency WHERE (organization_id, key_hash) IN (
    SELECT organization_id, key_hash FROM idempotency WHERE created_at < $1 LIMIT $2)
"""
PARTITIONS = """
SELECT child.relname
  FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
 WHERE parent.relname = $1 ORDER BY child.relname
"""

DROP = "SELECT drop_partition($1)"
RESTORED = "SELECT EXISTS (SELECT FROM queue_holds WHERE restored)"

NIL = UUID(int=0)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


async def forget_keys(conn: Connection, settings: Settings) -> int:
    """Delete expired idempotency keys; returns how many, at most ROWS."""
    before = await conn.fetchval("SELECT now() - make_interval(hours => $1)", settings.idempotency_hours)
    budget, gone = _Budget(), 0
    while True:
        done = await _once(conn, DELETE_KEYS, before, STEP)
        gone += done
        if done < STEP or budget.spent(done):
            return gone


async def forget(conn: Connection, settings: Settings, *, also: Sequence[Step] = ()) -> bool:
    """Create future partitions, drop those that have expired as a whole, delete expired rows in the others, and run
    `also`. Returns False if there is more to do soon. Commits as it goes.

    A round that leaves nothing to do is recorded with the timer; a round that is suspended, fails or has to continue is
    not, however often it runs.

    Does nothing while this machine's clock and the database's differ: nobody can tell which one is wrong, and deletions
    cannot be undone. Only creates partitions while data restored from a backup is held: none of it expires then, and
    from an old backup all of it would.
    """
    if clock.differs():
        log.warning("retention suspended while the clocks differ", ahead_seconds=round(clock.ahead(), 1))
        return True
    present: datetime = await conn.fetchval("SELECT now()")
    steps = [*_steps(bounds(settings, present.astimezone(UTC)), RULES), *also]
    is_held: bool = await conn.fetchval(RESTORED)
    if is_held:
        log.warning("retention suspended while restored data is held")
        steps = steps[:1]
    finished = succeeded = True
    for step in steps:
        began = time.monotonic()
        try:
            if not await step.run(conn):
                finished = False
                log.info("retention continues in the next round", step=step.name)
        except Exception as error:
            if not is_open(conn):
                raise
            succeeded = False
            took = round(time.monotonic() - began, 1)
            if isinstance(error, asyncpg.LockNotAvailableError):
                log.warning("retention blocked by readers", step=step.name)
            elif isinstance(error, asyncpg.QueryCanceledError | TimeoutError):
                log.warning("retention step timed out", step=step.name, seconds=took)
            else:
                log.exception("retention step failed", step=step.name)
    if finished and succeeded and not is_held:
        await timers.reach(conn, timers.FORGET, present)
    return finished


def bounds(settings: Settings, now: datetime) -> Bounds:
    """The times before which rows have expired at `now`, according to the settings."""
    kept = timedelta(days=31 * settings.metadata_retention_months)
    return Bounds(
        now=now,
        keys=now - timedelta(hours=settings.idempotency_hours),
        text=now - timedelta(days=settings.text_retention_days),
        metadata=now - max(kept, timedelta(hours=settings.idempotency_hours + 24)),
        audit=now - timedelta(days=31 * settings.audit_retention_months),
    )


def _steps(at: Bounds, rules: Sequence[Rules]) -> list[Step]:
    tables = [table for one in rules for table in one.tables]
    days = [table for table in tables if table.by == "day"]
    months = [table for table in tables if table.by == "month"]
    return [
        Step("partitions ahead", partial(_make_partitions, now=at.now)),
        *(Step(f"days of {one.name}", partial(_drop_days, table=one.name, bound=one.bound(at))) for one in days),
        # Rows with ids from other times are in the default partition.
        *(
            _deletes(f"stray {one.name}", _past(one, f"{one.name}_rest"), one.bound(at))
            for one in tables
            if not one.keeps_stray
        ),
        *(Step(f"partitions of {one.name}", partial(_drop_before, table=one, bound=one.bound(at))) for one in months),
        *(step for one in tables if one.text for step in _sweeps(one, f"text in {one.name}", one.name, at)),
        *(
            step
            for one, name in ((one, f"text in {one.name} by {one.later}") for one in tables if one.later)
            for step in _sweeps(_by_later(one), name, name, at)
        ),
        *(_deletes(one.name, one.sql, _argument(one, at)) for rule in rules for one in rule.deletions),
    ]


def _argument(deletion: Deletion, at: Bounds) -> datetime | UUID:
    bound = deletion.bound(at)
    return uuid7_floor(bound) if deletion.by == "id" else bound


def _sweeps(table: Table, name: str, place: str, at: Bounds) -> Iterator[Step]:
    """The steps that erase a table's texts. No row is swept twice, so those that one leaves because they may still be
    sent have one of their own, which leaves none. That one begins where the other was when there was only one, and so
    comes first."""
    if table.unsent:
        whole, again = msgspec.structs.replace(table, unsent=None), f"{name}, unsent at first"
        until = at.text - table.unsent_for
        yield Step(again, partial(_sweep, table=whole, place=again, until=until, begins=place))
    yield Step(name, partial(_sweep, table=table, place=place, until=at.text))


def _deletes(name: str, sql: str, *arguments: object) -> Step:
    return Step(name, partial(_delete, sql=sql, arguments=arguments))


async def _once(conn: Connection, sql: str, *arguments: object) -> int:
    """Run one statement in a transaction of its own; returns how many rows it changed."""
    async with conn.transaction():
        await conn.execute(RANGE_PLANS)
        await conn.execute(f"SET LOCAL statement_timeout = {STATEMENT_MS}")
        return int((await conn.execute(sql, *arguments)).rpartition(" ")[2])


async def _delete(conn: Connection, *, sql: str, arguments: Sequence[object]) -> bool:
    budget = _Budget()
    while True:
        done = await _once(conn, sql, *arguments, STEP)
        if done < STEP:
            return True
        if budget.spent(done):
            return False


PLACE = "SELECT done_until, mark FROM retention_places WHERE name = $1"
MOVE = """
INSERT INTO retention_places (name, done_until, mark) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET done_until = excluded.done_until, mark = excluded.mark
"""
# Two rounds may be under way, if one takes longer than the timer's period or its worker was frozen: the second one
# waits, and continues where the first one committed. Whatever both counted would be in the sums twice.
BEGIN = "INSERT INTO retention_places (name, done_until, mark) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
LOCK = "SELECT mark FROM retention_places WHERE name = $1 FOR UPDATE"


async def _sweep(conn: Connection, *, table: Table, place: str, until: datetime, begins: str = "") -> bool:
    """Erase texts up to `until`, from where the last sweep ended, so that no round scans what has been swept. `place`:
    the name under which the position is stored; `begins`: of the sweep that has done its work until now. A position
    after `until` was stored before the clock was set back, and counts as `until`: what has come since has not been
    swept.

    The time range of a statement grows while it finds little, and halves when it finds too much, or takes too long.
    """
    budget = _Budget()
    last = await conn.fetchrow(PLACE, place)
    if last is None and begins and (last := await conn.fetchrow(PLACE, begins)) is not None:
        await conn.execute(MOVE, place, last["done_until"], None)
    if last is None:  # the first time, sweep everything
        if not await _delete(conn, sql=_swept(table), arguments=(BEGINNING, until)):
            return False
        await conn.execute(MOVE, place, until, None)
        return True
    swept = min(last["done_until"], until)
    start, stretch, longest = swept - OVERLAP, timedelta(hours=1), LONGEST
    while start < until:
        end = min(start + stretch, until)
        try:
            done = await _once(conn, _swept(table), start, end, STEP)
        except asyncpg.QueryCanceledError:
            if stretch <= SHORTEST or budget.spent(0):
                raise
            stretch = longest = max(stretch / 2, SHORTEST)
            continue
        if done < STEP:
            start, stretch = end, min(stretch * 2, longest)
            await conn.execute(MOVE, place, max(end, swept), None)
        else:
            stretch = max(stretch / 2, SHORTEST)
        if budget.spent(done):
            return start >= until
    return True


async def _make_partitions(conn: Connection, *, now: datetime) -> bool:
    await make_days(conn, now.date())
    await make_partitions(conn, now.date())
    return True


async def _drop_days(conn: Connection, *, table: str, bound: datetime) -> bool:
    """Drop daily partitions that ended before `bound`. Only names of our own form are put into the SQL."""
    for row in await conn.fetch(PARTITIONS, table):
        named = re.fullmatch(rf"{table}_(\d{{4}})_(\d{{2}})_(\d{{2}})", row["relname"])
        if named is None:
            continue
        day = datetime(int(named[1]), int(named[2]), int(named[3]), tzinfo=UTC)
        if day + timedelta(days=1) <= bound:
            await _unless_gone(conn, row["relname"], _drop(conn, row["relname"]))
    return True


async def _drop_before(conn: Connection, *, table: Table, bound: datetime) -> bool:
    """Drop monthly partitions that end before `bound`, as `_drop_month` does. Only names of our own form are put into
    the SQL."""
    for row in await conn.fetch(PARTITIONS, table.name):
        named = re.fullmatch(rf"{table.name}_((\d{{4}})_(\d{{2}}))", row["relname"])
        if named is None:
            continue
        year, month = int(named[2]), int(named[3])
        if datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC) > bound:
            continue
        name, first = row["relname"], datetime(year, month, 1, tzinfo=UTC)
        if not await _unless_gone(conn, name, _drop_month(conn, table, name, first, bound)):
            return False
    return True


async def _drop_month(conn: Connection, table: Table, name: str, first: datetime, bound: datetime) -> bool:
    """Drop a monthly partition, unless it contains a row that is newer by its own time: its id was created with a wrong
    clock. If it contains rows for later, such as a message that is still to be sent, only the others are deleted."""
    if await _holds_young(conn, name, table.time, bound):
        log.warning("expired partition contains recent rows", partition=name)
        return True
    if table.later is not None and await _holds_later(conn, name, table.later, bound):
        return await _delete(conn, sql=_past(table, name), arguments=(bound,))
    sums = table.sums
    if sums is not None:
        if sums.is_ready is not None and not await sums.is_ready(conn, month=first.date()):
            return True
        if not await _sum_up(conn, sums, name, first):
            return False
    return await _drop(conn, name, partial(sums.close, partition=name, month=first.date()) if sums else None)


async def _drop(conn: Connection, partition: str, also: Callable[[Connection], Awaitable[None]] | None = None) -> bool:
    async with conn.transaction():
        await conn.execute("SET LOCAL lock_timeout = '500ms'")
        await conn.execute(DROP, partition)
        if also is not None:
            await also(conn)
    return True


async def _unless_gone(conn: Connection, partition: str, step: Awaitable[bool]) -> bool:
    """The result of a step on a partition; True if another round, such as that of a worker that had been frozen, drops
    it meanwhile."""
    try:
        return await step
    except asyncpg.PostgresError:
        if not is_open(conn) or await conn.fetchval("SELECT to_regclass($1) IS NOT NULL", partition):
            raise
        return True


async def _sum_up(conn: Connection, sums: Sums, partition: str, month: datetime) -> bool:
    """Store the sums of a partition that is about to be dropped, from where the last round ended. Nothing reads them
    until it is gone."""
    budget, name = _Budget(), _summing(partition)
    first = _mark(NIL, NIL)
    while True:
        async with conn.transaction():
            await conn.execute(RANGE_PLANS)
            await conn.execute(f"SET LOCAL statement_timeout = {STATEMENT_MS}")
            await conn.execute(BEGIN, name, month, first)
            after = msgspec.json.decode(await conn.fetchval(LOCK, name))
            counted = await sums.count(
                conn, partition=partition, month=month.date(), after=(UUID(after[0]), UUID(after[1])), limit=STEP
            )
            if counted is None:
                return True
            await conn.execute(MOVE, name, month, _mark(*counted.last))
        if budget.spent(counted.rows):
            return False


def _mark(organization_id: UUID, id: UUID) -> str:
    return msgspec.json.encode([str(organization_id), str(id)]).decode()


async def _holds_young(conn: Connection, partition: str, column: str, bound: datetime) -> bool:
    async with conn.transaction():
        await conn.execute(f"SET LOCAL statement_timeout = {STATEMENT_MS}")
        # The column's block index (BRIN) can answer this; with sequential scans disabled it is used.
        found: bool = await conn.fetchval(f"SELECT EXISTS (SELECT FROM {partition} WHERE {column} >= $1)", bound)
        return found


async def _holds_later(conn: Connection, partition: str, column: str, bound: datetime) -> bool:
    """Whether some rows are only due after `bound`. False once the partition is being summed up: a row that was counted
    must not be deleted on its own."""
    if await conn.fetchrow(PLACE, _summing(partition)) is not None:
        return False
    return await _holds_young(conn, partition, column, bound)


def _summing(partition: str) -> str:
    """The name under which the progress of a partition's sums is stored."""
    return f"sums of {partition}"


def _by_later(table: Table) -> Table:
    """The same table by its later time, for rows that have one."""
    return msgspec.structs.replace(table, time=table.later, later=None)


def _swept(table: Table) -> str:
    # By blocks: a BRIN index on the times finds those in the range. No index contains the text, so a row that loses it
    # stays in its page, and costs no more than its deletion would (HOT).
    waits = f" AND ({table.later} IS NULL OR {table.later} < $2)" if table.later else ""
    waits += f" AND NOT ({table.unsent})" if table.unsent else ""
    return f"""
UPDATE {table.name} SET {table.text} = {table.erased} WHERE ({table.key}) IN (
    SELECT {table.key} FROM {table.name}
     WHERE {table.time} >= $1 AND {table.time} < $2 AND {table.text} IS DISTINCT FROM {table.erased}
       AND {table.holds_text}{waits} LIMIT $3)
"""


def _past(table: Table, partition: str) -> str:
    """Deletes rows of one partition that have expired, except those that wait for a later time."""
    waits = f" AND ({table.later} IS NULL OR {table.later} < $1)" if table.later else ""
    past = f"SELECT ctid FROM {partition} WHERE {table.time} < $1{waits} LIMIT $2"
    return table.stray(f"DELETE FROM {partition} WHERE ctid IN ({past})")
