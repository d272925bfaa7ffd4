"""Where the parts listen: reserved ports, addresses to connect to, and waiting until something answers there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import random
import socket
from collections.abc import Iterator
from typing import Any

from heliograph.up.errors import UpError

#: How long to wait for a part that another one needs, in seconds.
SOON = 5.0
#: The options that choose the API's host and port.
OPTIONS = ("--host", "--port")


def shown(host: str) -> str:
    """The address to connect to for a listening address."""
    if host in ("0.0.0.0", ""):
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


@contextlib.contextmanager
def reserved(host: str, port: int, *, options: tuple[str, str] = OPTIONS) -> Iterator[int]:
    """Reserve the address for the processes of one of our parts, which share it (SO_REUSEPORT); 0: any free port.
    Yields the port. Raises UpError if it is not possible to listen there, which names the option to change.

    Nobody else can listen there until it ends, whether or not the part runs. Not even another installation: the kernel
    would divide requests between the two.
    """
    if port == 0:
        with reserved_if_free(host, 0) as free:
            yield free
        return
    try:
        sock = _reserve(host, port, options)
    except OSError as error:
        other = f"choose another with {options[1]}"
        if error.errno == errno.EADDRINUSE:
            raise UpError(f"port {port} on {host} is in use; {other}, or stop the process that uses it") from None
        raise UpError(f"cannot listen on port {port} of {host}: {error.strerror}; {other}") from None
    with sock:
        yield port


@contextlib.contextmanager
def reserved_if_free(host: str, wanted: int) -> Iterator[int]:
    """Reserve `wanted` as `reserved` does, or any free port if that is not possible. Raises UpError."""
    # Below the range of outgoing connections, like PostgreSQL's port: a worker that keeps trying the simulator's port
    # while that is down could be assigned it as its own, connect to itself, and lock out the simulator.
    candidates = random.sample(range(20_000, 32_000), 100)
    for port in [wanted, *candidates] if wanted else candidates:
        try:
            sock = _reserve(host, port)
        except OSError:
            continue
        with sock:
            yield port
        return
    raise UpError(f"no free port between 20000 and 32000 on {host}")


def _reserve(host: str, port: int, options: tuple[str, str] = OPTIONS) -> socket.socket:
    """A socket that is bound there and does not listen. Raises OSError if somebody listens or will, and UpError if the
    host is not an address of this machine."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise UpError(f"{host} is not an address of this machine: {error}") from None
    try:
        return _held(family, address)
    except OSError as error:
        # A name may have an IPv6 address where the kernel knows only IPv4.
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise UpError(f"{host} is not an address of this machine; choose another with {options[0]}") from None
        raise


def _held(family: int, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections that another program closed are not in the way of this option. It lets several bind, but only one
        # listen, so that of two who reserve the address one is refused; on Linux it remains bound after that.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(1)
        # Unset while it listens: afterwards, somebody who has bound already could listen as well.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        sock.shutdown(socket.SHUT_RDWR)
        # From now on, only those can listen who set this one, as our parts do.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        sock.close()
        raise
    return sock


def is_loopback(host: str) -> bool:
    """True if only this machine can reach what listens there."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


async def listens(host: str, port: int) -> None:
    """Return once something listens there, or when waiting longer is pointless."""
    deadline = asyncio.get_running_loop().time() + SOON
    while asyncio.get_running_loop().time() < deadline:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return


async def answers(host: str, port: int, stop: asyncio.Event) -> None:
    """Return once the API reports that it has a worker, or once `stop` is set. Whatever else is degraded may stay so,
    such as the queue for as long as a supplier is paused."""
    request = b"GET /v1/health HTTP/1.1\r\nhost: heliograph\r\nconnection: close\r\n\r\n"
    while not stop.is_set():
        try:
            reader, writer = await asyncio.open_connection(shown(host).strip("[]"), port)
            if writer.is_closing():  # uvloop raises RuntimeError for a write after that
                raise ConnectionResetError
            writer.write(request)
            answer = await asyncio.wait_for(reader.read(), 5.0)
            writer.close()
            if b" 200 " in answer[:20] and b'"worker":"ok"' in answer:
                return
        except (OSError, TimeoutError):
            await asyncio.sleep(0.05)
            continue
        await asyncio.sleep(0.05)
