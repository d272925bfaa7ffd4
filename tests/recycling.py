"""Reuses the files of database clones: once a clone is dropped, the files that its test changed are restored, and the
next clone gets all of them.

A clone has over a thousand files, of which a test changes some seventy. Copying and removing all of them took a tenth
of a run's processor time. PostgreSQL still creates and drops a database per clone, with almost no files, so that the
next test inherits nothing else: no sessions, settings, statistics or cached pages.

This happens while tests run that replace methods of `Path` and of asyncpg's connections, so files are moved and removed
with functions of `os`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

import asyncpg

#: The files that PostgreSQL expects in a database's directory.
LEAST = ("PG_VERSION", "pg_filenode.map")
#: The modification time of an untouched file, in ns: whoever writes to the file changes it.
UNTOUCHED = 1_000_000_000
#: How long sessions may take to end, in seconds. They take milliseconds, but the machine may be busy.
PATIENCE = 60.0
END_SESSIONS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1 AND pid <> ALL($2::int[])
"""


async def end_sessions(
    connection: asyncpg.Connection[asyncpg.Record], name: str, *, but: Sequence[int] | None = None
) -> None:
    """End all sessions of a database except those of these processes; if there are no exceptions, the database also
    stops accepting connections. Raises InvalidCatalogNameError if the database does not exist in that case."""
    if but is None:
        await connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    deadline = time.monotonic() + PATIENCE
    while await connection.fetchval(END_SESSIONS, name, but or []):
        assert time.monotonic() < deadline, f"{name} is in use"
        await asyncio.sleep(0.005)


class Recycling:
    """Creates and drops clones. `connection`, a superuser's, must not be used by anything else meanwhile; one call at a
    time."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], data: Path, place: Path) -> None:
        """`data`: the server's data directory. `place`: a directory to be created on the same file system."""
        self._connection = connection
        self._base = data / "base"
        self._place = place
        self._source = ""
        self._model: dict[str, bytes] = {}
        self._spare: list[Path] = []
        self._made = 0

    async def prepare(self, source: str, template: str) -> None:
        """Make clones like `template` as it is now. Creates the empty database `source`, which stays."""
        await self._connection.execute(f"CREATE DATABASE {source} TEMPLATE {template} STRATEGY FILE_COPY")
        directory = await self._directory(source)
        self._source = source
        self._model = {path.name: path.read_bytes() for path in directory.iterdir()}
        for name in self._model.keys() - set(LEAST):
            os.unlink(directory / name)
        self._place.mkdir(mode=0o700)

    async def create(self, name: str, owner: str) -> None:
        """Create a clone."""
        options = f'TEMPLATE {self._source} STRATEGY FILE_COPY OWNER "{owner}"'
        await self._connection.execute(f"CREATE DATABASE {name} {options}")
        directory = await self._directory(name)
        files = self._spare.pop() if self._spare else self._new(directory)
        for least in LEAST:
            os.unlink(directory / least)
        os.rename(files, directory)

    async def drop(self, name: str) -> None:
        """Drop a clone despite its sessions, unless its test has dropped it."""
        oid = await self._oid(name)
        if oid is None:
            return
        directory, files = self._base / str(oid), self._next()
        deadline = time.monotonic() + PATIENCE
        while True:
            await end_sessions(self._connection, name)
            # Nobody changes a page any more, and this writes the changed ones: after it, nobody opens a file.
            await self._connection.execute("CHECKPOINT")
            os.rename(directory, files)
            try:
                await self._connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
                break
            except BaseException as error:
                os.rename(files, directory)
                # A session that had begun before it could be refused, or one of PostgreSQL's own, may not have ended
                # within 5 s.
                if not isinstance(error, asyncpg.ObjectInUseError) or time.monotonic() > deadline:
                    raise
        self._restore(files)
        self._spare.append(files)

    async def _oid(self, name: str) -> int | None:
        found: int | None = await self._connection.fetchval("SELECT oid FROM pg_database WHERE datname = $1", name)
        return found

    async def _directory(self, name: str) -> Path:
        return self._base / str(await self._oid(name))

    def _next(self) -> Path:
        self._made += 1
        return self._place / str(self._made)

    def _new(self, like: Path) -> Path:
        """All files, in a directory owned by the same account as `like`."""
        directory, owner = self._next(), like.stat()
        directory.mkdir(mode=0o700)
        os.chown(directory, owner.st_uid, owner.st_gid)
        self._restore(directory)
        return directory

    def _restore(self, directory: Path) -> None:
        """Restore a directory's files from the model."""
        missing = dict(self._model)
        changed = []
        with os.scandir(directory) as entries:
            for entry in entries:
                content = missing.pop(entry.name, None)
                if content is None:
                    os.unlink(entry)
                    continue
                found = entry.stat()
                if found.st_mtime_ns != UNTOUCHED or found.st_size != len(content):
                    changed.append(entry.name)
        owner = directory.stat()
        for name in (*changed, *missing):
            content = self._model[name]
            file = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                assert os.write(file, content) == len(content), "the file system is full"
                os.truncate(file, len(content))
                if name in missing:
                    os.chown(file, owner.st_uid, owner.st_gid)
                os.utime(file, ns=(UNTOUCHED, UNTOUCHED))
            finally:
                os.close(file)
