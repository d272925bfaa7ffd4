"""Where the parts listen: free ports, addresses to connect to, and waiting until something answers there."""

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


def shown(host: str) -> str:
    """The address to connect to for a listening address."""
    if host in ("0.0.0.0", ""):
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def demand_free(host: str, port: int) -> None:
    """Raises UpError if it is not possible to listen there, with the reason."""
    error = _obstacle(host, port)
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        raise UpError(f"port {port} on {host} is in use; choose another with --port, or stop the process that uses it")
    raise UpError(f"cannot listen on port {port} of {host}: {error.strerror}; choose another with --port")


def is_free(host: str, port: int) -> bool:
    """True if it is possible to listen there. Raises UpError if the host is not an address of this machine."""
    return _obstacle(host, port) is None


def _resolved(host: str, port: int) -> tuple[Any, ...]:
    return socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]


def _obstacle(host: str, port: int) -> OSError | None:
    """Why it is not possible to listen there; None: it is. Raises UpError if the host is not an address of this
    machine."""
    try:
        family, _, _, _, address = _resolved(host, port)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise UpError(f"{host} is not an address of this machine: {error}") from None
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise UpError(f"{host} is not an address of this machine; choose another with --host") from None
        return error
    return None


@contextlib.contextmanager
def reserved(host: str, port: int) -> Iterator[None]:
    """Reserve the address for our own API. Raises UpError if it is not possible to listen there.

    Processes of the API share a port (`http.server.server.bound`), so those of another installation could bind it too
    before the first one listens: the kernel would divide requests between the two.
    """
    demand_free(host, port)
    with _reserve(host, port):
        yield


def _reserve(host: str, port: int) -> socket.socket:
    """A socket that never listens. Without SO_REUSEADDR, it would block `_obstacle`, and with SO_REUSEPORT it does not
    block the API."""
    family, _, _, _, address = _resolved(host, port)
    for reuse_address in (False, True):  # connections that another program closed are in the way of the former
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse_address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, True)
        with contextlib.suppress(OSError):
            sock.bind(address)
            break
        sock.close()
    return sock


def free_port(host: str) -> int:
    """A port on which nothing listens. Raises UpError."""
    # Below the range of outgoing connections, like PostgreSQL's port: a worker that keeps trying the simulator's port
    # while that is down could be assigned it as its own, connect to itself, and lock out the simulator.
    for port in random.sample(range(20_000, 32_000), 100):
        if is_free(host, port):
            return port
    raise UpError(f"no free port between 20000 and 32000 on {host}")


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
