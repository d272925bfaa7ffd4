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

import asyncpg

from heliograph.base.db import Connection
from heliograph.base.ids import uuid7_floor

#: One lock for all who migrate: "helio" in ASCII. Held by a transaction, so it ends with its holder.
LOCK = "SELECT pg_advisory_xact_lock(448378890607)"

PREPARE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    name text PRIMARY KEY, digest text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());
COMMENT ON TABLE schema_migrations IS 'control: which SQL files have been applied';
"""

#: Partitioned tables and what they are partitioned by.
PARTITIONED = {
    "messages": "uuid",
    "message_texts": "uuid",
    "sms_attempts": "uuid",
    "events": "uuid",
    "webhook_attempts": "uuid",
    "receipts": "date",
}
FILL = {"messages": 75, "sms_attempts": 80}


class MigrationChanged(Exception):
    """A migration that was applied to this database has another text now."""


async def migrate(url: str) -> list[str]:
    """Bring the database to this version; returns the names of the files applied now.

    Raises MigrationChanged if an applied migration's text is not the one that was applied.
    """
    connection = await asyncpg.connect(url)
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
            fill = f" WITH (fillfactor = {FILL[table]})" if table in FILL else ""
            await connection.execute(
                f"CREATE TABLE {name} PARTITION OF {table} FOR VALUES FROM ('{_bound(start, kind)}')"
                f" TO ('{_bound(end, kind)}'){fill}"
            )
            made.append(name)
    return made


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
