"""A backup on disk: a directory named by its time, with a manifest that is written last.

    <to>/heliograph-20261122T181000Z/
      manifest.json      its description, and the checksum of every other file
      cluster/           for the embedded PostgreSQL: as written by `pg_basebackup`
      database.dump      for any other PostgreSQL: as written by `pg_dump`
      secrets.sealed     the secret key and `credentials.json` under a passphrase; absent if none was given

The rule nobody may break: a directory of that name is complete. It is written under another name, synced and renamed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from heliograph.base.crypto import Key, Unsealable, seal, unseal
from heliograph.base.process import private_files

MANIFEST, SECRETS, CLUSTER, DUMP = "manifest.json", "secrets.sealed", "cluster", "database.dump"
PREFIX, UNFINISHED = "heliograph-", ".unfinished-"
FORMAT = 1
#: scrypt (RFC 7914): 128 MB and a quarter of a second per guess at the passphrase.
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P, _SALT = 2**17, 8, 1, 16
SHORTEST_PASSPHRASE = 12


#: For the embedded PostgreSQL; for any other one.
Kind = Literal["cluster", "dump"]


class BackupError(Exception):
    """A backup cannot be taken, read or restored; the message says why and what to do."""


class NotABackup(BackupError):
    """The directory has no manifest."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a backup. Times are by the database's clock."""

    format: int = FORMAT
    id: str
    kind: Kind
    #: Everything answered before this is in it.
    taken_at: datetime
    finished_at: datetime
    heliograph: str
    postgres: str
    #: Path below the backup → SHA-256, hex.
    files: dict[str, str]
    #: Total size of all files.
    bytes: int
    has_secrets: bool
    #: The directory of archived WAL that continues it, below HELIOGRAPH_WAL_ARCHIVE, and the first segment there that
    #: is needed to start it. Empty: there is no archive.
    archive: Annotated[str, msgspec.Meta(pattern="^[0-9a-f-]*$")] = ""
    first_wal: str = ""
    #: The installation that it was taken from, also after upgrades and restores; empty: unknown.
    installation: str = ""


class Backup(msgspec.Struct, frozen=True):
    """A complete backup and its location."""

    path: Path
    manifest: Manifest


class Secrets(msgspec.Struct, frozen=True):
    """What must be kept separate from the database: together they reveal every supplier's password."""

    secret_key: str
    #: `credentials.json` of `heliograph up`, as text; empty: there is none.
    credentials: str = ""
    #: The other key while the secret key is being changed; empty: it is not.
    other_secret_key: str = ""

    @property
    def keys(self) -> list[str]:
        """The secret key, and the other one if there is one."""
        return [one for one in (self.secret_key, self.other_secret_key) if one]


def read(path: Path) -> Backup:
    """The backup in a directory. Raises BackupError, and NotABackup."""
    try:
        manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        raise NotABackup(f"{path} is not a backup: it has no {MANIFEST}") from None
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackupError(f"{path / MANIFEST} is damaged: {error}") from None
    if manifest.format != FORMAT:
        raise BackupError(f"{path} has format {manifest.format}, which this version cannot read")
    return Backup(path, manifest)


def listed(directory: Path, *, now: datetime, damaged: Callable[[str], None] = lambda text: None) -> list[Backup]:
    """The complete backups in a directory, newest first. Skips everything that is not ours, and everything unreadable,
    which is reported to `damaged`. Raises BackupError if the directory cannot be read.

    `now`: by the database's clock. If that was ahead and has been set back, the dates of some backups have yet to come.
    They count as the oldest: otherwise they would hide, and outlive, every new one.
    """
    try:
        paths = sorted((path for path in directory.iterdir() if path.name.startswith(PREFIX)), reverse=True)
    except OSError as error:
        raise BackupError(f"{directory} cannot be read: {error.strerror}") from None
    found = []
    for path in paths:
        try:
            found.append(read(path))
        except NotABackup:
            continue
        except BackupError as error:
            damaged(str(error))
    return sorted(found, key=lambda one: one.manifest.taken_at > now)


def serving(backup: Backup, until: datetime, *, other_archive: bool) -> Backup | None:
    """The newest copy in the same directory as a backup from which another point in time can be restored.
    `other_archive`: one that is not continued by the same WAL."""
    try:
        beside = listed(backup.path.parent, now=until)
    except BackupError:
        return None
    return next(
        (
            one
            for one in beside
            if one.manifest.kind == "cluster"
            and one.manifest.finished_at <= until
            and not (other_archive and one.manifest.archive == backup.manifest.archive)
        ),
        None,
    )


def oldest_wal(backups: Iterable[Backup]) -> dict[str, str]:
    """Archive → the first segment in it that any of these backups needs."""
    needed: dict[str, str] = {}
    for one in (backup.manifest for backup in backups):
        if one.archive:
            needed[one.archive] = min(one.first_wal, needed.get(one.archive, one.first_wal))
    return needed


@contextlib.contextmanager
def unfinished(to: Path) -> Iterator[Path]:
    """A new directory in `to` for a backup that is being taken. It is locked, so that nobody mistakes it for the
    remains of an interrupted one, and is removed at the end if it still exists. Raises OSError."""
    place, lock = _begin(to)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


def of_installation(backups: Iterable[Backup], installation: str) -> list[Backup]:
    """The backups that were taken from an installation, or may have been."""
    return [one for one in backups if one.manifest.installation in ("", installation)]


def prune(directory: Path, *, keep: int, now: datetime, installation: str) -> list[Path]:
    """Remove all but the newest `keep` backups of an installation, and the remains of interrupted ones. Returns the
    removed backups. `now`: as for `listed`. Raises BackupError."""
    gone = []
    for path in [one.path for one in of_installation(listed(directory, now=now), installation)[keep:]]:
        try:
            # A partly removed backup must neither look complete nor be left behind: the next run finishes the removal.
            path.rename(directory / f"{UNFINISHED}{secrets.token_hex(4)}")
        except FileNotFoundError:
            continue  # another command has just removed it
        except OSError as error:
            raise BackupError(f"{path} cannot be removed: {error.strerror}") from None
        gone.append(path)
    for path in directory.glob(f"{UNFINISHED}*"):
        lock = None
        with contextlib.suppress(PermissionError):  # of another account, whose commands remove it
            lock = _hold(path)
        if lock is not None:
            try:
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
    return gone


def checksums(directory: Path) -> dict[str, str]:
    """SHA-256 of each file below a directory, except the manifest."""
    return {
        str(path.relative_to(directory)): _digest(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def check(backup: Backup) -> None:
    """Compare every file with its checksum. Raises BackupError, which names those that differ, or one that cannot be
    read."""
    try:
        found = checksums(backup.path)
    except OSError as error:
        raise BackupError(f"{error.filename} cannot be read: {error.strerror}") from None
    wrong = [name for name, digest in backup.manifest.files.items() if found.get(name) != digest]
    if wrong:
        raise BackupError(f"{backup.path} is damaged: {', '.join(wrong)}")


def finish(place: Path, final: Path, manifest: Manifest) -> Backup:
    """Write the manifest, sync everything and give the backup its name. Taken by root, it belongs to the account that
    the directory of backups belongs to, which has to be able to read and remove it every night."""
    (place / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    private_files.give(place, like=final.parent)
    _sync([*place.rglob("*"), place])
    place.rename(final)
    private_files.sync_directory(final.parent)
    return Backup(final, manifest)


def seal_secrets(secrets: Secrets, passphrase: str) -> bytes:
    """Seal under a passphrase of at least 12 characters. Raises BackupError."""
    if len(passphrase) < SHORTEST_PASSPHRASE:
        raise BackupError(f"the passphrase must have at least {SHORTEST_PASSPHRASE} characters")
    salt = os.urandom(_SALT)
    return salt + seal(_key(passphrase, salt), msgspec.json.encode(secrets), "backup")


def open_secrets(backup: Backup, passphrase: str) -> Secrets:
    """Open the sealed secrets of a backup. Raises BackupError."""
    try:
        sealed = (backup.path / SECRETS).read_bytes()
    except OSError as error:
        # If it was lost before the backup was complete, the rest is good.
        way = "" if SECRETS in backup.manifest.files else "; it never was in this backup: omit the passphrase"
        raise BackupError(
            f"{backup.path / SECRETS}, which holds the secret key, cannot be read: {error.strerror}{way}"
        ) from None
    try:
        content = unseal(_key(passphrase, sealed[:_SALT]), sealed[_SALT:], "backup")
    except Unsealable:
        raise BackupError("the passphrase does not open this backup's secrets") from None
    return msgspec.json.decode(content, type=Secrets)


def _begin(to: Path) -> tuple[Path, int]:
    """A new directory and its lock. Raises OSError."""
    while True:
        place = to / f"{UNFINISHED}{secrets.token_hex(4)}"
        place.mkdir(mode=0o700)
        # In between, `prune` may have removed it as the remains of an interrupted backup.
        try:
            lock = _hold(place)
        except OSError:  # some network file systems have no locks
            place.rmdir()
            raise
        if lock is not None:
            return place, lock


def _hold(place: Path) -> int | None:
    """Lock a directory: the kernel releases the lock however its holder ends. None if it is locked, or was removed."""
    try:
        lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if place.exists():
            return lock
    except BlockingIOError:
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _key(passphrase: str, salt: bytes) -> Key:
    return Key([Scrypt(salt=salt, length=32, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P).derive(passphrase.encode())])


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        # That of a read names no file.
        raise OSError(error.errno, error.strerror, str(path)) from None


def _sync(paths: Iterable[Path]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
