"""Connections to a standby, from which lists, reports and exports are read.

A reader asks the primary for its WAL position, and reads from the standby once that has replayed the WAL up to there:
so it sees everything that was committed when it asked, including its own changes. If that takes longer than the bound,
or the standby is away, the primary is read.

The rule nobody may break: nothing is locked or changed on these connections, and nothing is read from a standby that
has not caught up with the request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

import asyncpg
import msgspec
import structlog

from heliograph.base.database.pool import (
    QUERY_SEMANTICS,
    STATEMENT_TIMEOUT,
    Connection,
    Pool,
    is_down,
    is_open,
    open_pool,
)
from heliograph.base.network.connecting import connect
from heliograph.base.process.measures import STANDBY_PASSED_OVER, Gauge

Result = TypeVar("Result")

log = structlog.get_logger()

#: Seconds for a connection to the standby, and for its report of how far it has replayed.
PATIENCE = 1.0
#: Connect timeout for a command, seconds.
CONNECT = 5.0
#: Seconds for which the primary is read instead after the standby could not be reached, and after it was behind.
AVOID_UNREACHABLE, AVOID_BEHIND = 5.0, 1.0
#: Seconds between two checks of its lag, which also run while there are no reads.
LOOK_EVERY = 5.0
#: Seconds between two checks of whether it has caught up: the first, and the longest.
SOON, LATER = 0.002, 0.05

# Everything acknowledged as committed has been flushed.
FLUSHED = """
SELECT left(pg_walfile_name(flushed), 8) AS timeline, flushed::text AS lsn FROM pg_current_wal_flush_lsn() AS flushed
"""
# A promoted server is no longer a standby, and the URL that names it must be changed. `age`: of the last replayed
# transaction; with an idle primary it grows, so it counts only if something is missing. `timeline`: the one that it
# receives; without a connection to the primary, or the right to see that, the one that it has stored.
REPLAYED = """
SELECT pg_is_in_recovery() AS is_standby, coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false) AS has_it,
       coalesce(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 0)::float8 AS age,
       upper(lpad(to_hex(coalesce(
           (SELECT received_tli FROM pg_stat_wal_receiver),
           (SELECT greatest(timeline_id, min_recovery_end_timeline) FROM pg_control_checkpoint(), pg_control_recovery())
       )), 8, '0')) AS timeline
"""
#: WAL positions of another cluster mean nothing here.
SYSTEM_IDENTIFIER = "SELECT system_identifier FROM pg_control_system()"


class StandbyBehind(Exception):
    """The standby lacks data committed at the time of the request. `seconds`: its minimum lag."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{seconds:.1f} s behind")
        self.seconds = seconds


class NoStandby(Exception):
    """The URL leads to something other than a standby of this primary."""


class Position(msgspec.Struct, frozen=True):
    """How far the WAL of a primary is flushed."""

    #: Each promotion, and each restore to an earlier time, begins a new one. Positions of others mean nothing.
    timeline: str
    lsn: str


class StandbyUnreadable(Exception):
    """The standby cannot be read; the text says why."""


async def catch_up(standby: Connection, position: Position, *, bound: float) -> float:
    """Wait until the standby has replayed the primary's WAL up to `position`, at most `bound` seconds; returns the
    seconds it took. Raises StandbyBehind, NoStandby, and what asyncpg raises.

    A standby that had more than the one that was promoted, or than was restored, cannot follow it: it keeps answering
    with what the primary never had.
    """
    loop = asyncio.get_running_loop()
    began, pause = loop.time(), SOON
    while True:
        async with asyncio.timeout(PATIENCE):
            row = await standby.fetchrow(REPLAYED, position.lsn)
        assert row is not None
        took = loop.time() - began
        if not row["is_standby"]:
            raise NoStandby("not a standby: it accepts writes")
        if row["timeline"] != position.timeline:
            raise NoStandby(
                f"it is on timeline {row['timeline']}, and the primary on {position.timeline}: if it does not follow"
                " soon, it has what the primary lacks, and must be made anew"
            )
        if row["has_it"]:
            return took
        if took >= bound:
            raise StandbyBehind(max(took, row["age"]))
        await asyncio.sleep(pause)
        pause = min(pause * 2, LATER)


async def demand_same(primary: Connection, standby: Connection) -> None:
    """Raise NoStandby if the two are not of the same cluster."""
    if await primary.fetchval(SYSTEM_IDENTIFIER) != await standby.fetchval(SYSTEM_IDENTIFIER):
        raise NoStandby("it belongs to a different cluster than the primary")


@contextlib.asynccontextmanager
async def reached(primary: Connection, url: str, *, bound: float) -> AsyncIterator[tuple[Connection, float]]:
    """A new connection to the standby, once it has caught up, and the seconds that took. Raises StandbyUnreadable with
    the reason why the primary must be read."""
    try:
        async with asyncio.timeout(CONNECT):
            standby = await connect(url, command_timeout=STATEMENT_TIMEOUT, server_settings=QUERY_SEMANTICS)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise StandbyUnreadable(str(error) or type(error).__name__) from None
    try:
        try:
            await demand_same(primary, standby)
            took = await catch_up(standby, await _flushed(primary), bound=bound)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, StandbyBehind, NoStandby) as error:
            raise StandbyUnreadable(str(error) or type(error).__name__) from None
        yield standby, took
    finally:
        standby.terminate()


async def _flushed(primary: Connection) -> Position:
    row = await primary.fetchrow(FLUSHED)
    assert row is not None
    return Position(row["timeline"], row["lsn"])


async def _written(primary: Connection) -> Position | None:
    """The primary's WAL position; None if it is no longer a primary."""
    try:
        return await _flushed(primary)
    except asyncpg.ObjectNotInPrerequisiteStateError:
        return None


class Readers:
    """The connections of one process."""

    def __init__(
        self,
        url: str,
        *,
        current: Callable[[], str] | None = None,
        size: int = 2,
        bound: float = 0.5,
        statement: float = STATEMENT_TIMEOUT,
    ) -> None:
        """`url`: of the standby; empty: there is none. `current`: see Connector. `bound`: seconds that a read waits for
        it to catch up. `statement`: seconds for which the server lets a statement run."""
        self._url, self._current, self._size = url, current, size
        self._bound, self._statement = bound, statement
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()
        self._rests_until = 0.0
        #: Why the standby is not read: "away", "behind"; "" while it is.
        self._state = ""
        self._lag: float | None = None

    @contextlib.asynccontextmanager
    async def read(self, primary: Connection) -> AsyncIterator[Connection]:
        """A connection to the standby, or `primary`."""
        async with contextlib.AsyncExitStack() as stack:
            found = None
            if self._is_wanted():
                found = await self._current_standby(stack, primary, await _written(primary))
            yield primary if found is None else found

    @contextlib.asynccontextmanager
    async def lend(self, pool: Pool) -> AsyncIterator[Connection]:
        """A connection to the standby, or one of the primary's pool."""
        async with contextlib.AsyncExitStack() as stack:
            found = None
            if self._is_wanted():
                found = await self._asked(stack, pool)
            yield await stack.enter_async_context(pool.acquire()) if found is None else found

    async def run(self, pool: Pool, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Run `work`, which only reads, on the standby; if the standby fails meanwhile, run it again on the primary."""
        if self._is_wanted():
            async with contextlib.AsyncExitStack() as stack:
                found = await self._asked(stack, pool)
                if found is not None:
                    try:
                        return await work(found)
                    except asyncpg.QueryCanceledError:
                        raise  # it took too long, and would on the primary
                    except Exception as error:
                        # The primary vacuumed a row that is being read here: PostgreSQL cancels this query.
                        if isinstance(error, asyncpg.SerializationError):
                            STANDBY_PASSED_OVER.add("conflict")
                        elif is_down(error):
                            self._pass_over("away", error)
                        else:
                            raise
        async with pool.acquire() as primary:
            return await work(primary)

    async def watch(self, pool: Pool) -> None:
        """Check regularly how far the standby is behind, until cancelled. Returns at once if there is none."""
        while self._url:
            try:
                async with self.lend(pool):
                    pass
            except Exception as error:
                if not is_down(error):
                    raise
            await asyncio.sleep(LOOK_EVERY)

    def gauges(self) -> Iterable[Gauge]:
        """The standby's state as gauges; none if there is no standby."""
        if self._url:
            yield Gauge("heliograph_standby_up", "Whether the standby is read", float(not self._state))
            if self._lag is not None:
                yield Gauge("heliograph_standby_lag_seconds", "Lag of the standby when it was last checked", self._lag)

    async def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            self._pool.terminate()

    def _is_wanted(self) -> bool:
        if not self._url:
            return False
        if asyncio.get_running_loop().time() >= self._rests_until:
            return True
        STANDBY_PASSED_OVER.add(self._state)
        return False

    async def _asked(self, stack: contextlib.AsyncExitStack, pool: Pool) -> Connection | None:
        """A connection to the standby, once it has what the primary has now; None if the primary must be read."""
        async with pool.acquire() as primary:
            position = await _written(primary)
            if self._pool is None:
                return await self._current_standby(stack, primary, position)
        return await self._current_standby(stack, None, position)

    async def _current_standby(
        self, stack: contextlib.AsyncExitStack, primary: Connection | None, position: Position | None
    ) -> Connection | None:
        if position is None:
            return None
        async with contextlib.AsyncExitStack() as own:
            try:
                async with asyncio.timeout(PATIENCE):
                    opened = await self._opened(primary)
                    if opened is None:
                        return None
                    if opened.get_size() == self._size and not opened.get_idle_size():
                        STANDBY_PASSED_OVER.add("busy")
                        return None
                    found = await own.enter_async_context(opened.acquire())
                if not is_open(found):
                    return None
                self._lag = await catch_up(found, position, bound=self._bound)
            except StandbyBehind as error:
                self._lag = error.seconds
                self._pass_over("behind", error)
                return None
            except Exception as error:  # whatever it is, the primary has the answer
                self._pass_over("away", error)
                return None
            if self._state:
                self._state = ""
                log.warning("standby is read again")
            stack.push_async_exit(own.pop_all())
            return found

    async def _opened(self, primary: Connection | None) -> Pool | None:
        async with self._opening:
            if self._pool is None:
                if primary is None or asyncio.get_running_loop().time() < self._rests_until:
                    return None
                opened = await open_pool(
                    self._url,
                    size=self._size,
                    patience=PATIENCE,
                    statement=self._statement,
                    current=self._current,
                    follow=False,
                )
                try:
                    async with opened.acquire() as standby:
                        await demand_same(primary, standby)
                except BaseException:
                    opened.terminate()
                    raise
                self._pool = opened
            return self._pool

    def _pass_over(self, state: str, error: Exception) -> None:
        """Read the primary for a while."""
        self._rests_until = asyncio.get_running_loop().time() + (AVOID_UNREACHABLE if state == "away" else AVOID_BEHIND)
        STANDBY_PASSED_OVER.add(state)
        if state == "away":
            self._lag = None
            if self._pool is not None:
                self._pool.terminate()
                self._pool = None
        if state != self._state:
            log.warning(f"standby is {state}, the primary is read", error=str(error) or type(error).__name__)
        self._state = state
