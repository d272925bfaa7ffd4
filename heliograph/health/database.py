"""The database's durability, and its file system if that is on this machine."""

from __future__ import annotations

import shutil

import msgspec

from heliograph.base.database import url as database_url
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings

#: Without these, an answered message could be lost in a power cut.
DURABLE = ("fsync", "full_page_writes", "synchronous_commit")


class DiskSpace(msgspec.Struct, frozen=True):
    """Space of a file system, in bytes."""

    place: str
    free: int
    total: int

    @property
    def percent(self) -> float:
        """Free space in percent."""
        return 100 * self.free / self.total


class DiskUnknown(msgspec.Struct, frozen=True):
    """The database's files are on this machine, but their location cannot be examined, for the system's reason."""

    place: str
    reason: str


class Durability(msgspec.Struct, frozen=True):
    """The safety of the database. `off`: settings of DURABLE that are off; `disk`: None if on another machine."""

    off: list[str]
    disk: DiskSpace | DiskUnknown | None

    @property
    def room(self) -> DiskSpace | None:
        """Space on its disk; None if it cannot be examined from here."""
        return self.disk if isinstance(self.disk, DiskSpace) else None


OFF = """
SELECT name FROM unnest($1::text[]) WITH ORDINALITY AS asked (name, place)
 WHERE current_setting(name) = 'off' ORDER BY place
"""


async def safety(conn: Connection, settings: Settings) -> Durability:
    """Whether the database is durable, and how much space it has."""
    off = [name for (name,) in await conn.fetch(OFF, list(DURABLE))]
    return Durability(off, await disk(conn, settings))


# Only some roles may query the data directory, and refusals would fill the server's log. The embedded server shows it
# to every role in a setting of its own.
PLACE = """
SELECT CASE WHEN pg_has_role(current_user, 'pg_read_all_settings', 'MEMBER') THEN current_setting('data_directory')
            ELSE current_setting('heliograph.data_directory', true) END
"""


async def disk(conn: Connection, settings: Settings) -> DiskSpace | DiskUnknown | None:
    """Free space on the database's file system: that of its data directory, or else of its socket, or else this
    machine's root; None if the database is on another machine."""
    names = [host.name for host in database_url.parse(settings.database_url).hosts]
    if not all(database_url.is_local(name) for name in names):
        return None
    place = await conn.fetchval(PLACE) or next((name for name in names if name.startswith("/")), "/")
    try:
        usage = shutil.disk_usage(place)
    except OSError as error:
        return DiskUnknown(place, error.strerror or "")
    return DiskSpace(place, usage.free, usage.total)
