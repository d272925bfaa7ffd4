"""Starting a backup: to restore it into an empty place, or in a scratch directory to verify it.

A backup does not know what was sent after it was taken. The rule nobody may break: the hold on all outgoing work is
committed before anything else can connect to the restored database, so nothing is sent until an operator releases it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.backup import store
from heliograph.backup.store import Backup, BackupError, Kind, Secrets
from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import CLIENT_SETTINGS, Connection, follow_clock, lift_transaction_timeout
from heliograph.base.embedded import archive as archives
from heliograph.base.embedded import copies, dumps, files, tunnel
from heliograph.base.embedded.install import PostgresError
from heliograph.base.embedded.server import Embedded
from heliograph.base.ids import uuid7
from heliograph.base.network.connecting import connect
from heliograph.base.process.settings import Settings
from heliograph.queue import holds
from heliograph.sms.dispatch import suppliers
from heliograph.whatsapp.mirror import apps

TABLES = ("organizations", "contacts", "messages", "whatsapp_messages", "events", "queue")
# Each organization's balance must equal the sum of its entries.
UNBALANCED = """
SELECT (SELECT count(*) FROM quotas q
         WHERE q.total - q.used <> coalesce((SELECT sum(quantity) FROM usage_entries e
                                              WHERE e.organization_id = q.organization_id), 0))
     + (SELECT count(*) FROM wallets w
         WHERE (w.available, w.reserved, w.consumed) <>
               (SELECT coalesce(sum(available), 0), coalesce(sum(reserved), 0), coalesce(sum(consumed), 0)
                  FROM wallet_entries e WHERE e.organization_id = w.organization_id))
"""
OPEN_SUPPLIERS = "SELECT id FROM suppliers WHERE state IN ('active', 'draining') ORDER BY id"

# Their links and invitations may have been sent since, and may have been used.
DROP_MAILS = "UPDATE mails SET state = 'dropped', sealed = NULL WHERE state = 'waiting'"
REPLAYED = """
SELECT pg_last_xact_replay_timestamp() AS until, (pg_last_wal_replay_lsn() - '0/0')::bigint AS bytes
"""
IS_EMPTY = "SELECT NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace)"


class Unreachable(BackupError):
    """The database to restore into cannot be reached; the cause says why."""


class Restored(msgspec.Struct, frozen=True):
    """The content of a backup that was started."""

    #: Table → rows.
    rows: dict[str, int]
    #: Organizations whose quota or wallet differs from the sum of its entries: 0 in a good backup.
    unbalanced: int
    #: Dropped invitations and links that were waiting to be mailed.
    mails: int = 0
    #: Commit time of the last transaction in the archive; None: it had none after the backup, or was not used.
    until: datetime | None = None
    #: The segment at which the replay ended although there are later ones: missing or damaged.
    unreplayed: str | None = None
    #: True if the secret key in the backup does not open what is encrypted: it was changed since.
    needs_other_key: bool = False


async def into_directory(
    backup: Backup,
    home: Path,
    *,
    archive: Path | None,
    until: datetime | None,
    by: Principal,
    say: Callable[[str], None],
    before: Callable[[], None] = lambda: None,
    pause: bool = False,
    secrets: Secrets | None = None,
) -> Restored:
    """Restore a copy of the embedded PostgreSQL below `home`, where there must be no database yet. `before` is called
    once everything has succeeded, before the database becomes available to others.

    `archive`: also replay the archived WAL that continues the backup, to its end or up to `until`. `pause`: also pause
    all suppliers. `secrets`: the backup's, to find out whether they are those of the restored moment. Raises
    BackupError, and then leaves nothing behind.
    """
    _demand(backup, "cluster", "an embedded PostgreSQL: give --data-dir")
    if until is not None and archive is None:
        raise BackupError("a point in time needs the archived WAL as well: give --wal")
    if until is not None and until < backup.manifest.finished_at:
        raise BackupError(
            f"the backup was completed at {clock.iso(backup.manifest.finished_at)}: choose a later point in time, or an"
            f" earlier backup{_shown(store.serving(backup, until, other_archive=False))}"
        )
    if archive is not None:
        # PostgreSQL resolves it relative to its own directory.
        archive = files.absolute(archive) / backup.manifest.archive
        if not archive.is_dir():
            raise BackupError(f"there is no {archive}, which would hold the WAL that continues this backup")
    await asyncio.to_thread(store.check, backup)
    try:
        async with copies.started(home, backup.path / store.CLUSTER, archive=archive, until=until, say=say) as (
            conn,
            keep,
        ):
            restored = await _settle(conn, backup, by, pause=pause, secrets=secrets)
            if archive is not None:
                restored = await _replayed(conn, restored, archive, to_its_end=until is None)
            before()
            await keep()
            return restored
    except copies.ArchiveEnds as error:
        assert until is not None
        assert archive is not None
        raise BackupError(_too_late(backup, until, archive, str(error))) from None
    except (PostgresError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise BackupError(_why(error, home)) from None


async def into_database(
    backup: Backup, owner_url: str, *, by: Principal, pause: bool = False, secrets: Secrets | None = None
) -> Restored:
    """Restore a dump into an empty database, as the role that will own the tables: all of it, or nothing. `pause` and
    `secrets`: as for `into_directory`.

    Raises BackupError, and Unreachable.
    """
    _demand(backup, "dump", "a PostgreSQL of your own: set HELIOGRAPH_DATABASE_URL")
    try:
        conn = await connect(owner_url, server_settings=CLIENT_SETTINGS)
        await lift_transaction_timeout(conn)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise Unreachable(str(error)) from error
    try:
        if not await conn.fetchval(IS_EMPTY):
            raise BackupError("the database is not empty: restore into one without any tables")
        await asyncio.to_thread(store.check, backup)
        await _load(backup, owner_url)
        return await _settle(conn, backup, by, pause=pause, secrets=secrets)
    except (PostgresError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise BackupError(str(error)) from None
    finally:
        await conn.close(timeout=5)


async def verify(backup: Backup, *, scratch: Path | None, say: Callable[[str], None]) -> Restored:
    """Compare all checksums, start the backup in a scratch directory, count rows, and remove it again.

    Raises BackupError if it is damaged or cannot be started.
    """
    await asyncio.to_thread(store.check, backup)
    try:
        with tempfile.TemporaryDirectory(prefix="heliograph-verify-", dir=scratch) as place:
            Path(place).chmod(0o711)
            home = Path(place) / "postgres"
            if backup.manifest.kind == "cluster":
                async with copies.started(home, backup.path / store.CLUSTER, say=say) as (conn, _):
                    return await _count(conn)
            server = Embedded(home, on_progress=say)
            await server.start()
            try:
                await _load(backup, server.owner_url)
                conn = await asyncpg.connect(server.owner_url)
                try:
                    return await _count(conn)
                finally:
                    await conn.close(timeout=5)
            finally:
                await server.stop()
    except (PostgresError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise BackupError(_why(error, scratch or Path(tempfile.gettempdir()))) from None


def _why(error: Exception, place: Path) -> str:
    """An error with its location: a full disk does not name the file."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else f"cannot write to {place}: {error.strerror}"


async def _replayed(conn: Connection, restored: Restored, archive: Path, *, to_its_end: bool) -> Restored:
    row = await conn.fetchrow(REPLAYED)
    assert row is not None
    lost = await asyncio.to_thread(archives.unreplayed, archive, end=row["bytes"]) if to_its_end else None
    return msgspec.structs.replace(restored, until=row["until"], unreplayed=lost)


def _too_late(backup: Backup, until: datetime, archive: Path, end: str) -> str:
    """What to do if the WAL that continues a backup ends before the point in time."""
    last = clock.iso(datetime.fromisoformat(end)) if end else f"{clock.iso(backup.manifest.finished_at)}, with the copy"
    other = store.serving(backup, until, other_archive=True)
    missing = archives.gap(archive, first=backup.manifest.first_wal)
    if missing is not None:
        way = f"{missing} is missing in {archive}, and there are later ones: put it back"
    elif other is None:
        way = f"no backup in {backup.path.parent} can be restored to that time"
    else:
        way = f"choose a backup taken after the next upgrade or restore{_shown(other)}"
    return (
        f"the WAL that continues this backup, of PostgreSQL {backup.manifest.postgres}, ends at {last}, before"
        f" {clock.iso(until)}: {way}; or omit --until, to restore this one up to where its WAL ends"
    )


def _shown(backup: Backup | None) -> str:
    if backup is None:
        return ""
    return f", such as {backup.path} (PostgreSQL {backup.manifest.postgres})"


def _demand(backup: Backup, kind: Kind, belongs: str) -> None:
    if backup.manifest.kind != kind:
        raise BackupError(f"{backup.path} is a {backup.manifest.kind}; this restores into {belongs}")


async def _load(backup: Backup, url: str) -> None:
    """Load a dump and hold all outgoing work, in one transaction. Raises PostgresError."""
    values = ", ".join(f"('{uuid7()}', '{kind}', '{_reason(backup)}', true)" for kind in holds.OUTGOING)
    hold = f"INSERT INTO public.queue_holds (id, kind, reason, restored) VALUES {values};\n"
    async with tunnel.for_programs(url) as (where, password):
        await dumps.load(backup.path / store.DUMP, where, password=password, then=hold)


async def _settle(conn: Connection, backup: Backup, by: Principal, *, pause: bool, secrets: Secrets | None) -> Restored:
    """Hold all outgoing work, and record where the data came from, in one transaction."""
    await follow_clock(conn)
    async with conn.transaction():
        await holds.hold(conn, holds.Selection(), reason=_reason(backup), restored=True, by=by)
        for row in await conn.fetch(OPEN_SUPPLIERS) if pause else ():
            await suppliers.set_state(conn, supplier=str(row["id"]), state="paused", by=by)
        mails = int((await conn.execute(DROP_MAILS)).split()[-1])
        taken = {"taken_at": clock.iso(backup.manifest.taken_at)}
        await audit.record(conn, by, "backup.restored", object_id=backup.manifest.id, after=taken)
    other = secrets is not None and not await _all_open(conn, secrets)
    return msgspec.structs.replace(await _count(conn), mails=mails, needs_other_key=other)


async def _all_open(conn: Connection, secrets: Secrets) -> bool:
    """Whether these keys open what `heliograph rekey` begins with: the suppliers' passwords, and Meta apps' secrets."""
    settings = Settings(secret_key=secrets.secret_key, other_secret_key=secrets.other_secret_key)
    return await suppliers.all_open(conn, suppliers.seal_key(settings)) and await apps.all_open(
        conn, apps.seal_key(settings)
    )


async def _count(conn: Connection) -> Restored:
    rows = {table: await conn.fetchval(f"SELECT count(*) FROM {table}") for table in TABLES}
    return Restored(rows, await conn.fetchval(UNBALANCED))


def _reason(backup: Backup) -> str:
    return f"restored from the backup of {clock.iso(backup.manifest.taken_at)}"
