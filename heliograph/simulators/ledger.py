"""The file in which a simulator records what it took, a line each, for comparison with what was sent.

The rule nobody may break: each line is in it once. What cannot be written now, because the disk is full, is written as
soon as there is room.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable


class Ledger:
    """Open from its creation until `close`; lines are added to what the file holds already."""

    def __init__(self, path: str) -> None:
        """Raises OSError if it cannot be written."""
        # Unbuffered: a buffer does not say how much of a write that failed is in the file.
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  closed by close()
        self._waiting = b""

    def write(self, lines: Iterable[str]) -> None:
        """Add whole lines, each with its end."""
        self._waiting += "".join(lines).encode()
        with contextlib.suppress(OSError):
            self._write()

    def close(self) -> None:
        """Raises OSError if some of it could not be written."""
        try:
            self._write()
        finally:
            self._file.close()

    def _write(self) -> None:
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) or 0 :]
