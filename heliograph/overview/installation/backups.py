"""The list of backups, for operators."""

from __future__ import annotations

from datetime import datetime

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.health.backups import NEWEST_FIRST


class Backup(msgspec.Struct, frozen=True):
    """One row of `backups`."""

    kind: str
    taken_at: datetime
    finished_at: datetime
    bytes: int
    place: str
    #: When it was last restored and started in a scratch directory; None: never.
    verified_at: datetime | None


LATEST = f"""
SELECT kind, taken_at, finished_at, bytes, place, verified_at FROM backups ORDER BY {NEWEST_FIRST} LIMIT $1
"""
VERIFIED = "SELECT max(verified_at) FROM backups"


async def latest(conn: Connection, *, limit: int) -> list[Backup]:
    """The latest backups, newest first."""
    return [Backup(**row) for row in await conn.fetch(LATEST, limit)]


async def verified(conn: Connection) -> datetime | None:
    """When any backup was last verified; None: never."""
    at: datetime | None = await conn.fetchval(VERIFIED)
    return at
