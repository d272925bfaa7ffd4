"""Loads the book from the tables, and tells when it has to be reloaded.

The rule nobody may break: every change increments the version, in its own commit.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from heliograph.base.database.pool import Connection, Pool
from heliograph.senders import numbers, owners, registrations, rules
from heliograph.senders.book import Book

VERSION = "SELECT coalesce((SELECT version FROM sender_book), 0)"


async def version(conn: Connection | Pool) -> int:
    """A number that differs after each change."""
    found: int = await conn.fetchval(VERSION)
    return found


async def load(conn: Connection) -> Book:
    """All current rules, registrations and owners."""
    known: dict[str, tuple[UUID, ...]] = {}
    for sender, supplier_id in await owners.recent(conn):
        known[sender] = (*known.get(sender, ()), supplier_id)
    return Book(await rules.load(conn), await registrations.load(conn), await numbers.load(conn), known)


NUMBERS = "SELECT numbers_at FROM sender_book"


async def numbers_changed_at(conn: Connection) -> datetime | None:
    """When a rule for numbers was last set or removed; None: never."""
    found: datetime | None = await conn.fetchval(NUMBERS)
    return found
