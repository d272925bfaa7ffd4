"""The pool of connections, and what "the database is gone" means.

The rule nobody may break: no connection is held while waiting for a supplier, a receiver or a client.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import asyncpg

from heliograph.base.database import clock
from heliograph.base.network.connecting import DEAD_PEER_TIMEOUTS, Connector, DatabaseUnavailable, TlsMissing
from heliograph.base.process import measures

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]
    _Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    _Raw: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Connection = _Raw = asyncpg.Connection
    _Pool = asyncpg.Pool

Result = TypeVar("Result")

#: Our tables are empty one second and full the next, and every statement finds its rows by key, in sets. So plans must
#: not depend on statistics: one generic plan with index look-ups, whatever sizes the planner assumes.
KEYED_PLANS = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "random_page_cost": "0.01",
    # No query here is worth a second process, and parts of a UNION ALL are read in order (`bounded_scan`).
    "max_parallel_workers_per_gather": "0",
}

#: The meaning of a statement must not depend on defaults of the role, the database or the server: it sees what others
#: have committed in the meantime (a serializable one would fail instead), in `public`, by the hours and days of UTC.
QUERY_SEMANTICS = {
    "default_transaction_isolation": "read committed",
    "search_path": "public",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
}

#: Settings of every session, also of commands and migrations: one whose client has gone or stopped ends, and its locks
#: with it. Being idle is no sign of that: a command waits for an answer, or for hours while a backup is copied. How
#: long a statement may take, and wait for a lock, is up to whoever runs it, not to the role.
CLIENT_SETTINGS = {
    "client_connection_check_interval": "1000",
    "idle_session_timeout": "0",
    "statement_timeout": "0",
    "lock_timeout": "0",
    **DEAD_PEER_TIMEOUTS,
    **QUERY_SEMANTICS,
}

#: Settings of a pool's sessions. A pooler in transaction mode accepts none, so behind one they are set on the role.
SESSION_SETTINGS = {**CLIENT_SETTINGS, **KEYED_PLANS}
PLANS = "SELECT current_setting('plan_cache_mode')"
#: The same for transactions. Servers before this version refuse a connection that names it.
TRANSACTION_SETTINGS, TRANSACTIONS_SINCE = {"transaction_timeout": "0"}, 17

#: For the few statements that read a time range rather than keys: planned for their actual values, with statistics. Run
#: inside a transaction, to which the settings are limited.
RANGE_PLANS = """
SELECT set_config('plan_cache_mode', 'force_custom_plan', true), set_config('enable_seqscan', 'on', true),
       set_config('enable_hashjoin', 'on', true), set_config('enable_bitmapscan', 'on', true),
       set_config('random_page_cost', '1.1', true)
"""

#: Time limit of a statement, seconds; nothing on a hot path comes near it.
STATEMENT_TIMEOUT = 30.0
#: How much longer than the server's statement timeout this side waits, seconds: a timeout there costs no connection.
CLIENT_TIMEOUT_MARGIN = 0.5

SETUP_ERRORS = (asyncpg.InvalidAuthorizationSpecificationError, ssl.SSLCertVerificationError, TlsMissing)


class RoleUnset(ValueError):
    """Behind a pooler, a connection gets its settings from its role, and this role has none."""

    def __init__(self) -> None:
        super().__init__(
            "the role of HELIOGRAPH_DATABASE_URL has no settings for a pooler in transaction mode: run"
            " `heliograph migrate` with HELIOGRAPH_DATABASE_DIRECT_URL, then RECONNECT in PgBouncer's console"
        )


class _DisposableConnection(_Raw):
    """A connection that is discarded, rather than reused, when a statement on it is abandoned.

    asyncpg would open a second connection to ask the server to cancel the statement, and wait: forever, if the server
    hangs. And a commit waiting for its standbys must not be cancelled: it would exist here and nowhere else.
    """

    __slots__ = ("plans",)
    #: The generation of its plans; see `Pool.plan_again`.
    plans: int

    def _cancel_current_command(self, waiter: Any, cancel_waiter: Any = None) -> None:
        # Not at this point: whoever waits for the statement must be informed first.
        asyncio.get_running_loop().call_soon(self.terminate)

    async def _do_execute(
        self, query: str, executor: Callable[[Any, float | None], Any], *arguments: Any, **options: Any
    ) -> Any:
        """Report it if the connection ended between preparing and running a statement. asyncpg raises AttributeError
        for the missing protocol: one kill of the server in a thousand looked like a bug of ours."""

        def execute(statement: Any, timeout: float | None) -> Any:
            if self.is_closed():
                raise asyncpg.InterfaceError("the connection was closed before the statement ran")
            return executor(statement, timeout)

        inherited: Any = super()
        return await inherited._do_execute(query, execute, *arguments, **options)


class Pool(_Pool):
    """A pool that does not wait for a hanging database. Created by `open_pool`."""

    def __init__(
        self,
        connector: Connector,
        *,
        patience: float | None,
        counted: bool = True,
        pooled: bool = False,
        **options: Any,
    ) -> None:
        """`counted`: whether its connections are in the process's metrics. `pooled`: whether a pooler is in between."""
        connect: Any = self._open
        super().__init__(connect=connect, connection_class=_DisposableConnection, **options)
        self.connector = connector
        self._patience = patience
        self._counted = counted
        self._pooled = pooled
        self._away = False
        #: The current generation of plans.
        self._plans = 0

    def suspend(self) -> None:
        """The database is away: end every connection, and refuse new ones until `resume`."""
        self._away = True
        inside: Any = self
        for holder in inside._holders:
            holder.terminate()

    @property
    def is_away(self) -> bool:
        """Whether the database is known not to answer."""
        return self._away

    def resume(self) -> None:
        """The database answers again: allow new connections."""
        self._away = False

    def plan_again(self) -> None:
        """Cached plans no longer suit the tables: each connection discards its plans before its next use."""
        self._plans += 1

    def plans_are_old(self, connection: Any) -> bool:
        """Whether an acquired connection has outdated plans."""
        inside: _DisposableConnection = connection._con
        return inside.plans != self._plans

    async def renew_plans(self, connection: Any) -> None:
        """Discard an acquired connection's plans, which are outdated."""
        connection._con.plans = self._plans
        await connection.execute("DISCARD PLANS")

    async def _open(self, **options: Any) -> Any:
        if self._away:
            raise DatabaseUnavailable("the database does not answer")
        try:
            opened: Any = await self.connector.connect(**options)
            if not self._pooled:
                await lift_transaction_timeout(opened)
        except Exception:
            measures.CONNECTION_FAILURES.add(by=self._counted)
            raise
        measures.CONNECTIONS.add(by=self._counted)
        opened.plans = self._plans
        return opened

    async def _acquire(self, timeout: float | None) -> Any:
        if self._away:
            raise DatabaseUnavailable("the database does not answer")
        pool: Any = super()
        async with asyncio.timeout(self._patience if timeout is None else timeout):
            acquired = await pool._acquire(None)
        try:
            if self.plans_are_old(acquired):
                await self.renew_plans(acquired)
        except BaseException:
            await self.release(acquired)
            raise
        return acquired


async def open_pool(
    url: str,
    *,
    size: int,
    wait: float = 0.0,
    patience: float | None = None,
    statement: float = STATEMENT_TIMEOUT,
    current: Callable[[], str] | None = None,
    pooler: str = "",
    follow: bool = True,
    failed: Callable[[Exception], object] = lambda error: None,
) -> Pool:
    """A pool of up to `size` connections, opened as needed; the database's clock is followed from then on.

    `wait`: seconds to keep trying while the server is starting or restarting. `patience`: seconds to wait for a
    connection, None: as long as it takes. `statement`: seconds for which the server lets a statement run. `current`:
    the URL as it is now, see Connector. `pooler`: "" if the URL leads to PostgreSQL itself; otherwise whether the
    pooler in between, in transaction mode, keeps prepared statements: "prepared" or "unprepared". `follow`: whether its
    clock is the authoritative one, which a standby's is not. `failed`: gets the error of each try that is repeated.
    Raises what asyncpg raises, and RoleUnset.
    """
    # An unnamed statement is parsed and run in one message, which a pooler passes to a single server.
    connector = Connector(url, current=current, **({"statement_cache_size": 0} if pooler == "unprepared" else {}))
    session = {} if pooler else {**SESSION_SETTINGS, "statement_timeout": str(int(statement * 1000))}
    deadline = asyncio.get_running_loop().time() + wait
    while True:
        try:
            pool = await Pool(
                connector,
                patience=patience,
                counted=follow,
                pooled=bool(pooler),
                init_size=1,
                min_size=0,
                max_size=size,
                max_queries=50_000,
                command_timeout=statement + CLIENT_TIMEOUT_MARGIN,
                max_inactive_connection_lifetime=300,
                server_settings={"application_name": "heliograph", **session},
                reset=_keep,
                loop=asyncio.get_running_loop(),
                record_class=asyncpg.Record,
            )
            try:
                async with pool.acquire() as conn:
                    if follow:
                        await follow_clock(conn)
                    if pooler and await conn.fetchval(PLANS) != KEYED_PLANS["plan_cache_mode"]:
                        raise RoleUnset
            except BaseException:
                pool.terminate()
                raise
            return pool
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            # SETUP_ERRORS are mistakes only at startup: later, the password is being changed, and its file will follow.
            if not is_down(error) or isinstance(error, SETUP_ERRORS) or asyncio.get_running_loop().time() >= deadline:
                raise
            failed(error)
            await asyncio.sleep(0.1)


async def lift_transaction_timeout(conn: Connection) -> None:
    """Let no setting of the role end a transaction of this session, and the session with it. Terminates it if that
    fails."""
    try:
        if conn.get_server_version().major >= TRANSACTIONS_SINCE:
            await conn.execute("".join(f"SET {name} = {value};" for name, value in TRANSACTION_SETTINGS.items()))
    except BaseException:
        conn.terminate()
        raise


async def follow_clock(conn: Connection) -> float:
    """Measure the database's clock in one round trip and follow it; returns by how many seconds ours is ahead."""
    own, asked = clock.reading()
    there = await conn.fetchval("SELECT clock_timestamp()")
    return clock.note(there, own=own, asked=asked, answered=clock.reading()[1])


STORED_PARAMETERS = """
SELECT s.setconfig FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
 WHERE d.datname = current_database() AND s.setrole = current_user::regrole
"""
# PostgreSQL itself quotes names and values.
ALTER_ROLE = """
SELECT format('ALTER ROLE CURRENT_USER IN DATABASE %I SET %I = %L', current_database(), name, value)
  FROM unnest($1::text[], $2::text[]) AS wanted (name, value)
"""


async def set_role(conn: Connection) -> bool:
    """Set SESSION_SETTINGS on the connection's own role in this database; returns whether any were missing."""
    kept = set(await conn.fetchval(STORED_PARAMETERS) or ())
    is_known = conn.get_server_version().major >= TRANSACTIONS_SINCE
    wanted = SESSION_SETTINGS | (TRANSACTION_SETTINGS if is_known else {})
    missing = {name: value for name, value in wanted.items() if f"{name}={value}" not in kept}
    for row in await conn.fetch(ALTER_ROLE, list(missing), list(missing.values())):
        await conn.execute(row[0])
    return bool(missing)


async def plan_by_key(conn: Connection) -> None:
    """Apply KEYED_PLANS to a connection outside the pool for as long as it lives."""
    await conn.execute("".join(f"SET {name} = '{value}';" for name, value in KEYED_PLANS.items()))


async def fetch_hot(connection: Connection, query: str, *arguments: Any) -> asyncpg.Record | None:
    """`fetchrow` for statements that run for every message: if this one is prepared, it is bound and executed at once.
    asyncpg's other layers, which prepare, log and retry statements, take a lone message 5 % of its time."""
    inside: Any = getattr(connection, "_con", connection)
    statement = None
    if inside is not None and not inside.is_closed() and not inside._query_loggers:
        statement = inside._stmt_cache.get((query, asyncpg.Record, False))
    if statement is None:
        return await connection.fetchrow(query, *arguments)
    try:
        rows = await inside._protocol.bind_execute(statement, arguments, "", 1, False, None)
    except asyncpg.InvalidCachedStatementError:  # a table has changed, and the statement did not run
        if inside.is_in_transaction():
            inside._drop_global_statement_cache()  # otherwise the next transaction would fail as well
            raise
        return await connection.fetchrow(query, *arguments)
    return rows[0] if rows else None


# A statement that reaches its time limit has probably waited for a row that somebody keeps locked, as in an open
# session. From then on, what has to wait for it is told from the rest by waiting for locks no longer than this.
ROW_LOCKED = asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError
BRIEFLY = "SET LOCAL lock_timeout = '200ms'"

#: How often a transaction is retried after losing to another one.
DEADLOCK_RETRIES = 3


async def despite_deadlocks(transaction: Callable[[], Awaitable[Result]]) -> Result:
    """The result of `transaction`, a complete transaction, retried if it was rolled back as the victim of a deadlock.

    Raises DeadlockDetectedError after DEADLOCK_RETRIES retries, and any other error at once.
    """
    left = DEADLOCK_RETRIES
    while True:
        try:
            return await transaction()
        except asyncpg.DeadlockDetectedError:
            if left == 0:
                raise
            left -= 1


#: Classes of SQLSTATE (PostgreSQL, appendix A) that are the server's problem, not a statement's: connection exceptions,
#: insufficient resources, operator intervention (also codes that asyncpg does not know), and system errors (its files,
#: or those of an extension, are missing or unreadable).
SERVER_ERROR_CLASSES = frozenset({"08", "53", "57", "58"})


def is_down(error: BaseException) -> bool:
    """True if `error` means that the database cannot be used now, whatever the request.

    A commit that ends this way has an unknown outcome; the caller's idempotency key makes a retry safe.
    """
    if isinstance(error, asyncpg.InterfaceError):
        # A ValueError is about an argument, and quotes it: a customer's text says nothing about the server.
        return not isinstance(error, ValueError) and any(
            word in str(error) for word in ("closed", "closing", "released", "another operation")
        )
    if isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "")[:2] in SERVER_ERROR_CLASSES:
        return True
    return isinstance(
        error,
        OSError
        | TimeoutError
        | asyncpg.InvalidAuthorizationSpecificationError
        | asyncpg.InvalidCatalogNameError
        | asyncpg.IdleInTransactionSessionTimeoutError
        | asyncpg.ReadOnlySQLTransactionError
        | asyncpg.InternalClientError,
    )


def is_open(connection: Connection) -> bool:
    """False if the connection was lost, or the pool has taken it back."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # it was lost, and the pool has already released it
        return False


async def _keep(connection: Connection) -> None:
    """None of our session state outlives a transaction, so asyncpg's reset query (a round trip per use) is skipped."""
