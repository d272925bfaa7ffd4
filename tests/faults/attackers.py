"""What hostile clients do to the door, as a process of its own, so that its work is not the measured client's:
`python -m tests.faults.attackers KIND PORT SECONDS`. Each kind keeps a pace that one machine of an attacker's keeps
easily. It says `begun` when its first round is done, and at its end how many connections it opened.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import time
from collections.abc import Callable

#: They all come from here; who is measured comes from elsewhere.
SOURCE = "127.0.0.66"
_CHUNKED = b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
_DOCUMENT = b"GET /v1/openapi.json HTTP/1.1\r\nHost: a\r\n\r\n"


def opened(port: int, first: bytes) -> socket.socket | None:
    """A connection on which `first` was sent as far as it went; None if there is none to be had."""
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


def pouring(first: bytes, piece: bytes) -> Callable[[int, float], int]:
    """Eight connections that begin with `first` and send `piece` for ever; one that ends is followed by another."""

    def run(port: int, until: float) -> int:
        socks: list[socket.socket] = []
        count = 0
        while time.monotonic() < until:
            while len(socks) < 8:
                sock = opened(port, first)
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
            _begun(count)
            time.sleep(0.02)
        for sock in socks:
            sock.close()
        return count

    return run


def holding(first: bytes, number: int, pace: float) -> Callable[[int, float], int]:
    """`number` connections that send `first` and read nothing; what ends is followed by another, one each `pace`
    seconds."""

    def run(port: int, until: float) -> int:
        socks: list[socket.socket] = []
        count = 0
        while time.monotonic() < until:
            sock = opened(port, first)
            count += 1
            if sock is not None:
                socks.append(sock)
            if len(socks) > number:
                socks.pop(0).close()
            if count >= min(number, 100):
                _begun(count)
            time.sleep(pace)
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.close()
        return count

    return run


KINDS = {
    "trailers": pouring(_CHUNKED + b"0\r\nX: ", b"a" * 65_536),
    "many trailers": pouring(_CHUNKED + b"0\r\n", b"X: y\r\n" * 10_000),
    "headers": pouring(b"GET /v1/health HTTP/1.1\r\nHost: a\r\nX: ", b"a" * 65_536),
    "many headers": pouring(b"GET /v1/health HTTP/1.1\r\nHost: a\r\n", b"X: y\r\n" * 10_000),
    "no reading": holding(_DOCUMENT * 64, 400, 0.005),
    "connections": holding(b"", 8_192, 0.001),
}

_said = False


def _begun(count: int) -> None:
    global _said
    if not _said and count:
        _said = True
        print("begun", flush=True)


if __name__ == "__main__":
    print(KINDS[sys.argv[1]](int(sys.argv[2]), time.monotonic() + float(sys.argv[3])), flush=True)
