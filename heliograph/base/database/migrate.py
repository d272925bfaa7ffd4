"""Migrations: plain SQL files in order, each in one transaction, forward only; then the server-side functions.

Two migrations at once wait for each other, and one that is killed leaves nothing half done. They do not stop the
product: a lock is waited for briefly, since whoever comes after waits behind that, and then asked for again. An index
of a table that may be large stands in a file of its own kind, `NNNN_name.concurrently.sql`: its statements run one by
one outside of a transaction, on each partition by itself, and what a killed one left half made is made anew.

A function's SQL stands beside the Python that calls it (`accept.sql` beside `accept.py`) and is put in place anew
whenever its text changed; never by an older program, though: one that does not know all migrations which were applied,
or whose text names a lower `-- version N` than the one in place. A released function never changes its parameters: a
new form gets a new name, so that old and new processes can run side by side during an upgrade.
"""

from __future__ import annotations

import asyncio
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
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7_floor
from heliograph.base.network.connecting import connect

Result = TypeVar("Result")

#: One lock for all who migrate: "helio" in ASCII. Held by the session, so it ends with its holder. Asked for again and
#: again: whoever waits for it would be a transaction that an index made concurrently waits for.
LOCK = "SELECT pg_try_advisory_lock(448378890607)"
#: How long a lock of the product's is waited for, milliseconds; the pause before it is asked for again, seconds; and
#: how often that is done.
PATIENCE_MS, PAUSE, TRIES = 1000, 1.0, 120
#: How long a partition's lock is waited for; the next round asks again.
BRIEFLY_MS = 500

#: Where the SQL files are.
ROOT = files("heliograph")
#: The file that every database of ours began with.
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

NAMES = "SELECT name FROM schema_migrations"
KNOWN = "SELECT name, digest, version FROM schema_migrations"
# The partitions of a table that have no part of an index yet; those that were made after it have one of their own.
LEAVES = """
SELECT relid::regclass::text AS name FROM pg_partition_tree($1::text::regclass)
 WHERE isleaf AND NOT EXISTS (SELECT FROM pg_index JOIN pg_inherits ON inhrelid = indexrelid
                               WHERE indrelid = relid AND inhparent = to_regclass($2))
 ORDER BY 1
"""
#: Whether an index is there and whole; NULL: there is none.
WHOLE = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)"
CONCURRENTLY = ".concurrently.sql"

# It is attached when it is made, which lets others read and write the table meanwhile; what the default partition
# caught while it was missing moves there. See partitions.sql.
MAKE_PARTITION = "SELECT make_partition($1, $2, $3, $4, $5)"

#: Partitioned tables and what they are partitioned by.
PARTITIONED = {
    "audit_log": "uuid",
    "messages": "uuid",
    "attempts": "uuid",
    "events": "uuid",
    "webhook_attempts": "uuid",
    "webhook_successes": "uuid",
    "sms_parts": "date",
    "receipts": "date",
    "received_messages": "uuid",
    "whatsapp_messages": "uuid",
    "whatsapp_wamids": "date",
    "wallet_movements": "uuid",
}
#: Tables that are partitioned by date, a day each, and how many days ahead are made.
DAILY, DAYS_AHEAD = ("send_keys", "receipt_bytes"), 3
#: Where look-ups reach back so far: the month before is made too, or each of them would also search the net.
LOOKED_BACK, BEHIND = ("attempts", "sms_parts"), timedelta(days=13)
#: Room for the versions that a row will have, as measured: decision 0081. What is written once is packed.
FILL = {"messages": 75, "whatsapp_messages": 60}


class MigrationError(Exception):
    """The database was not, or cannot be, brought to this version. The text says why and what to do.

    MigrationError
    ├── MigrationChanged
    ├── MigrationBlocked
    └── ForeignSchema
    """


class MigrationChanged(MigrationError):
    """A migration that was applied to this database has another text now."""


class MigrationBlocked(MigrationError):
    """Somebody holds a table that a migration needs, and does not let go."""


class ForeignSchema(MigrationError):
    """The database was not begun with our first migration: a development version from before it made it."""


class _Script(msgspec.Struct, frozen=True):
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
    on_wait: Callable[[str], None] = lambda name: None,
    root: Traversable = ROOT,
) -> list[str]:
    """Bring the database to this version; returns the names of the files applied now.

    `application`: the application's URL, if it is another role than that of `url`, which then owns every table; the
    role is made if it is missing, and given what it needs (`roles.py`). None: `url` is the application's.

    `on_wait` is told, now and then, of a file that waits for somebody's lock. Raises MigrationChanged if an applied
    migration's text is not the one that was applied, MigrationBlocked after two minutes of such waits, and
    ForeignSchema, before it has changed anything. `root` is the folder with the SQL files.
    """
    connection = await connect(url)
    try:
        await _lock(connection)
        if not await _patiently(connection, "schema_migrations", partial(_is_ours, connection), on_wait):
            await _patiently(connection, "schema_migrations", partial(connection.execute, PREPARE), on_wait)
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
    if not await _is_ours(connection):
        return [script.name for script in _scripts(root)]
    return [script.name for script in await _wanted(connection, root, judged=False)]


async def make_partitions(connection: Connection, today: date, *, ahead: int = 2) -> list[str]:
    """Make the monthly partitions of this month, of `ahead` more, and of what look-ups reach back to; returns the names
    of new ones. Each one is a commit.

    Raises LockNotAvailableError, after the others were made, if somebody reads a table for long: whoever comes after
    would wait behind us, so we ask again later.
    """
    wanted = []
    for table, kind in PARTITIONED.items():
        first = _month(today - BEHIND, 0) if table in LOOKED_BACK else today
        for month in range(ahead + 1 + (first.month != today.month)):
            start, end = _month(first, month), _month(first, month + 1)
            wanted.append((table, f"{table}_{start:%Y_%m}", _bound(start, kind), _bound(end, kind)))
    return await _make_partitions(connection, wanted)


async def make_days(connection: Connection, today: date, *, ahead: int = DAYS_AHEAD) -> list[str]:
    """Make the daily partitions of today and `ahead` more days, as `make_partitions` does those of months."""
    days = [today + timedelta(days=number) for number in range(ahead + 1)]
    wanted = [(table, day_name(table, day), day, day + timedelta(days=1)) for table in DAILY for day in days]
    return await _make_partitions(connection, wanted)


def day_name(table: str, day: date) -> str:
    """The name of a daily partition."""
    return f"{table}_{day:%Y_%m_%d}"


async def _make_partitions(
    connection: Connection, wanted: Sequence[tuple[str, str, date | UUID, date | UUID]]
) -> list[str]:
    """Make those (table, name, first, end) that are missing."""
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
        else:
            made.append(name)
    if blocked is not None:
        raise blocked
    return made


async def _wanted(connection: Connection, root: Traversable, *, judged: bool = True) -> list[_Script]:
    """The scripts that are to be applied, in order. `judged`: raise MigrationChanged."""
    known = {row["name"]: row for row in await connection.fetch(KNOWN)}
    ours = _scripts(root)
    names = {script.name for script in ours}
    # Who does not know all that was applied is the older one: what a newer one put in place is right.
    older = any(name[0].isdigit() and name not in names for name in known)
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


async def _is_ours(connection: Connection) -> bool:
    """Whether migrations are recorded in it. Raises ForeignSchema if they are others than ours."""
    if not await connection.fetchval("SELECT to_regclass('schema_migrations') IS NOT NULL"):
        return False
    names = {row["name"] for row in await connection.fetch(NAMES)}
    if names and FIRST not in names:
        raise ForeignSchema(
            "the database was made by a development version from before the first release, whose schema cannot be"
            " upgraded: use a new, empty database (of `heliograph up`: another --data-dir, or move the old one away)"
        )
    return True


async def _lock(connection: Connection) -> None:
    while True:
        if await connection.fetchval(LOCK):
            return
        await asyncio.sleep(0.05)


async def _apply(connection: Connection, script: _Script) -> None:
    await connection.execute(script.text)
    await connection.execute(RECORD, script.name, script.digest, script.version)


async def _patiently(
    connection: Connection, name: str, change: Callable[[], Awaitable[Result]], on_wait: Callable[[str], None]
) -> Result:
    """What `change` returns, run in a transaction that waits for no lock for long."""

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
                on_wait(name)
        await asyncio.sleep(PAUSE)
    raise MigrationBlocked(
        f"{name} is waiting for a table lock: end the transaction that holds it (see pg_stat_activity), "
        "and migrate again"
    )


async def _index(connection: Connection, name: str, statement: str, on_wait: Callable[[str], None]) -> None:
    """Make an index while its table is written, of a partitioned table on each partition."""
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
            # A partition that was made meanwhile is empty, or nearly so.
            await connection.execute(f"CREATE {unique}INDEX IF NOT EXISTS {part} ON {leaf['name']} {rest}")
            await connection.execute(f"ALTER INDEX {index} ATTACH PARTITION {part}")

    await _patiently(connection, name, join, on_wait)


async def _concurrently(connection: Connection, unique: str, index: str, table: str, rest: str) -> None:
    whole = await connection.fetchval(WHOLE, index)
    if whole is False:  # one that was killed left it
        await connection.execute(f"DROP INDEX CONCURRENTLY {index}")
    if not whole:
        await connection.execute(f"CREATE {unique}INDEX CONCURRENTLY {index} ON {table} {rest}")


def _statements(text: str) -> list[str]:
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [" ".join(statement.split()) for statement in plain.split(";") if statement.strip()]


def _scripts(root: Traversable) -> list[_Script]:
    """The migrations in order, then the server-side functions."""
    return [
        *(
            _Script(name, item.read_text("utf-8"), "concurrently" if name.endswith(CONCURRENTLY) else "once")
            for name, item in _sql(root / "migrations", "")
        ),
        *(
            _Script(name, item.read_text("utf-8"), "function")
            for name, item in _sql(root, "")
            if not name.startswith("migrations/")
        ),
    ]


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
