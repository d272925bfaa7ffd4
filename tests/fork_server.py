"""A process that imports once what many children need, and forks one of them per connection.

The client sends a description of the child as JSON, with its stdin, stdout and stderr. The response is the child's pid
and, when it has ended, its status. If the client disconnects, the child is killed.

`tests/forks.py` runs `heliograph` commands in this way, `tests/workers.py` the processes that run tests.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
#: prctl(2): the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1
#: What a child does with the request, after its three streams are in place. Returns its exit status.
Become = Callable[[dict[str, Any]], int]


def end_with_parent() -> None:
    """Called first in a child: it ends with its parent, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def launch(module: str, *arguments: str) -> str:
    """Run `module`, which calls `main`, until this process ends. Returns the name of its address."""
    # An abstract socket address, which leaves no file behind.
    name = f"heliograph-tests-{os.getpid()}-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen(128)
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(listener.fileno()), *arguments],
            cwd=ROOT,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            preexec_fn=end_with_parent,
        )
    atexit.register(_end, process)
    return name


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def standing_for(address: str) -> list[str]:
    """A command whose process acts as proxy for one that is forked there; arguments may follow."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("forked.py")), address]


def main(prepare: Callable[[], None], become: Become) -> NoReturn:
    """Fork for each connection to the listener that `launch` passed on. Imports by `prepare`, which runs at the first
    request, are shared by all children."""
    # An interrupt of the tests reaches each of their processes. This one has nothing to finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Under nohup, SIGHUP is ignored and programs inherit that, but programs started by tests have to receive it. A
    # handler also survives a SIGHUP, and is not inherited across exec.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        select.select([listener], [], [])
        prepare()
        # The children's garbage collector must not visit existing objects, which would copy all their pages.
        gc.collect()
        gc.freeze()
        assert len(os.listdir("/proc/self/task")) == 1, "a thread would not live in the children"
        _serve(listener, become)


def _serve(listener: socket.socket, become: Become) -> NoReturn:
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    running: dict[socket.socket, tuple[int, int]] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                request, files = _read(connection)
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    listener.close()
                    for one, (_, ended) in running.items():
                        one.close()
                        os.close(ended)
                    connection.close()
                    _be(become, request, files)
                for descriptor in files:
                    os.close(descriptor)
                connection.sendall(b"%d\n" % pid)
                ended = os.pidfd_open(pid)
                running[connection] = pid, ended
                selector.register(ended, selectors.EVENT_READ, connection)
                selector.register(connection, selectors.EVENT_READ)
            elif isinstance(key.fileobj, socket.socket):
                if key.fileobj in running:  # the client disconnected before its child ended
                    selector.unregister(key.fileobj)
                    os.kill(running[key.fileobj][0], signal.SIGKILL)
            else:
                connection = key.data
                pid, ended = running.pop(connection)
                _, status = os.waitpid(pid, 0)
                selector.unregister(ended)
                os.close(ended)
                with contextlib.suppress(KeyError):
                    selector.unregister(connection)
                with contextlib.suppress(ConnectionError):
                    connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))
                connection.close()


def _read(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, files, _, _ = socket.recv_fds(connection, 4, 3)
    assert len(head) == 4
    assert len(files) == 3
    raw, length = b"", int.from_bytes(head, "big")
    while len(raw) < length:
        piece = connection.recv(length - len(raw))
        assert piece
        raw += piece
    return json.loads(raw), files


def _be(become: Become, request: dict[str, Any], files: Sequence[int]) -> NoReturn:
    """Run in the child until its end."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
            os.close(descriptor)
        status = become(request)
        threading._shutdown()  # type: ignore[attr-defined]  # as at the end of any process
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(status)
