"""The kernel's side of connections."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import resource
import socket
import struct
import termios

#: SO_LINGER on, for no time.
_AT_ONCE = struct.pack("ii", 1, 0)


def allow(files: int) -> int | None:
    """Let this process open that many files, each connection being one, or as many as it may; returns how many that
    are, None: any number. The usual limit, 1,024, is meant for programs that cannot handle more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return None if soft == resource.RLIM_INFINITY else soft


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
