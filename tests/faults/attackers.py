"""What hostile clients do to the web process, as a separate process so that its work is not counted as the measured
client's: `python -m tests.faults.attackers KIND PORT SECONDS`. Each kind keeps to a rate that one attacking machine can
easily sustain. It prints `begun` after its first round, and at the end the number of connections opened.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import time
from collections.abc import Callable

#: The source address of every attack; the measured client uses another one.
SOURCE = "127.0.0.66"
_CHUNKED = b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
_DOCUMENT = b"GET /v1/openapi.json HTTP/1.1\r\nHost: a\r\n\r\n"


def connect_and_send(port: int, first: bytes) -> socket.socket | None:
    """A new connection on which `first` has been sent, or as much of it as the socket took; None if the connection
    failed."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.settimeout(1.0)
    try:
        sock.bind((SOURCE, 0))
        sock.connect(("127.0.0.1", port))
        sock.setblocking(False)
        sock.send(first)
    except OSError:
        sock.close()
        return None
    return sock


def endless(first: bytes, piece: bytes) -> Callable[[int, float], int]:
    """Eight connections that send `first` and then `piece` without end; a closed one is replaced."""

    def run(port: int, until: float) -> int:
        socks: list[socket.socket] = []
        count = 0
        while time.monotonic() < until:
            while len(socks) < 8:
                sock = connect_and_send(port, first)
                count += 1
                if sock is None:
                    break
                socks.append(sock)
            _, writable, _ = select.select([], socks, [], 0.05)
            for sock in writable:
                try:
                    sock.send(piece)
                except BlockingIOError:
                    pass
                except OSError:
                    socks.remove(sock)
                    sock.close()
            _announce(count)
            time.sleep(0.02)
        for sock in socks:
            sock.close()
        return count

    return run


def idle(first: bytes, number: int, pace: float) -> Callable[[int, float], int]:
    """Up to `number` connections that send `first` and never read; one is opened every `pace` seconds, and beyond
    `number` the oldest is closed."""

    def run(port: int, until: float) -> int:
        socks: list[socket.socket] = []
        count = 0
        while time.monotonic() < until:
            sock = connect_and_send(port, first)
            count += 1
            if sock is not None:
                socks.append(sock)
            if len(socks) > number:
                socks.pop(0).close()
            if count >= min(number, 100):
                _announce(count)
            time.sleep(pace)
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.close()
        return count

    return run


KINDS = {
    "trailers": endless(_CHUNKED + b"0\r\nX: ", b"a" * 65_536),
    "many trailers": endless(_CHUNKED + b"0\r\n", b"X: y\r\n" * 10_000),
    "headers": endless(b"GET /v1/health HTTP/1.1\r\nHost: a\r\nX: ", b"a" * 65_536),
    "many headers": endless(b"GET /v1/health HTTP/1.1\r\nHost: a\r\n", b"X: y\r\n" * 10_000),
    "no reading": idle(_DOCUMENT * 64, 400, 0.005),
    "connections": idle(b"", 8_192, 0.001),
}

_announced = False


def _announce(count: int) -> None:
    global _announced
    if not _announced and count:
        _announced = True
        print("begun", flush=True)


if __name__ == "__main__":
    print(KINDS[sys.argv[1]](int(sys.argv[2]), time.monotonic() + float(sys.argv[3])), flush=True)
