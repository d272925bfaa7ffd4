"""`heliograph` commands as processes that are forked from one that has imported everything, and otherwise are like any
others: a session, an environment and files of their own, their own exit status, killed when the test process ends.

A start costs 0.6 s of processor time, of which nearly all is imports; a fork costs 0.02 s. Hundreds of commands are run
by tests whose subject is what a command does. How Python itself starts (locale, `PYTHON*`, the command's place) is the
subject of others, which execute the program: `tests/unit/test_console.py` and `tests/journeys/test_up.py`.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

#: prctl(2): the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1
#: The longest request, bytes: arguments, environment and directory.
LONGEST = 1 << 20
ROOT = Path(__file__).resolve().parents[1]


class Request(msgspec.Struct):
    """What is to run. Three file descriptors come with it."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str


def end_with_parent() -> None:
    """In a child, before it does anything: it ends with its parent, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Forked:
    """A command that was forked; the part of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        #: As in subprocess; None while it runs, or until somebody waits.
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._ended = asyncio.get_running_loop().create_future()
        self._connection = connection
        asyncio.get_running_loop().add_reader(connection, self._on_end)

    async def wait(self) -> int:
        """Its status, once it has ended."""
        return int(await asyncio.shield(self._ended))

    async def communicate(self, data: bytes = b"") -> tuple[bytes, bytes]:
        """What it says on stdout and stderr, as far as they are pipes, once it has ended; `data` is its stdin."""

        async def write() -> None:
            if self.stdin is not None:
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
            with contextlib.suppress(ProcessLookupError):  # it has, and the word is on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)

    def _on_end(self) -> None:
        said = self._connection.recv(16)
        asyncio.get_running_loop().remove_reader(self._connection)
        self._connection.close()
        # Without a word, the server is gone, and its children with it.
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
    request = Request(list(arguments), dict(environment), os.getcwd())
    try:
        connection, pid = await asyncio.to_thread(_ask, _server(), request, given)
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


def _ask(address: str, request: Request, files: Sequence[int]) -> tuple[socket.socket, int]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address)
        raw = msgspec.json.encode(request)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        head = len(raw).to_bytes(4, "big")
        assert connection.sendmsg([head], ancillary) == len(head)
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


_started: tuple[int, subprocess.Popen[bytes], str] | None = None


def _server() -> str:
    """The address of this test process's server; it is started when it is first needed, and ends with the process."""
    global _started
    if _started is None or _started[0] != os.getpid():
        # An abstract address: nothing that anybody would have to remove.
        address = f"\0heliograph-tests-{os.getpid()}-{os.urandom(8).hex()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(address)
            listener.listen(128)
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(listener.fileno())],
                cwd=ROOT,
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                preexec_fn=end_with_parent,
            )
        _started = (os.getpid(), process, address)
        atexit.register(process.kill)
    return _started[2]


# ── The server ────────────────────────────────────────────────────────────────────────────────────────────────────────


def serve(listener: socket.socket) -> NoReturn:
    """Fork a process for each connection, and say how it ended."""
    _import_everything()
    # What is there already is not looked at by the children's collector, which would copy all its pages.
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a thread would not live in the children"
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                request, files = _read(connection)
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    listener.close()
                    connection.close()
                    _become(request, files)
                for descriptor in files:
                    os.close(descriptor)
                connection.sendall(b"%d\n" % pid)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
            else:
                pid, connection = key.data
                _, status = os.waitpid(pid, 0)
                selector.unregister(key.fd)
                os.close(key.fd)
                with contextlib.suppress(ConnectionError):  # nobody wants to know
                    connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))
                connection.close()


def _import_everything() -> None:
    cli = importlib.import_module("heliograph.cli")
    for noun in cli.ROOMS:
        cli.module_of(noun)
    for late in ("heliograph.serve", "heliograph.worker", "uvloop"):
        importlib.import_module(late)
    # What the libraries import when they are used first: a command that finds no database, and one that is explained.
    os.environ["HELIOGRAPH_DATABASE_URL"] = "postgresql://127.0.0.1:1/nowhere"
    with open(os.devnull, "w") as nobody, contextlib.redirect_stdout(nobody), contextlib.redirect_stderr(nobody):
        for words in (["org", "list"], ["org", "--help"]):
            sys.argv = ["heliograph", *words]
            _run()


def _read(connection: socket.socket) -> tuple[Request, list[int]]:
    head, files, _, _ = socket.recv_fds(connection, 4, 3)
    length = int.from_bytes(head, "big")
    assert len(head) == 4
    assert len(files) == 3
    assert length <= LONGEST
    raw = b""
    while len(raw) < length:
        piece = connection.recv(length - len(raw))
        assert piece
        raw += piece
    return msgspec.json.decode(raw, type=Request), files


def _become(request: Request, files: Sequence[int]) -> NoReturn:
    """In the child: be what `python -m heliograph` would be, to the end."""
    status = 1
    try:
        end_with_parent()
        os.setsid()
        os.chdir(request.directory)
        os.environ.clear()
        os.environ.update(request.environment)
        time.tzset()
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
        sys.stdout = _output(1, "strict")
        sys.stderr = _output(2, "backslashreplace")
        package = importlib.import_module("heliograph")
        sys.argv = [str(Path(package.__path__[0], "__main__.py")), *request.arguments]
        status = _run()
        threading._shutdown()  # type: ignore[attr-defined]  # as at the end of any process
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(status)


def _output(number: int, errors: str) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors=errors, line_buffering=number == 2)


def _run() -> int:
    """The status of `heliograph`'s end."""
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
    with socket.socket(fileno=int(sys.argv[1])) as inherited:
        serve(inherited)
