"""Migrations: plain SQL files in order, each in one transaction, forward only; then the server-side functions.

Two migrations at once wait for each other, and one that is killed leaves nothing half done. A function's SQL stands
beside the Python that calls it (`sms/accept.sql` beside `sms/accept.py`) and is put in place anew whenever its text
changed. A released function never changes its parameters: a new form gets a new name, so that old and new processes
can run side by side during an upgrade.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from uuid import UUID

from heliograph.base.connecting import connect
from heliograph.base.db import Connection
from heliograph.base.ids import uuid7_floor

#: One lock for all who migrate: "helio" in ASCII. Held by a transaction, so it ends with its holder.
LOCK = "SELECT pg_advisory_xact_lock(448378890607)"

PREPARE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    name text PRIMARY KEY, digest text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());
COMMENT ON TABLE schema_migrations IS 'control: which SQL files have been applied';
"""

PARTITION_KEY = """
SELECT attname FROM pg_partitioned_table JOIN pg_attribute ON attrelid = partrelid AND attnum = partattrs[0]
 WHERE partrelid = $1::text::regclass
"""

#: Partitioned tables and what they are partitioned by.
PARTITIONED = {
    "messages": "uuid",
    "message_texts": "uuid",
    "sms_attempts": "uuid",
    "events": "uuid",
    "webhook_attempts": "uuid",
    "receipts": "date",
    "received_messages": "uuid",
    "whatsapp_messages": "uuid",
    "whatsapp_contents": "uuid",
    "whatsapp_attempts": "uuid",
}
FILL = {"messages": 75, "sms_attempts": 80, "whatsapp_messages": 75, "whatsapp_attempts": 80}


class MigrationChanged(Exception):
    """A migration that was applied to this database has another text now."""


async def migrate(url: str) -> list[str]:
    """Bring the database to this version; returns the names of the files applied now.

    Raises MigrationChanged if an applied migration's text is not the one that was applied.
    """
    connection = await connect(url)
    try:
        applied = []
        async with connection.transaction():
            await connection.execute(LOCK)
            await connection.execute(PREPARE)
        for name, text, once in _scripts():
            async with connection.transaction():
                await connection.execute(LOCK)
                if await _apply(connection, name, text, once=once):
                    applied.append(name)
        async with connection.transaction():
            await connection.execute(LOCK)
            await make_partitions(connection, datetime.now(UTC).date())
        return applied
    finally:
        await connection.close()


async def pending(connection: Connection) -> list[str]:
    """Names of the files that `migrate` would apply."""
    if not await connection.fetchval("SELECT to_regclass('schema_migrations') IS NOT NULL"):
        return [name for name, _, _ in _scripts()]
    known = {row["name"]: row["digest"] for row in await connection.fetch("SELECT name, digest FROM schema_migrations")}
    return [name for name, text, _ in _scripts() if known.get(name) != _digest(text)]


async def make_partitions(connection: Connection, today: date, *, ahead: int = 2) -> list[str]:
    """Make the monthly partitions of this month and `ahead` more; returns the names of new ones."""
    made = []
    for table, kind in PARTITIONED.items():
        for month in range(ahead + 1):
            start, end = _month(today, month), _month(today, month + 1)
            name = f"{table}_{start:%Y_%m}"
            if await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", name):
                continue
            await _make_partition(connection, table, name, _bound(start, kind), _bound(end, kind))
            made.append(name)
    return made


async def _make_partition(connection: Connection, table: str, name: str, start: date | UUID, end: date | UUID) -> None:
    """Make one, and move there what the default partition caught while it was missing."""
    fill = f" WITH (fillfactor = {FILL[table]})" if table in FILL else ""
    column = await connection.fetchval(PARTITION_KEY, table)
    within = f"{column} >= '{start}' AND {column} < '{end}'"
    values = f"FOR VALUES FROM ('{start}') TO ('{end}')"
    if not await connection.fetchval(f"SELECT EXISTS (SELECT FROM {table}_rest WHERE {within})"):
        await connection.execute(f"CREATE TABLE {name} PARTITION OF {table} {values}{fill}")
        return
    async with connection.transaction():
        await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        await connection.execute(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL){fill}")
        await connection.execute(
            f"WITH caught AS (DELETE FROM {table}_rest WHERE {within} RETURNING *)"
            f" INSERT INTO {name} SELECT * FROM caught"
        )
        await connection.execute(f"ALTER TABLE {table} ATTACH PARTITION {name} {values}")


async def _apply(connection: Connection, name: str, text: str, *, once: bool) -> bool:
    digest = await connection.fetchval("SELECT digest FROM schema_migrations WHERE name = $1", name)
    if digest == _digest(text):
        return False
    if digest is not None and once:
        raise MigrationChanged(f"{name} was applied with another text; restore it and put the change into a new file")
    await connection.execute(text)
    await connection.execute(
        "INSERT INTO schema_migrations (name, digest) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET digest = $2",
        name,
        _digest(text),
    )
    return True


def _scripts() -> list[tuple[str, str, bool]]:
    """(name, text, once) of the migrations in order, then of the server-side functions."""
    root = files("heliograph")
    ordered = [(name, item.read_text("utf-8"), True) for name, item in _sql(root / "migrations", "")]
    functions = [
        (name, item.read_text("utf-8"), False) for name, item in _sql(root, "") if not name.startswith("migrations/")
    ]
    return ordered + functions


def _sql(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _sql(item, f"{prefix}{item.name}/")
        elif item.name.endswith(".sql"):
            found.append((prefix + item.name, item))
    return sorted(found)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _month(today: date, ahead: int) -> date:
    index = today.year * 12 + today.month - 1 + ahead
    return date(index // 12, index % 12 + 1, 1)


def _bound(day: date, kind: str) -> date | UUID:
    return day if kind == "date" else uuid7_floor(datetime(day.year, day.month, day.day, tzinfo=UTC))
