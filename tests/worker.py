"""What xdist starts as a worker: it has one forked by the process of `tests/workers.py`, hands it its streams, and ends
when that ends. It imports next to nothing, for it is started six times.

    worker.py ADDRESS …
"""

from __future__ import annotations

import os
import signal
import socket
import sys


def main() -> int:
    """The worker's status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker answers it
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(f"\0{sys.argv[1]}")
        request = b"{}"
        socket.send_fds(connection, [len(request).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(request)
        # An end of xdist's pipe that stayed open here would hide that the worker's is closed.
        with open(os.devnull, "r+b", buffering=0) as nobody:
            os.dup2(nobody.fileno(), 0)
            os.dup2(nobody.fileno(), 1)
        said = b""
        while piece := connection.recv(64):
            said += piece
    _, _, status = said.partition(b"\n")
    # Without a word, the process that forked it is gone. One that a signal ended has a status as in a shell.
    return (int(status) if int(status) >= 0 else 128 - int(status)) if status else 1


if __name__ == "__main__":
    sys.exit(main())
