"""The proxy for a process forked by `tests/fork_server.py`: it hands over its streams, arguments, environment and
directory, forwards signals, and exits with the child's status. It imports next to nothing.

forked.py ADDRESS …
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from typing import Any


def main() -> int:
    """The exit status as a shell would report it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(f"\0{sys.argv[1]}")
        request = {"arguments": sys.argv[2:], "environment": dict(os.environ), "directory": os.getcwd()}
        raw = json.dumps(request).encode()
        socket.send_fds(connection, [len(raw).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(raw)
        # If an end of somebody's pipe stayed open here, nobody could tell that the other process has closed it.
        with open(os.devnull, "r+b", buffering=0) as nobody:
            for number in range(2):
                os.dup2(nobody.fileno(), number)
        said = b""
        while piece := connection.recv(64):
            if not said:
                pass_on_to(int(piece.partition(b"\n")[0]))
            said += piece
    status = said.partition(b"\n")[2]
    # No response: the process that forked it is gone.
    return (int(status) if int(status) >= 0 else 128 - int(status)) if status else 1


def pass_on_to(pid: int) -> None:
    """Forward this process's signals to that one."""

    def send(number: int, frame: Any) -> None:
        # It needs no signal if it has ended already; its status is on the way.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, send)
    # A process on our terminal gets the interrupt directly.
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(pid) != os.getpgid(0):
            signal.signal(signal.SIGINT, send)


if __name__ == "__main__":
    sys.exit(main())
