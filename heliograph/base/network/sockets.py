"""The kernel's side of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios

#: SO_LINGER on, for no time.
_AT_ONCE = struct.pack("ii", 1, 0)


def reset(transport: asyncio.BaseTransport) -> None:
    """Make closing this connection reset it: otherwise the kernel keeps retransmitting unread data for minutes. Does
    not close it."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)


def unconfirmed(transport: asyncio.BaseTransport) -> int:
    """Bytes accepted by the kernel but not acknowledged by the other side; 0 if the kernel does not report it."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError, ValueError):
            count: int = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0]
            return count
    return 0
