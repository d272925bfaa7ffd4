"""A server: listening sockets whose connections belong to one service, and how they are stopped.

The rule nobody may break: a stopping server answers the requests that it has begun, and accepts nothing new.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Sequence

from heliograph.http.server.connection import ServerConnection
from heliograph.http.server.exchange import Service

_BACKLOG = 4_096
#: A connection's buffer in the kernel, bytes; the kernel doubles it for its own overhead.
_SEND_BUFFER = 65_536
#: Unacknowledged data ends a connection after this time, even one already closed here; milliseconds.
_USER_TIMEOUT = 20_000


class CannotListen(Exception):
    """An address cannot be listened on; the message names it, and says why."""


def place_of(listen: str) -> tuple[str, int]:
    """The host and the port of an address in the settings."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def bound(host: str, port: int, *, shared: bool = True) -> socket.socket:
    """A bound socket; with `shared`, other processes can bind the address as well. `port` 0: any free one. It does not
    listen before `Server.start`: the kernel would give a process that is still starting its share of the connections,
    and they would wait. Raises CannotListen."""
    try:
        return _bound(host, port, shared=shared)
    except OSError as error:
        place = f"[{host}]" if ":" in host else host
        raise CannotListen(f"cannot listen on {place}:{port}: {error.strerror or error}") from error


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    family, kind, proto, _, address = info
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        sock.bind(address)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


class Server:
    """`start` it, `stop` it."""

    def __init__(self, service: Service, tasks: set[asyncio.Task[None]]) -> None:
        """`tasks`: the tasks that produce answers."""
        self._service = service
        self._tasks = tasks
        self._listening: list[asyncio.Server] = []
        self._sweep: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._service.registry.connections)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections from these bound sockets."""
        loop = asyncio.get_running_loop()
        self._sweep = loop.create_task(self._service.registry.run())
        for sock in sockets:
            # Inherited by its connections, so that the kernel keeps little of unread answers, and not for long; without
            # it, unread answers of a connection can take 4 MB in the kernel.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT)
            make = functools.partial(ServerConnection, self._service)
            self._listening.append(await loop.create_server(make, sock=sock, backlog=_BACKLOG))

    async def stop(self, seconds: float) -> None:
        """Stop accepting, wait at most `seconds` for requests in progress, then cut them off."""
        connections = self._service.registry.connections
        self._stop_listening()
        for connection in list(connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._service.registry.emptied()
                if self._tasks:
                    await asyncio.wait(self._tasks)
        tasks = list(self._tasks)
        self.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abort(self) -> None:
        """Stop accepting, and cut off all connections."""
        self._stop_listening()
        for connection in list(self._service.registry.connections):
            connection.give_way()
        for task in self._tasks:
            task.cancel()
        if self._sweep is not None:
            self._sweep.cancel()

    def _stop_listening(self) -> None:
        for server in self._listening:
            server.close()
        self._listening.clear()
