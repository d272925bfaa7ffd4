"""Files that only their owner may read: secrets, and files with people's names and numbers; and where an account's own
files belong.

The rule nobody may break: the mode is restricted before the first byte is written. A file restricted afterwards was
open for a moment, and a process that opened it then can keep reading.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

MODE = 0o600


def base_directory(variable: str, otherwise: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where this account's own files belong by the XDG specification: the directory in `variable`, or `otherwise` below
    its home. None if it has no home; "/", which containers give to a user ID without a name, does not count as one."""
    chosen = Path(environment.get(variable, ""))
    if chosen.is_absolute():  # the specification says to ignore a relative one
        return chosen
    home = Path(environment.get("HOME") or os.path.expanduser("~"))
    return home / otherwise if home.is_absolute() and home != Path("/") else None


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically with `content`, mode 0600. Its folder is created if it is missing. Written by root, it
    belongs to the account that it, or else its folder, belonged to, such as a service's, which could not read it
    otherwise. It survives a power failure from then on. Raises OSError; none of the content is left behind then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # Left behind by one that was killed, or put there by whoever owns the folder: root must not write through it.
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE), "wb") as file:
            if os.geteuid() == 0:
                with contextlib.suppress(OSError):  # the root of a container, or of another machine, may not
                    before = path.lstat() if os.path.lexists(path) else path.parent.stat()
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    # A database elsewhere may already hold what only this file can open. The folder may be one that cannot be read, or
    # whose file system does this by itself.
    with contextlib.suppress(OSError):
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to disk: until then, a power failure may take the name of a file that was written.
    Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give(place: Path, *, like: Path, deep: bool = True) -> None:
    """Root leaves `place`, and what is below it or, if not `deep`, in it, to the account that the directory `like`
    belongs to, such as a service's, which could not read it otherwise."""
    with contextlib.suppress(OSError):  # the root of a container, or of another machine, may not
        owner = like.stat()
        if os.geteuid() != 0 or owner.st_uid == 0:
            return
        os.chown(place, owner.st_uid, owner.st_gid, follow_symlinks=False)
        # By descriptors: that account could put a link to a file of root's in the place of a folder meanwhile.
        for _, _, names, folder in os.fwalk(place):
            os.fchown(folder, owner.st_uid, owner.st_gid)
            for name in names:
                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)
            if not deep:
                return


def open_text(path: Path, *, encoding: str) -> TextIO:
    """Open a file for writing rows: 0600, emptied if it exists, line ends as written. Raises OSError."""
    return open(path, "w", encoding=encoding, newline="", opener=_narrow)


def _narrow(path: str, flags: int) -> int:
    # Without O_TRUNC: a file with another mode is restricted before it is emptied and written. A device or pipe, which
    # /dev/stdout may be, keeps its mode.
    descriptor = os.open(path, flags & ~os.O_TRUNC, MODE)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, MODE)
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
