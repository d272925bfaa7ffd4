"""A file from the database, copied to this machine's disk while it is being read.

The copy has no name, so nothing is left behind when its process is killed. What fails here is this machine's disk: to
whoever catches errors, an OSError would mean that the database is gone.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from typing import BinaryIO, cast

from heliograph.base.database.pool import Connection
from heliograph.base.ids import UUID

CHUNK = """
SELECT bytes FROM contact_import_chunks WHERE organization_id = $1 AND import_id = $2 AND number = $3
"""


class SpoolFailed(Exception):
    """The copy could not be written or read, as with a full disk."""


class Spool:
    """The bytes of an import. It may have several readers at once."""

    def __init__(self) -> None:
        """Raises SpoolFailed."""
        #: In bytes.
        self.size = 0
        with _on_disk():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115

    @classmethod
    async def of(cls, conn: Connection, organization_id: UUID, id: UUID) -> Spool:
        """Copy all chunks of an import, one at a time in memory. Raises SpoolFailed."""
        made = cls()
        number = 0
        while (chunk := await conn.fetchval(CHUNK, organization_id, id, number)) is not None:
            with _on_disk():
                made.size += made._file.write(chunk)
            number += 1
        with _on_disk():
            made._file.flush()
        return made

    def open(self) -> BinaryIO:
        """A reader with its own position."""
        return cast(BinaryIO, io.BufferedReader(_Reading(self._file.fileno()), 65_536))

    def close(self) -> None:
        """Release the disk space."""
        with contextlib.suppress(OSError):  # what could not be written is tried once more
            self._file.close()


class _Reading(io.RawIOBase):
    """A reader with its own position in a shared file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._at = descriptor, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (os.fstat(self._descriptor).st_size if base is None else base)
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        with _on_disk():
            found = os.pread(self._descriptor, len(view), self._at)
        view[: len(found)] = found
        self._at += len(found)
        return len(found)


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpoolFailed(error.strerror or str(error)) from error
