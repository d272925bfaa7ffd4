"""The secret keys of an installation, in its data directory: the current one and, while it is being changed, the other.

The rule nobody may break: no new key is created for an existing database. It could not open what is encrypted there.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import msgspec

from heliograph.base.database import url as database_url
from heliograph.base.database.pool import CLIENT_SETTINGS
from heliograph.base.embedded.files import Layout, has_cluster
from heliograph.base.network.connecting import connect
from heliograph.base.process import private_files
from heliograph.base.process.settings import Settings
from heliograph.up.errors import UpError, unusable

#: Names of both files in the data directory.
FILE, OTHER_FILE = "secret_key", "other_secret_key"
#: The file that is locked while the key is created.
LOCK = "secret_key.lock"
# A database migrated before the first start contains nothing sealed yet; organizations do.
IS_USED = "SELECT EXISTS (SELECT FROM organizations)"


def completed(settings: Settings, data_dir: Path) -> Settings:
    """`settings` with the keys from the data directory, unless they specify one. Raises UpError."""
    if settings.secret_key:
        return settings
    kept, other = _kept(data_dir / FILE), _kept(data_dir / OTHER_FILE)
    return msgspec.structs.replace(settings, secret_key=kept, other_secret_key=settings.other_secret_key or other)


async def ensured(settings: Settings, data_dir: Path) -> Settings:
    """The same, but the first start creates the key, readable only by the owner. Raises UpError if there is no key but
    a database already exists."""
    found = completed(settings, data_dir)
    if found.secret_key:
        return found
    async with _one_at_a_time(data_dir):
        # Another start may have created it meanwhile.
        found = completed(settings, data_dir)
        return found if found.secret_key else await _created(settings, data_dir)


async def _created(settings: Settings, data_dir: Path) -> Settings:
    path = data_dir / FILE
    if settings.database_url:
        where = database_url.shown(settings.direct_url)
        # The application's own role may not exist yet: the first migration creates it.
        exists = await _is_used(settings.owner_database_url or settings.direct_url)
    else:
        layout = Layout(data_dir / "postgres")
        where, exists = str(layout.home), has_cluster(layout)
    if exists:
        raise UpError(
            f"{path} is missing or empty, and the database in {where} is encrypted under the key that was there: put"
            " the file back, or set HELIOGRAPH_SECRET_KEY to that key"
        )
    try:
        private_files.write(path, secrets.token_urlsafe(48).encode() + b"\n")
    except OSError as error:
        raise _unwritable(path, error) from None
    return completed(settings, data_dir)


@contextlib.asynccontextmanager
async def _one_at_a_time(data_dir: Path) -> AsyncIterator[None]:
    """Two starts at once would each create a key: the file would have the one, and the database the other."""
    path = data_dir / LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private_files.MODE)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.02)
            except OSError as error:  # some network file systems have no locks
                raise UpError(
                    f"cannot lock {path}: {error.strerror}; choose another directory with --data-dir"
                ) from None
        yield
    finally:
        os.close(lock)


def _unwritable(path: Path, error: OSError) -> UpError:
    return UpError(f"cannot write {path}: {error.strerror}; choose another directory with --data-dir")


async def _is_used(url: str) -> bool:
    """True if a database already belongs to an installation. Raises UpError if it cannot be reached."""
    try:
        conn = await connect(url, server_settings=CLIENT_SETTINGS)
        try:
            return bool(await conn.fetchval(IS_USED))
        finally:
            await conn.close()
    except asyncpg.UndefinedTableError:
        return False
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise unusable(error) from error


def _kept(path: Path) -> str:
    """The key in a file; "" if there is none. Raises UpError."""
    try:
        return path.read_text(encoding="utf-8-sig").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UpError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UpError(f"{path} is damaged, it is not text: put back the file that was there before") from None
