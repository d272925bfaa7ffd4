"""Ports for processes that are started, killed and started again. The system reserves them for one test: nobody else
gets them while nothing listens there.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

#: Below the range of outgoing connections (32768 and up on Linux), and below the ports that `choose_port` picks; above
#: 10080, the last port that browsers refuse to connect to (the Fetch standard's "bad ports", but for those from 65535).
RANGE = range(10_081, 20_000)


def hold() -> socket.socket:
    """A socket that reserves a port of 127.0.0.1 until it is closed. A process that sets SO_REUSEADDR can listen on
    it."""
    return _hold_row(1)[0]


def number(held: socket.socket) -> int:
    """The reserved port."""
    port: int = held.getsockname()[1]
    return port


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """The number of a port, reserved meanwhile."""
    with hold() as held:
        yield number(held)


@contextlib.contextmanager
def held_row(count: int) -> Iterator[range]:
    """The numbers of consecutive ports, reserved meanwhile, for processes that each take the next free one."""
    with contextlib.ExitStack() as stack:
        row = [stack.enter_context(held) for held in _hold_row(count)]
        yield range(number(row[0]), number(row[0]) + count)


def _hold_row(count: int) -> list[socket.socket]:
    for first in random.sample(RANGE, 200):
        row: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                row.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                # Bind without the option, so that a port held or listened on by somebody else is refused; set it
                # afterwards, so that it can be listened on.
                row[-1].bind(("127.0.0.1", port))
                row[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            for held in row:
                held.close()
            continue
        return row
    raise RuntimeError("no free port")
