"""Migrations: plain SQL files in order, each in one transaction, forward only; then the server-side functions.

Concurrent migrations wait for each other, and one that is killed leaves nothing half done. The product keeps running:
a lock is waited for only briefly, since others queue up behind the request, and then requested again. An index on a
table that may be large is in a special file, `NNNN_name.concurrently.sql`: its statements run one by one, outside a
transaction, on each partition separately, and what a killed one left half done is redone.

A function's SQL is next to the Python that calls it (`accept.sql` with `accept.py`) and is replaced whenever its text
has changed, but never by an older program: one that does not know all applied migrations, or whose text has a lower `--
version N` than the installed one. A released function never changes its parameters: a new signature gets a new name, so
that old and new processes can run side by side during an upgrade.

It has over 400 lines because everything that decides what is applied, and in what order, is here.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TypeVar
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database import roles
from heliograph.base.database.pool import CLIENT_SETTINGS, Connection, lift_transaction_timeout
from heliograph.base.ids import uuid7_floor
from heliograph.base.network.connecting import connect

Result = TypeVar("Result")

#: One lock for all migrations: "helio" in ASCII. Held by the session, so it ends with its holder. It is polled: a
#: statement that waited for it would be a transaction that a concurrent index build waits for.
KEY = 448378890607
LOCK = "SELECT pg_try_advisory_lock($1)"
# `place`: where it is; "" over a socket, or if another role's sessions may not be seen.
HOLDER = """
SELECT l.pid, coalesce(host(client_addr), '') AS place FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND classid::bigint = $1::bigint >> 32 AND objid::bigint = $1 & 4294967295 AND objsubid = 1 AND granted
"""
#: Seconds between two tries for it; how many of them until people are told, and until they are reminded.
POLL, SOON, REMINDED = 0.05, 20, 600
#: How long to wait for a lock on the product's tables, milliseconds; pause before the next try, seconds; tries.
PATIENCE_MS, PAUSE, TRIES = 1000, 1.0, 120
#: How long to wait for a partition's lock; the next round tries again.
BRIEFLY_MS = 500

#: Where the SQL files are.
ROOT = files("heliograph")
#: The first migration of every Heliograph database.
FIRST = "0001_schema.sql"

PREPARE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    name       text PRIMARY KEY,
    digest     text NOT NULL,
    version    integer NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE schema_migrations IS 'control: which SQL files have been applied';
COMMENT ON COLUMN schema_migrations.version IS 'of a function: an older program leaves a newer one alone';
"""
RECORD = """
INSERT INTO schema_migrations (name, digest, version) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET digest = $2, version = $3, applied_at = now()
"""

KNOWN = "SELECT name, digest, version FROM schema_migrations"
# The partitions of a table that lack their part of an index; partitions created later have it.
LEAVES = """
SELECT relid::regclass::text AS name FROM pg_partition_tree($1::text::regclass)
 WHERE isleaf AND NOT EXISTS (SELECT FROM pg_index JOIN pg_inherits ON inhrelid = indexrelid
                               WHERE indrelid = relid AND inhparent = to_regclass($2))
 ORDER BY 1
"""
#: Whether an index exists and is valid; NULL: there is none.
WHOLE = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)"
CONCURRENTLY = ".concurrently.sql"

# The partition is created and then attached, so that others can read and write the table meanwhile; rows that were put
# into the default partition while it was missing are moved. See partitions.sql.
MAKE_PARTITION = "SELECT make_partition($1, $2, $3, $4, $5)"

#: Partitioned tables and what they are partitioned by.
PARTITIONED = dict.fromkeys(("audit_log", "messages", "attempts", "events", "webhook_attempts"), "uuid")
PARTITIONED |= dict.fromkeys(
    ("webhook_successes", "received_messages", "whatsapp_messages", "wallet_movements"), "uuid"
)
PARTITIONED |= dict.fromkeys(("sms_parts", "receipts", "reconciliation", "whatsapp_wamids", "number_networks"), "date")
PARTITIONED["number_lookups"] = "date"
#: Tables with daily partitions, what they are partitioned by, and how many days ahead are created.
DAILY = dict.fromkeys(("send_keys", "receipt_bytes", "webhook_attempt_evidence"), "date")
DAILY |= dict.fromkeys(("requests", "message_traces"), "uuid")
DAYS_AHEAD = 3
#: Tables whose look-ups reach back this far: the previous month is also created, since each look-up would otherwise
#: also search the default partition.
LOOKED_BACK, BEHIND = ("attempts", "sms_parts"), timedelta(days=13)
#: Fill factors that leave room for later versions of a row, as measured (decision 81). Others are packed.
FILL = {"messages": 75, "whatsapp_messages": 60}


class MigrationError(Exception):
    """The database was not, or cannot be, migrated to this version. The text says why and what to do.

    MigrationError
    ├── MigrationChanged
    ├── MigrationBlocked
    └── ForeignSchema
    """


class MigrationChanged(MigrationError):
    """A migration that was applied to this database has changed."""


class MigrationBlocked(MigrationError):
    """Another session holds a lock on a table that a migration needs."""


class ForeignSchema(MigrationError):
    """The database did not start with our first migration: it was created by an earlier development version."""


class Script(msgspec.Struct, frozen=True):
    """An SQL file. `kind`: "once" (a migration), "concurrently" or "function"."""

    name: str
    text: str
    kind: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def version(self) -> int:
        said = re.search(r"^-- version (\d+)$", self.text, re.MULTILINE)
        return int(said[1]) if said else 1


async def migrate(
    url: str,
    *,
    application: str | None = None,
    on_wait: Callable[[str], None] = lambda line: None,
    on_newer: Callable[[str], None] = lambda line: None,
    root: Traversable = ROOT,
) -> list[str]:
    """Migrate the database to this version; returns the names of the files applied now.

    `application`: the application's URL, if its role differs from that of `url`, which then owns every table; the
    role is created if necessary, and granted what it needs (`roles.py`). None: `url` is the application's.
    `on_wait` is called now and then with a sentence for people while another migration is running, or a file waits for
    a lock, `on_newer` with one if a later version has migrated the database. Raises MigrationChanged if the text of an
    applied migration has changed, MigrationBlocked after four minutes of waiting for a lock, ForeignSchema (and another
    MigrationError if its encoding is not UTF-8) before anything is changed. `root`: the folder with the SQL files.
    """
    connection = await connect(url, server_settings=CLIENT_SETTINGS)
    try:
        await lift_transaction_timeout(connection)
        await _lock(connection, on_wait)
        encoding = await connection.fetchval("SHOW server_encoding")
        if encoding != "UTF8":  # texts may contain any character, and are truncated by characters
            raise MigrationError(f"the database's encoding is {encoding}: create one with ENCODING 'UTF8'")
        if not await _patiently(connection, "schema_migrations", partial(_is_ours, connection, root), on_wait):
            await _patiently(connection, "schema_migrations", partial(connection.execute, PREPARE), on_wait)
        if names := await newer(connection, root=root):
            on_newer(later(names))
        applied = []
        for script in await _wanted(connection, root):
            if script.kind == "concurrently":
                for statement in _statements(script.text):
                    await _index(connection, script.name, statement, on_wait)
                await connection.execute(RECORD, script.name, script.digest, script.version)
            else:
                await _patiently(connection, script.name, partial(_apply, connection, script), on_wait)
            applied.append(script.name)
        if application is not None:
            await roles.grant(connection, application)
        today = (await connection.fetchval("SELECT now()")).astimezone(UTC).date()
        await _again("partitions", partial(make_partitions, connection, today), on_wait)
        await _again("partitions", partial(make_days, connection, today), on_wait)
        return applied
    finally:
        await connection.close()


async def pending(connection: Connection, *, root: Traversable = ROOT) -> list[str]:
    """Names of the files that `migrate` would apply. Raises ForeignSchema."""
    return [script.name for script in await unapplied(connection, root=root)]


async def unapplied(connection: Connection, *, root: Traversable = ROOT) -> Sequence[Script]:
    """The files that `migrate` would apply, in order. Raises ForeignSchema."""
    if not await _is_ours(connection, root):
        return _read(root)
    return await _wanted(connection, root, judged=False)


async def newer(connection: Connection, *, root: Traversable = ROOT) -> list[str]:
    """Names of applied migrations that this program, being an older version, does not have. Raises ForeignSchema."""
    known = [row["name"] for row in await connection.fetch(KNOWN)] if await _is_ours(connection, root) else []
    names = {script.name for script in (_ours() if root is ROOT else _read(root))}
    return sorted(name for name in known if name[0].isdigit() and name not in names)


def later(names: Sequence[str]) -> str:
    """What people are told of those that `newer` returns."""
    found = ", ".join(names)
    return f"The database was migrated by a later version ({found}): this one leaves alone what that put in place."


async def holder(connection: Connection, key: int) -> str | None:
    """The end of a sentence about who holds an advisory lock, and where; None: nobody does."""
    row = await connection.fetchrow(HOLDER, key)
    if row is None:
        return None
    return f"{' from ' if row['place'] else ''}{row['place']} (process {row['pid']} in pg_stat_activity)"


async def make_partitions(connection: Connection, today: date, *, ahead: int = 2) -> list[str]:
    """Create the monthly partitions of this month, of `ahead` more, and of those that look-ups reach back to; returns
    the names of new ones. Each one is a commit.

    Raises LockNotAvailableError, after creating the others, if a long transaction is using a table: others would queue
    behind us, so we try again later.
    """
    wanted = []
    for table, kind in PARTITIONED.items():
        first = _month(today - BEHIND, 0) if table in LOOKED_BACK else today
        for month in range(ahead + 1 + (first.month != today.month)):
            start, end = _month(first, month), _month(first, month + 1)
            wanted.append((table, f"{table}_{start:%Y_%m}", _bound(start, kind), _bound(end, kind)))
    return await _make_partitions(connection, wanted)


async def make_days(connection: Connection, today: date, *, ahead: int = DAYS_AHEAD) -> list[str]:
    """Create the daily partitions of today and `ahead` more days, like `make_partitions` for months."""
    days = [today + timedelta(days=number) for number in range(ahead + 1)]
    wanted = [
        (table, day_name(table, day), _bound(day, kind), _bound(day + timedelta(days=1), kind))
        for table, kind in DAILY.items()
        for day in days
    ]
    return await _make_partitions(connection, wanted)


def day_name(table: str, day: date) -> str:
    """The name of a daily partition."""
    return f"{table}_{day:%Y_%m_%d}"


def day_of(name: str) -> date:
    """The day of a daily partition, by its name."""
    return datetime.strptime(name[-10:], "%Y_%m_%d").replace(tzinfo=UTC).date()


async def _make_partitions(
    connection: Connection, wanted: Sequence[tuple[str, str, date | UUID, date | UUID]]
) -> list[str]:
    """Create the missing ones of these (table, name, first, end)."""
    made = []
    blocked: asyncpg.LockNotAvailableError | None = None
    for table, name, start, end in wanted:
        if await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", name):
            continue
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = {BRIEFLY_MS}")
                await connection.execute(MAKE_PARTITION, table, name, str(start), str(end), FILL.get(table))
        except asyncpg.LockNotAvailableError as error:
            blocked = error
        except (asyncpg.DuplicateTableError, asyncpg.UniqueViolationError):
            if not await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", name):
                raise
            # Another process has made it meanwhile.
        else:
            made.append(name)
    if blocked is not None:
        raise blocked
    return made


async def _wanted(connection: Connection, root: Traversable, *, judged: bool = True) -> Sequence[Script]:
    """The scripts to apply, in order. `judged`: raise MigrationChanged if one has changed."""
    known = {row["name"]: row for row in await connection.fetch(KNOWN)}
    ours = _ours() if root is ROOT else _read(root)
    # A program that does not know all applied migrations is older: it leaves what a newer one installed.
    older = bool(await newer(connection, root=root))
    wanted = []
    for script in ours:
        row = known.get(script.name)
        if row is not None and row["digest"] == script.digest:
            continue
        if script.kind == "function":
            if older or (row is not None and row["version"] > script.version):
                continue
        elif row is not None and judged:
            raise MigrationChanged(
                f"{script.name} was applied with different contents; restore it, and put the change into a new file"
            )
        wanted.append(script)
    return wanted


async def _is_ours(connection: Connection, root: Traversable) -> bool:
    """Whether our migrations are recorded in the database. Raises ForeignSchema if others are, or another first one."""
    if not await connection.fetchval("SELECT to_regclass('schema_migrations') IS NOT NULL"):
        return False
    known = {row["name"]: row["digest"] for row in await connection.fetch(KNOWN)}
    first = next(one for one in (_ours() if root is ROOT else _read(root)) if one.name == FIRST)
    if known and known.get(FIRST) != first.digest:
        raise ForeignSchema(
            "the database was made by a development version from before the first release, whose schema cannot be"
            " upgraded: use a new, empty database (of `heliograph up`: another --data-dir, or move the old one away)"
        )
    return True


async def _lock(connection: Connection, on_wait: Callable[[str], None]) -> None:
    turn = 0
    while not await connection.fetchval(LOCK, KEY):
        turn += 1
        if turn % REMINDED == SOON and (other := await holder(connection, KEY)) is not None:
            on_wait(f"another migration of this database is running{other}; waiting until it ends")
        await asyncio.sleep(POLL)


async def _apply(connection: Connection, script: Script) -> None:
    await connection.execute(script.text)
    await connection.execute(RECORD, script.name, script.digest, script.version)


async def _patiently(
    connection: Connection, name: str, change: Callable[[], Awaitable[Result]], on_wait: Callable[[str], None]
) -> Result:
    """The result of `change`, run in a transaction that never waits long for a lock."""

    async def once() -> Result:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = {PATIENCE_MS}")
            return await change()

    return await _again(name, once, on_wait)


async def _again(name: str, change: Callable[[], Awaitable[Result]], on_wait: Callable[[str], None]) -> Result:
    for turn in range(TRIES):
        try:
            return await change()
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            if turn % 10 == 0:
                on_wait(f"{name} is waiting for a table lock; it keeps retrying")
        await asyncio.sleep(PAUSE)
    raise MigrationBlocked(
        f"{name} is waiting for a table lock: end the transaction that holds it (see pg_stat_activity), "
        "and migrate again"
    )


async def _index(connection: Connection, name: str, statement: str, on_wait: Callable[[str], None]) -> None:
    """Create an index while its table is being written to; for a partitioned table, on each partition."""
    asked = re.fullmatch(r"CREATE (UNIQUE )?INDEX CONCURRENTLY (\w+) ON (\w+) (.+)", statement, re.DOTALL)
    if asked is None:
        raise ValueError(f"{name}: a statement must be CREATE INDEX CONCURRENTLY name ON table ...")
    unique, index, table, rest = asked[1] or "", asked[2], asked[3], asked[4]
    if not await connection.fetchval("SELECT relkind = 'p' FROM pg_class WHERE oid = $1::text::regclass", table):
        await _concurrently(connection, unique, index, table, rest)
        return
    for leaf in await connection.fetch(LEAVES, table, index):
        await _concurrently(connection, unique, f"{index}_{leaf['name'].removeprefix(table + '_')}", leaf["name"], rest)

    async def join() -> None:
        await connection.execute(f"CREATE {unique}INDEX IF NOT EXISTS {index} ON ONLY {table} {rest}")
        for leaf in await connection.fetch(LEAVES, table, index):
            part = f"{index}_{leaf['name'].removeprefix(table + '_')}"
            # A partition created meanwhile is empty, or nearly so.
            await connection.execute(f"CREATE {unique}INDEX IF NOT EXISTS {part} ON {leaf['name']} {rest}")
            await connection.execute(f"ALTER INDEX {index} ATTACH PARTITION {part}")

    await _patiently(connection, name, join, on_wait)


async def _concurrently(connection: Connection, unique: str, index: str, table: str, rest: str) -> None:
    whole = await connection.fetchval(WHOLE, index)
    if whole is False:  # left behind by a build that was killed
        await connection.execute(f"DROP INDEX CONCURRENTLY {index}")
    if not whole:
        await connection.execute(f"CREATE {unique}INDEX CONCURRENTLY {index} ON {table} {rest}")


def _statements(text: str) -> list[str]:
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [" ".join(statement.split()) for statement in plain.split(";") if statement.strip()]


def _read(root: Traversable) -> Sequence[Script]:
    """The migrations in order, then the server-side functions."""
    return [
        *(
            Script(name, item.read_text("utf-8"), "concurrently" if name.endswith(CONCURRENTLY) else "once")
            for name, item in _sql(root / "migrations", "")
        ),
        *(
            Script(name, item.read_text("utf-8"), "function")
            for name, item in _sql(root, "")
            if not name.startswith("migrations/")
        ),
    ]


#: Read once: a page of the console uses them.
_ours = functools.cache(functools.partial(_read, ROOT))


def _sql(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _sql(item, f"{prefix}{item.name}/")
        elif item.name.endswith(".sql"):
            found.append((prefix + item.name, item))
    return sorted(found)


def _month(today: date, ahead: int) -> date:
    index = today.year * 12 + today.month - 1 + ahead
    return date(index // 12, index % 12 + 1, 1)


def _bound(day: date, kind: str) -> date | UUID:
    return day if kind == "date" else uuid7_floor(datetime(day.year, day.month, day.day, tzinfo=UTC))
