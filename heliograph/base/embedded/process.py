"""PostgreSQL's programs as processes, held by a pidfd, and the `postmaster.pid` file of a server.

The rule nobody may break: signals are sent through the pidfd, so they never reach a later process with the same number.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from heliograph.base.embedded.install import ENVIRONMENT, SystemUser
from heliograph.base.process.signals import end_with_parent

#: Exit status of an adopted server: only its parent can know it.
UNKNOWN_STATUS = -1


class Process:
    """A server or initdb, our child or adopted, held by a pidfd until it ends. Works on any event loop."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        """Raises ProcessLookupError if there is no such process."""
        self.pid = pid
        self._child = child
        self._loop = asyncio.get_running_loop()
        self._handle = os.pidfd_open(pid)
        #: Its exit status, as in subprocess.
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(self._handle, self._on_end)

    @classmethod
    def launch(
        cls,
        command: Sequence[str | Path],
        account: SystemUser,
        *,
        log: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
        mortal: bool = False,
    ) -> Process:
        """Start a program in its own session, in the directory of `log`, which gets all its output; `mortal`: it is
        killed when this process ends. Raises OSError if it cannot run."""
        # Whatever the umask, nobody else writes to it.
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "wb") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                env={**ENVIRONMENT, **environment},
                start_new_session=True,
                preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGKILL) if mortal else None,
                **account.spawn(),
            )
        return cls(child.pid, child)

    def send(self, number: signal.Signals) -> None:
        """Signal it; no effect if it has ended."""
        if not self.ended.done():
            try:
                signal.pidfd_send_signal(self._handle, number)
            except ProcessLookupError:
                return  # ended just now; the loop will report it

    def release(self) -> None:
        """Let go of the process without affecting it."""
        if not self.ended.done():
            self._loop.remove_reader(self._handle)
            os.close(self._handle)
            self.ended.cancel()

    def _on_end(self) -> None:
        self._loop.remove_reader(self._handle)
        os.close(self._handle)
        self.ended.set_result(UNKNOWN_STATUS if self._child is None else self._child.wait())


class PidFile:
    """`postmaster.pid`, which a server writes into its data directory: a line each for pid, data, time, port,
    socket."""

    #: The directory of the socket while the server has not written it yet.
    UNKNOWN = Path("/nonexistent")

    def __init__(self, pid: int, port: int, sockets: Path) -> None:
        self.pid, self.port, self.sockets = pid, port, sockets

    @property
    def is_cut_off(self) -> bool:
        """Whether nothing can reach the server anymore: the directory of its socket was moved or removed."""
        return self.sockets != self.UNKNOWN and not self.sockets.exists()

    @classmethod
    def read(cls, data: Path) -> PidFile | None:
        """The file in `data`, or None if there is none (or it is just being written)."""
        try:
            lines = (data / "postmaster.pid").read_text().splitlines() + [""] * 5
            return cls(int(lines[0]), int(lines[3] or 0), Path(lines[4]) if lines[4] else cls.UNKNOWN)
        except (FileNotFoundError, ValueError):
            return None


def is_server_on(data: Path, pid: int) -> bool:
    """Whether this process is a PostgreSQL server on `data`, including one whose socket is not open (anymore)."""
    process = Path(f"/proc/{pid}")
    try:
        arguments = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    if os.path.basename(arguments[0]) != b"postgres":
        return False
    if os.fsencode(data) in arguments:
        return True
    # Somebody may have started it with another path to the same directory, which is where a server always works.
    try:
        return os.path.samefile(process / "cwd", data)
    except OSError:
        return False
