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
    for port in random.sample(RANGE, 200):
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # Without the option, so that a port which somebody else holds or listens on is none; with it from then on,
            # so that it can be listened on.
            held.bind(("127.0.0.1", port))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            held.close()
            continue
        return held
    raise RuntimeError("no free port")


def number(held: socket.socket) -> int:
    """The port that is held."""
    port: int = held.getsockname()[1]
    return port


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """The number of a port that is held meanwhile."""
    with hold() as held:
        yield number(held)
