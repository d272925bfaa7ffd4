"""Ports for what is started, killed and started again. The system keeps them for one test: nobody else is given them
while nothing listens there.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

#: Below the range of outgoing connections (32768 and up on Linux), and below what `choose_port` takes.
RANGE = range(10_000, 20_000)


def hold() -> socket.socket:
    """A socket that holds a port of 127.0.0.1 until it is closed. Whoever sets SO_REUSEADDR can listen on it."""
    return _hold_row(1)[0]


def number(held: socket.socket) -> int:
    """The port that is held."""
    port: int = held.getsockname()[1]
    return port


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """The number of a port that is held meanwhile."""
    with hold() as held:
        yield number(held)


@contextlib.contextmanager
def held_row(count: int) -> Iterator[range]:
    """The numbers of ports in a row that are held meanwhile, for processes of which each takes the next free one."""
    with contextlib.ExitStack() as stack:
        row = [stack.enter_context(held) for held in _hold_row(count)]
        yield range(number(row[0]), number(row[0]) + count)


def _hold_row(count: int) -> list[socket.socket]:
    for first in random.sample(RANGE, 200):
        row: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                row.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                # Without the option, so that a port which somebody else holds or listens on is none; with it from then
                # on, so that it can be listened on.
                row[-1].bind(("127.0.0.1", port))
                row[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            for held in row:
                held.close()
            continue
        return row
    raise RuntimeError("no free port")
