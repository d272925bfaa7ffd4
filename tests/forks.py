"""`heliograph` commands as processes forked from one that has imported everything, and otherwise like any others: with
a session, an environment, files and an exit status of their own, and killed when the test process ends.

A start costs 0.6 s of processor time, nearly all of it for imports; a fork costs 0.02 s. Hundreds of commands are run
by tests of what a command does. How Python itself starts (locale, `PYTHON*`, the location of the command) is tested
elsewhere by executing the program: `tests/unit/test_console.py` and `tests/journeys/test_up.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heliograph.api.document import openapi
from heliograph.api.routes import OPERATIONS
from heliograph.base.network.tls import shared_client_context
from heliograph.console import places as console_places
from heliograph.dashboard import places
from heliograph.pages.serving.rendering import kit
from tests import fork_server


class Forked:
    """A forked command, with the part of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        #: As in subprocess: None while it runs, or until it has been waited for.
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._ended = asyncio.get_running_loop().create_future()
        self._connection = connection
        asyncio.get_running_loop().add_reader(connection, self._on_end)

    async def wait(self) -> int:
        """Its exit status, once it has ended."""
        return int(await asyncio.shield(self._ended))

    async def communicate(self, data: bytes = b"") -> tuple[bytes, bytes]:
        """Its output on stdout and stderr if they are pipes, once it has ended; `data` is its stdin."""

        async def write() -> None:
            if self.stdin is not None:
                if data and not self.stdin.is_closing():
                    with contextlib.suppress(ConnectionError):
                        self.stdin.write(data)
                        await self.stdin.drain()
                self.stdin.close()

        async def read(stream: asyncio.StreamReader | None) -> bytes:
            return await stream.read() if stream is not None else b""

        _, out, err, _ = await asyncio.gather(write(), read(self.stdout), read(self.stderr), self.wait())
        return out, err

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its status is on the way
                os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)

    def _on_end(self) -> None:
        said = self._connection.recv(16)
        asyncio.get_running_loop().remove_reader(self._connection)
        self._connection.close()
        # No response: the server is gone, and its children with it.
        self.returncode = int(said) if said else -signal.SIGKILL
        self._ended.set_result(self.returncode)


async def start(
    *arguments: str,
    environment: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: Any = subprocess.DEVNULL,
    stderr: Any = subprocess.DEVNULL,
) -> Forked:
    """Run `heliograph` with these arguments. Each stream: `subprocess.PIPE`, `subprocess.DEVNULL`, or an open file."""
    given: list[int] = []
    ours: list[int | None] = []
    opened: list[int] = []
    for number, stream in enumerate((stdin, stdout, stderr)):
        mine: int | None = None
        if stream == subprocess.PIPE:
            reading, writing = os.pipe()
            theirs, mine = (reading, writing) if number == 0 else (writing, reading)
            opened.append(theirs)
        elif stream == subprocess.DEVNULL:
            theirs = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            opened.append(theirs)
        else:
            theirs = stream.fileno()
        given.append(theirs)
        ours.append(mine)
    request = {"arguments": arguments, "environment": dict(environment), "directory": os.getcwd()}
    try:
        connection, pid = await asyncio.to_thread(_ask, address(), request, given)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    process = Forked(connection, pid)
    loop = asyncio.get_running_loop()
    for number, mine in enumerate(ours):
        if mine is None:
            continue
        if number == 0:
            transport, protocol = await loop.connect_write_pipe(
                lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(mine, "wb", 0)
            )
            process.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        else:
            reader = asyncio.StreamReader(limit=2**24)
            await loop.connect_read_pipe(
                lambda reader=reader: asyncio.StreamReaderProtocol(reader),  # type: ignore[misc]
                os.fdopen(mine, "rb", 0),
            )
            setattr(process, ("stdin", "stdout", "stderr")[number], reader)
    return process


def _ask(address: str, request: Mapping[str, Any], files: Sequence[int]) -> tuple[socket.socket, int]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"\0{address}")
        raw = json.dumps(request).encode()
        head = len(raw).to_bytes(4, "big")
        assert socket.send_fds(connection, [head], files) == len(head)
        connection.sendall(raw)
        pid = int(_line(connection))
        connection.setblocking(False)
        return connection, pid
    except BaseException:
        connection.close()
        raise


def _line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(1)
        assert piece, "the server of forks is gone"
        line += piece
    return line


_server: tuple[int, str] | None = None


def share(given: str) -> None:
    """Use a server that another process has launched."""
    global _server
    _server = os.getpid(), given


def launch() -> str:
    """Start a process that forks commands. Returns the name of its address."""
    return fork_server.launch(__name__)


def address() -> str:
    """The address of the process that forks commands for this one."""
    if _server is None or _server[0] != os.getpid():
        share(launch())
    assert _server is not None
    return _server[1]


# ── The process that forks ────────────────────────────────────────────────────────────────────────────────────────────


def as_web_processes_begin() -> None:
    """Load the files that each web process reads when it starts and when it renders its first page."""
    for folder in (places.TEMPLATES, console_places.TEMPLATES):
        _, templates = kit((folder,))
        for name in templates.list_templates(extensions=["html"]):
            templates.get_template(name)
    openapi.document(OPERATIONS, "")
    shared_client_context()


def _import_everything() -> None:
    cli = importlib.import_module("heliograph.cli")
    for noun in cli.NOUNS:
        cli.module_of(noun)
    for late in ("heliograph.serve", "heliograph.worker", "uvloop"):
        importlib.import_module(late)
    as_web_processes_begin()
    # Modules that libraries import on first use: by a command that finds no database, and by one with --help.
    os.environ["HELIOGRAPH_DATABASE_URL"] = "postgresql://127.0.0.1:1/nowhere"
    with open(os.devnull, "w") as nobody, contextlib.redirect_stdout(nobody), contextlib.redirect_stderr(nobody):
        for words in (["org", "list"], ["org", "--help"]):
            sys.argv = ["heliograph", *words]
            _run()


def _become_command(request: dict[str, Any]) -> int:
    """Do what `python -m heliograph` would do."""
    fork_server.end_with_parent()
    os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout = _output(1, "strict")
    sys.stderr = _output(2, "backslashreplace")
    package = importlib.import_module("heliograph")
    sys.argv = [str(Path(package.__path__[0], "__main__.py")), *request["arguments"]]
    return _run()


def _output(number: int, errors: str) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors=errors, line_buffering=number == 2)


def _run() -> int:
    """The exit status of `heliograph`."""
    try:
        importlib.import_module("heliograph.cli").main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    fork_server.main(_import_everything, _become_command)
