"""The database's durability, and the file system that it lies on, where that is this machine's."""

from __future__ import annotations

import shutil

import msgspec

from heliograph.base.database import url as database_url
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings

#: Without these, an answered message could be lost in a power cut.
DURABLE = ("fsync", "full_page_writes", "synchronous_commit")


class Room(msgspec.Struct, frozen=True):
    """Of a file system, in bytes."""

    place: str
    free: int
    total: int

    @property
    def percent(self) -> float:
        """How much of it is free."""
        return 100 * self.free / self.total


class Unseen(msgspec.Struct, frozen=True):
    """This machine has the database's files, and cannot look at where they are, for the system's reason."""

    place: str
    reason: str


class Safety(msgspec.Struct, frozen=True):
    """How safe the database is. `off`: settings of DURABLE that are; `disk`: None where it is another machine's."""

    off: list[str]
    disk: Room | Unseen | None

    @property
    def room(self) -> Room | None:
        """On its disk; None where that is not seen from here."""
        return self.disk if isinstance(self.disk, Room) else None


OFF = """
SELECT name FROM unnest($1::text[]) WITH ORDINALITY AS asked (name, place)
 WHERE current_setting(name) = 'off' ORDER BY place
"""


async def safety(conn: Connection, settings: Settings) -> Safety:
    """Whether it is durable, and how much room it has."""
    off = [name for (name,) in await conn.fetch(OFF, list(DURABLE))]
    return Safety(off, await disk(conn, settings))


# Only some roles may ask where the data is, and a refusal would fill the server's log.
PLACE = """
SELECT CASE WHEN pg_has_role(current_user, 'pg_read_all_settings', 'MEMBER') THEN current_setting('data_directory') END
"""


async def disk(conn: Connection, settings: Settings) -> Room | Unseen | None:
    """How much of the database's file system is free: by its data directory, else by that of its socket, else by the
    root of this machine's files; None where it is another machine's."""
    names = [host.name for host in database_url.parse(settings.database_url).hosts]
    if not all(database_url.is_local(name) for name in names):
        return None
    place = await conn.fetchval(PLACE) or next((name for name in names if name.startswith("/")), "/")
    try:
        usage = shutil.disk_usage(place)
    except OSError as error:
        return Unseen(place, error.strerror or "")
    return Room(place, usage.free, usage.total)
