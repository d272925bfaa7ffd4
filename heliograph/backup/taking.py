"""Taking a backup while everything runs: a copy of the embedded cluster, or a dump of any other PostgreSQL.

The rule nobody may break: everything answered before the backup began is in it. A copy of the cluster contains all that
was committed before it ended; a dump contains one snapshot, taken after `taken_at`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from uuid import UUID

import asyncpg

from heliograph import __version__
from heliograph.audit import recording as audit
from heliograph.backup import store
from heliograph.backup.store import Backup, BackupError, Kind, Manifest, Secrets
from heliograph.base import crypto
from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.embedded import copies, tunnel
from heliograph.base.embedded.install import PostgresError
from heliograph.base.ids import uuid7

# The embedded PostgreSQL has the same name as the archive of its WAL; any other one has some other name, or none.
NOW = """
SELECT now(), current_setting('server_version'), current_setting('cluster_name'),
       pg_walfile_name(pg_current_wal_lsn())
"""
# When its schema was made: the same after upgrades and restores, and different from that of any other.
INSTALLATION = "SELECT applied_at FROM schema_migrations ORDER BY applied_at LIMIT 1"
#: One lock for all backups: "backu" in ASCII. The checkpoint that begins a second copy removes WAL that the first one
#: needs and has not reserved yet. Backups are named by the second: one that waited for another gets a later name.
LOCK = "SELECT pg_try_advisory_lock(422540700533)"
UNLOCK = "SELECT pg_advisory_unlock(422540700533)"
PAUSE = 1.1
#: Seconds without a new segment after which an archive is assumed to belong to no running cluster.
LEFT_AFTER = 86400.0
RECORD = """
INSERT INTO backups (id, kind, taken_at, finished_at, bytes, place, archive, first_wal, secret_keys)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""


async def take(
    conn: Connection,
    to: Path,
    *,
    home: Path | None,
    owner_url: str,
    sealed: Secrets | None,
    passphrase: str,
    by: Principal,
    say: Callable[[str], None],
) -> Backup:
    """Take a backup into a new directory below `to`, and record it in the database.

    `home`: that of the embedded PostgreSQL that `conn` is connected to; None: another PostgreSQL, which `owner_url` can
    read completely. `sealed`: secrets to seal under `passphrase`. Raises BackupError, and then leaves nothing that
    looks complete.
    """
    if home is not None and Path(os.path.realpath(to)).is_relative_to(os.path.realpath(home)):
        raise BackupError(f"cannot write to {to}: it is part of {home}, which belongs to the database")
    try:
        to.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise BackupError(f"cannot write to {to}: it is not a directory") from None
    except OSError as error:
        raise BackupError(f"cannot write to {to}: {error.strerror}") from None
    async with _alone(conn, say):
        taken_at, postgres, cluster, first_wal = await _now(conn)
        id = uuid7()
        final = to / f"{store.PREFIX}{taken_at:%Y%m%dT%H%M%SZ}"
        if final.exists():
            raise BackupError(f"{final} exists already: a backup was taken in this second")
        try:
            with store.unfinished(to) as place:
                if sealed is not None:
                    (place / store.SECRETS).write_bytes(await asyncio.to_thread(store.seal_secrets, sealed, passphrase))
                if home is not None:
                    say("Copying the database.")
                    await copies.copy(home, place / store.CLUSTER, label=f"heliograph {id}")
                else:
                    say("Dumping the database.")
                    async with tunnel.for_programs(owner_url) as (url, password):
                        dump = [
                            "pg_dump",
                            f"--dbname={url}",
                            "--format=custom",
                            "--no-password",
                            f"--file={place / store.DUMP}",
                        ]
                        await copies.run(dump, password=password)
                files = await asyncio.to_thread(store.checksums, place)
                size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
                kind: Kind = "dump" if home is None else "cluster"
                manifest = Manifest(
                    id=str(id),
                    kind=kind,
                    taken_at=taken_at,
                    finished_at=await conn.fetchval("SELECT now()"),
                    heliograph=__version__,
                    postgres=postgres,
                    files=files,
                    bytes=size,
                    has_secrets=store.SECRETS in files,
                    archive="" if home is None else cluster,
                    first_wal="" if home is None else first_wal,
                    installation=await installation(conn),
                )
                backup = await asyncio.to_thread(store.finish, place, final, manifest)
                async with conn.transaction():
                    continued = manifest.archive, manifest.first_wal
                    at = str(final.absolute())
                    sealing = crypto.fingerprints(sealed.keys) if sealed is not None else []
                    await conn.execute(RECORD, id, kind, taken_at, manifest.finished_at, size, at, *continued, sealing)
                    await audit.record(conn, by, "backup.taken", object_id=id, after={"kind": kind, "bytes": size})
                return backup
        except PostgresError as error:
            raise BackupError(str(error)) from None
        except OSError as error:
            raise BackupError(f"cannot write to {to}: {error.strerror}") from None


async def installation(conn: Connection) -> str:
    """What distinguishes this installation's backups from those of others in the same directory."""
    made_at: datetime = await conn.fetchval(INSTALLATION)
    return made_at.isoformat()


async def _now(conn: Connection) -> asyncpg.Record:
    """The result of NOW. Raises BackupError."""
    try:
        now = await conn.fetchrow(NOW)
    except asyncpg.ObjectNotInPrerequisiteStateError:
        raise BackupError(
            "the database is a standby, which cannot record the backup: use the primary's address"
        ) from None
    assert now is not None
    return now


@contextlib.asynccontextmanager
async def _alone(conn: Connection, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Wait until no other backup of this database is being taken, and keep others waiting meanwhile."""
    # Polled: a statement that waited would hold back vacuum for as long.
    is_told = False
    while not await conn.fetchval(LOCK):
        if not is_told:
            say("Waiting for another backup of this database.")
            is_told = True
        await asyncio.sleep(PAUSE)
    try:
        yield
    finally:
        # A session that was lost has lost the lock, too.
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await conn.execute(UNLOCK)


VERIFIED = "UPDATE backups SET verified_at = now() WHERE id = $1 RETURNING true"


async def record_verified(conn: Connection, id: UUID) -> bool:
    """Record that a backup was verified successfully. False: this database does not know it."""
    return bool(await conn.fetchval(VERIFIED, id))


# Archives of clusters that this one was upgraded from, or of whose copy it was restored.
EARLIER = """
SELECT DISTINCT archive FROM backups WHERE archive <> '' AND archive <> current_setting('cluster_name')
"""


async def prune_archives(conn: Connection, wal: Path, remaining: list[Backup]) -> list[Path]:
    """Remove archived WAL that none of the remaining backups needs: the oldest segments, and whole archives of earlier
    clusters that have no remaining backup and no new segments. Returns those archives. Raises BackupError."""
    needed = store.oldest_wal(remaining)
    earlier = [wal / row["archive"] for row in await conn.fetch(EARLIER) if row["archive"] not in needed]
    gone = [directory for directory in earlier if directory.is_dir() and _is_left(directory)]
    try:
        for name, oldest in needed.items():
            if (wal / name).is_dir():
                await copies.prune_archive(wal / name, oldest)
        for directory in gone:
            await asyncio.to_thread(shutil.rmtree, directory)
    except (PostgresError, OSError) as error:
        raise BackupError(f"archived WAL cannot be removed: {error}") from None
    return gone


def _is_left(archive: Path) -> bool:
    """True if the cluster that archived there is gone. A trial restore knows the archive of the original, which is
    still running."""
    return clock.now().timestamp() - archive.stat().st_mtime > LEFT_AFTER
